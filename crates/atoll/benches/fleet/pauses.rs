//! Pause, resume, snapshot and fork, of a sandbox with nothing in it and of one
//! that holds memory.

use std::time::{Duration, Instant};

use atoll_client::{Client, CreateOptions, Sandbox};

use crate::home::Fleet;
use crate::support::Result;
use crate::times::Times;

/// What the larger one holds, in bytes that do not compress.
const HELD_MIB: usize = 256;
/// How much is held, and what that is called.
pub(crate) const SIZES: [(usize, &str); 2] = [(0, "idle"), (HELD_MIB, "256 MiB")];
/// Longer than any run of the benchmark.
pub(crate) const LIFETIME: Duration = Duration::from_secs(3600);
/// How long a program may take to fill its memory.
const FILL_BOUND: Duration = Duration::from_secs(60);

/// `count` rounds of each, for both sizes.
pub(crate) async fn pauses(tier: &str, template: &str, count: usize) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let fleet = Fleet::start(tier, "")?;
    for (held_mib, name) in SIZES {
        let options = CreateOptions {
            timeout: Some(LIFETIME),
            ..CreateOptions::template(template)
        };
        let sandbox = fleet.client.create(&options).await?;
        if held_mib > 0 {
            hold(&sandbox, held_mib).await?;
        }
        let mut times: [Times; 5] = Default::default();
        // The first round warms caches and is not counted.
        for round in 0..=count {
            let rounds = [
                pause(&sandbox).await,
                resume(&fleet.client, &sandbox).await,
                first_command(&fleet.client, &sandbox).await,
                snapshot(&fleet.client, &sandbox).await,
                fork(&fleet.client, &sandbox).await,
            ];
            for (times, result) in times.iter_mut().zip(rounds) {
                if round > 0 {
                    times.add(result);
                }
            }
        }
        let whats = ["pause", "resume", "resume + command", "snapshot", "fork"];
        for (times, what) in times.iter().zip(whats) {
            times.row(tier, template, &format!("{what}, {name}"));
        }
        sandbox.kill().await?;
    }
    println!();
    Ok(())
}

/// Starts a program that fills memory and waits.
pub(crate) async fn hold(sandbox: &Sandbox, mib: usize) -> Result<()> {
    let program = format!(
        "nohup python3 -c \"import os, time; held = b''.join(os.urandom(1 << 20) for _ in range({mib})); \
         open('/tmp/held', 'w').close(); time.sleep(3600)\" >/dev/null 2>&1 &"
    );
    sandbox.commands().run(&program).await?;
    let end = Instant::now() + FILL_BOUND;
    while !sandbox.files().exists("/tmp/held").await? {
        if Instant::now() > end {
            return Err("the program did not fill its memory".into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn pause(sandbox: &Sandbox) -> Result<Duration> {
    let begun = Instant::now();
    sandbox.pause().await?;
    Ok(begun.elapsed())
}

async fn resume(client: &Client, sandbox: &Sandbox) -> Result<Duration> {
    let begun = Instant::now();
    client.connect(sandbox.id(), Some(LIFETIME)).await?;
    Ok(begun.elapsed())
}

/// What somebody waits for who comes back to a paused sandbox.
async fn first_command(client: &Client, sandbox: &Sandbox) -> Result<Duration> {
    sandbox.pause().await?;
    let begun = Instant::now();
    let again = client.connect(sandbox.id(), Some(LIFETIME)).await?;
    let said = again.commands().run("echo 2").await?;
    let took = begun.elapsed();
    match said.stdout_text().trim() {
        "2" => Ok(took),
        other => Err(format!("a sandbox said `{other}`").into()),
    }
}

async fn snapshot(client: &Client, sandbox: &Sandbox) -> Result<Duration> {
    let begun = Instant::now();
    let snapshot = sandbox.snapshot(None).await?;
    let took = begun.elapsed();
    client.delete_snapshot(&snapshot.snapshot_id).await?;
    Ok(took)
}

async fn fork(client: &Client, sandbox: &Sandbox) -> Result<Duration> {
    let begun = Instant::now();
    let forks = client.fork(sandbox.id(), 1, Some(LIFETIME)).await?;
    let took = begun.elapsed();
    for fork in forks {
        fork?.kill().await?;
    }
    Ok(took)
}
