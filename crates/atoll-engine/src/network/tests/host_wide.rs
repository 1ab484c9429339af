//! What all sandboxes share: made with the first, gone with the last.

use serde_json::Value;

use super::super::host_wide::forget_dead;
use super::super::{HostNetwork, NetworkError, forwarding, nft, setting, veth};
use super::*;

#[test]
fn the_host_is_as_before_when_the_last_sandbox_is_gone() {
    on_own_host(|host| {
        for before in ["0", "1"] {
            setting::write("net/ipv4/ip_forward", before).unwrap();
            host.ensure();
            assert!(forwarding::is_on().unwrap());
            assert!(nft::rule_count().unwrap() > 0);
            host.ensure();
            host.release();
            assert_eq!(setting::read("net/ipv4/ip_forward").unwrap(), before);
            assert_eq!(nft::rule_count().unwrap(), 0);
            let tables = nft::run("list tables", &["list", "tables"], "").unwrap();
            assert_eq!(tables, "");
            assert!(!host.record().exists());
            host.release();
        }
    });
}

#[test]
fn an_ensure_that_was_killed_at_any_step_is_finished_or_undone() {
    on_own_host(|host| {
        host.ensure();
        let done = fs::read_to_string(host.record()).unwrap();
        let mut record: Value = serde_json::from_str(&done).unwrap();
        record["rules"] = Value::Null;
        let about_to = record.to_string();
        host.release();

        let states = [
            ("0", Table::Absent),
            ("0", Table::Loaded),
            ("1", Table::Loaded),
        ];
        for (forwarding, table) in states {
            for next in [Host::ensure, Host::release] {
                fs::write(host.record(), &about_to).unwrap();
                setting::write("net/ipv4/ip_forward", forwarding).unwrap();
                if table == Table::Loaded {
                    nft::replace_tables(&firewall::ruleset(&SlotRange::default())).unwrap();
                }
                next(host);
                if host.record().exists() {
                    assert_eq!(fs::read_to_string(host.record()).unwrap(), done);
                }
                host.release();
                assert!(
                    !forwarding::is_on().unwrap(),
                    "forwarding was ours to switch off"
                );
                assert_eq!(nft::rule_count().unwrap(), 0);
            }
        }
    });
}

#[test]
fn the_intent_is_recorded_before_the_first_effect() {
    on_own_host(|host| {
        let record = host.record();
        let host_wide = HostWide::at(&record);
        let result = host_wide.ensure_with(&SlotRange::default(), |_| {
            let intent: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
            assert_eq!(intent["forwarding_before"], "off");
            assert_eq!(intent["rules"], Value::Null);
            assert!(
                !forwarding::is_on().unwrap(),
                "never forwarding without rules"
            );
            Err(NetworkError::NftMissing)
        });
        assert!(matches!(result, Err(NetworkError::NftMissing)));
        assert!(!forwarding::is_on().unwrap());
        assert!(record.exists());
        host.release();
        assert!(!record.exists());
    });
}

#[derive(Clone, Copy, PartialEq)]
enum Table {
    Absent,
    Loaded,
}

#[test]
fn ensure_repairs_what_others_changed_and_trusts_no_record_of_another_boot() {
    on_own_host(|host| {
        host.ensure();
        let rules = nft::rule_count().unwrap();
        nft::run("flush", &["flush", "table", "inet", "atoll"], "").unwrap();
        setting::write("net/ipv4/ip_forward", "0").unwrap();
        host.ensure();
        assert_eq!(nft::rule_count().unwrap(), rules);
        assert!(forwarding::is_on().unwrap());

        let mut record: Value = serde_json::from_slice(&fs::read(host.record()).unwrap()).unwrap();
        record["boot"] = "another".into();
        for stale in [record.to_string(), "{ half a rec".to_owned()] {
            fs::write(host.record(), stale).unwrap();
            host.release();
            assert!(forwarding::is_on().unwrap(), "not known to be ours");
            assert_eq!(nft::rule_count().unwrap(), 0);
            assert!(!host.record().exists());
        }
    });
}

#[test]
fn one_host_has_one_slot_range_while_sandboxes_live() {
    on_own_host(|host| {
        host.ensure();
        let record = host.record();
        let other: SlotRange = "10.99.0.0/16".parse().unwrap();
        let network = host.sandbox(SLOT);
        let refused = HostWide::at(&record).ensure(&other, || Ok(Vec::new()));
        assert!(matches!(refused, Err(NetworkError::RangeConflict { .. })));
        drop(network);
        veth::reap(SLOT).unwrap();
        HostWide::at(&record)
            .ensure(&other, || Ok(Vec::new()))
            .unwrap();
        create(&NetworkPolicy::full(), SLOT, &other).unwrap();
        assert_eq!(other.address(SLOT).unwrap(), Ipv4Addr::new(10, 99, 15, 161));
    });
}

#[test]
fn rules_that_somebody_removed_are_loaded_again_for_those_who_live() {
    on_own_host(|host| {
        host.ensure();
        let network = host.sandbox(SLOT);
        let server = inside(&host.internet.descriptor, || udp((SERVER, 7000)));
        nft::run("flush everything", &["flush", "ruleset"], "").unwrap();
        say(&network.namespace, (SERVER, 7000), "nobody translates");
        assert_silent(&server);
        let live = vec![(SLOT, NetworkPolicy::full())];
        HostWide::at(&host.record())
            .ensure(&SlotRange::default(), || Ok(live))
            .unwrap();
        say(&network.namespace, (SERVER, 7000), "as before");
        assert_eq!(receive(&server).0, "as before");
    });
}

#[test]
fn two_hosts_on_one_machine_do_not_disturb_each_other() {
    on_own_host(|one| {
        one.ensure();
        let here = HostNetwork::current().unwrap();
        let rules = nft::rule_count().unwrap();
        on_own_host(|other| {
            assert_ne!(HostNetwork::current().unwrap(), here);
            // A record of another host says nothing about this one.
            fs::copy(one.record(), other.record()).unwrap();
            other.ensure();
            assert_eq!(nft::rule_count().unwrap(), rules);
            let record = fs::read(other.record()).unwrap();
            assert!(record != fs::read(one.record()).unwrap());
            // The same slot, at the same time.
            let _theirs = other.sandbox(SLOT);
            other.release();
            assert_eq!(nft::rule_count().unwrap(), 0);
        });
        assert_eq!(nft::rule_count().unwrap(), rules);
        one.sandbox(SLOT);
    });
}

#[test]
fn a_host_that_ended_is_forgotten_and_one_that_lives_is_not() {
    on_own_host(|one| {
        let records = one.directory.path().join("networks");
        fs::create_dir_all(&records).unwrap();
        one.ensure();
        let here = HostNetwork::current().unwrap();
        fs::copy(one.record(), records.join("own.json")).unwrap();
        let mut dead = None;
        on_own_host(|other| {
            other.ensure();
            let there = HostNetwork::current().unwrap();
            fs::copy(other.record(), records.join("other.json")).unwrap();
            // No process is in either, only threads: both live by their sandboxes.
            forget_dead(&records, &[here, there]).unwrap();
            assert!(records.join("other.json").exists());
            other.release();
            dead = Some(there);
        });
        // Its threads are gone; only leases could speak for it.
        forget_dead(&records, &[]).unwrap();
        assert!(!records.join("other.json").exists(), "{dead:?}");
        assert!(records.join("own.json").exists());
    });
}
