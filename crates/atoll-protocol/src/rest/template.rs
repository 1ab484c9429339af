//! Templates, as far as they can be looked at.

use serde::{Deserialize, Serialize};

/// Where a build is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BuildStatus {
    /// It can be used.
    Ready,
}

/// One entry of `GET /templates`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Template {
    /// Its id.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Id of its newest build: a UUID.
    #[serde(rename = "buildID")]
    pub build_id: String,
    /// CPUs of its sandboxes.
    pub cpu_count: u64,
    /// Memory of its sandboxes.
    #[serde(rename = "memoryMB")]
    pub memory_mb: u64,
    /// Disk of its sandboxes.
    #[serde(rename = "diskSizeMB")]
    pub disk_size_mb: u64,
    /// Whether everybody may use it.
    pub public: bool,
    /// Its names, in the older form.
    pub aliases: Vec<String>,
    /// Its names.
    pub names: Vec<String>,
    /// When it was first built.
    pub created_at: String,
    /// When it was last built.
    pub updated_at: String,
    /// Who built it; not known.
    pub created_by: Option<String>,
    /// When it was last used; not known.
    pub last_spawned_at: Option<String>,
    /// How often it was used.
    pub spawn_count: u64,
    /// How often it was built.
    pub build_count: u64,
    /// What its guest can do.
    pub envd_version: String,
    /// Where its newest build is.
    pub build_status: BuildStatus,
}

/// Answer to `GET /templates/aliases/{alias}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateAlias {
    /// The template with that name.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Whether everybody may use it.
    pub public: bool,
}
