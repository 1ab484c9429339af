//! What the benchmarks share: sandboxes on `base`, percentiles, memory.
#![allow(dead_code, unreachable_pub, reason = "each benchmark uses its part")]

pub mod connection;
pub mod raw_runsc;
pub mod server;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use atoll_control::LiveSandbox;
use atoll_control::templates::TemplateCatalog;
use atoll_engine::{
    Attachment, EngineConfig, Limits, MonitoredRuntime, NetworkPolicy, OciRuntimeChoice, Runtime,
    SandboxId, SandboxSpec, SlotRange, Tier,
};
use atoll_guest_client::{InitRequest, ProcessEvent};

pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Reads numbers from the command line.
pub fn options(known: &mut [(&str, &mut usize)]) -> Result<()> {
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        let names = names.join(", ");
        let (_, target) = known
            .iter_mut()
            .find(|(name, _)| *name == argument)
            .ok_or_else(|| format!("unknown option `{argument}` ({names})"))?;
        **target = arguments.next().ok_or("a number is missing")?.parse()?;
    }
    Ok(())
}

/// What drives the client's side.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?)
}

/// The home that holds the template.
pub fn home() -> Result<PathBuf> {
    let home =
        std::env::var_os("ATOLL_HOME").ok_or("ATOLL_HOME is not set: use `cargo xtask bench`")?;
    Ok(PathBuf::from(home))
}

/// Everything that stays the same from round to round.
pub struct Bench {
    pub config: EngineConfig,
    pub atoll: Arc<dyn Runtime>,
    /// The same runtime on `runc`, which makes the bundle that raw `runc` runs.
    pub on_runc: Arc<dyn Runtime>,
    pub runc: PathBuf,
    pub layers: Vec<PathBuf>,
    pub env: BTreeMap<String, String>,
}

impl Bench {
    pub fn prepare() -> Result<Self> {
        let home = home()?;
        let runc = ["/usr/bin/runc", "/usr/sbin/runc"]
            .iter()
            .map(PathBuf::from)
            .find(|path| path.exists());
        let runc = runc.ok_or("`runc` is not installed (apt-get install runc)")?;
        atoll_engine::reconcile()?;
        let catalog = TemplateCatalog::open(&home)?;
        let template = catalog
            .get(&"base".parse()?)?
            .ok_or("there is no template `base` (atoll template build base)")?;
        let layers = tokio::runtime::Builder::new_current_thread()
            .build()?
            .block_on(catalog.layer_directories(&template))?;
        let guest = fs::read_dir(home.join("guest"))?
            .flatten()
            .map(|entry| entry.path())
            .max_by_key(|path| {
                path.metadata()
                    .and_then(|metadata| metadata.modified())
                    .ok()
            });
        let config = EngineConfig {
            guest: guest.ok_or("no guest in the home: run `atoll run` once")?,
            home,
            program: PathBuf::from(env!("CARGO_BIN_EXE_atoll")),
            oci_runtime: OciRuntimeChoice::Builtin,
            runsc: PathBuf::from("runsc"),
            slot_range: SlotRange::default(),
        };
        let on_runc = EngineConfig {
            oci_runtime: OciRuntimeChoice::External(runc.clone()),
            ..config.clone()
        };
        Ok(Self {
            config: config.clone(),
            atoll: Arc::new(MonitoredRuntime::new(config, Tier::Container)),
            on_runc: Arc::new(MonitoredRuntime::new(on_runc, Tier::Container)),
            runc,
            layers,
            env: template.env,
        })
    }

    pub async fn open(&self, runtime: &Arc<dyn Runtime>) -> Result<LiveSandbox> {
        let id = SandboxId::random()?;
        let spec = SandboxSpec {
            hostname: id.to_string(),
            id,
            layers: self.layers.clone(),
            limits: Limits::default(),
            network: NetworkPolicy::None,
            env: BTreeMap::new(),
            lifetime: Some(Duration::from_secs(600)),
            attachment: Attachment::Client,
            memory: None,
        };
        let init = InitRequest {
            env_vars: Some(self.env.clone()),
            default_user: Some("user".to_owned()),
            ..InitRequest::default()
        };
        Ok(LiveSandbox::open(Arc::clone(runtime), spec, init).await?)
    }
}

