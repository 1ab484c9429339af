//! `cargo xtask bench soak`: clients that make, use, pause, copy and end
//! sandboxes of both tiers for half an hour, and what the servers have grown by.
//!
//! Each client goes through lives of sandboxes, one after the other; what is done
//! in each is drawn from its own numbers, which `--seed` repeats. Every answer is
//! compared with what it must be. Whatever is not as it must be is a failure, and
//! the life goes on with another sandbox.

mod support;

#[path = "fleet/home.rs"]
mod home;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use atoll_client::{Client, CodeOptions, CreateOptions, Sandbox};
use home::Fleet;
use support::{Result, field, kept};

/// What has kernels.
const KERNELS: &str = "code-interpreter-v1-tiny";
/// Members of the pool of those with kernels.
const POOL: usize = 2;
/// At most this part of all operations fails.
const FAILURES_MAX: f64 = 0.001;
/// What a server may grow by once all of its caches are filled.
const GROWTH_KIB_MAX: u64 = 16 * 1024;
/// The part of the time in which they fill.
const WARM_UP: u32 = 5;
/// Longer than any life in it.
const LIFETIME: Duration = Duration::from_secs(600);
/// Time between two looks at the servers.
const LOOK: Duration = Duration::from_secs(60);

/// What was done, and how often it went wrong.
#[derive(Default)]
struct Tally {
    lives: AtomicU64,
    operations: AtomicU64,
    failures: AtomicU64,
}

impl Tally {
    fn count<T>(&self, what: &str, result: Result<T>) -> Option<T> {
        self.operations.fetch_add(1, Ordering::Relaxed);
        result
            .inspect_err(|error| {
                self.failures.fetch_add(1, Ordering::Relaxed);
                eprintln!("failed: {what}: {error}");
            })
            .ok()
    }
}

fn main() -> Result<()> {
    let (mut minutes, mut clients, mut gvisor, mut seed) = (30, 6, 2, 1);
    support::options(&mut [
        ("--minutes", &mut minutes),
        ("--clients", &mut clients),
        ("--gvisor", &mut gvisor),
        ("--seed", &mut seed),
    ])?;
    atoll_engine::reconcile()?;
    let time = Duration::from_secs(u64::try_from(minutes)? * 60);
    let runtime = support::runtime()?;
    runtime.block_on(soak(time, clients, gvisor, u64::try_from(seed)?))
}

