//! Floods that are aimed at the host's own programs: at who reads a sandbox's
//! output, at what is logged about it, and at the forwarder of names. Judged by
//! what the host measures of itself.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_engine::{Denial, NetworkUsage};
use serde::Deserialize;
use serde_json::Value;

use crate::case::{Numbers, User};
use crate::program::{self, Report};
use crate::runner::Scene;
use crate::runner::scene::Pair;
use crate::stage::{Actor, blocking};

const OUTPUT: &str = include_str!("../../attacks/output_flood.py");
const LOG: &str = include_str!("../../attacks/log_flood.py");
const NAMES: &str = include_str!("../../attacks/name_flood.py");

/// More memory than this for 128 MiB of output means that all of it was kept.
const MEMORY_LIMIT_KIB: u64 = 48 << 10;
/// More than this, of 16 MiB of lines, means that somebody wrote them down.
const LOG_LIMIT: u64 = 1 << 20;
/// Where a careless runtime would have the log of PID 1 and of the machine.
const LOGS_INSIDE: &str =
    "/proc/1/fd/0 /proc/1/fd/1 /proc/1/fd/2 /proc/1/fd/3 /dev/console /dev/kmsg /proc/kmsg";
/// What names may take: at once, and in a second (see `docs/network.md`).
const NAMES_AT_ONCE: f64 = 1000.0;
const NAMES_PER_SECOND: f64 = 200.0;

/// What is flooded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flood {
    Output,
    Log,
    Names,
}

impl Flood {
    pub(crate) const ALL: [Self; 3] = [Self::Output, Self::Log, Self::Names];

    /// Name, what is tried, the wall, and the control.
    pub(crate) fn describe(self) -> (&'static str, &'static str, &'static str, &'static str) {
        match self {
            Self::Output => (
                "floods.output",
                "128 MiB of output, for the host to choke on",
                "output is passed on piece by piece; who is slow slows the program down",
                "a reader of as much output that keeps it all",
            ),
            Self::Log => (
                "floods.host-log",
                "16 MiB of lines into whatever could be a log on the host, and requests that make no sense",
                "PID 1 has no descriptor of the host that can be written; what a sandbox says is not logged",
                "the same lines into a file of the host that was left open",
            ),
            Self::Names => (
                "network.names-tunnel",
                "4000 questions for names at once, as a tunnel would ask them",
                "200 packets a second to the DNS forwarder, 1000 at once; the rest is dropped and counted",
                "as many datagrams to a server on the internet",
            ),
        }
    }
}

/// Makes the flood and its control.
pub(crate) async fn play(flood: Flood, scene: &mut Scene) -> Result<Pair, String> {
    let actor = scene.open_plain(&Numbers::new()).await?;
    let pair = match flood {
        Flood::Output => output(scene, &actor).await,
        Flood::Log => log(scene, &actor).await,
        Flood::Names => names(scene, &actor).await,
    };
    actor.close().await;
    pair
}

async fn output(scene: &Scene, actor: &Actor) -> Result<Pair, String> {
    let text = program::text(OUTPUT, &scene.target(&[], ""));
    let before = forget_peak().map_err(|error| words(&error))?;
    let performance = actor.perform(&text, User::Root, "/").await;
    let grown = peak_kib()
        .map_err(|error| words(&error))?
        .saturating_sub(before);
    let attack = if performance.output.is_empty() {
        Err("the flood did not flow".to_owned())
    } else {
        Ok(Report {
            success: grown > MEMORY_LIMIT_KIB || !actor.answers().await,
            ..Report::failed(format!("{} MiB more memory on the host", grown >> 10))
        })
    };
    let mut target = scene.target(&[], "");
    target.insert("tier".to_owned(), Value::from("none"));
    let order = scene.order(&program::text(OUTPUT, &target));
    Ok((attack, scene.in_room(&order).await))
}

/// Starts to measure the most memory that this process has at once, and says what it has now.
fn forget_peak() -> io::Result<u64> {
    fs::write("/proc/self/clear_refs", "5")?;
    peak_kib()
}

fn peak_kib() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| io::Error::other("the kernel does not say how much memory is used"))
}

