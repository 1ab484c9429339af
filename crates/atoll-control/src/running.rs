//! The sandboxes that run right now, for whoever has to reach one at once.
//!
//! The life cycle puts a sandbox here when it takes commands, and takes it out
//! before it ends it, so nobody new comes in while it is being killed. Who is
//! already in learns of the end by the [`Lifeline`](crate::identity::Lifeline)
//! of its pass. One that is paused is here too, where only those find it who
//! may wake it up.
//!
//! **Invariant**: only the life cycle writes here; everybody else reads.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use atoll_engine::{Limits, SandboxId};
use atoll_store::db::TenantId;
use serde::Deserialize;
use tokio::sync::watch;

use crate::LiveSandbox;

/// How traffic to the ports of a sandbox is treated (not to those of the guest).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ingress {
    /// What a request must carry, when not everybody may come.
    pub traffic_token: Option<String>,
    /// The `Host` that services see; `${PORT}` stands for the port.
    pub mask_host: Option<String>,
    /// Ports that speak TLS inside.
    pub https_ports: Vec<u16>,
}

/// Who may run code through the interpreter's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeAccess {
    /// Who has a token of the sandbox.
    TokenHolders,
    /// Everybody who knows its name, and its traffic token if it has one: the
    /// client that made it cannot send tokens.
    Everybody,
}

/// In whose sandboxes code runs without a token, as the operator decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeWithoutToken {
    /// In those whose client cannot send one.
    #[default]
    FirstGeneration,
    /// In all of them: everybody who knows the name of a sandbox runs code in it.
    Everybody,
    /// In none; the first generation of clients then runs no code.
    Nobody,
}

impl CodeAccess {
    /// What a sandbox needs that was made by a client of this name. The first
    /// generation of E2B's clients (0.x, 1.x) sends no token with code.
    #[must_use]
    pub fn of_client(name: &str, without_token: CodeWithoutToken) -> Self {
        match without_token {
            CodeWithoutToken::FirstGeneration => {}
            CodeWithoutToken::Everybody => return Self::Everybody,
            CodeWithoutToken::Nobody => return Self::TokenHolders,
        }
        let is_first_generation = ["e2b-python-sdk/", "e2b-js-sdk/"].iter().any(|sdk| {
            name.strip_prefix(sdk)
                .is_some_and(|version| version.starts_with("0.") || version.starts_with("1."))
        });
        if is_first_generation {
            Self::Everybody
        } else {
            Self::TokenHolders
        }
    }
}

/// A sandbox that takes commands.
#[derive(Clone)]
pub struct Running {
    /// Its name.
    pub id: SandboxId,
    /// Whose it is.
    pub tenant: TenantId,
    /// The way in.
    pub live: LiveSandbox,
    /// What it may use.
    pub limits: Limits,
    /// Who may come to its ports, and how.
    pub ingress: Ingress,
    /// Who may run code in it.
    pub code_access: CodeAccess,
}

/// Wakes up a sandbox; whether it did.
pub(crate) type Wake = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>;

/// A sandbox that is paused, and that traffic may wake up.
pub struct Asleep {
    /// As it will be.
    pub sandbox: Arc<Running>,
    wake: Wake,
}

impl Asleep {
    /// Wakes it up, or waits for somebody else who does; whether it runs then.
    pub async fn wake(&self) -> bool {
        (self.wake)().await
    }
}

/// Where a sandbox stands.
enum Presence {
    Awake(Arc<Running>),
    Asleep {
        sandbox: Arc<Running>,
        /// When traffic may wake it up.
        wake: Option<Wake>,
    },
    /// It runs, and holds still for a moment: whoever comes waits.
    Held {
        sandbox: Arc<Running>,
        released: watch::Receiver<bool>,
    },
}

/// Who is there under a name.
pub enum Found {
    /// A sandbox that takes commands.
    Awake(Arc<Running>),
    /// One that is paused and that traffic may wake up, or that has to be waited for.
    Asleep(Asleep),
}

type ById = HashMap<String, Presence>;

/// All sandboxes that run right now, by name.
#[derive(Default)]
pub struct RunningSandboxes {
    by_id: Arc<RwLock<ById>>,
}

