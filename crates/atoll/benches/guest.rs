//! `cargo xtask bench guest`: what a sandbox's guest costs beside the same
//! work without one: a command beside `posix_spawn`, its output beside a
//! pipe, files beside a copy, a watch beside `inotify`.
//!
//! Each pair takes turns, so that whatever else the machine does hits both.

mod support;

use std::fs::{self, File};
use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use atoll_control::LiveSandbox;
use atoll_guest_client::{LocalFile, ProcessEvent, WatchOptions};
use rustix::fs::inotify;
use support::{Bench, Lease, Rates, Result, children, percentile, pss_kib};

/// Most memory that an idle guest may take.
const GUEST_PSS_KIB_MAX: u64 = 5 * 1024;

const MIB: usize = 1024 * 1024;

/// What was asked on the command line.
struct Options {
    count: usize,
    mib: usize,
    rounds: usize,
}

fn main() -> Result<()> {
    let mut options = Options {
        count: 200,
        mib: 256,
        rounds: 31,
    };
    support::options(&mut [
        ("--count", &mut options.count),
        ("--mib", &mut options.mib),
        ("--rounds", &mut options.rounds),
    ])?;
    let bench = Bench::prepare()?;
    let runtime = support::runtime()?;
    runtime.block_on(async {
        let live = bench.open(&bench.atoll).await?;
        let result = measure(&live, &options).await;
        live.destroy().await?;
        result
    })
}

async fn measure(live: &LiveSandbox, options: &Options) -> Result<()> {
    println!("container tier, template `base`\n");
    let idle = guest_pss_kib(live)?;
    commands(live, options.count).await?;
    output(live, options).await?;
    files(live, options).await?;
    watch(live, options.count).await?;
    println!(
        "\nguest        {idle} KiB PSS idle, {} KiB after all of this; promise: idle at most {GUEST_PSS_KIB_MAX} KiB ({})",
        guest_pss_kib(live)?,
        kept(idle <= GUEST_PSS_KIB_MAX)
    );
    Ok(())
}

fn kept(kept: bool) -> &'static str {
    if kept { "kept" } else { "BROKEN" }
}

/// `/bin/true` from the wish to its exit status.
async fn commands(live: &LiveSandbox, count: usize) -> Result<()> {
    let (mut ours, mut spawn) = (Vec::new(), Vec::new());
    for round in 0..=count {
        let start = Instant::now();
        support::first_command(live).await?;
        let took = start.elapsed();
        let start = Instant::now();
        Command::new("/bin/true").status()?;
        // The first round warms caches and is not counted.
        if round > 0 {
            ours.push(took);
            spawn.push(start.elapsed());
        }
    }
    let more = percentile(&ours, 50).saturating_sub(percentile(&spawn, 50));
    println!(
        "command      p50 {:.2?}, p95 {:.2?}, p99 {:.2?}",
        percentile(&ours, 50),
        percentile(&ours, 95),
        percentile(&ours, 99)
    );
    println!(
        "posix_spawn  p50 {:.2?}, p95 {:.2?}, p99 {:.2?}",
        percentile(&spawn, 50),
        percentile(&spawn, 95),
        percentile(&spawn, 99)
    );
    println!(
        "             p50 {more:.2?} more; promise: at most 1.5 ms more ({})\n",
        kept(more <= Duration::from_micros(1500))
    );
    Ok(())
}

/// Output of a command that does nothing but write.
async fn output(live: &LiveSandbox, options: &Options) -> Result<()> {
    let script = format!("head -c {} /dev/zero", options.mib * MIB);
    let (mut ours, mut pipe) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let command = atoll_guest_client::Command {
            cmd: "/bin/sh".to_owned(),
            args: vec!["-c".to_owned(), script.clone()],
            ..atoll_guest_client::Command::default()
        };
        let start = Instant::now();
        let mut process = live.guest().start(&command).await?;
        let mut bytes = 0;
        while let Some(event) = process.next().await? {
            if let ProcessEvent::Stdout(chunk) = event {
                bytes += chunk.len();
            }
        }
        ours.push(start.elapsed());
        let start = Instant::now();
        let piped = through_a_pipe(&script)?;
        pipe.push(start.elapsed());
        if (bytes, piped) != (options.mib * MIB, options.mib * MIB) {
            return Err(format!("{bytes} and {piped} bytes came out").into());
        }
    }
    let (ours, pipe) = (rate(&ours, options), rate(&pipe, options));
    println!(
        "stdout       {ours:.0} MB/s, a pipe {pipe:.0} MB/s; promise: at least 100 MB/s ({})\n",
        kept(ours >= 100.0)
    );
    Ok(())
}

