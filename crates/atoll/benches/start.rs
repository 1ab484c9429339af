//! `cargo xtask bench start`: from the wish for a sandbox to its first
//! finished command and its removal, beside raw `runc` on an equal bundle.
//!
//! The two take turns, so that whatever else the machine does hits both.
//! What Atoll is charged for and `runc` is not: the disk, the root file system,
//! the network namespace, the guest, the first command, and taking it all away.

mod support;

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use atoll_control::LiveSandbox;
use support::{Bench, Lease, Result, children, first_command, kernel_kib, percentile, pss_kib};

/// What was asked on the command line.
struct Options {
    count: usize,
    parallel: usize,
    idle: usize,
}

fn main() -> Result<()> {
    let mut options = Options {
        count: 100,
        parallel: 50,
        idle: 100,
    };
    support::options(&mut [
        ("--count", &mut options.count),
        ("--parallel", &mut options.parallel),
        ("--idle", &mut options.idle),
    ])?;
    let bench = Bench::prepare()?;
    let runtime = support::runtime()?;
    println!(
        "container tier, template `base`, {} rounds one after the other\n",
        options.count
    );
    let (atoll, runc) = runtime.block_on(bench.take_turns(options.count))?;
    report(&atoll, &runc);
    println!("\n{} at once\n", options.parallel);
    let (atoll, runc) = runtime.block_on(bench.burst(options.parallel))?;
    report(&atoll, &runc);
    println!("\nmemory of {} idle sandboxes\n", options.idle);
    runtime.block_on(bench.idle(options.idle))
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
    fn add(&mut self, other: &Round) {
        self.create.push(other.create);
        self.first.extend(other.first);
        self.destroy.push(other.destroy);
        self.whole.push(other.whole);
    }
}

/// One sandbox or container, from nothing to nothing.
struct Round {
    create: Duration,
    first: Option<Duration>,
    destroy: Duration,
    whole: Duration,
}

impl Bench {
    async fn atoll_round(&self) -> Result<Round> {
        let start = Instant::now();
        let live = self.open(&self.atoll).await?;
        let create = start.elapsed();
        first_command(&live).await?;
        let first = start.elapsed();
        let end = Instant::now();
        live.destroy().await?;
        Ok(Round {
            create,
            first: Some(first),
            destroy: end.elapsed(),
            whole: start.elapsed(),
        })
    }

    async fn take_turns(&self, count: usize) -> Result<(Times, Times)> {
        let donor = self.open(&self.on_runc).await?;
        let bundles = Bundles::copy(&donor, 1)?;
        let (mut atoll, mut runc) = (Times::default(), Times::default());
        // The first round of each warms caches and is not counted.
        for round in 0..=count {
            let ours = self.atoll_round().await?;
            let theirs = bundles.round(&self.runc, 0)?;
            if round > 0 {
                atoll.add(&ours);
                runc.add(&theirs);
            }
        }
        donor.destroy().await?;
        Ok((atoll, runc))
    }

    async fn burst(&self, parallel: usize) -> Result<(Times, Times)> {
        let (mut atoll, mut runc) = (Times::default(), Times::default());
        for round in futures_util::future::join_all((0..parallel).map(|_| self.atoll_round())).await
        {
            atoll.add(&round?);
        }
        let donor = self.open(&self.on_runc).await?;
        let bundles = Bundles::copy(&donor, parallel)?;
        let rounds: Vec<Result<Round>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..parallel)
                .map(|number| {
                    let bundles = &bundles;
                    scope.spawn(move || bundles.round(&self.runc, number))
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| {
                    thread
                        .join()
                        .unwrap_or_else(|_| Err("a thread panicked".into()))
                })
                .collect()
        });
        for round in rounds {
            runc.add(&round?);
        }
        donor.destroy().await?;
        Ok((atoll, runc))
    }

    async fn idle(&self, count: usize) -> Result<()> {
        let before = kernel_kib()?;
        let mut sandboxes = Vec::with_capacity(count);
        for _ in 0..count {
            sandboxes.push(self.open(&self.atoll).await?);
        }
        let after = kernel_kib()?;
        let (mut monitor, mut guest) = (0, 0);
        for live in &sandboxes {
            let lease = Lease::of(live.sandbox().id())?;
            monitor += pss_kib(lease.monitor)?;
            for child in children(lease.monitor)? {
                guest += pss_kib(child)?;
            }
        }
        let n = count as u64;
        let kernel = after.saturating_sub(before);
        println!("monitor  {:>7} KiB PSS each", monitor / n);
        println!("guest    {:>7} KiB PSS each", guest / n);
        println!("runtime  {:>7} KiB (nothing of it stays)", 0);
        println!(
            "kernel   {:>7} KiB each (slab, stacks, page tables, per-CPU)",
            kernel / n
        );
        println!("sum      {:>7} KiB each", (monitor + guest + kernel) / n);
        for live in sandboxes {
            live.destroy().await?;
        }
        Ok(())
    }
}

