//! Many attackers at once: what the host and peaceful sandboxes feel of it.
//!
//! Unlike the cases this is no wall with a verdict, and not for a host in use:
//! it takes whatever the limits of the attackers add up to.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_engine::Tier;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::task::JoinSet;

use crate::case::{Numbers, User};
use crate::program;
use crate::runner::shown;
use crate::stage::{Actor, Connection, Stage, StageError};
use crate::{Ground, stage};

const SIEGE: &str = include_str!("../attacks/siege.py");
/// What the peaceful sandbox does, again and again.
const PEACEFUL: &str = "report(True, 6 * 7)";
/// One attack program runs this long at most; then the next begins.
const ROUND: Duration = Duration::from_secs(20);
/// Measurements of the quiet host.
const QUIET_SAMPLES: usize = 50;
/// Pause between two measurements.
const PAUSE: Duration = Duration::from_millis(100);

/// What came of a siege.
#[derive(Debug, Clone, Serialize)]
pub struct SiegeReport {
    /// Attackers.
    pub sandboxes: usize,
    /// How long they attacked.
    pub seconds: u64,
    /// Rounds of attacks that ran to their end.
    pub rounds: usize,
    /// Attackers that were replaced: they ended their own sandbox, or kept it too busy to answer.
    pub replaced: usize,
    /// A plain command on the host, before.
    pub host_quiet: Latency,
    /// The same, during.
    pub host_besieged: Latency,
    /// A peaceful sandbox of each tier.
    pub peaceful: Vec<Peaceful>,
}

/// How a sandbox fared that did nothing but work.
#[derive(Debug, Clone, Serialize)]
pub struct Peaceful {
    /// Its tier.
    pub tier: Tier,
    /// A program in it, before.
    pub quiet: Latency,
    /// The same, during.
    pub besieged: Latency,
    /// Answers that were wrong or missing. Must be 0.
    pub failures: usize,
}

/// Times in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// How many were measured.
    pub samples: usize,
    /// Half of them took at most this long.
    pub p50_us: u64,
    /// 95 of 100 took at most this long.
    pub p95_us: u64,
    /// The longest.
    pub max_us: u64,
}

impl Latency {
    fn of(mut samples: Vec<Duration>) -> Self {
        samples.sort();
        let at = |percent: usize| {
            let index = (samples.len() * percent / 100).min(samples.len().saturating_sub(1));
            samples.get(index).map_or(0, |time| {
                u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
            })
        };
        Self {
            samples: samples.len(),
            p50_us: at(50),
            p95_us: at(95),
            max_us: at(100),
        }
    }
}

/// Has `count` sandboxes, of all tiers in turn, attack for `time`.
///
/// # Errors
/// When sandboxes cannot be made, or no command can be run on the host.
pub async fn siege(ground: &Ground, count: usize, time: Duration) -> Result<SiegeReport, String> {
    let words = |error: StageError| shown(&error.to_string());
    let stages: Vec<Stage> = ground
        .runtimes
        .iter()
        .map(|runtime| Stage {
            runtime: Arc::clone(runtime),
            layers: ground.layers.clone(),
            user: ground.user.clone(),
        })
        .collect();
    let mut neighbours = Vec::new();
    for stage in &stages {
        let actor = stage
            .open(&Numbers::new(), Vec::new(), Connection::None)
            .await
            .map_err(words)?;
        neighbours.push(Neighbour::new(stage.tier(), actor));
    }
    let mut host = Vec::new();
    for _ in 0..QUIET_SAMPLES {
        host.push(plain_command().await?);
        for neighbour in &mut neighbours {
            neighbour.work().await;
        }
    }
    let host_quiet = Latency::of(host);
    for neighbour in &mut neighbours {
        neighbour.quiet = Latency::of(std::mem::take(&mut neighbour.times));
    }

    let end = Instant::now() + time;
    let mut attackers = JoinSet::new();
    for (number, stage) in (0..count).zip(stages.iter().cycle()) {
        attackers.spawn(attack(stage.clone(), number, end));
    }
    let mut host = Vec::new();
    while Instant::now() < end {
        host.push(plain_command().await?);
        for neighbour in &mut neighbours {
            neighbour.work().await;
        }
        tokio::time::sleep(PAUSE).await;
    }
    let (mut rounds, mut replaced) = (0, 0);
    while let Some(ended) = attackers.join_next().await {
        let attacker = ended
            .map_err(|error| error.to_string())?
            .map_err(|error| format!("an attacker had no sandbox: {}", words(error)))?;
        rounds += attacker.rounds;
        replaced += attacker.replaced;
    }
    let mut peaceful = Vec::new();
    for neighbour in neighbours {
        peaceful.push(neighbour.end().await);
    }
    Ok(SiegeReport {
        sandboxes: count,
        seconds: time.as_secs(),
        rounds,
        replaced,
        host_quiet,
        host_besieged: Latency::of(host),
        peaceful,
    })
}

