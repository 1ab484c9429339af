//! The life of a sandbox, from the wish to the tombstone.
//!
//! ```text
//!            create               timeout, network
//!               │                     ┌───┐
//!               ▼                     ▼   │
//!   (row) ── Creating ───────────▶ Running ┘ ── kill, end of its time ──▶ Killing ──▶ (tombstone)
//!               │   it takes commands │  ▲ │                               ▲  ▲ │
//!               │              pause, │  │ └── ended by itself ────────────┼──┼─┘
//!               │     end of its time │  │ connect, traffic                │  │
//!               │                     ▼  │                                 │  │
//!               │               Pausing  Resuming                          │  │
//!               │                     │  ▲                                 │  │
//!               │                     ▼  │                                 │  │
//!               │                    Paused ── kill, ended by itself ──────┘  │
//!               └── cannot be made, or nobody waits for it any more ──────────┘
//! ```
//!
//! **Invariant: one task writes the state of a sandbox** (`task.rs`; while it
//! is being made, `create.rs`). Everybody else sends it an order or reads the
//! database. **Invariant: the intent is stored before the effect**, so a crash
//! at any step can be finished or undone by the next start (`restart.rs`);
//! [`Step`] names each of them, for tests that kill the server there.
//! **Invariant: nobody new comes in while a sandbox is being ended**: it
//! leaves [`RunningSandboxes`] and its tokens end before its processes do.
//!
//! | file | owns |
//! |---|---|
//! | `create.rs` | from the wish to `Running`, or back to nothing |
//! | `task.rs`, `ending.rs` | the one writer of a running sandbox, and its last steps |
//! | `restart.rs` | rows against what runs: at each start, and on a timer |
//! | `kill.rs`, `timeout.rs`, `connect.rs`, `egress.rs` | the orders that clients give |
//! | `pause.rs` | holding still and running on, by order, at the end of its time, on traffic |
//! | `snapshot.rs`, `memory.rs` | a sandbox as a template: its files, and its memory |
//! | `fork.rs` | sandboxes that begin as another one is |
//! | `view.rs`, `observe.rs` | what clients are told |
//! | `sampler.rs`, `journal.rs` | what the host saw of it |
//! | `event.rs` | what is told of it, with each change of its state |
//! | `deadline.rs` | the end of its time, by a clock that nobody sets |
//! | `wish.rs`, `traffic.rs`, `template_reference.rs` | what clients ask for, checked |
//! | `admission.rs`, `booking.rs` | how many at once: of a tenant, and on the host |
//! | `make.rs` | what a sandbox is made of, and the making |
//! | `pool/` | sandboxes that wait for somebody to ask |

mod admission;
mod booking;
mod connect;
mod create;
mod deadline;
mod egress;
mod ending;
mod error;
mod event;
mod fork;
mod journal;
mod kill;
mod make;
mod memory;
mod meter;
mod observe;
mod pause;
mod pool;
mod restart;
mod sampler;
mod settings;
mod snapshot;
mod step;
mod task;
mod template_reference;
mod timeout;
mod traffic;
mod view;
mod wish;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_engine::{Runtime, SandboxId, Tier};
use atoll_store::db::{Database, Fence};
use tokio::sync::{Semaphore, mpsc};

use crate::identity::{Access, Identity};
use crate::running::RunningSandboxes;
use crate::templates::TemplateCatalog;

pub use booking::{Full, HostCapacity, Resource};
pub use connect::Found;
pub use create::Created;
pub use error::{CreateError, OperationError};
pub use pause::{PauseCondition, PauseMode};
pub use pool::{PoolSettings, PoolSize, PoolView};
pub use restart::{Reconciled, RestartError};
pub use settings::Settings;
pub use snapshot::{SnapshotError, SnapshotFilter, SnapshotView};
pub use step::Step;
pub use template_reference::{InvalidTemplateReference, TemplateReference};
pub use timeout::Extension;
pub use traffic::{Egress, IngressWish, InvalidTraffic, PortAccess, Traffic};
pub use view::{LifecycleView, SandboxView};
pub use wish::{CreateWish, IdempotencyKey, InvalidWish};

