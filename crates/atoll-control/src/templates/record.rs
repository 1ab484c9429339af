//! What is known of a built template.

use std::collections::BTreeMap;

use atoll_engine::{Limits, Memory};
use atoll_store::Digest;
use serde::{Deserialize, Serialize};

use super::{TemplateId, TemplateName};

/// A built template: everything a sandbox of it needs, by digest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Template {
    /// What people call it.
    pub name: TemplateName,
    /// What E2B clients call it; kept when it is built again.
    pub id: TemplateId,
    /// Its layers, **the top one first**, as `SandboxSpec::layers` wants them.
    pub layers: Vec<Digest>,
    /// Environment of every command.
    pub env: BTreeMap<String, String>,
    /// User of commands that name none.
    pub user: String,
    /// Directory of commands that name none.
    pub workdir: String,
    /// Command that runs from the start of each sandbox.
    pub start_cmd: Option<String>,
    /// Command that succeeds once the start command is ready.
    pub ready_cmd: Option<String>,
    /// Limits it wants instead of the defaults.
    #[serde(default)]
    pub resources: Resources,
    /// When it was built, in milliseconds since 1970.
    pub created_at_ms: u64,
    /// Hash of the spec it was built from, with the layers of its parent.
    pub spec_hash: Digest,
    /// Size of all its layers, uncompressed.
    pub total_bytes: u64,
    /// What goes on in each sandbox of it, instead of booting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<TemplateMemory>,
}

/// The memory of the sandbox that a template was made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TemplateMemory {
    /// Its files.
    pub image: Memory,
    /// Opens the guest in it to the host; sealed for [`owner`](Self::owner).
    pub sealed_token: String,
}

impl TemplateMemory {
    /// To whom what is sealed with `image` belongs: a name that no other has.
    #[must_use]
    pub fn owner(image: &Memory) -> String {
        let name = image.directory().file_name().unwrap_or_default();
        format!("memory {}", name.to_string_lossy())
    }
}

impl Template {
    /// The layer that the host itself made, of packages of its distribution, before
    /// any step; every layer above it was written by code inside of a sandbox.
    ///
    /// **Invariant**: the bottom layer of every template is one of `Source::Debian`
    /// or `Source::Host`. Files of this layer may be run on the host, as `mmdebstrap`
    /// did when it was made; a source that takes files from anybody else, such as an
    /// image, must not be told as one here.
    #[must_use]
    pub fn source_layer(&self) -> Option<&Digest> {
        self.layers.last()
    }
}

/// Limits that a template, a sandbox or a session asks for; what it does not
/// name stays the default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Memory in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Thousandths of a core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
    /// Writable disk in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u64>,
    /// Processes and threads at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// Files and directories on the writable disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inodes: Option<u64>,
    /// Open files of one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Size of `/dev/shm` in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shm_mib: Option<u64>,
}

impl From<Limits> for Resources {
    fn from(limits: Limits) -> Self {
        Self {
            memory_mib: Some(limits.memory_mib),
            cpu_millis: Some(limits.cpu_millis),
            disk_mib: Some(limits.disk_mib),
            pids: Some(limits.pids),
            inodes: limits.inodes,
            open_files: Some(limits.open_files),
            shm_mib: Some(limits.shm_mib),
        }
    }
}

impl Resources {
    /// `limits` with what is named here put in.
    #[must_use]
    pub fn apply(&self, limits: &Limits) -> Limits {
        Limits {
            memory_mib: self.memory_mib.unwrap_or(limits.memory_mib),
            cpu_millis: self.cpu_millis.unwrap_or(limits.cpu_millis),
            disk_mib: self.disk_mib.unwrap_or(limits.disk_mib),
            pids: self.pids.unwrap_or(limits.pids),
            inodes: self.inodes.or(limits.inodes),
            open_files: self.open_files.unwrap_or(limits.open_files),
            shm_mib: self.shm_mib.unwrap_or(limits.shm_mib),
        }
    }
}