/// A peaceful sandbox and how it fares.
struct Neighbour {
    tier: Tier,
    actor: Actor,
    quiet: Latency,
    times: Vec<Duration>,
    failures: usize,
}

impl Neighbour {
    fn new(tier: Tier, actor: Actor) -> Self {
        Self {
            tier,
            actor,
            quiet: Latency::of(Vec::new()),
            times: Vec::new(),
            failures: 0,
        }
    }

    async fn end(self) -> Peaceful {
        self.actor.close().await;
        Peaceful {
            tier: self.tier,
            quiet: self.quiet,
            besieged: Latency::of(self.times),
            failures: self.failures,
        }
    }

    async fn work(&mut self) {
        let start = Instant::now();
        let text = program::text(PEACEFUL, &Map::new());
        let performance = self.actor.perform(&text, User::Template, "/").await;
        if performance.report().is_ok_and(|report| report.got == "42") {
            self.times.push(start.elapsed());
        } else {
            self.failures += 1;
        }
    }
}

/// How long an ordinary program takes on the host.
async fn plain_command() -> Result<Duration, String> {
    let measured = stage::blocking(|| {
        let start = Instant::now();
        let status = Command::new("/bin/true").stdin(Stdio::null()).status()?;
        if status.success() {
            Ok(start.elapsed())
        } else {
            Err(std::io::Error::other("`/bin/true` failed"))
        }
    });
    measured
        .await
        .and_then(|measured| measured)
        .map_err(|error| error.to_string())
}

/// What one attacker did.
struct Attacker {
    rounds: usize,
    replaced: usize,
}

/// Attacks from one sandbox after the other until `end`.
async fn attack(stage: Stage, number: usize, end: Instant) -> Result<Attacker, StageError> {
    let limits = Numbers::from([
        ("memory_mib".to_owned(), 64),
        ("cpu_millis".to_owned(), 200),
        ("pids".to_owned(), 64),
        ("disk_mib".to_owned(), 32),
        ("open_files".to_owned(), 512),
    ]);
    let mut attacker = Attacker {
        rounds: 0,
        replaced: 0,
    };
    let mut actor = stage.open(&limits, Vec::new(), Connection::None).await?;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        let mut target = Map::new();
        let seconds = left.min(ROUND).as_secs_f64();
        target.insert("seconds".to_owned(), Value::from(seconds));
        target.insert("number".to_owned(), Value::from(number));
        let text = program::text(SIEGE, &target);
        let report = actor.perform(&text, User::Root, "/").await.report();
        attacker.rounds += usize::from(report.is_ok_and(|report| report.success));
        if !actor.answers().await {
            actor.close().await;
            attacker.replaced += 1;
            actor = stage.open(&limits, Vec::new(), Connection::None).await?;
        }
    }
    actor.close().await;
    Ok(attacker)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_told_by_their_ranks() {
        let samples = (1..=100).map(Duration::from_micros).collect();
        let expected = Latency {
            samples: 100,
            p50_us: 51,
            p95_us: 96,
            max_us: 100,
        };
        assert_eq!(Latency::of(samples), expected);
        assert_eq!(Latency::of(Vec::new()).max_us, 0);
    }
}
