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

#[path = "fleet/home.rs"]
mod home;
#[path = "fleet/starts.rs"]
mod starts;

use starts::Work;
use support::Result;

/// What the tests and this build for kernels.
const KERNELS: &str = "code-interpreter-v1-tiny";

fn main() -> Result<()> {
    // `--burst 0` leaves the bursts out, `--kernels 0` those with kernels.
    let (mut count, mut kernels, mut burst, mut gvisor) = (100, 10, 100, 10);
    support::options(&mut [
        ("--count", &mut count),
        ("--kernels", &mut kernels),
        ("--burst", &mut burst),
        ("--gvisor", &mut gvisor),
    ])?;
    let runtime = support::runtime()?;
    atoll_engine::reconcile()?;
    starts::published();
    runtime.block_on(async {
        starts::sequential("container", "base", Work::Command, count, Some(0.25)).await?;
        starts::sequential("container", KERNELS, Work::Code, kernels, Some(0.1)).await?;
        starts::burst("container", "base", burst).await?;
        starts::sequential("gvisor", "base", Work::Command, gvisor, None).await
        // Pause, resume, snapshot and fork, idle memory, and latency beside
        // many idle ones are parts of their own: add them here.
    })
}
