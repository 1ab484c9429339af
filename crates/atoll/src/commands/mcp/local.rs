//! Sandboxes that this process makes, and that end with it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_client::SandboxState;
use atoll_control::LiveSandbox;
use atoll_control::templates::TemplateCatalog;
use atoll_engine::{Limits, SandboxError};
use atoll_tools::{ErrorCode, Listed, Place, Preview, Promise, ToolError, Wanted, Workplace};

use super::forward::Forward;
use crate::arguments::{Network, SandboxArguments};
use crate::commands::inputs;
use crate::home::Home;

/// How long a sandbox lives at most, whatever its client does.
const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// How long it is looked whether a sandbox has ended.
const LOOK_BOUND: Duration = Duration::from_millis(10);

struct Living {
    live: LiveSandbox,
    template: String,
    metadata: BTreeMap<String, String>,
    started_at: jiff::Timestamp,
    ports: BTreeMap<u16, Forward>,
}

/// Makes sandboxes as the command line says.
pub(super) struct LocalWorkplace {
    home: Home,
    arguments: SandboxArguments,
    template: String,
    living: Mutex<BTreeMap<String, Living>>,
}

impl LocalWorkplace {
    pub(super) fn new(home: Home, arguments: SandboxArguments, template: String) -> Self {
        Self {
            home,
            arguments,
            template,
            living: Mutex::new(BTreeMap::new()),
        }
    }

    fn living(&self) -> MutexGuard<'_, BTreeMap<String, Living>> {
        self.living.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(&self, id: &str) -> Option<(LiveSandbox, String)> {
        let living = self.living();
        let one = living.get(id)?;
        Some((one.live.clone(), one.template.clone()))
    }

    /// What was asked for, within what the operator typed.
    fn arguments(&self, wanted: &Wanted) -> Result<SandboxArguments, ToolError> {
        let mut arguments = self.arguments.clone();
        let template = wanted
            .template
            .clone()
            .unwrap_or_else(|| self.template.clone());
        self.check_template(&template)?;
        arguments.template = Some(template);
        let limits = wanted.limits;
        let usual = arguments.limits(&Limits::default());
        arguments.memory =
            within("memory in MiB", limits.memory_mib, usual.memory_mib)?.or(arguments.memory);
        arguments.cpus = within(
            "thousandths of a processor",
            limits.cpu_millis,
            usual.cpu_millis,
        )?
        .or(arguments.cpus);
        arguments.disk = within("disk in MiB", limits.disk_mib, usual.disk_mib)?.or(arguments.disk);
        match wanted.internet {
            None => {}
            Some(false) => {
                arguments.net = Some(Network::None);
                arguments.net_allow.clear();
                arguments.net_deny.clear();
            }
            Some(true) => {
                let configured = self.home.network_defaults().network;
                if arguments.net.or(configured) != Some(Network::Full) {
                    return Err(ToolError::new(
                        ErrorCode::Unsupported,
                        "sandboxes of this session have no internet access",
                        "ask the user to start `atoll mcp` with `--net full`",
                    ));
                }
            }
        }
        for (name, value) in &wanted.envs {
            let is_name = !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0');
            if !is_name {
                return Err(ToolError::arguments(
                    format!("`{name}` is no name of a variable"),
                    "use letters, digits and `_`",
                ));
            }
            arguments.environment.push(format!("{name}={value}"));
        }
        Ok(arguments)
    }

    /// Building takes minutes, which no call has.
    fn check_template(&self, name: &str) -> Result<(), ToolError> {
        let catalog = TemplateCatalog::open(self.home.path()).map_err(|error| failed(&error))?;
        let found = name.parse().ok().and_then(|name| catalog.get(&name).ok());
        if found.flatten().is_some() {
            return Ok(());
        }
        let shown: String = name.chars().take(64).collect();
        Err(ToolError::arguments(
            format!("there is no template `{shown}`"),
            "leave `template` out, or ask the user to run `atoll template build`",
        ))
    }

    async fn make(&self, wanted: Wanted) -> Result<Place, ToolError> {
        let arguments = self.arguments(&wanted)?;
        let lifetime = wanted.timeout.unwrap_or(LIFETIME).min(LIFETIME);
        let opened = inputs::open(&self.home, &arguments, &self.template, lifetime).await;
        let opened = opened.map_err(|error| {
            ToolError::new(
                ErrorCode::SandboxUnavailable,
                format!("no sandbox could be made: {error:#}"),
                "ask the user to run `atoll doctor`",
            )
        })?;
        opened.live.warm().await;
        let id = opened.live.sandbox().id().to_string();
        let template = opened.template.name.to_string();
        let place = place(&id, &template, &opened.live);
        let living = Living {
            live: opened.live,
            template,
            metadata: wanted.metadata,
            started_at: jiff::Timestamp::now(),
            ports: BTreeMap::new(),
        };
        self.living().insert(id, living);
        Ok(place)
    }

