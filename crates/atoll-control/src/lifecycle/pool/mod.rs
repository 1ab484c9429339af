//! Warm pools: sandboxes that were started before anybody asked, proven by an
//! execution, and handed out in the time of a few writes.
//!
//! A member is a sandbox of its template as it comes: nobody's, in no row and
//! in no list, reached by nobody. It has a name of its own from the start,
//! which its owner gets with it. A creation that finds one which is what it
//! would make writes its row, as every creation does, tells the guest its
//! variables and the host its policy, and is done (`create.rs`); one that
//! finds none makes its sandbox, as if there were no pool.
//!
//! **A member is used once and never comes back.** What ran in a sandbox may
//! have left anything in it: files, processes, changed programs, secrets of
//! its owner. There is no way to find all of that, and starting another takes
//! less than looking.
//!
//! **Invariant: members are in memory only.** A server that is killed leaves
//! sandboxes that no row knows, which the next start ends (`restart.rs`), and
//! which end by themselves when there is none: a crash at any moment has
//! nothing to finish. While it waits, a member has its place among the tasks,
//! so that nobody takes it for a stray.
//!
//! | file | owns |
//! |---|---|
//! | `demand.rs` | how many members a pool should have |
//! | `member.rs` | a sandbox that waits: made, proven, ended |
//! | `claim.rs` | the way from the pool to somebody who asked |
//! | `keeper.rs` | filling, looking after, and emptying pools |

mod claim;
mod demand;
mod keeper;
mod member;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::{Lifecycle, TemplateReference};
use crate::templates::Template;
use demand::Demand;
use member::Member;

pub(super) use claim::{Claim, Leaving};
pub use demand::PoolSize;

/// A pool as the operator wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSettings {
    /// What its members are made from.
    pub template: TemplateReference,
    /// How many there are.
    pub size: PoolSize,
}

/// A pool as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolView {
    /// Name of its template.
    pub template: String,
    /// How large it is meant to be.
    pub size: PoolSize,
    /// Members that it should have now.
    pub wanted: usize,
    /// Members that can be handed out.
    pub ready: usize,
    /// Members that are being made.
    pub starting: usize,
    /// Members that were handed out, since the server started.
    pub claimed: u64,
    /// Creations of its template that got none.
    pub missed: u64,
    /// Members that were found to be of no use.
    pub replaced: u64,
    /// Why the last one could not be made, until one can.
    pub failure: Option<String>,
}

/// All pools of a node.
pub(super) struct Pools {
    pools: Mutex<Vec<Pool>>,
    /// Somebody took a member.
    changed: Notify,
    /// Creations that clients wait for.
    creations: AtomicUsize,
    /// Whether pools are to be emptied.
    closing: watch::Sender<bool>,
}

/// One pool.
struct Pool {
    settings: PoolSettings,
    /// As the catalog had it when it was last looked at.
    template: Option<Template>,
    /// The one that waits longest first.
    ready: VecDeque<Member>,
    starting: usize,
    /// Members that were made since it was last told to be full.
    added: usize,
    claimed: u64,
    missed: u64,
    replaced: u64,
    demand: Demand,
    failure: Option<Failure>,
}

/// Why a member was not made, and when that is tried again.
struct Failure {
    text: String,
    /// How often in a row.
    times: u32,
    retry_at: Instant,
}

impl Pool {
    fn lacks(&mut self, now: Instant) -> usize {
        let wanted = self.demand.wanted(self.settings.size, now);
        wanted.saturating_sub(self.ready.len() + self.starting)
    }
}

impl Pools {
    pub(super) fn new(settings: &[PoolSettings]) -> Self {
        let now = Instant::now();
        let pools = settings.iter().map(|settings| Pool {
            settings: settings.clone(),
            template: None,
            ready: VecDeque::new(),
            starting: 0,
            added: 0,
            claimed: 0,
            missed: 0,
            replaced: 0,
            demand: Demand::new(now),
            failure: None,
        });
        Self {
            pools: Mutex::new(pools.collect()),
            changed: Notify::new(),
            creations: AtomicUsize::new(0),
            closing: watch::Sender::new(false),
        }
    }

    /// A creation that a client waits for: pools are not filled meanwhile.
    pub(super) fn creation_begins(&self) -> UnderWay<'_> {
        self.creations.fetch_add(1, Ordering::Relaxed);
        UnderWay(self)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Pool>> {
        // Every change is a single step, so a panic elsewhere leaves it whole.
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A creation under way, until dropped.
pub(super) struct UnderWay<'p>(&'p Pools);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.creations.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lifecycle {
    /// Every pool as it stands, in the order of the configuration.
    #[must_use]
    pub fn pools(&self) -> Vec<PoolView> {
        let now = Instant::now();
        let mut pools = self.shared.pools.lock();
        let views = pools.iter_mut().map(|pool| PoolView {
            template: pool.settings.template.name.clone(),
            size: pool.settings.size,
            wanted: pool.demand.wanted(pool.settings.size, now),
            ready: pool.ready.len(),
            starting: pool.starting,
            claimed: pool.claimed,
            missed: pool.missed,
            replaced: pool.replaced,
            failure: pool.failure.as_ref().map(|failure| failure.text.clone()),
        });
        views.collect()
    }
}
