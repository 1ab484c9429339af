//! The attack suite of Atoll, as a product: every wall of a sandbox is tried
//! for real, on the operator's own host.
//!
//! A [`Case`] is one attack and one wall. The attack runs inside a real
//! sandbox, and the very same attack runs where that wall is missing: the
//! *control*. A case whose control does not succeed proves nothing and is
//! [`Verdict::Inconclusive`], which counts as a failure.
//!
//! ```text
//! attacks/<group>/<name>.py ─▶ program ─▶ case ─▶ runner ─▶ CaseReport
//!                                                  │ │
//!                         stage: real sandboxes ◀──┘ └──▶ room: the host without walls
//!                         (attacker, neighbour, tight)    keeper: canaries to aim at
//! ```
//!
//! Nothing of the operator is touched: what is attacked are canaries that the
//! keeper makes and removes, floods are bounded, and calls that could do harm
//! where they are allowed are made with arguments that cannot.
//!
//! **Invariant**: this crate prints nothing and decides nothing about exit
//! statuses. It knows the engine's traits and the guest's client, no HTTP.

mod case;
mod catalog;
mod glob;
mod keeper;
mod native;
mod neighbour;
mod part;
mod program;
mod room;
mod runner;
mod siege;
mod stage;
mod survey;
mod world;

pub use case::{Case, CaseReport, Verdict};
pub use catalog::cases;
pub use glob::Glob;
pub use keeper::sweep;
pub use part::{PART_ARGUMENT, run_part};
pub use runner::{Event, Ground, SelftestError, run};
pub use siege::{Latency, Peaceful, SiegeReport, siege};
pub use survey::survey;
pub use world::enter_world;
