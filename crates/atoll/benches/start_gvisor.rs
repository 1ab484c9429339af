//! `cargo xtask bench start --tier gvisor`: from the wish for a sandbox to its
//! first finished command and its removal, beside raw `runsc` on an equal bundle.
//!
//! The two take turns, so that whatever else the machine does hits both.
//! What Atoll is charged for and `runsc` is not: the disk, the root file system,
//! the network, the guest, the limits, and taking it all away.

mod support;

use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_control::LiveSandbox;
use atoll_engine::{MonitoredRuntime, Runtime, Tier};
use rustix::process::{Pid, WaitOptions, waitpid};
use support::{Bench, Lease, Result, first_command, percentile};

/// Promises of the tier, as multiples of raw `runsc`.
const FIRST_PROMISE: f64 = 1.3;
const DESTROY_PROMISE: f64 = 1.0;

fn main() -> Result<()> {
    let mut count = 30;
    support::options(&mut [("--count", &mut count)])?;
    // What `runsc` leaves running comes to us, and is waited for: otherwise it
    // would wait for a reaper itself when it deletes.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
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
    let raw = Raw::copy(&donor, bench.config.runsc.clone())?;
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
struct Raw {
    runsc: PathBuf,
    monitor: i32,
    directory: tempfile::TempDir,
}

impl Raw {
    fn copy(donor: &LiveSandbox, runsc: PathBuf) -> Result<Self> {
        let lease = Lease::of(donor.sandbox().id())?;
        let directory = tempfile::tempdir()?;
        let mut config: serde_json::Value =
            serde_json::from_slice(&fs::read(lease.dir.join("config.json"))?)?;
        config["process"]["args"] = serde_json::json!(["/bin/sleep", "600"]);
        // It gets no network at all, which is less work than Atoll's.
        config["linux"]["namespaces"]
            .as_array_mut()
            .ok_or("no namespaces")?
            .retain(|namespace| namespace["type"] != "network");
        fs::write(directory.path().join("config.json"), config.to_string())?;
        for name in ["state", "changes"] {
            fs::create_dir(directory.path().join(name))?;
        }
        Ok(Self {
            runsc,
            monitor: lease.monitor,
            directory,
        })
    }

    fn round(&self, number: usize) -> Result<Round> {
        let name = format!("bench-{}-{number}", std::process::id());
        let bundle = self.directory.path().display().to_string();
        let start = Instant::now();
        self.call(&["run", "--detach", "--bundle", &bundle, &name])?;
        let create = start.elapsed();
        self.call(&["exec", &name, "/bin/true"])?;
        let first = start.elapsed();
        let reapers = self.reap(&name)?;
        let end = Instant::now();
        self.call(&["delete", "--force", &name])?;
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

    /// Waits for the processes of a sandbox, each in a thread of its own.
    fn reap(&self, name: &str) -> Result<Vec<std::thread::JoinHandle<()>>> {
        let state = self.directory.path().join("state");
        let text = fs::read(state.join(format!("{name}_sandbox:{name}.state")))?;
        let value: serde_json::Value = serde_json::from_slice(&text)?;
        let pids = [&value["sandbox"]["pid"], &value["goferPid"]];
        pids.into_iter()
            .map(|pid| {
                let pid = i32::try_from(pid.as_i64().ok_or("no pid")?)?;
                let pid = Pid::from_raw(pid).ok_or("pid 0")?;
                Ok(std::thread::spawn(move || {
                    let _ = waitpid(Some(pid), WaitOptions::empty());
                }))
            })
            .collect()
    }

    /// Calls `runsc` where the root file system is mounted: in the monitor's mount namespace.
    fn call(&self, arguments: &[&str]) -> Result<()> {
        let namespace = fs::File::open(format!("/proc/{}/ns/mnt", self.monitor))?;
        let log = self.directory.path().join("log");
        let output = fs::File::create(&log)?;
        let changes = self.directory.path().join("changes");
        let mut command = Command::new(&self.runsc);
        command
            .arg("--root")
            .arg(self.directory.path().join("state"))
            .args(["--platform=systrap", "--network=none", "--ignore-cgroups"])
            .arg(format!("--overlay2=root:dir={}", changes.display()))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        // SAFETY: `setns` is a plain system call, safe between fork and exec.
        unsafe {
            command.pre_exec(move || {
                let kind = Some(rustix::thread::LinkNameSpaceType::Mount);
                Ok(rustix::thread::move_into_link_name_space(
                    namespace.as_fd(),
                    kind,
                )?)
            });
        }
        if command.status()?.success() {
            Ok(())
        } else {
            Err(format!("runsc {arguments:?}: {}", fs::read_to_string(log)?).into())
        }
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