async fn log(scene: &Scene, actor: &Actor) -> Result<Pair, String> {
    // Everything of Atoll's on this host that is no disk, layer or template.
    let places = [
        scene.home().join("monitor.log"),
        scene.home().join("sandboxes"),
        PathBuf::from("/run/atoll"),
    ];
    let grown = |before: u64| {
        let grown = weight(&places).saturating_sub(before);
        (
            grown > LOG_LIMIT,
            format!("{} KiB more on the host", grown >> 10),
        )
    };
    let mut target = scene.target(&[], "");
    target.insert("logs".to_owned(), Value::from(LOGS_INSIDE));
    let before = weight(&places);
    let text = program::text(LOG, &target);
    let report = actor.perform(&text, User::Root, "/").await.report();
    let (success, what) = grown(before);
    let attack = report.map(|report| Report {
        success: success || report.success,
        detail: what,
        ..report
    });

    let open = scene.keeper.open_directory();
    let left_open = open.join("log");
    fs::write(&left_open, "").map_err(|error| words(&error))?;
    target.insert("tier".to_owned(), Value::from("none"));
    target.insert(
        "logs".to_owned(),
        Value::from(left_open.display().to_string()),
    );
    let report = scene
        .in_room(&scene.order(&program::text(LOG, &target)))
        .await;
    let written = weight(std::slice::from_ref(&left_open));
    fs::remove_file(&left_open).map_err(|error| words(&error))?;
    let control = report.map(|report| Report {
        success: written > LOG_LIMIT,
        ..report
    });
    Ok((attack, control))
}

/// Bytes of all files below `places`; what goes away meanwhile weighs nothing.
fn weight(places: &[PathBuf]) -> u64 {
    fn below(path: &Path) -> u64 {
        let Ok(metadata) = fs::symlink_metadata(path) else {
            return 0;
        };
        if !metadata.is_dir() {
            return metadata.size();
        }
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| below(&entry.path())).sum()
    }
    places.iter().map(|path| below(path)).sum()
}

/// What the flooder says of itself.
#[derive(Deserialize)]
struct Sent {
    sent: f64,
    seconds: f64,
}

async fn names(scene: &Scene, actor: &Actor) -> Result<Pair, String> {
    let gateway = flood_names(scene, actor, "gateway").await?;
    let (sent, before, after) = gateway;
    let of_dns = |usage: &NetworkUsage| {
        let denied = usage.denied.get(&Denial::Dns);
        denied.map_or(0, |traffic| traffic.packets)
    };
    let asked = after.dns.packets.saturating_sub(before.dns.packets);
    let denied = of_dns(&after).saturating_sub(of_dns(&before));
    // A second of grace for what the kernel grants between its measurements and ours.
    let granted = NAMES_AT_ONCE + NAMES_PER_SECOND * (sent.seconds + 1.0);
    let attack = Report {
        success: asked as f64 > granted || denied == 0,
        ..Report::failed(format!("{asked} passed, {denied} dropped and counted"))
    };
    let (sent, before, after) = flood_names(scene, actor, "server").await?;
    let passed = after.sent.packets.saturating_sub(before.sent.packets);
    let control = Report {
        success: passed as f64 >= sent.sent * 0.9,
        ..Report::failed(format!("{passed} of {} passed", sent.sent))
    };
    Ok((Ok(attack), Ok(control)))
}

async fn flood_names(
    scene: &Scene,
    actor: &Actor,
    aim: &str,
) -> Result<(Sent, NetworkUsage, NetworkUsage), String> {
    let mut target = scene.target(&[], "");
    target.insert("aim".to_owned(), Value::from(aim));
    let text = program::text(NAMES, &target);
    let before = usage(actor).await?;
    let report = actor.perform(&text, User::Root, "/").await.report()?;
    let sent = serde_json::from_str(&report.got).map_err(|_| report.got.clone())?;
    Ok((sent, before, usage(actor).await?))
}

/// What the host counted.
async fn usage(actor: &Actor) -> Result<NetworkUsage, String> {
    let sandbox = Arc::clone(&actor.sandbox);
    let stats = blocking(move || sandbox.stats())
        .await
        .map_err(|error| words(&error))?
        .map_err(|error| error.to_string())?;
    stats.network.ok_or_else(|| "it has no network".to_owned())
}

fn words(error: &io::Error) -> String {
    error.to_string()
}