fn through_a_pipe(script: &str) -> Result<usize> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", script])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut output = child.stdout.take().ok_or("no output")?;
    let (mut buffer, mut bytes) = (vec![0; 64 * 1024], 0);
    loop {
        match output.read(&mut buffer)? {
            0 => break,
            read => bytes += read,
        }
    }
    child.wait()?;
    Ok(bytes)
}

/// A file in and out of the sandbox, beside a copy from file to file.
///
/// All three write a new file and nothing else: from a file that is in memory
/// and on the disk already, without waiting for the disk, into memory that the
/// one before has just given back. They take turns at who is first, and the
/// first round is not counted.
async fn files(live: &LiveSandbox, options: &Options) -> Result<()> {
    let directory = tempfile::tempdir_in(support::home()?)?;
    let (source, copy) = (
        directory.path().join("source"),
        directory.path().join("copy"),
    );
    fs::write(&source, noise(options.mib * MIB))?;
    File::open(&source)?.sync_all()?;
    let content = LocalFile(File::open(&source)?);
    live.guest().write_file("source", None, content).await?;
    support::run(live, "/bin/sync").await?;
    let mut times: [Vec<Duration>; 3] = Default::default();
    for round in 0..=options.rounds {
        for way in support::in_turn::<3>(round) {
            let start = Instant::now();
            match way {
                0 => {
                    let content = LocalFile(File::open(&source)?);
                    live.guest().write_file("copy", None, content).await?;
                }
                1 => {
                    let reader = live.guest().read_file("source", None).await?;
                    reader.save_to(File::create(&copy)?).await?;
                }
                _ => read_and_write(&source, &copy)?,
            }
            let took = start.elapsed();
            if round > 0 {
                times[way].push(took);
            }
            match way {
                0 => live.guest().remove("copy", None).await?,
                _ => fs::remove_file(&copy)?,
            }
        }
    }
    let bytes = options.mib * MIB;
    let [up, down, plain] = times.map(|times| Rates::of(&times, bytes));
    println!("plain copy   {plain}");
    for (name, rates) in [("upload", up), ("download", down)] {
        let part = rates.median / plain.median;
        println!(
            "{name:<12} {rates}: {:.0} % of a plain copy; promise: at least 60 % ({})",
            100.0 * part,
            kept(part >= 0.6)
        );
    }
    Ok(())
}

/// A copy that reads and writes: `copy_file_range` may share blocks instead.
fn read_and_write(from: &std::path::Path, to: &std::path::Path) -> Result<()> {
    let (mut from, mut to) = (File::open(from)?, File::create(to)?);
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            read => io::Write::write_all(&mut to, &buffer[..read])?,
        }
    }
}

/// From the making of a directory to the news of it.
async fn watch(live: &LiveSandbox, count: usize) -> Result<()> {
    let guest = live.guest();
    guest.make_dir("watched", None).await?;
    let mut watch = guest
        .watch("watched", WatchOptions::default(), None)
        .await?;
    let here = tempfile::tempdir()?;
    let inotify = inotify::init(inotify::CreateFlags::CLOEXEC)?;
    inotify::add_watch(&inotify, here.path(), inotify::WatchFlags::CREATE)?;
    let (mut ours, mut call, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..count {
        let start = Instant::now();
        guest.make_dir(&format!("watched/{number}"), None).await?;
        call.push(start.elapsed());
        watch.next().await?.ok_or("the watch ended")?;
        ours.push(start.elapsed());

        let start = Instant::now();
        fs::create_dir(here.path().join(number.to_string()))?;
        let mut event = [0; 512];
        rustix::io::read(&inotify, &mut event)?;
        plain.push(start.elapsed());
    }
    println!(
        "\nwatch        p50 {:.2?} from the call to the news, the call alone {:.2?}, inotify {:.2?}",
        percentile(&ours, 50),
        percentile(&call, 50),
        percentile(&plain, 50)
    );
    Ok(())
}

/// Megabytes per second at the median.
fn rate(times: &[Duration], options: &Options) -> f64 {
    let bytes = u32::try_from(options.mib * MIB).map_or(f64::MAX, f64::from);
    bytes / 1e6 / percentile(times, 50).as_secs_f64()
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn guest_pss_kib(live: &LiveSandbox) -> Result<u64> {
    let lease = Lease::of(live.sandbox().id())?;
    children(lease.monitor)?.into_iter().map(pss_kib).sum()
}
