//! What is counted, for whom, and for how long.

use super::super::{Denial, Interface, conntrack, give_back, veth};
use super::*;

#[test]
fn what_is_sent_got_and_denied_is_counted_for_the_one_who_did_it() {
    on_own_host(|host| {
        host.ensure();
        let (network, neighbour) = (host.sandbox(SLOT), host.sandbox(NEIGHBOUR));
        assert_eq!(usage(SLOT), NetworkUsage::default());
        let server = inside(&host.internet.descriptor, || udp((SERVER, 7000)));
        let client = inside(&network.namespace, || udp((ANY, 0)));
        client.send_to(&[b'x'; 100], (SERVER, 7000)).unwrap();
        let (_, sender) = receive(&server);
        server.send_to(&[b'y'; 300], sender).unwrap();
        receive(&client);
        assert_denied(SLOT, Denial::ClosedRange, || {
            client.send_to(&[b'z'; 10], (CLOSED[0], 7000)).unwrap();
        });

        let headers = 28;
        let counted = usage(SLOT);
        let traffic = |packets, bytes| super::super::Traffic { packets, bytes };
        assert_eq!(counted.sent, traffic(2, 100 + 10 + 2 * headers));
        assert_eq!(counted.received, traffic(1, 300 + headers));
        assert_eq!(counted.dns, traffic(0, 0));
        assert_eq!(
            counted.denied.into_iter().collect::<Vec<_>>(),
            [(Denial::ClosedRange, traffic(1, 10 + headers))]
        );
        assert_eq!(usage(NEIGHBOUR), NetworkUsage::default());

        // The last word outlives the interface, as after a kill.
        drop((network, neighbour));
        veth::reap(SLOT).unwrap();
        assert_eq!(usage(SLOT).sent.packets, 2);
    });
}

#[test]
fn a_slot_that_is_given_back_leaves_neither_counters_nor_connections() {
    on_own_host(|host| {
        host.ensure();
        let network = host.sandbox(SLOT);
        let server = inside(&host.internet.descriptor, || udp((SERVER, 7000)));
        say(&network.namespace, (SERVER, 7000), "first owner");
        receive(&server);
        let address = address_of(SLOT);
        assert_eq!(conntrack::targets(address).unwrap(), [SERVER]);
        drop(network);
        give_back(SLOT, &SlotRange::default(), Interface::MayBeHeld).unwrap();
        assert_eq!(conntrack::targets(address).unwrap(), [ANY; 0]);
        assert_eq!(super::super::usage(SLOT).unwrap(), None);
        give_back(SLOT, &SlotRange::default(), Interface::MayBeHeld).unwrap();

        let network = host.sandbox(SLOT);
        assert_eq!(usage(SLOT), NetworkUsage::default());
        drop(network);
    });
}

#[test]
fn an_interface_that_the_rules_do_not_know_gets_nowhere() {
    on_own_host(|host| {
        host.ensure();
        let network = host.sandbox(SLOT);
        let server = inside(&host.internet.descriptor, || udp((SERVER, 7000)));
        // As for the moment between the end of a sandbox and that of its namespace.
        give_back(SLOT, &SlotRange::default(), Interface::DiesWithItsNamespace).unwrap();
        say(&network.namespace, (SERVER, 7000), "too late");
        assert_silent(&server);
        Member::of(SLOT)
            .join(address_of(SLOT), &NetworkPolicy::full())
            .unwrap();
        say(&network.namespace, (SERVER, 7000), "known");
        assert_eq!(receive(&server).0, "known");
    });
}