impl RunningSandboxes {
    /// Who can be reached under that name, now or after a while.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<Found> {
        match self.read().get(id)? {
            Presence::Awake(sandbox) => Some(Found::Awake(Arc::clone(sandbox))),
            Presence::Asleep {
                sandbox,
                wake: Some(wake),
            } => Some(Found::Asleep(Asleep {
                sandbox: Arc::clone(sandbox),
                wake: Arc::clone(wake),
            })),
            Presence::Asleep { wake: None, .. } => None,
            Presence::Held { sandbox, .. } => {
                let (by_id, id) = (Arc::clone(&self.by_id), id.to_owned());
                let wake: Wake = Arc::new(move || {
                    let (by_id, id) = (Arc::clone(&by_id), id.clone());
                    Box::pin(async move { reached(&by_id, &id).await.is_some() })
                });
                Some(Found::Asleep(Asleep {
                    sandbox: Arc::clone(sandbox),
                    wake,
                }))
            }
        }
    }

    /// The sandbox of that name, if it runs.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<Arc<Running>> {
        match self.find(id)? {
            Found::Awake(sandbox) => Some(sandbox),
            Found::Asleep(_) => None,
        }
    }

    /// The same, and one that only holds still for a moment: then that is waited for.
    pub(crate) async fn reached(&self, id: &str) -> Option<Arc<Running>> {
        reached(&self.by_id, id).await
    }

    /// The sandbox of that name, if it is paused and traffic may wake it up, or has to be
    /// waited for.
    #[must_use]
    pub fn asleep(&self, id: &str) -> Option<Asleep> {
        match self.find(id)? {
            Found::Asleep(asleep) => Some(asleep),
            Found::Awake(_) => None,
        }
    }

    /// The sandbox of that name, awake or asleep.
    pub(crate) fn known(&self, id: &str) -> Option<Arc<Running>> {
        match self.read().get(id)? {
            Presence::Awake(sandbox)
            | Presence::Asleep { sandbox, .. }
            | Presence::Held { sandbox, .. } => Some(Arc::clone(sandbox)),
        }
    }

    /// Lets everybody reach `sandbox`, in place of what had its name.
    pub fn insert(&self, sandbox: Arc<Running>) {
        self.put(sandbox.id.as_str().to_owned(), Presence::Awake(sandbox));
    }

    /// Lets nobody reach `sandbox` but to wake it up, if that may be.
    pub(crate) fn lay_down(&self, sandbox: Arc<Running>, wake: Option<Wake>) {
        let id = sandbox.id.as_str().to_owned();
        self.put(id, Presence::Asleep { sandbox, wake });
    }

    /// Lets nobody reach `sandbox` until `released` says so, and somebody has inserted it again.
    pub(crate) fn hold(&self, sandbox: Arc<Running>, released: watch::Receiver<bool>) {
        let id = sandbox.id.as_str().to_owned();
        self.put(id, Presence::Held { sandbox, released });
    }

    /// Lets nobody new in.
    pub fn remove(&self, id: &SandboxId) {
        self.by_id
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(id.as_str());
    }

    fn put(&self, id: String, presence: Presence) {
        self.by_id
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(id, presence);
    }

    fn read(&self) -> RwLockReadGuard<'_, ById> {
        read(&self.by_id)
    }
}

fn read(by_id: &RwLock<ById>) -> RwLockReadGuard<'_, ById> {
    by_id.read().unwrap_or_else(PoisonError::into_inner)
}

/// The sandbox of that name, once nobody holds it: it may be held again and again.
async fn reached(by_id: &RwLock<ById>, id: &str) -> Option<Arc<Running>> {
    loop {
        let mut released = match read(by_id).get(id)? {
            Presence::Awake(sandbox) => return Some(Arc::clone(sandbox)),
            Presence::Asleep { .. } => return None,
            Presence::Held { released, .. } => released.clone(),
        };
        // Whoever held it and is gone without a word has ended it.
        released.wait_for(|released| *released).await.ok()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_generation_runs_code_without_a_token() {
        for (name, expected) in [
            ("e2b-python-sdk/1.5.0", CodeAccess::Everybody),
            ("e2b-js-sdk/1.13.2", CodeAccess::Everybody),
            ("e2b-js-sdk/0.16.0", CodeAccess::Everybody),
            ("e2b-python-sdk/2.63.0", CodeAccess::TokenHolders),
            ("e2b-js-sdk/2.49.0 e2b-cli/2.19.0", CodeAccess::TokenHolders),
            ("e2b-js-sdk/10.0.0", CodeAccess::TokenHolders),
            ("x e2b-js-sdk/1.0.0", CodeAccess::TokenHolders),
            ("", CodeAccess::TokenHolders),
        ] {
            let of = |decided| CodeAccess::of_client(name, decided);
            assert_eq!(of(CodeWithoutToken::default()), expected, "{name}");
            assert_eq!(of(CodeWithoutToken::Everybody), CodeAccess::Everybody);
            assert_eq!(of(CodeWithoutToken::Nobody), CodeAccess::TokenHolders);
        }
    }
}
