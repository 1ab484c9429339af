//! From the wish for a sandbox to the end of its first command, or to the
//! first result of its kernel: taken from a pool, and made for the wish.

use std::time::{Duration, Instant};

use atoll_client::{Client, CodeOptions, CreateOptions, Sandbox};

use crate::home::Fleet;
use crate::support::{Result, kept};
use crate::times::Times;

/// Members of the pool that sandboxes are taken from one after the other.
const POOL: usize = 2;

/// What is done first in a sandbox.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    Command,
    Code,
}

/// What others say of themselves.
pub(crate) fn published() {
    println!("time to the first command, as others published it (theirs, over a network):");
    println!("  E2B, by ComputeSDK: median 392 ms one after the other, 662 ms in a burst of 100");
    println!("  AgentENV: boot < 50 ms, pause < 100 ms\n");
}

/// One after the other, warm and cold in turns.
pub(crate) async fn sequential(
    tier: &str,
    template: &str,
    work: Work,
    count: usize,
    promise: Option<f64>,
) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let warm = Fleet::with_pool(tier, template, POOL)?;
    let cold = Fleet::start(tier, "")?;
    let (mut from_pool, mut made) = (Times::default(), Times::default());
    // The first round warms caches and is not counted.
    for round in 0..=count {
        warm.filled(POOL).await?;
        let (taken, fresh) = (
            one(&warm.client, template, work).await,
            one(&cold.client, template, work).await,
        );
        if round > 0 {
            from_pool.add(taken);
            made.add(fresh);
        }
    }
    let pool = warm.filled(0).await?;
    if pool.misses > 0 {
        return Err(format!("{} were not taken from the pool", pool.misses).into());
    }
    let what = |how: &str| match work {
        Work::Command => format!("{how}, first command"),
        Work::Code => format!("{how}, first `1+1`"),
    };
    made.row(tier, template, &what("cold"));
    from_pool.row(tier, template, &what("warm"));
    let ratio = from_pool.median().as_secs_f64() / made.median().as_secs_f64();
    match promise {
        Some(most) => println!(
            "{tier:<10} {template:<25} warm / cold: {ratio:.3}; promise: at most {most} ({})\n",
            kept(ratio <= most)
        ),
        None => println!("{tier:<10} {template:<25} warm / cold: {ratio:.3}\n"),
    }
    Ok(())
}

/// All at once: made for the wish, and from a pool that has one for each.
pub(crate) async fn burst(tier: &str, template: &str, count: usize) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    for (how, pool) in [("cold", 0), ("warm", count)] {
        let fleet = match pool {
            0 => Fleet::start(tier, "")?,
            members => Fleet::with_pool(tier, template, members)?,
        };
        if pool > 0 {
            fleet.filled(pool).await?;
        }
        let all = (0..count).map(|_| one(&fleet.client, template, Work::Command));
        let mut times = Times::default();
        for result in futures_util::future::join_all(all).await {
            times.add(result);
        }
        times.row(tier, template, &format!("{how}, burst of {count}"));
        println!(
            "{tier:<10} {template:<25} promise: every one succeeds ({})",
            kept(times.failed == 0)
        );
    }
    println!();
    Ok(())
}

/// Makes a sandbox, does its first work, and ends it outside of the time.
pub(crate) async fn one(client: &Client, template: &str, work: Work) -> Result<Duration> {
    let begun = Instant::now();
    let sandbox = client.create(&CreateOptions::template(template)).await?;
    let done = first(&sandbox, work).await;
    let took = begun.elapsed();
    sandbox.kill().await?;
    done.map(|()| took)
}

async fn first(sandbox: &Sandbox, work: Work) -> Result<()> {
    let said = match work {
        Work::Command => sandbox
            .commands()
            .run("echo 2")
            .await?
            .stdout_text()
            .into_owned(),
        Work::Code => {
            let options = CodeOptions::default();
            let run = sandbox.code().run("1+1", &options, |_| ()).await?;
            run.text().unwrap_or_default().to_owned()
        }
    };
    if said.trim() == "2" {
        Ok(())
    } else {
        Err(format!("a sandbox said `{said}`").into())
    }
}