use admission::Admission;
use booking::Booking;
use pool::Pools;
use task::Order;

/// Creations under way at once; others wait for their turn.
const CREATIONS_AT_ONCE: usize = 16;

/// All sandboxes of this node. Clones are the same.
#[derive(Clone)]
pub struct Lifecycle {
    shared: Arc<Shared>,
}

/// What a life cycle stands on.
pub struct Foundation {
    /// The home of this node.
    pub home: PathBuf,
    /// Where everything is written down.
    pub database: Database,
    /// The right to change this node's sandboxes.
    pub fence: Fence,
    /// Secrets of the home.
    pub identity: Identity,
    /// Who may reach which sandbox.
    pub access: Arc<Access>,
    /// What can be reached right now.
    pub running: Arc<RunningSandboxes>,
    /// What makes sandboxes.
    pub runtime: Arc<dyn Runtime>,
    /// What they are made from.
    pub catalog: TemplateCatalog,
    /// Bounds and defaults.
    pub settings: Settings,
}

pub(super) struct Shared {
    foundation: Foundation,
    tasks: Mutex<HashMap<SandboxId, mpsc::Sender<Order>>>,
    admission: Admission,
    booking: Booking,
    pools: Pools,
    samples: sampler::Samples,
    creations: Semaphore,
    /// Whose files are being read; closed only with the process.
    readers: Semaphore,
    /// Who waits for that.
    snapshotting: Admission,
    /// Held by who gives names to snapshots, and takes them away.
    naming: tokio::sync::Mutex<()>,
}

impl Lifecycle {
    /// A life cycle that knows of no sandbox yet; see [`Lifecycle::reconcile`].
    #[must_use]
    pub fn new(foundation: Foundation) -> Self {
        let admission = Admission::new(foundation.settings.sandboxes_max);
        let booking = Booking::new(&foundation.settings.host);
        let pools = Pools::new(&foundation.settings.pools);
        let samples =
            sampler::Samples::start(foundation.database.clone(), foundation.fence.clone());
        Self {
            shared: Arc::new(Shared {
                foundation,
                tasks: Mutex::default(),
                admission,
                booking,
                pools,
                samples,
                creations: Semaphore::new(CREATIONS_AT_ONCE),
                readers: Semaphore::new(snapshot::READERS),
                snapshotting: Admission::new(snapshot::PENDING_MAX),
                naming: tokio::sync::Mutex::default(),
            }),
        }
    }

    /// Bounds and defaults.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.shared.foundation.settings
    }

    /// How its sandboxes are kept apart.
    #[must_use]
    pub fn tier(&self) -> Tier {
        self.shared.foundation.runtime.tier()
    }

    /// What sandboxes are made from.
    #[must_use]
    pub fn catalog(&self) -> &TemplateCatalog {
        &self.shared.foundation.catalog
    }
}

impl Shared {
    fn tasks(&self) -> MutexGuard<'_, HashMap<SandboxId, mpsc::Sender<Order>>> {
        // Every change is a single step, so a panic elsewhere leaves it whole.
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a sandbox among the tasks, until dropped.
struct Registration {
    shared: Arc<Shared>,
    id: SandboxId,
}

impl Registration {
    /// Takes the place of `id`, if nobody has it.
    fn take(shared: &Arc<Shared>, id: &SandboxId) -> Option<(Self, mpsc::Receiver<Order>)> {
        let (sender, orders) = mpsc::channel(task::ORDERS_WAITING);
        let mut tasks = shared.tasks();
        if tasks.contains_key(id) {
            return None;
        }
        tasks.insert(id.clone(), sender);
        drop(tasks);
        let registration = Self {
            shared: Arc::clone(shared),
            id: id.clone(),
        };
        Some((registration, orders))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.shared.tasks().remove(&self.id);
    }
}
