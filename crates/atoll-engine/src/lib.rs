//! Runs sandboxes on this Linux host.
//!
//! The engine owns everything that touches the kernel: root file systems,
//! disks, namespaces, limits, network slots, the leases that keep several
//! homes apart, and the monitor process that stands beside every sandbox.
//! It knows nothing of HTTP, tenants or templates: layers come in as
//! directories, and bytes go to the guest through [`Sandbox::dial`].

mod attach;
mod bundle;
mod cgroup;
mod config;
mod disk;
mod doctor;
mod housekeeping;
mod id;
mod lease;
mod limits;
mod memory;
mod monitor;
mod monitored;
mod network;
mod oci;
mod reconcile;
mod record;
mod runtime;
mod seccomp;
mod spec;
mod tier_verdict;

pub mod host;

pub use attach::{RunningSandbox, attach, attach_within, running_sandboxes};
pub use cgroup::CgroupLayout;
pub use config::{
    EngineConfig, GUEST_IN_LAYER, GUEST_PORT, OciRuntimeChoice, PASSAGE_OPEN, PASSAGE_PORT,
    PASSAGE_REFUSED, RUN_DIR,
};
pub use doctor::{Check, Verdict, inspect_host};
pub use housekeeping::{
    Garbage, GarbageKind, Sweep, layers_in_use, sandbox_record, sandboxes, sweep,
};
pub use id::{InvalidSandboxId, SandboxId};
pub use limits::{Limits, LimitsError, Outcome, open_files_ceiling};
pub use memory::Memory;
pub use monitor::run as run_monitor;
pub use monitored::MonitoredRuntime;
pub use network::{
    Cidr, Denial, InvalidCidr, InvalidPolicy, NetworkPolicy, NetworkUsage, SlotRange, Traffic,
};
pub use reconcile::{reconcile, reconcile_home};
pub use record::{Ended, SandboxRecord};
pub use runtime::{
    AttachError, CreateError, Dial, Runtime, Sandbox, SandboxError, Stats, Still, Tier,
};
pub use spec::{Attachment, SandboxSpec};
pub use tier_verdict::{TierVerdict, remember_verdict, remembered_verdict};
