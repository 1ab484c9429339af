//! `$ATOLL_HOME`: where it is, what is configured in it, and the guest that
//! is unpacked into it.

mod fleet;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use atoll_control::executions::HistorySettings;
use atoll_control::lifecycle;
use atoll_control::running::CodeWithoutToken;
use atoll_control::sessions::SessionSettings;
use atoll_control::templates::Resources;
use atoll_engine::{
    Cidr, EngineConfig, GUEST_IN_LAYER, MonitoredRuntime, NetworkPolicy, OciRuntimeChoice, Runtime,
    SlotRange, Tier,
};
use atoll_server::webhooks::Hook;
use atoll_store::db::Location;
use clap::ValueEnum as _;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::arguments::{Isolation, Network};
use crate::failure::Hinted;
use crate::quantity::duration;
use crate::webhook_settings::{WebhookSettings, hooks};

/// The agent that becomes PID 1 of every sandbox.
static GUEST: &[u8] = include_bytes!(env!("ATOLL_GUEST_BINARY"));

/// `$ATOLL_HOME/config.toml`; each setting can be overridden by `ATOLL_<NAME>`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    /// `builtin`, `runc`, or a path.
    oci_runtime: Option<String>,
    /// Addresses of sandboxes on this host.
    network_range: Option<SlotRange>,
    /// How sandboxes are kept apart when nobody says.
    isolation: Option<Isolation>,
    /// Nothing weaker than this is used.
    minimum_isolation: Option<Tier>,
    /// `runsc`, or a path.
    runsc: Option<String>,
    /// What a sandbox can reach when nothing is said.
    network: Option<Network>,
    /// Opened although `network_deny` names it.
    network_allow: Vec<Cidr>,
    /// Closed.
    network_deny: Vec<Cidr>,
    /// A path, or `postgres://…`.
    database: Option<String>,
    /// Sandboxes that a tenant has at once.
    max_sandboxes: Option<usize>,
    /// Snapshots that one tenant has at once.
    max_snapshots: Option<usize>,
    /// How long a sandbox of the server lives at most.
    max_lifetime: Option<String>,
    /// Sessions that an agent has at once.
    max_sessions: Option<usize>,
    /// How long executions stay in the history.
    history_kept: Option<String>,
    /// How many executions of a tenant stay in the history.
    history_max: Option<usize>,
    /// In whose sandboxes code runs without a token.
    code_without_token: CodeWithoutToken,
    /// Sandboxes that wait for clients.
    pool: Vec<fleet::Pool>,
    /// What all sandboxes of the server may have together.
    host: fleet::Host,
    /// Most that clients get of what they ask for.
    max_limits: Resources,
    /// Who is told what happens.
    webhook: Vec<WebhookSettings>,
}

/// What sandboxes can reach when the command line does not say.
#[derive(Debug, Default)]
pub(crate) struct NetworkDefaults {
    pub(crate) network: Option<Network>,
    pub(crate) allow: Vec<Cidr>,
    pub(crate) deny: Vec<Cidr>,
}

/// One installation of Atoll.
pub(crate) struct Home {
    path: PathBuf,
    settings: Settings,
    verbose: bool,
}

impl Home {
    /// Opens the home at `path` or the default one, making it if it is new,
    /// and puts its sandboxes in order.
    pub(crate) fn open(path: Option<PathBuf>) -> anyhow::Result<Self> {
        let home = Self::without_sandboxes(path)?;
        if rustix::process::geteuid().is_root() {
            atoll_engine::reconcile_home(&home.path)
                .context("cannot put the home in order after a restart")?;
            atoll_selftest::sweep(&home.path)
                .context("cannot remove what an interrupted selftest left")?;
        }
        Ok(home)
    }

    /// The same for a command that has nothing to do with sandboxes.
    pub(crate) fn without_sandboxes(path: Option<PathBuf>) -> anyhow::Result<Self> {
        let path = path.map_or_else(default_path, Ok)?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot make the home directory `{}`", path.display()))?;
        let path = path.canonicalize()?;
        let settings = read_settings(&path.join("config.toml"))?;
        Ok(Self {
            path,
            settings,
            verbose: false,
        })
    }

    /// The same, for somebody who wants to know more.
    pub(crate) fn verbose(self, verbose: bool) -> Self {
        Self { verbose, ..self }
    }

