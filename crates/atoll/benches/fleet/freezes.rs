//! Freezing and thawing a sandbox beside the same done by hand to its cgroup.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_engine::{CgroupLayout, SandboxId};

use crate::support::{Bench, Result, kept};
use crate::times::Times;

/// At most this many times what the kernel takes.
const PROMISE: f64 = 2.0;
/// How long the kernel may take.
const FREEZE_BOUND: Duration = Duration::from_secs(10);

/// `count` rounds of both, in turns.
pub(crate) async fn freezes(bench: &Bench, count: usize) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let live = bench.open(&bench.atoll).await?;
    let sandbox = live.sandbox();
    let group = Group::of(sandbox.id())?;
    let (mut ours, mut bare) = (Times::default(), Times::default());
    for round in 0..=count {
        let begun = Instant::now();
        sandbox.freeze()?;
        sandbox.thaw()?;
        let took = begun.elapsed();
        let alone = group.round();
        if round > 0 {
            ours.add(Ok(took));
            bare.add(alone);
        }
    }
    bare.row("container", "base", "cgroup frozen and thawed");
    ours.row("container", "base", "sandbox frozen and thawed");
    let ratio = ours.median().as_secs_f64() / bare.median().as_secs_f64();
    println!(
        "{:<10} {:<25} sandbox / cgroup: {ratio:.2}; promise: at most {PROMISE} ({})\n",
        "container",
        "base",
        kept(ratio <= PROMISE)
    );
    live.destroy().await?;
    Ok(())
}

/// The files by which the kernel freezes.
struct Group {
    switch: PathBuf,
    state: PathBuf,
    frozen: &'static str,
    values: [&'static str; 2],
}

impl Group {
    fn of(sandbox: &SandboxId) -> Result<Self> {
        let root = Path::new("/sys/fs/cgroup");
        Ok(match CgroupLayout::detect()? {
            CgroupLayout::V1 => {
                let switch = root.join(format!("freezer/atoll/{sandbox}/freezer.state"));
                Self {
                    state: switch.clone(),
                    switch,
                    frozen: "FROZEN",
                    values: ["FROZEN", "THAWED"],
                }
            }
            CgroupLayout::V2 => {
                let group = root.join(format!("atoll/{sandbox}"));
                Self {
                    switch: group.join("cgroup.freeze"),
                    state: group.join("cgroup.events"),
                    frozen: "frozen 1",
                    values: ["1", "0"],
                }
            }
        })
    }

    /// Freezes, waits as short as can be, and thaws.
    fn round(&self) -> Result<Duration> {
        let begun = Instant::now();
        fs::write(&self.switch, self.values[0])?;
        while !fs::read_to_string(&self.state)?.contains(self.frozen) {
            if begun.elapsed() > FREEZE_BOUND {
                return Err("the cgroup does not freeze".into());
            }
            std::thread::yield_now();
        }
        fs::write(&self.switch, self.values[1])?;
        Ok(begun.elapsed())
    }
}
