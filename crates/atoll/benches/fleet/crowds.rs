//! What sandboxes cost that do nothing: memory of each, and what they take from
//! whoever wants another one.

use std::time::Duration;

use atoll_client::{CreateOptions, Sandbox};
use atoll_engine::SandboxId;

use crate::home::Fleet;
use crate::starts::{Work, one};
use crate::support::{self, Lease, Result, kept};
use crate::times::Times;

/// Longer than any run of the benchmark.
const LIFETIME: Duration = Duration::from_secs(3600);
/// Room for all of them: they are booked by their limits, and use next to nothing.
const ROOM: &str = "max_sandboxes = 1000\n[host]\nmemory_overcommit = 100\ncpu_overcommit = 1000\n";
/// At most this many times as long beside the largest crowd as beside the smallest.
const PROMISE: f64 = 1.5;

/// Sandboxes that do nothing.
struct Crowd {
    fleet: Fleet,
    template: String,
    idle: Vec<Sandbox>,
}

impl Crowd {
    fn new(tier: &str, template: &str) -> Result<Self> {
        Ok(Self {
            fleet: Fleet::start(tier, ROOM)?,
            template: template.to_owned(),
            idle: Vec::new(),
        })
    }

    async fn grow(&mut self, size: usize) -> Result<()> {
        let options = CreateOptions {
            timeout: Some(LIFETIME),
            ..CreateOptions::template(&self.template)
        };
        while self.idle.len() < size {
            self.idle.push(self.fleet.client.create(&options).await?);
        }
        Ok(())
    }

    async fn end(self) -> Result<()> {
        for sandbox in &self.idle {
            sandbox.kill().await?;
        }
        Ok(())
    }
}

/// Memory of each of `count` idle sandboxes.
pub(crate) async fn memory(tier: &str, template: &str, count: usize) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let before = support::kernel_kib()?;
    let mut crowd = Crowd::new(tier, template)?;
    crowd.grow(count).await?;
    let kernel_kib = support::kernel_kib()?.saturating_sub(before);
    let mut pss_kib = 0;
    for sandbox in &crowd.idle {
        let id: SandboxId = sandbox.id().parse()?;
        for pid in support::family(Lease::of(&id)?.monitor)? {
            pss_kib += support::pss_kib(pid)?;
        }
    }
    let each = |kib: u64| kib / count as u64;
    println!(
        "{tier:<10} {template:<25} {count} idle                      PSS {} KiB each, kernel {} KiB each\n",
        each(pss_kib),
        each(kernel_kib)
    );
    crowd.end().await
}

/// How long a sandbox takes to its first command beside some, many and very many.
pub(crate) async fn latency(tier: &str, template: &str, count: usize, most: usize) -> Result<()> {
    if count == 0 || most == 0 {
        return Ok(());
    }
    let sizes = [10, 100.min(most), most];
    let mut crowd = Crowd::new(tier, template)?;
    let mut medians = Vec::new();
    for size in sizes {
        crowd.grow(size).await?;
        let mut times = Times::default();
        // The first round warms caches and is not counted.
        for round in 0..=count {
            let result = one(&crowd.fleet.client, template, Work::Command).await;
            if round > 0 {
                times.add(result);
            }
        }
        times.row(tier, template, &format!("first command beside {size}"));
        medians.push(times.median().as_secs_f64());
    }
    let ratio = medians[sizes.len() - 1] / medians[0];
    println!(
        "{tier:<10} {template:<25} beside {most} / beside {}: {ratio:.2}; promise: at most {PROMISE} ({})\n",
        sizes[0],
        kept(ratio <= PROMISE)
    );
    crowd.end().await
}