    /// Says something to who wants to know more.
    pub(crate) fn explain(&self, text: &str) {
        if self.verbose {
            eprintln!("{text}");
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Addresses of sandboxes on this host.
    pub(crate) fn slot_range(&self) -> SlotRange {
        self.settings.network_range.unwrap_or_default()
    }

    /// What sandboxes can reach when the command line does not say.
    pub(crate) fn network_defaults(&self) -> NetworkDefaults {
        NetworkDefaults {
            network: self.settings.network,
            allow: self.settings.network_allow.clone(),
            deny: self.settings.network_deny.clone(),
        }
    }

    /// Where tenants, keys and sandboxes are written down.
    pub(crate) fn database(&self) -> anyhow::Result<Location> {
        match &self.settings.database {
            None => Ok(Location::of_home(&self.path)),
            Some(text) => Ok(text.parse()?),
        }
    }

    /// Bounds and defaults of the server's sandboxes.
    pub(crate) fn lifecycle_settings(&self) -> anyhow::Result<lifecycle::Settings> {
        let default = lifecycle::Settings::default();
        let lifetime_max = match &self.settings.max_lifetime {
            None => default.lifetime_max,
            Some(text) => duration(text).map_err(|what| {
                Hinted::error(
                    format!("max_lifetime: {what}"),
                    "example: max_lifetime = \"24h\"",
                )
            })?,
        };
        let network = match self.settings.network {
            None | Some(Network::Full) => NetworkPolicy::Full {
                allow: self.settings.network_allow.clone(),
                deny: self.settings.network_deny.clone(),
            },
            Some(Network::None) => NetworkPolicy::None,
        };
        network.validate().map_err(|error| {
            Hinted::error(
                format!("network_allow, network_deny: {error}"),
                "docs/network.md says what can be opened",
            )
        })?;
        Ok(lifecycle::Settings {
            sandboxes_max: self.settings.max_sandboxes.unwrap_or(default.sandboxes_max),
            snapshots_max: self.settings.max_snapshots.unwrap_or(default.snapshots_max),
            lifetime_max,
            network,
            code_without_token: self.settings.code_without_token,
            host: fleet::capacity(&self.settings.host)?,
            limits_max: fleet::largest(&self.settings.max_limits, &default.limits_max)?,
            pools: fleet::pools(&self.settings.pool)?,
            ..default
        })
    }

    /// Who is told what happens.
    pub(crate) fn webhooks(&self) -> anyhow::Result<Vec<Hook>> {
        hooks(&self.settings.webhook)
    }

    /// Bounds of sessions.
    pub(crate) fn session_settings(&self) -> SessionSettings {
        let default = SessionSettings::default();
        SessionSettings {
            per_agent_max: self.settings.max_sessions.unwrap_or(default.per_agent_max),
            ..default
        }
    }

    /// What is kept of the history of executions.
    pub(crate) fn history_settings(&self) -> anyhow::Result<HistorySettings> {
        let default = HistorySettings::default();
        let kept = match &self.settings.history_kept {
            None => default.kept,
            Some(text) => duration(text).map_err(|what| {
                Hinted::error(
                    format!("history_kept: {what}"),
                    "example: history_kept = \"720h\"",
                )
            })?,
        };
        Ok(HistorySettings {
            kept,
            per_tenant: self.settings.history_max.unwrap_or(default.per_tenant),
        })
    }

    /// Directory with the guests of this and earlier versions.
    pub(crate) fn guests(&self) -> PathBuf {
        self.path.join("guest")
    }

    /// The runtime of `tier`.
    pub(crate) fn runtime(&self, tier: Tier) -> anyhow::Result<Arc<dyn Runtime>> {
        Ok(Arc::new(MonitoredRuntime::new(self.engine_config()?, tier)))
    }

    /// How sandboxes are kept apart when nobody says.
    pub(crate) fn isolation(&self) -> Isolation {
        self.settings.isolation.unwrap_or(Isolation::Auto)
    }

    /// What no sandbox may be weaker than.
    pub(crate) fn minimum_isolation(&self) -> Tier {
        self.settings.minimum_isolation.unwrap_or_default()
    }

    /// What runs sandboxes of the gVisor tier, if it is there.
    pub(crate) fn runsc(&self) -> Option<PathBuf> {
        locate(self.settings.runsc.as_deref().unwrap_or("runsc"))
    }

    pub(crate) fn engine_config(&self) -> anyhow::Result<EngineConfig> {
        let oci_runtime = match self.settings.oci_runtime.as_deref() {
            None | Some("builtin") => OciRuntimeChoice::Builtin,
            Some(program) => OciRuntimeChoice::External(find_program(program)?),
        };
        Ok(EngineConfig {
            home: self.path.clone(),
            guest: self.unpack_guest()?,
            program: std::env::current_exe().context("cannot find this program's own file")?,
            oci_runtime,
            runsc: self.runsc().unwrap_or_else(|| PathBuf::from("runsc")),
            slot_range: self.slot_range(),
        })
    }

    /// The guest on disk, named by its digest so that a new one never changes under a running sandbox.
    fn unpack_guest(&self) -> anyhow::Result<PathBuf> {
        let digest = Sha256::digest(GUEST);
        let name: String = digest
            .iter()
            .take(12)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let directory = self.guests();
        let layer = directory.join(name);
        let is_complete = |layer: &Path| {
            fs::metadata(layer.join(GUEST_IN_LAYER))
                .is_ok_and(|found| found.len() == GUEST.len() as u64)
        };
        if is_complete(&layer) {
            return Ok(layer);
        }
        let fresh = directory.join(format!("new-{}", std::process::id()));
        let unpack = || {
            let binary = fresh.join(GUEST_IN_LAYER);
            fs::create_dir_all(binary.parent().unwrap_or(&fresh))?;
            let mut file = fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o755)
                .open(&binary)?;
            file.write_all(GUEST)?;
            drop(file);
            fs::rename(&fresh, &layer)
        };
        let unpacked = unpack();
        if unpacked.is_err() {
            let _ = fs::remove_dir_all(&fresh);
        }
        // Another start may have been faster.
        if is_complete(&layer) {
            return Ok(layer);
        }
        unpacked
            .with_context(|| format!("cannot unpack the guest into `{}`", directory.display()))?;
        Ok(layer)
    }
}

fn default_path() -> anyhow::Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/atoll"));
    }
    let home = std::env::var_os("HOME").ok_or_else(|| {
        Hinted::error(
            "neither ATOLL_HOME nor HOME is set",
            "set ATOLL_HOME to a directory",
        )
    })?;
    Ok(PathBuf::from(home).join(".atoll"))
}

