//! The control plane: E2B's REST routes, in both generations.
//!
//! ```text
//! request ─▶ routes.rs (which rule?) ─▶ authentication.rs ─▶ one file per verb ─▶ Lifecycle
//!         ◀─ answer.rs (every error is `{"code", "message"}`) ◀─────────────────────┘
//! ```
//!
//! | file | owns |
//! |---|---|
//! | `routes.rs` | the table of all routes, and the rule of each |
//! | `authentication.rs` | who asks |
//! | `answer.rs` | errors, their statuses and what clients may repeat |
//! | `body.rs`, `query.rs`, `place.rs`, `moment.rs` | what requests carry, bounded |
//! | `create.rs`, `connect.rs`, `get.rs`, `list.rs`, `kill.rs`, `timeout.rs`, `network.rs`, `metrics.rs`, `logs.rs` | sandboxes |
//! | `events.rs`, `event_stream.rs` | what happened to all of them: page by page, and as it comes |
//! | `teams.rs`, `templates.rs`, `pools.rs`, `health.rs` | what is around them |
//! | `api/` | `/api/v1`: services for agents, with a form of errors of their own |
//! | `absent.rs` | what this version does not have, and says so |
//!
//! **Invariant**: a route answers nobody without a key unless its rule says
//! [`Rule::Open`]; the rule is applied where the table becomes a router, so a
//! handler cannot forget it. **Invariant**: a foreign sandbox is answered
//! byte for byte as a missing one.

mod absent;
mod answer;
mod api;
mod authentication;
mod body;
mod connect;
mod create;
mod event_stream;
mod events;
mod get;
mod health;
mod kill;
mod list;
mod logs;
mod metrics;
mod moment;
mod network;
mod place;
mod pools;
mod query;
mod routes;
mod snapshots;
mod teams;
mod templates;
mod timeout;
mod wire;

use std::sync::Arc;

use atoll_control::executions::{Executions, Places};
use atoll_control::identity::Keys;
use atoll_control::lifecycle::Lifecycle;
use atoll_control::sessions::Sessions;
use atoll_store::db::Database;
use tokio::sync::watch;

pub use api::ErrorCode;
pub(crate) use authentication::{Asker, admit, authenticate};
pub use events::wire as wire_event;
pub use routes::{ROUTES, Route, Rule, router};

/// What the control plane asks.
pub struct ControlPlane {
    /// Sandboxes.
    pub lifecycle: Lifecycle,
    /// Who a key stands for.
    pub keys: Keys,
    /// Where everything is written down.
    pub database: Database,
    /// What agents run.
    pub executions: Executions,
    /// Where they run it.
    pub sessions: Sessions,
    /// How a sandbox is found.
    pub places: Places,
    /// Under which the ports of sandboxes have names, if they have any.
    pub domain: Option<String>,
    readiness: watch::Sender<bool>,
    /// Who follows events right now.
    followers: event_stream::Followers,
}

/// What `/api/v1` stands on.
pub struct AgentServices {
    /// What agents run.
    pub executions: Executions,
    /// Where they run it.
    pub sessions: Sessions,
    /// How a sandbox is found.
    pub places: Places,
}

type Plane = Arc<ControlPlane>;

impl ControlPlane {
    /// A control plane that is not ready yet.
    #[must_use]
    pub fn new(
        lifecycle: Lifecycle,
        keys: Keys,
        database: Database,
        agents: AgentServices,
        domain: Option<String>,
    ) -> Self {
        let AgentServices {
            executions,
            sessions,
            places,
        } = agents;
        Self {
            lifecycle,
            keys,
            database,
            executions,
            sessions,
            places,
            domain,
            readiness: watch::Sender::new(false),
            followers: event_stream::Followers::default(),
        }
    }

    /// Says from now on that requests are welcome.
    pub fn become_ready(&self) {
        self.readiness.send_replace(true);
    }

    /// Says from now on that no more requests are welcome.
    pub fn become_unready(&self) {
        self.readiness.send_replace(false);
    }

    fn is_ready(&self) -> bool {
        *self.readiness.borrow()
    }
}
