//! `cargo xtask bench start --tier gvisor`: from the wish for a sandbox to its
//! first finished command and its removal, beside raw `runsc` on an equal bundle.
//!
//! The two take turns, so that whatever else the machine does hits both.
//! What Atoll is charged for and `runsc` is not: the disk, the root file system,
//! the network, the guest, the limits, and taking it all away.

mod support;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_control::LiveSandbox;
use atoll_engine::{MonitoredRuntime, Runtime, Tier};
use support::raw_runsc::RawRunsc;
use support::{Bench, Lease, Result, first_command, percentile};

/// Promises of the tier, as multiples of raw `runsc`.
const FIRST_PROMISE: f64 = 1.3;
const DESTROY_PROMISE: f64 = 1.0;

fn main() -> Result<()> {
    let mut count = 30;
    support::options(&mut [("--count", &mut count)])?;
    let bench = Bench::prepare()?;
    println!("gvisor tier, template `base`, {count} rounds one after the other\n");
    let (atoll, runsc) = support::runtime()?.block_on(take_turns(&bench, count))?;
    report(&atoll, &runsc);
    Ok(())
}

/// Times of one side.
#[derive(Default)]
struct Times {
    create: Vec<Duration>,
    first: Vec<Duration>,
    destroy: Vec<Duration>,
    whole: Vec<Duration>,
}

impl Times {
    fn add(&mut self, round: &Round) {
        self.create.push(round.create);
        self.first.push(round.first);
        self.destroy.push(round.destroy);
        self.whole.push(round.whole);
    }
}

/// One sandbox, from nothing to nothing.
struct Round {
    create: Duration,
    first: Duration,
    destroy: Duration,
    whole: Duration,
}

async fn take_turns(bench: &Bench, count: usize) -> Result<(Times, Times)> {
    let gvisor: Arc<dyn Runtime> =
        Arc::new(MonitoredRuntime::new(bench.config.clone(), Tier::Gvisor));
    let donor = bench.open(&gvisor).await?;
    let raw = Raw::copy(&donor, &bench.config.runsc)?;
    let (mut atoll, mut runsc) = (Times::default(), Times::default());
    // The first round of each warms caches and is not counted.
    for round in 0..=count {
        let ours = atoll_round(bench, &gvisor).await?;
        let theirs = raw.round(round)?;
        if round > 0 {
            atoll.add(&ours);
            runsc.add(&theirs);
        }
    }
    donor.destroy().await?;
    Ok((atoll, runsc))
}

async fn atoll_round(bench: &Bench, gvisor: &Arc<dyn Runtime>) -> Result<Round> {
    let start = Instant::now();
    let live = bench.open(gvisor).await?;
    let create = start.elapsed();
    first_command(&live).await?;
    let first = start.elapsed();
    let end = Instant::now();
    live.destroy().await?;
    Ok(Round {
        create,
        first,
        destroy: end.elapsed(),
        whole: start.elapsed(),
    })
}

/// Raw `runsc` on the bundle and the root file system of a running sandbox.
struct Raw(RawRunsc);

impl Raw {
    fn copy(donor: &LiveSandbox, runsc: &Path) -> Result<Self> {
        let lease = Lease::of(donor.sandbox().id())?;
        // It gets no network at all, which is less work than Atoll's.
        let raw = RawRunsc::beside(&lease, runsc, &["--network=none"])?;
        let mut config: serde_json::Value =
            serde_json::from_slice(&fs::read(lease.dir.join("config.json"))?)?;
        config["process"]["args"] = serde_json::json!(["/bin/sleep", "600"]);
        config["linux"]["namespaces"]
            .as_array_mut()
            .ok_or("no namespaces")?
            .retain(|namespace| namespace["type"] != "network");
        fs::write(raw.path().join("config.json"), config.to_string())?;
        Ok(Self(raw))
    }

    fn round(&self, number: usize) -> Result<Round> {
        let name = format!("bench-{}-{number}", std::process::id());
        let bundle = self.0.path().display().to_string();
        let start = Instant::now();
        self.0
            .call(&["run", "--detach", "--bundle", &bundle, &name])?;
        let create = start.elapsed();
        self.0.call(&["exec", &name, "/bin/true"])?;
        let first = start.elapsed();
        let reapers = self.0.reap(&name)?;
        let end = Instant::now();
        self.0.call(&["delete", "--force", &name])?;
        let round = Round {
            create,
            first,
            destroy: end.elapsed(),
            whole: start.elapsed(),
        };
        for reaper in reapers {
            reaper.join().map_err(|_| "a thread panicked")?;
        }
        Ok(round)
    }
}

fn report(atoll: &Times, runsc: &Times) {
    println!("{:<44}{:>9}{:>9}{:>9}", "milliseconds", "p50", "p95", "p99");
    let rows = [
        ("atoll: sandbox ready", &atoll.create),
        ("atoll: first command finished", &atoll.first),
        ("atoll: destroy", &atoll.destroy),
        ("atoll: whole life", &atoll.whole),
        ("runsc: run", &runsc.create),
        ("runsc: run + exec", &runsc.first),
        ("runsc: delete --force", &runsc.destroy),
        ("runsc: run + exec + delete --force", &runsc.whole),
    ];
    for (name, times) in rows {
        println!(
            "{name:<44}{:>9.1}{:>9.1}{:>9.1}",
            at(times, 50),
            at(times, 95),
            at(times, 99)
        );
    }
    verdict(
        "first command, p50 against run + exec",
        at(&atoll.first, 50) / at(&runsc.first, 50),
        FIRST_PROMISE,
    );
    verdict(
        "destroy, p50 against delete --force",
        at(&atoll.destroy, 50) / at(&runsc.destroy, 50),
        DESTROY_PROMISE,
    );
}

fn verdict(name: &str, ratio: f64, promise: f64) {
    let kept = if ratio <= promise { "kept" } else { "NOT KEPT" };
    println!("{name:<44}{ratio:>8.2}x  promise <= {promise:.1}x: {kept}");
}

/// The value at `percent` of the sorted times, in milliseconds.
fn at(times: &[Duration], percent: usize) -> f64 {
    percentile(times, percent).as_secs_f64() * 1000.0
}
