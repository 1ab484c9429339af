//! Allow and deny by CIDR, from the start and while the sandbox runs.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use super::super::slot::GATEWAY;
use super::super::{Denial, change};
use super::*;

fn policy(allow: &[&str], deny: &[&str]) -> NetworkPolicy {
    let list = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    NetworkPolicy::Full {
        allow: list(allow),
        deny: list(deny),
    }
}

#[test]
fn allow_beats_deny_beats_the_default_and_closed_stays_closed() {
    on_own_host(|host| {
        host.ensure();
        let range = SlotRange::default();
        let lists = policy(&["198.51.100.0/24", "0.0.0.0/1"], &["0.0.0.0/0"]);
        let network = create(&lists, SLOT, &range).unwrap();
        let open = host.sandbox(NEIGHBOUR);
        let server = inside(&host.internet.descriptor, || udp((ANY, 7000)));

        say(&network.namespace, (SERVER, 7000), "allowed");
        assert_eq!(receive(&server).0, "allowed");
        assert_denied(SLOT, Denial::Policy, || {
            say(&network.namespace, (OTHER_SERVER, 7000), "denied");
        });
        assert_denied(SLOT, Denial::ClosedRange, || {
            say(&network.namespace, (CLOSED[0], 7000), "closed");
        });
        // The control: for another sandbox nothing of this holds.
        say(&open.namespace, (OTHER_SERVER, 7000), "open");
        assert_eq!(receive(&server).0, "open");
        assert_eq!(usage(NEIGHBOUR).denied.len(), 0);
        assert_silent(&server);
    });
}

#[test]
fn a_change_cuts_what_it_forbids_and_nothing_else() {
    on_own_host(|host| {
        host.ensure();
        let range = SlotRange::default();
        let network = host.sandbox(SLOT);
        let connect = |target| {
            let listener = inside(&host.internet.descriptor, || {
                TcpListener::bind((target, 8080)).unwrap()
            });
            let near = inside(&network.namespace, || {
                TcpStream::connect_timeout(&(target, 8080).into(), PATIENCE).unwrap()
            });
            let (far, _) = listener.accept().unwrap();
            far.set_read_timeout(Some(PATIENCE)).unwrap();
            (near, far)
        };
        let passes = |(near, far): &mut (TcpStream, TcpStream)| {
            near.write_all(b"on").unwrap();
            let mut text = [0; 2];
            far.read_exact(&mut text).unwrap();
        };
        let (mut kept, mut cut) = (connect(SERVER), connect(OTHER_SERVER));
        passes(&mut kept);
        passes(&mut cut);

        change(&policy(&[], &["198.51.101.0/24"]), SLOT, &range).unwrap();
        passes(&mut kept);
        assert_denied(SLOT, Denial::Policy, || cut.0.write_all(b"on").unwrap());
        cut.1.set_nonblocking(true).unwrap();
        assert!(cut.1.read(&mut [0; 2]).is_err());

        // Everything is open again, and even that connection goes on.
        change(&NetworkPolicy::full(), SLOT, &range).unwrap();
        cut.1.set_nonblocking(false).unwrap();
        let mut text = [0; 2];
        cut.1.read_exact(&mut text).unwrap();
        passes(&mut kept);
    });
}

#[test]
fn a_policy_of_nothing_closes_names_too_and_counters_go_on() {
    on_own_host(|host| {
        host.ensure();
        let range = SlotRange::default();
        let network = host.sandbox(SLOT);
        let ask = || say(&network.namespace, (GATEWAY, 53), "a question");
        ask();
        wait_for(
            || usage(SLOT).dns.packets == 1,
            || format!("{:?}", usage(SLOT)),
        );
        let before = usage(SLOT).sent;

        change(&NetworkPolicy::None, SLOT, &range).unwrap();
        assert_denied(SLOT, Denial::Policy, || {
            say(&network.namespace, (SERVER, 7000), "denied");
        });
        assert_denied(SLOT, Denial::Dns, ask);
        assert_eq!(usage(SLOT).sent.packets, before.packets + 2);

        change(&policy(&["198.51.100.7"], &["0.0.0.0/0"]), SLOT, &range).unwrap();
        let denied_before = denied(SLOT, Denial::Dns);
        ask();
        wait_for(
            || usage(SLOT).dns.packets == 1,
            || format!("{:?}", usage(SLOT)),
        );
        assert_eq!(denied(SLOT, Denial::Dns), denied_before);
    });
}

#[test]
fn long_lists_and_many_changes_leave_nothing_over() {
    on_own_host(|host| {
        host.ensure();
        let range = SlotRange::default();
        let _network = host.sandbox(SLOT);
        let entries: Vec<String> = (0..256).map(|number| format!("192.0.2.{number}")).collect();
        let entries: Vec<&str> = entries.iter().map(String::as_str).collect();
        for _ in 0..3 {
            change(&policy(&entries, &entries), SLOT, &range).unwrap();
            change(&policy(&[], &["0.0.0.0/0"]), SLOT, &range).unwrap();
        }
        let listed = |set| nft::run("list a set", &["list", "set", "inet", "atoll", set], "");
        assert!(!listed("allowed").unwrap().contains("elements"));
        assert_eq!(listed("refused").unwrap().matches("atl4000").count(), 1);
        Member::of(SLOT).leave().unwrap();
        assert!(!listed("refused").unwrap().contains("elements"));
    });
}
