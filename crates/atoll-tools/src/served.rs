//! Sandboxes of a server, through its own API: whatever the server asks of
//! callers, it asks of tools too.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_client::{
    Client, ClientError, CreateOptions, LimitsWish, ListOptions, Sandbox, SandboxState,
};
use atoll_guest_client::Narrow;
use tokio::time::Instant;

use crate::error::{ErrorCode, ToolError};
use crate::workplace::{Listed, Place, Preview, Promise, Wanted, Workplace};

/// How long a sandbox lives that nobody uses and whose end nobody set.
pub const IDLE: Duration = Duration::from_secs(600);
/// So often at most is its end moved.
const KEEP_EVERY: Duration = Duration::from_secs(60);
/// Asks for no life beyond what a sandbox has.
const NO_LONGER: Duration = Duration::ZERO;
/// What guests may answer: many share the memory of one server.
const NARROW: Narrow = Narrow {
    line_bytes: 8 * 1024 * 1024,
    list_bytes: 16 * 1024 * 1024,
};
/// Most sandboxes that are listed.
const LISTED_MAX: usize = 200;

/// What is written on sandboxes that tools made.
const MADE_BY: (&str, &str) = ("made-by", "atoll-tools");

/// Sandboxes of a server.
pub struct ServedWorkplace {
    client: Client,
    template: String,
    agent: Option<String>,
    task: Option<String>,
    scheme: &'static str,
    /// Sandboxes whose end moves with their use.
    kept: Mutex<HashMap<String, Kept>>,
    /// Ends are moved one after the other: what is sent last counts.
    moving: tokio::sync::Mutex<()>,
}

/// The end of a sandbox that moves with its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kept {
    moved: Instant,
    end: Instant,
}

impl Kept {
    /// When it has to end so that it is there for `busy` more; `None` where
    /// that is so. Never before it would: somebody else may work in it.
    fn moved_for(self, busy: Duration, now: Instant) -> Option<Instant> {
        let is_enough = self.end >= now + busy && now - self.moved < KEEP_EVERY;
        (!is_enough).then(|| self.end.max(now + busy.max(IDLE)))
    }
}

impl ServedWorkplace {
    /// Sandboxes of the server that `client` knows, from `template` unless
    /// another one is asked for.
    #[must_use]
    pub fn new(client: Client, template: impl Into<String>, is_encrypted: bool) -> Self {
        Self {
            client,
            template: template.into(),
            agent: None,
            task: None,
            scheme: if is_encrypted { "https" } else { "http" },
            kept: Mutex::new(HashMap::new()),
            moving: tokio::sync::Mutex::new(()),
        }
    }

    /// The agent and the task for whom sandboxes are made.
    #[must_use]
    pub fn on_behalf_of(mut self, agent: Option<String>, task: Option<String>) -> Self {
        (self.agent, self.task) = (agent, task);
        self
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<String, Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called when a sandbox has ended by another way than this one.
    pub fn forget(&self, id: &str) {
        self.kept().remove(id);
    }

    fn place(sandbox: &Sandbox) -> Place {
        Place {
            id: sandbox.id().to_owned(),
            template: sandbox.template().to_owned(),
            guest: sandbox.guest().clone().with_bounds(NARROW),
            code: sandbox.code_guest().clone().with_bounds(NARROW),
            served: Some(sandbox.clone()),
        }
    }

    async fn make(&self, wanted: Wanted) -> Result<Place, ToolError> {
        let mut metadata = wanted.metadata;
        metadata.insert(MADE_BY.0.to_owned(), MADE_BY.1.to_owned());
        let options = CreateOptions {
            timeout: Some(wanted.timeout.unwrap_or(IDLE)),
            metadata,
            envs: wanted.envs,
            limits: LimitsWish {
                memory_mib: wanted.limits.memory_mib,
                cpu_millis: wanted.limits.cpu_millis,
                disk_mib: wanted.limits.disk_mib,
            },
            allow_internet_access: wanted.internet,
            agent: self.agent.clone(),
            task: self.task.clone(),
            ..CreateOptions::template(wanted.template.unwrap_or_else(|| self.template.clone()))
        };
        let sandbox = self
            .client
            .create(&options)
            .await
            .map_err(|error| of_create(&error))?;
        if wanted.timeout.is_none() {
            let now = Instant::now();
            let (moved, end) = (now, now + IDLE);
            self.kept()
                .insert(sandbox.id().to_owned(), Kept { moved, end });
        }
        Ok(Self::place(&sandbox))
    }

    async fn move_end(&self, id: &str, busy: Duration) {
        if !self.kept().contains_key(id) {
            return;
        }
        let _moving = self.moving.lock().await;
        let now = Instant::now();
        let kept = self.kept().get(id).copied();
        let Some(end) = kept.and_then(|kept| kept.moved_for(busy, now)) else {
            return;
        };
        match self.client.set_timeout(id, end - now).await {
            Ok(()) => {
                if let Some(kept) = self.kept().get_mut(id) {
                    *kept = Kept { moved: now, end };
                }
            }
            Err(error) => tracing::debug!("the end of sandbox {id} was not moved: {error}"),
        }
    }

    async fn state(&self, id: &str) -> Result<SandboxState, ToolError> {
        match self.client.get(id).await {
            Ok(detail) => Ok(detail.listed.state),
            Err(error) => Err(of_sandbox(id, &error)),
        }
    }
}

impl Workplace for ServedWorkplace {
    fn create(&self, wanted: Wanted) -> Promise<'_, Result<Place, ToolError>> {
        Box::pin(self.make(wanted))
    }

