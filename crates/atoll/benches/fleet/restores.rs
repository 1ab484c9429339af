//! Coming back from disk under gVisor, beside raw `runsc restore` of the very same image, in turns.
//!
//! Ours is the whole of it: the request, what the server writes down, the network, the limits,
//! and a guest that answers. Raw is `runsc restore --detach` alone, with a network namespace in
//! which there is nothing.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_client::{CreateOptions, Sandbox};

use crate::home::Fleet;
use crate::pauses::{LIFETIME, SIZES, hold};
use crate::support::raw_runsc::RawRunsc;
use crate::support::{Lease, Result};
use crate::times::Times;

/// Promise, as a multiple of raw `runsc restore`.
const PROMISE: f64 = 1.2;

/// `count` rounds for each size.
pub(crate) async fn restores(runsc: &Path, template: &str, count: usize) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let fleet = Fleet::start("gvisor", "")?;
    for (held_mib, name) in SIZES {
        let options = CreateOptions {
            timeout: Some(LIFETIME),
            ..CreateOptions::template(template)
        };
        let sandbox = fleet.client.create(&options).await?;
        if held_mib > 0 {
            hold(&sandbox, held_mib).await?;
        }
        let raw = Raw::of(&fleet, &sandbox, runsc)?;
        let (mut ours, mut theirs) = (Times::default(), Times::default());
        // The first round warms caches and is not counted.
        for round in 0..=count {
            sandbox.pause().await?;
            let raw = raw.round(round);
            let begun = Instant::now();
            let resumed = fleet.client.connect(sandbox.id(), Some(LIFETIME)).await;
            let resumed = resumed.map(|_| begun.elapsed()).map_err(Into::into);
            if round > 0 {
                theirs.add(raw);
                ours.add(resumed);
            }
        }
        ours.row("gvisor", template, &format!("resume, {name}"));
        theirs.row("gvisor", template, &format!("raw runsc restore, {name}"));
        let ratio = ours.median().as_secs_f64() / theirs.median().as_secs_f64();
        let kept = if ratio <= PROMISE { "kept" } else { "BROKEN" };
        println!("  p50 {ratio:.2} x raw; promise: at most {PROMISE} ({kept})");
        sandbox.kill().await?;
    }
    println!();
    Ok(())
}

/// Raw `runsc` with the image, the bundle and the root file system of a paused sandbox.
struct Raw {
    runsc: RawRunsc,
    image: PathBuf,
    bundle: PathBuf,
}

impl Raw {
    fn of(fleet: &Fleet, sandbox: &Sandbox, runsc: &Path) -> Result<Self> {
        let lease = Lease::of(&sandbox.id().parse()?)?;
        let images = fleet.path().join("checkpoints");
        // As the image was written.
        let flags = ["--network=sandbox", "--net-disconnect-ok=true"];
        Ok(Self {
            runsc: RawRunsc::beside(&lease, runsc, &flags)?,
            image: images.join(sandbox.id()).join("image"),
            bundle: lease.dir,
        })
    }

    fn round(&self, number: usize) -> Result<Duration> {
        let name = format!("bench-{}-{number}", std::process::id());
        let image = format!("--image-path={}", self.image.display());
        let bundle = format!("--bundle={}", self.bundle.display());
        let begun = Instant::now();
        self.runsc
            .call(&["restore", "--detach", &image, &bundle, &name])?;
        let took = begun.elapsed();
        let reapers = self.runsc.reap(&name)?;
        self.runsc.call(&["delete", "--force", &name])?;
        for reaper in reapers {
            reaper.join().map_err(|_| "a thread panicked")?;
        }
        Ok(took)
    }
}
