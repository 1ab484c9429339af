//! What the parts of a network cost.

use super::super::{Interface, give_back, veth};
use super::*;

/// `cargo test -p atoll-engine network::tests::timings -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn timings() {
    fn measure<T>(name: &str, mut step: impl FnMut(u16) -> T) -> Vec<T> {
        let mut times = Vec::new();
        let mut results = Vec::new();
        for turn in 0..20 {
            let start = Instant::now();
            results.push(step(turn));
            times.push(start.elapsed());
        }
        times.sort_unstable();
        println!(
            "{name}: p50 {:?}, min {:?}, max {:?}",
            times[10], times[0], times[19]
        );
        results
    }
    on_own_host(|host| {
        let start = Instant::now();
        host.ensure();
        println!("first ensure: {:?}", start.elapsed());
        measure("ensure again", |_| host.ensure());
        measure("create None", |_| {
            create(&NetworkPolicy::None, SLOT, &SlotRange::default()).unwrap()
        });
        let made = measure("create Full", |turn| host.sandbox(SLOT + turn));
        // The dead owners' namespaces live on; their DNS sockets do not.
        let dead: Vec<OwnedFd> = made.into_iter().map(|network| network.namespace).collect();
        let fresh = measure("create Full over a stale veth", |turn| {
            host.sandbox(SLOT + turn)
        });
        measure("usage", |turn| usage(SLOT + turn));
        measure("give back, the interface left to the kernel", |turn| {
            give_back(
                SLOT + turn,
                &SlotRange::default(),
                Interface::DiesWithItsNamespace,
            )
            .unwrap();
        });
        measure("reap", |turn| veth::reap(SLOT + turn).unwrap());
        drop((dead, fresh));
        let start = Instant::now();
        host.release();
        println!("release: {:?}", start.elapsed());
    });
}