async fn soak(time: Duration, clients: usize, gvisor: usize, seed: u64) -> Result<()> {
    println!(
        "{clients} clients of the container tier (`base`, `{KERNELS}`), {gvisor} of gVisor (`base`), \
         {time:?}, seed {seed}\n"
    );
    let container = Fleet::with_pool("container", KERNELS, POOL)?;
    let kernel_of_its_own = Fleet::start("gvisor", "")?;
    container.filled(POOL).await?;
    let fleets = [&container, &kernel_of_its_own];
    let (tally, begun) = (Tally::default(), Instant::now());
    let end = begun + time;

    let workers = (0..clients + gvisor).map(|number| {
        let (fleet, templates): (_, &[&str]) = if number < clients {
            (&container, &["base", KERNELS])
        } else {
            (&kernel_of_its_own, &["base"])
        };
        let mut draw = Draw::new(seed, number);
        let tally = &tally;
        async move {
            while Instant::now() < end {
                let template = templates[draw.below(templates.len())];
                life(&fleet.client, template, &mut draw, tally).await;
                tally.lives.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let watch = watch(&fleets, &tally, begun, end);
    let (_, warm) =
        futures_util::future::join(futures_util::future::join_all(workers), watch).await;
    let warm = warm?;

    let (operations, failures) = (
        tally.operations.load(Ordering::Relaxed),
        tally.failures.load(Ordering::Relaxed),
    );
    let left = left(&fleets).await?;
    let after = Footprint::of(&fleets)?;
    look(begun, &tally, &after);
    // Both are far below where a float loses integers.
    let share = failures as f64 / operations.max(1) as f64;
    println!(
        "\n{failures} of {operations} operations failed: {:.3} %; promise: less than 0.1 % ({})",
        share * 100.0,
        kept(share < FAILURES_MAX && operations > 0)
    );
    println!(
        "sandboxes left: {left}; promise: none ({})",
        kept(left == 0)
    );
    println!(
        "grown since the first fifth: {} KiB of memory, {} descriptors; promise: at most {GROWTH_KIB_MAX} KiB, and none but idle connections ({})",
        after.memory_kib.saturating_sub(warm.memory_kib),
        after.descriptors.saturating_sub(warm.descriptors),
        kept(
            after.memory_kib <= warm.memory_kib + GROWTH_KIB_MAX
                && after.descriptors <= warm.descriptors
        )
    );
    Ok(())
}

/// Shows what the servers have, once a minute. Returns what they had after the warm-up.
async fn watch(
    fleets: &[&Fleet],
    tally: &Tally,
    begun: Instant,
    end: Instant,
) -> Result<Footprint> {
    let warm_at = begun + end.saturating_duration_since(begun) / WARM_UP;
    let mut warm = None;
    while Instant::now() < end {
        tokio::time::sleep(LOOK.min(end.saturating_duration_since(Instant::now()))).await;
        let now = Footprint::of(fleets)?;
        look(begun, tally, &now);
        if Instant::now() >= warm_at {
            warm.get_or_insert(now);
        }
    }
    warm.ok_or_else(|| "it took no time".into())
}

fn look(begun: Instant, tally: &Tally, now: &Footprint) {
    println!(
        "{:>5} s  {:>6} lives  {:>7} operations  {:>3} failures  servers: {:>6} KiB, {:>4} descriptors, {:>3} threads",
        begun.elapsed().as_secs(),
        tally.lives.load(Ordering::Relaxed),
        tally.operations.load(Ordering::Relaxed),
        tally.failures.load(Ordering::Relaxed),
        now.memory_kib,
        now.descriptors,
        now.threads
    );
}

/// What the servers have together.
struct Footprint {
    memory_kib: u64,
    descriptors: usize,
    threads: u64,
}

impl Footprint {
    fn of(fleets: &[&Fleet]) -> Result<Self> {
        let mut sum = Self {
            memory_kib: 0,
            descriptors: 0,
            threads: 0,
        };
        for fleet in fleets {
            let process = Path::new("/proc").join(fleet.server.pid().to_string());
            let status = fs::read_to_string(process.join("status"))?;
            sum.memory_kib += field(&status, "RssAnon:");
            sum.threads += field(&status, "Threads:");
            sum.descriptors += fs::read_dir(process.join("fd"))?.count();
        }
        Ok(sum)
    }
}

/// Sandboxes that the servers still know of.
async fn left(fleets: &[&Fleet]) -> Result<usize> {
    let mut left = 0;
    for fleet in fleets {
        left += fleet.client.list(&Default::default()).all().await?.len();
    }
    Ok(left)
}

/// One sandbox from its creation to its end.
async fn life(client: &Client, template: &str, draw: &mut Draw, tally: &Tally) {
    let options = CreateOptions {
        timeout: Some(LIFETIME),
        ..CreateOptions::template(template)
    };
    let made = client.create(&options).await.map_err(Into::into);
    let Some(sandbox) = tally.count("create", made) else {
        return;
    };
    let mut resident = Resident {
        client,
        sandbox,
        cells: 0,
        files: 0,
    };
    for _ in 0..2 + draw.below(8) {
        let (what, result) = match draw.below(12) {
            0..=2 => ("command", resident.command(draw).await),
            3..=5 => ("file", resident.file(draw).await),
            6..=8 if template == KERNELS => ("code", resident.code().await),
            6..=8 => ("command", resident.command(draw).await),
            9..=10 => ("pause", resident.pause().await),
            _ => ("fork", resident.fork().await),
        };
        if tally.count(what, result).is_none() {
            break;
        }
    }
    let killed = resident.sandbox.kill().await.map_err(Into::into);
    tally.count("kill", killed);
}

/// A sandbox and what must be true of it.
struct Resident<'a> {
    client: &'a Client,
    sandbox: Sandbox,
    /// Cells that added one to a variable.
    cells: usize,
    /// Files that were written.
    files: usize,
}

impl Resident<'_> {
    async fn command(&self, draw: &mut Draw) -> Result<()> {
        let (one, other) = (draw.below(1000), draw.below(1000));
        let line = format!("echo $(({one} + {other}))");
        let said = self.sandbox.commands().run(&line).await?;
        same(said.stdout_text().trim(), &(one + other).to_string())
    }

    /// Writes a file, and reads all of them.
    async fn file(&mut self, draw: &mut Draw) -> Result<()> {
        let content = vec![u8::try_from(self.files % 251)?; 1 + draw.below(512 * 1024)];
        let path = format!("/home/user/file-{}", self.files);
        self.sandbox.files().write(&path, content.clone()).await?;
        self.files += 1;
        let read = self.sandbox.files().read(&path, 1 << 20).await?;
        same(&(read == content), &true)?;
        self.all_files().await
    }

    async fn all_files(&self) -> Result<()> {
        same(&count_files(&self.sandbox).await?, &self.files)
    }

    async fn code(&mut self) -> Result<()> {
        let code = "cells = globals().get('cells', 0) + 1; cells";
        let options = CodeOptions::default();
        let run = self.sandbox.code().run(code, &options, |_| ()).await?;
        self.cells += 1;
        same(run.text().unwrap_or_default(), &self.cells.to_string())
    }

    /// Holds still and runs on, with a process in it, its files and its variables.
    async fn pause(&mut self) -> Result<()> {
        let start = "nohup sleep 1000 >/dev/null 2>&1 & echo $!";
        let number = self.sandbox.commands().run(start).await?;
        let number = number.stdout_text().trim().to_owned();
        self.sandbox.pause().await?;
        self.sandbox = self
            .client
            .connect(self.sandbox.id(), Some(LIFETIME))
            .await?;
        let line = format!("kill {number} && echo it ran on");
        let said = self.sandbox.commands().run(&line).await?;
        same(said.stdout_text().trim(), "it ran on")?;
        self.all_files().await
    }

    async fn fork(&self) -> Result<()> {
        for fork in self
            .client
            .fork(self.sandbox.id(), 1, Some(LIFETIME))
            .await?
        {
            let fork = fork?;
            let count = count_files(&fork).await?;
            fork.kill().await?;
            same(&count, &self.files)?;
        }
        Ok(())
    }
}

async fn count_files(sandbox: &Sandbox) -> Result<usize> {
    let line = "ls /home/user | grep -c '^file-'";
    let said = sandbox.commands().run(line).await?;
    Ok(said.stdout_text().trim().parse()?)
}

/// An error that says what came in place of what should have.
fn same<T: PartialEq + std::fmt::Debug + ?Sized>(came: &T, should: &T) -> Result<()> {
    if came == should {
        Ok(())
    } else {
        Err(format!("{came:?} in place of {should:?}").into())
    }
}

/// Numbers that a seed repeats (SplitMix64).
struct Draw(u64);

impl Draw {
    fn new(seed: u64, client: usize) -> Self {
        Self(seed.wrapping_mul(1_000_003).wrapping_add(client as u64))
    }

    /// One below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) >> 33).unwrap_or(0) % bound.max(1)
    }
}
