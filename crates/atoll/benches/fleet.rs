//! `cargo xtask bench fleet`: many sandboxes, and what a pool of them is worth.
//!
//! Each part is a file below `fleet/` and a line in `main`; every line that is
//! printed names the tier and the template, and promises are ratios within one
//! run. What others published is printed beside, as theirs: it was measured on
//! their machines and over a network.
//!
//! A home of its own with the templates of the benchmark's: a server of it can
//! have pools, and another one beside it has none.

mod support;

#[path = "fleet/crowds.rs"]
mod crowds;
#[path = "fleet/freezes.rs"]
mod freezes;
#[path = "fleet/home.rs"]
mod home;
#[path = "fleet/pauses.rs"]
mod pauses;
#[path = "fleet/restores.rs"]
mod restores;
#[path = "fleet/starts.rs"]
mod starts;
#[path = "fleet/times.rs"]
mod times;

use starts::Work;
use support::Result;

/// What the tests and this build for kernels.
const KERNELS: &str = "code-interpreter-v1-tiny";

fn main() -> Result<()> {
    // 0 leaves a part out.
    let (mut count, mut kernels, mut burst, mut gvisor) = (100, 10, 100, 10);
    let (mut pauses, mut freezes, mut idle, mut crowd) = (10, 200, 100, 300);
    support::options(&mut [
        ("--count", &mut count),
        ("--kernels", &mut kernels),
        ("--burst", &mut burst),
        ("--gvisor", &mut gvisor),
        ("--pauses", &mut pauses),
        ("--freezes", &mut freezes),
        ("--idle", &mut idle),
        ("--crowd", &mut crowd),
    ])?;
    let bench = support::Bench::prepare()?;
    let runtime = support::runtime()?;
    starts::published();
    runtime.block_on(async {
        starts::sequential("container", "base", Work::Command, count, Some(0.25)).await?;
        starts::sequential("container", KERNELS, Work::Code, kernels, Some(0.1)).await?;
        starts::burst("container", "base", burst).await?;
        starts::sequential("gvisor", "base", Work::Command, gvisor, None).await?;
        freezes::freezes(&bench, freezes).await?;
        for tier in ["container", "gvisor"] {
            pauses::pauses(tier, "base", pauses).await?;
        }
        restores::restores(&bench.config.runsc, "base", pauses).await?;
        for (tier, template) in [
            ("container", "base"),
            ("gvisor", "base"),
            ("container", KERNELS),
        ] {
            crowds::memory(tier, template, idle).await?;
        }
        crowds::latency("container", "base", count.min(30), crowd).await
    })
}