    async fn alive(&self, id: &str) -> Result<Place, ToolError> {
        let (live, template) = self.live(id).ok_or_else(|| ToolError::no_sandbox(id))?;
        match live.wait(LOOK_BOUND).await {
            Ok(None) => Ok(place(id, &template, &live)),
            Ok(Some(_)) | Err(_) => {
                self.living().remove(id);
                Err(ToolError::no_sandbox(id))
            }
        }
    }

    async fn end(&self, id: &str) -> Result<(), ToolError> {
        let removed = self.living().remove(id);
        let living = removed.ok_or_else(|| ToolError::no_sandbox(id))?;
        match living.live.destroy().await {
            Ok(_) | Err(SandboxError::Gone) => Ok(()),
            Err(error) => Err(failed(&error)),
        }
    }

    async fn forwarded(&self, id: &str, port: u16) -> Result<Preview, ToolError> {
        let known = |living: &BTreeMap<String, Living>| {
            let forward = living.get(id)?.ports.get(&port)?;
            Some(forward.address)
        };
        let address = known(&self.living());
        let address = match address {
            Some(address) => address,
            None => {
                let (live, _) = self.live(id).ok_or_else(|| ToolError::no_sandbox(id))?;
                let forward = Forward::open(live, port)
                    .await
                    .map_err(|error| failed(&error))?;
                let address = forward.address;
                let mut living = self.living();
                let one = living
                    .get_mut(id)
                    .ok_or_else(|| ToolError::no_sandbox(id))?;
                one.ports.insert(port, forward);
                address
            }
        };
        Ok(Preview {
            url: format!("http://{address}/"),
            headers: BTreeMap::new(),
            reach: "programs on this machine, while the session lasts".to_owned(),
        })
    }
}

/// A limit that is asked for, if it is not above what the operator allows.
fn within(what: &str, asked: Option<u64>, allowed: u64) -> Result<Option<u64>, ToolError> {
    match asked {
        Some(asked) if asked > allowed => Err(ToolError::new(
            ErrorCode::QuotaExceeded,
            format!("{asked} is more {what} than the {allowed} that are allowed"),
            "ask for less, or leave it out",
        )),
        other => Ok(other),
    }
}

fn place(id: &str, template: &str, live: &LiveSandbox) -> Place {
    Place {
        id: id.to_owned(),
        template: template.to_owned(),
        guest: live.guest().clone(),
        code: live.guest().clone(),
        served: None,
    }
}

fn failed(error: &dyn std::error::Error) -> ToolError {
    ToolError::new(
        ErrorCode::Internal,
        error.to_string(),
        "try again; `atoll doctor` tells what this host lacks",
    )
}

impl Workplace for LocalWorkplace {
    fn create(&self, wanted: Wanted) -> Promise<'_, Result<Place, ToolError>> {
        Box::pin(self.make(wanted))
    }

    fn find<'a>(&'a self, id: &'a str) -> Promise<'a, Result<Place, ToolError>> {
        Box::pin(self.alive(id))
    }

    fn look<'a>(&'a self, id: &'a str) -> Promise<'a, Result<SandboxState, ToolError>> {
        Box::pin(async move { self.alive(id).await.map(|_| SandboxState::Running) })
    }

    fn list(&self) -> Promise<'_, Result<Vec<Listed>, ToolError>> {
        Box::pin(async move {
            let ids: Vec<String> = self.living().keys().cloned().collect();
            let mut listed = Vec::new();
            for id in ids {
                if self.alive(&id).await.is_err() {
                    continue;
                }
                let living = self.living();
                if let Some(one) = living.get(&id) {
                    listed.push(Listed {
                        id,
                        template: one.template.clone(),
                        state: "running".to_owned(),
                        started_at: Some(one.started_at.to_string()),
                        end_at: None,
                        metadata: one.metadata.clone(),
                    });
                }
            }
            Ok(listed)
        })
    }

    fn kill<'a>(&'a self, id: &'a str) -> Promise<'a, Result<(), ToolError>> {
        Box::pin(self.end(id))
    }

    fn keep<'a>(&'a self, _: &'a str, _: Duration) -> Promise<'a, ()> {
        // They live as long as this process.
        Box::pin(async {})
    }

    fn preview<'a>(
        &'a self,
        place: &'a Place,
        port: u16,
    ) -> Promise<'a, Result<Preview, ToolError>> {
        Box::pin(self.forwarded(&place.id, port))
    }
}
