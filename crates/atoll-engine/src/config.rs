//! Where the engine keeps things on this host, and which programs it uses.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::network::SlotRange;

/// Host-wide state of all homes. Leases live here, so it cannot be moved per home.
pub const RUN_DIR: &str = "/run/atoll";

/// Port of the guest inside a sandbox.
pub const GUEST_PORT: u16 = 49983;

/// Port of the guest's passage to services that only its own side reaches. It
/// takes the port as two bytes and answers with one of the bytes below.
pub const PASSAGE_PORT: u16 = 49982;
/// The service answered; from here on bytes are its own.
pub const PASSAGE_OPEN: u8 = 0;
/// Nobody listens there.
pub const PASSAGE_REFUSED: u8 = 1;

/// Where the layer of the guest has its binary.
pub const GUEST_IN_LAYER: &str = ".atoll/guest";

/// Settings of one engine; the monitor of each sandbox gets a copy.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EngineConfig {
    /// `$ATOLL_HOME`: disks and records of this installation.
    pub home: PathBuf,
    /// Layer with the static binary that becomes PID 1 of each sandbox, at [`GUEST_IN_LAYER`].
    pub guest: PathBuf,
    /// The `atoll` binary, started again as monitor.
    pub program: PathBuf,
    /// What turns a bundle into a container.
    pub oci_runtime: OciRuntimeChoice,
    /// What runs the sandboxes of the gVisor tier.
    pub runsc: PathBuf,
    /// Addresses of sandboxes on this host.
    pub slot_range: SlotRange,
}

/// Program that runs OCI bundles for the container tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OciRuntimeChoice {
    /// The runtime inside this binary.
    Builtin,
    /// `runc`, or another program with the same command line.
    External(PathBuf),
}

impl EngineConfig {
    pub(crate) fn disks(&self) -> PathBuf {
        self.home.join("disks")
    }

    pub(crate) fn records(&self) -> PathBuf {
        self.home.join("sandboxes")
    }
}

/// Directory of one slot below [`RUN_DIR`].
pub(crate) fn slot_dir(slot: u16) -> PathBuf {
    Path::new(RUN_DIR).join("slots").join(slot.to_string())
}