/// Bundles equal to that of a running sandbox, on its root file system, with a
/// process that waits as the guest does.
struct Bundles {
    monitor: i32,
    directory: tempfile::TempDir,
}

impl Bundles {
    fn copy(donor: &LiveSandbox, count: usize) -> Result<Self> {
        let lease = Lease::of(donor.sandbox().id())?;
        let directory = tempfile::tempdir()?;
        for number in 0..count {
            let mut config: serde_json::Value =
                serde_json::from_slice(&fs::read(lease.dir.join("config.json"))?)?;
            config["process"]["args"] = serde_json::json!(["/bin/sleep", "600"]);
            config["linux"]["cgroupsPath"] = format!("/atoll-bench/{number}").into();
            // The donor's user namespace is closed to newcomers; `runc` makes an equal one.
            for namespace in config["linux"]["namespaces"]
                .as_array_mut()
                .ok_or("no namespaces")?
            {
                namespace
                    .as_object_mut()
                    .ok_or("no namespace")?
                    .remove("path");
            }
            let bundle = directory.path().join(number.to_string());
            fs::create_dir(&bundle)?;
            fs::write(bundle.join("config.json"), config.to_string())?;
        }
        Ok(Self {
            monitor: lease.monitor,
            directory,
        })
    }

    fn round(&self, runc: &Path, number: usize) -> Result<Round> {
        let name = format!("bench-{}-{number}", std::process::id());
        let bundle = self
            .directory
            .path()
            .join(number.to_string())
            .display()
            .to_string();
        let start = Instant::now();
        self.call(runc, &["create", "--bundle", &bundle, &name])?;
        self.call(runc, &["start", &name])?;
        let create = start.elapsed();
        let end = Instant::now();
        self.call(runc, &["delete", "-f", &name])?;
        Ok(Round {
            create,
            first: None,
            destroy: end.elapsed(),
            whole: start.elapsed(),
        })
    }

    /// Calls `runc` where the root file system is mounted: in the monitor's mount namespace.
    fn call(&self, runc: &Path, arguments: &[&str]) -> Result<()> {
        let namespace = fs::File::open(format!("/proc/{}/ns/mnt", self.monitor))?;
        let log = self
            .directory
            .path()
            .join(format!("{}.log", arguments[arguments.len() - 1]));
        let output = fs::File::create(&log)?;
        let mut command = Command::new(runc);
        command
            .arg("--root")
            .arg(self.directory.path().join("state"))
            .args(arguments);
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        // SAFETY: `setns` is a plain system call, safe between fork and exec.
        unsafe {
            command.pre_exec(move || {
                let kind = Some(rustix::thread::LinkNameSpaceType::Mount);
                Ok(rustix::thread::move_into_link_name_space(
                    std::os::fd::AsFd::as_fd(&namespace),
                    kind,
                )?)
            });
        }
        if command.status()?.success() {
            Ok(())
        } else {
            Err(format!("runc {arguments:?}: {}", fs::read_to_string(log)?).into())
        }
    }
}

impl Drop for Bundles {
    fn drop(&mut self) {
        for root in fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten()
        {
            let _ = fs::remove_dir(root.path().join("atoll-bench"));
        }
        let _ = fs::remove_dir("/sys/fs/cgroup/atoll-bench");
    }
}

fn report(atoll: &Times, runc: &Times) {
    println!("{:<44}{:>9}{:>9}{:>9}", "milliseconds", "p50", "p95", "p99");
    let rows = [
        ("atoll: sandbox ready", &atoll.create),
        ("atoll: first command finished", &atoll.first),
        ("atoll: destroy", &atoll.destroy),
        ("atoll: whole life", &atoll.whole),
        ("runc:  create + start", &runc.create),
        ("runc:  delete -f", &runc.destroy),
        ("runc:  create + start + delete -f", &runc.whole),
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
        "whole life, p50 against runc",
        at(&atoll.whole, 50) / at(&runc.whole, 50),
        1.0,
    );
    verdict(
        "destroy, p50 against runc delete -f",
        at(&atoll.destroy, 50) / at(&runc.destroy, 50),
        0.5,
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