fn read_settings(path: &Path) -> anyhow::Result<Settings> {
    let mut settings: Settings = match fs::read_to_string(path) {
        Ok(text) => toml::from_str(&text).map_err(|error| {
            let what = format!(
                "invalid configuration `{}`: {}",
                path.display(),
                error.to_string().trim_end()
            );
            Hinted::error(what, "correct the file, or remove it to use the defaults")
        })?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Settings::default(),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read `{}`", path.display()));
        }
    };
    if let Ok(runtime) = std::env::var("ATOLL_OCI_RUNTIME") {
        settings.oci_runtime = Some(runtime);
    }
    if let Ok(runsc) = std::env::var("ATOLL_RUNSC") {
        settings.runsc = Some(runsc);
    }
    if let Some(isolation) = tier_variable("ATOLL_ISOLATION")? {
        settings.isolation = Some(isolation);
    }
    match tier_variable("ATOLL_MINIMUM_ISOLATION")? {
        None | Some(Isolation::Auto) => {}
        Some(Isolation::Container) => settings.minimum_isolation = Some(Tier::Container),
        Some(Isolation::Gvisor) => settings.minimum_isolation = Some(Tier::Gvisor),
        Some(Isolation::Microvm) => settings.minimum_isolation = Some(Tier::Microvm),
    }
    if let Ok(text) = std::env::var("ATOLL_MAX_SANDBOXES") {
        let number = text.parse().map_err(|_| {
            Hinted::error(
                format!("ATOLL_MAX_SANDBOXES: `{text}` is no number"),
                "example: ATOLL_MAX_SANDBOXES=200",
            )
        })?;
        settings.max_sandboxes = Some(number);
    }
    if let Ok(lifetime) = std::env::var("ATOLL_MAX_LIFETIME") {
        settings.max_lifetime = Some(lifetime);
    }
    if let Ok(database) = std::env::var("ATOLL_DATABASE") {
        settings.database = Some(database);
    }
    if let Ok(range) = std::env::var("ATOLL_NETWORK_RANGE") {
        let parsed = range.parse().map_err(|error| {
            Hinted::error(
                format!("ATOLL_NETWORK_RANGE: {error}"),
                "example: ATOLL_NETWORK_RANGE=10.87.0.0/16",
            )
        })?;
        settings.network_range = Some(parsed);
    }
    Ok(settings)
}

/// The isolation that the variable `name` names.
fn tier_variable(name: &str) -> anyhow::Result<Option<Isolation>> {
    let Ok(text) = std::env::var(name) else {
        return Ok(None);
    };
    Isolation::from_str(&text, false).map(Some).map_err(|_| {
        Hinted::error(
            format!("{name}: `{text}` is no isolation"),
            format!("example: {name}=gvisor"),
        )
    })
}

/// `program` as a path: as it is if it names one, else by `PATH`.
fn find_program(program: &str) -> anyhow::Result<PathBuf> {
    locate(program).ok_or_else(|| {
        Hinted::error(
            format!("the OCI runtime `{program}` is not installed"),
            format!("install it (`apt-get install {program}`), or set oci_runtime = \"builtin\""),
        )
    })
}

fn locate(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}

/// Fails with advice unless this process may make sandboxes.
pub(crate) fn require_root() -> anyhow::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Hinted::error(
        "making sandboxes takes root: namespaces with uid ranges of their own, cgroups and mounts",
        "run the same command with `sudo`; code inside a sandbox never runs as the host's root",
    ))
}