pub async fn first_command(live: &LiveSandbox) -> Result<()> {
    run(live, "/bin/true").await
}

/// Runs a program without arguments to its end.
pub async fn run(live: &LiveSandbox, program: &str) -> Result<()> {
    let command = atoll_guest_client::Command {
        cmd: program.to_owned(),
        ..atoll_guest_client::Command::default()
    };
    let mut process = live.guest().start(&command).await?;
    while let Some(event) = process.next().await? {
        if matches!(event, ProcessEvent::End(_)) {
            return Ok(());
        }
    }
    Err(format!("`{program}` gave no exit status").into())
}

/// The slot of a sandbox, as its lease says.
pub struct Lease {
    pub dir: PathBuf,
    pub monitor: i32,
}

impl Lease {
    pub fn of(id: &SandboxId) -> Result<Self> {
        for entry in fs::read_dir("/run/atoll/slots")?.flatten() {
            let Ok(text) = fs::read(entry.path().join("lease.json")) else {
                continue;
            };
            let lease: serde_json::Value = serde_json::from_slice(&text)?;
            if lease["sandbox"] == id.as_str() {
                let monitor = lease["owner"]["pid"]
                    .as_i64()
                    .ok_or("a lease without owner")?;
                return Ok(Self {
                    dir: entry.path(),
                    monitor: i32::try_from(monitor)?,
                });
            }
        }
        Err("the sandbox has no lease".into())
    }
}

/// What any thread of a process started.
pub fn children(pid: i32) -> Result<Vec<i32>> {
    let mut children = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may be gone by now.
        let text = fs::read_to_string(thread?.path().join("children")).unwrap_or_default();
        children.extend(
            text.split_whitespace()
                .filter_map(|child| child.parse::<i32>().ok()),
        );
    }
    Ok(children)
}

/// A process and everything below it.
pub fn family(pid: i32) -> Result<Vec<i32>> {
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(&member) = family.get(next) {
        family.extend(children(member)?);
        next += 1;
    }
    Ok(family)
}

pub fn pss_kib(pid: i32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    Ok(field(&text, "Pss:"))
}

/// Memory of the kernel that grows with sandboxes.
pub fn kernel_kib() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    Ok(["Slab:", "KernelStack:", "PageTables:", "Percpu:"]
        .iter()
        .map(|name| field(&text, name))
        .sum())
}

pub fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Who is first, second and so on in a round: in another order each time.
pub fn in_turn<const COUNT: usize>(round: usize) -> impl Iterator<Item = usize> {
    (0..COUNT).cycle().skip(round % COUNT).take(COUNT)
}

/// Megabytes per second.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    pub median: f64,
    pub lowest: f64,
    pub highest: f64,
}

impl Rates {
    /// Of rounds that took `times`, each for as many bytes.
    pub fn of(times: &[Duration], bytes: usize) -> Self {
        let megabytes = u32::try_from(bytes).map_or(f64::MAX, f64::from) / 1e6;
        let rate = |percent| megabytes / percentile(times, percent).as_secs_f64();
        Self {
            median: rate(50),
            lowest: rate(100),
            highest: rate(0),
        }
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            median,
            lowest,
            highest,
        } = self;
        write!(out, "{median:.0} MB/s ({lowest:.0} to {highest:.0})")
    }
}

/// The value at `percent` of the sorted times.
pub fn percentile(times: &[Duration], percent: usize) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(index).copied().unwrap_or_default()
}

/// How a promise stands.
pub fn kept(kept: bool) -> &'static str {
    if kept { "kept" } else { "BROKEN" }
}

/// One line of times.
pub fn row(name: &str, times: &[Duration]) {
    println!(
        "{name:<22} p50 {:.2?}, p95 {:.2?}, p99 {:.2?}",
        percentile(times, 50),
        percentile(times, 95),
        percentile(times, 99)
    );
}