    fn find<'a>(&'a self, id: &'a str) -> Promise<'a, Result<Place, ToolError>> {
        Box::pin(async move {
            // What runs lives no longer for it; what wakes up needs a life.
            let timeout = match self.state(id).await? {
                SandboxState::Running => Some(NO_LONGER),
                SandboxState::Paused => None,
            };
            let found = self.client.connect(id, timeout).await;
            found
                .map(|sandbox| Self::place(&sandbox))
                .map_err(|error| of_sandbox(id, &error))
        })
    }

    fn look<'a>(&'a self, id: &'a str) -> Promise<'a, Result<SandboxState, ToolError>> {
        Box::pin(self.state(id))
    }

    fn list(&self) -> Promise<'_, Result<Vec<Listed>, ToolError>> {
        Box::pin(async move {
            let mut pages = self.client.list(&ListOptions::default());
            let mut listed = Vec::new();
            while listed.len() < LISTED_MAX {
                let page = pages
                    .next_page()
                    .await
                    .map_err(|error| of_sandbox("", &error))?;
                let Some(page) = page.filter(|page| !page.is_empty()) else {
                    break;
                };
                listed.extend(page.into_iter().map(|one| {
                    Listed {
                        state: serde_json::to_value(one.state)
                            .ok()
                            .and_then(|state| state.as_str().map(str::to_owned))
                            .unwrap_or_default(),
                        id: one.sandbox_id,
                        template: one.alias.unwrap_or(one.template_id),
                        started_at: Some(one.started_at),
                        end_at: Some(one.end_at),
                        metadata: one.metadata,
                    }
                }));
            }
            listed.truncate(LISTED_MAX);
            Ok(listed)
        })
    }

    fn kill<'a>(&'a self, id: &'a str) -> Promise<'a, Result<(), ToolError>> {
        Box::pin(async move {
            let killed = self.client.kill(id).await;
            if matches!(killed, Ok(()) | Err(ClientError::NotFound(_))) {
                self.forget(id);
            }
            killed.map_err(|error| of_sandbox(id, &error))
        })
    }

    fn keep<'a>(&'a self, id: &'a str, busy: Duration) -> Promise<'a, ()> {
        Box::pin(self.move_end(id, busy))
    }

    fn preview<'a>(
        &'a self,
        place: &'a Place,
        port: u16,
    ) -> Promise<'a, Result<Preview, ToolError>> {
        Box::pin(async move {
            let missing = || ToolError::no_sandbox(&place.id);
            let sandbox = place.served.as_ref().ok_or_else(missing)?;
            let headers: BTreeMap<String, String> = sandbox
                .traffic_token()
                .map(|token| ("e2b-traffic-access-token".to_owned(), token.to_owned()))
                .into_iter()
                .collect();
            let host = sandbox.host(port);
            Ok(Preview {
                url: format!("{}://{host}/", self.scheme),
                reach: if headers.is_empty() {
                    "whoever reaches the server, while the sandbox runs".to_owned()
                } else {
                    "whoever sends the headers, while the sandbox runs".to_owned()
                },
                headers,
            })
        })
    }
}

fn of_create(error: &ClientError) -> ToolError {
    match error {
        ClientError::NotFound(what) => {
            ToolError::arguments(what.clone(), "name a template that is built on this server")
        }
        ClientError::RateLimited(_) => ToolError::new(
            ErrorCode::QuotaExceeded,
            error.to_string(),
            "end a sandbox with `kill_sandbox`, or wait",
        ),
        other => of_sandbox("", other),
    }
}

fn of_sandbox(id: &str, error: &ClientError) -> ToolError {
    match error {
        ClientError::NotFound(_) => ToolError::no_sandbox(id),
        ClientError::Unauthorized(_) => ToolError::new(
            ErrorCode::NotPermitted,
            "the API key is not valid any more",
            "connect again with a valid key",
        ),
        ClientError::RateLimited(_) => ToolError::new(
            ErrorCode::QuotaExceeded,
            error.to_string(),
            "wait, and do less at once",
        ),
        other => ToolError::new(
            ErrorCode::SandboxUnavailable,
            other.to_string(),
            "try again",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_short_call_takes_no_time_from_a_long_one() {
        let now = Instant::now();
        let seconds = Duration::from_secs;
        let idle = Kept {
            moved: now,
            end: now + IDLE,
        };
        assert_eq!(idle.moved_for(seconds(120), now), None);
        let end = now + seconds(3660);
        assert_eq!(idle.moved_for(seconds(3660), now), Some(end));
        // A minute later somebody calls for two more.
        let busy = Kept { moved: now, end };
        let later = now + KEEP_EVERY;
        assert_eq!(busy.moved_for(seconds(120), later), Some(end));
        // When little is left, it is moved for the idle time.
        let last = end - seconds(30);
        assert_eq!(busy.moved_for(seconds(120), last), Some(last + IDLE));
    }
}
