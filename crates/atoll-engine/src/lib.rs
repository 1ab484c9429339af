//! Runs sandboxes on this Linux host.
//!
//! The engine owns everything that touches the kernel: root file systems,
//! disks, namespaces, limits, network slots, the leases that keep several
//! homes apart, and the monitor process that stands beside every sandbox.
//! It knows nothing of HTTP, tenants or templates: layers come in as
//! directories, and bytes go to the guest through [`Sandbox::dial`].

mod id;
mod limits;
mod network;
mod runtime;
mod spec;

pub mod host;

pub use id::{InvalidSandboxId, SandboxId};
pub use limits::{Limits, LimitsError, Outcome};
pub use runtime::{CreateError, Dial, Runtime, Sandbox, SandboxError, Stats, Tier};
pub use spec::{Attachment, NetworkMode, SandboxSpec};
