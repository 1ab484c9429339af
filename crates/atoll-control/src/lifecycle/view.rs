//! What is told of a sandbox.

use std::time::Duration;

use atoll_engine::Limits;
use atoll_store::db::{DatabaseError, Sandbox};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{PauseMode, Traffic};

/// What happens at the end of a sandbox's time, and on traffic after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifecycleView {
    /// Whether it is paused at its end, and not ended.
    pub pauses: bool,
    /// What is kept of it then.
    #[serde(default)]
    pub pause_mode: PauseMode,
    /// Whether traffic wakes it up.
    pub auto_resumes: bool,
    /// How long it lives when traffic woke it up, in milliseconds.
    #[serde(default = "five_minutes")]
    pub woken_for_ms: i64,
}

/// For rows that do not say.
const fn five_minutes() -> i64 {
    5 * 60 * 1000
}

impl Default for LifecycleView {
    fn default() -> Self {
        Self {
            pauses: false,
            pause_mode: PauseMode::Full,
            auto_resumes: false,
            woken_for_ms: five_minutes(),
        }
    }
}

impl LifecycleView {
    /// When its monitor ends it with nobody watching, if the server does
    /// something else `left` from now: never, if it is to be paused then.
    pub(super) fn monitors_time(self, left: Duration) -> Duration {
        if self.pauses { Duration::MAX } else { left }
    }
}

/// A sandbox, as its owner may see it.
#[derive(Debug, Clone)]
pub struct SandboxView {
    /// What is stored of it.
    pub row: Sandbox,
    /// Its limits, as they are enforced.
    pub limits: Limits,
    /// What it may reach, and who may reach it.
    pub traffic: Traffic,
    /// What happens at the end of its time.
    pub lifecycle: LifecycleView,
}

impl TryFrom<Sandbox> for SandboxView {
    type Error = DatabaseError;

    fn try_from(row: Sandbox) -> Result<Self, DatabaseError> {
        Ok(Self {
            limits: parse("set of limits", &row.limits)?,
            traffic: parse("description of traffic", &row.network)?,
            lifecycle: parse("description of its end", &row.lifecycle)?,
            row,
        })
    }
}

/// What a JSON column holds.
pub(super) fn parse<T: DeserializeOwned>(
    what: &'static str,
    text: &str,
) -> Result<T, DatabaseError> {
    serde_json::from_str(text).map_err(|_| DatabaseError::Content {
        what,
        found: text.to_owned(),
    })
}

/// The text of a JSON column.
pub(super) fn json(value: &impl Serialize) -> String {
    // Everything that is stored so is made of texts, numbers and maps of texts.
    serde_json::to_string(value).unwrap_or_default()
}
