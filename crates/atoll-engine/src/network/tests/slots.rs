//! Slots: what a dead owner left, what fails half-way, what is not ours.

use super::super::netlink::Netlink;
use super::super::{NetworkError, veth};
use super::*;

#[test]
fn what_a_dead_owner_left_is_replaced_reaped_and_listed() {
    on_own_host(|host| {
        host.ensure();
        // A child of the test would keep a namespace alive just like this descriptor does.
        let dead = host.sandbox(SLOT);
        drop(dead.dns);
        let fresh = host.sandbox(SLOT);
        inside(&dead.namespace, || assert_eq!(interfaces(), ["lo"]));
        inside(&fresh.namespace, || {
            assert_eq!(interfaces(), ["lo", "eth0"]);
        });
        let _other = host.sandbox(NEIGHBOUR);
        assert_eq!(veth::live_veths().unwrap(), [SLOT, NEIGHBOUR]);
        veth::reap(SLOT).unwrap();
        veth::reap(SLOT).unwrap();
        assert_eq!(veth::live_veths().unwrap(), [NEIGHBOUR]);
        inside(&fresh.namespace, || assert_eq!(interfaces(), ["lo"]));
    });
}

#[test]
fn a_create_that_fails_leaves_no_interface() {
    on_own_host(|host| {
        host.ensure();
        // The host's own resolver listens everywhere.
        let _resolver = udp((ANY, 53));
        let error = create(&NetworkPolicy::full(), SLOT, &SlotRange::default()).unwrap_err();
        assert!(
            matches!(
                &error,
                NetworkError::DnsPort {
                    protocol: "udp",
                    ..
                }
            ),
            "{error}"
        );
        assert!(error.hint().unwrap().contains("listens on all addresses"));
        assert_eq!(veth::live_veths().unwrap(), [0_u16; 0]);
    });
}

#[test]
fn an_interface_that_is_no_veth_is_not_touched() {
    on_own_host(|host| {
        host.ensure();
        let bridge = LinkMessageBuilder::<rtnetlink::LinkBridge>::new("atl4000").build();
        Netlink::open().unwrap().add_link(bridge).unwrap();
        assert!(
            matches!(veth::reap(SLOT), Err(NetworkError::ForeignInterface(name)) if name == "atl4000")
        );
        let refused = create(&NetworkPolicy::full(), SLOT, &SlotRange::default());
        assert!(matches!(refused, Err(NetworkError::ForeignInterface(_))));
        assert!(interfaces().contains(&"atl4000".to_owned()));
    });
}
