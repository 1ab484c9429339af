//! What is written down of a sandbox for its owner: the events of its life.

use atoll_engine::SandboxId;
use atoll_store::db::{LogLevel, NewLogEntry};

use super::Shared;
use crate::identity::now_ms;

impl Shared {
    /// Adds an event to the log of a sandbox. A log that cannot be written
    /// stops nothing.
    pub(super) async fn note(&self, sandbox: &SandboxId, message: &str) {
        let entry = NewLogEntry {
            at_ms: now_ms(),
            level: LogLevel::Info,
            message: message.to_owned(),
            fields: r#"{"logger":"lifecycle"}"#.to_owned(),
        };
        let foundation = &self.foundation;
        let appended = foundation
            .database
            .append_logs(&foundation.fence, sandbox.as_str(), &[entry])
            .await;
        if let Err(error) = appended {
            tracing::warn!("an event of {sandbox} is missing from its log: {error}");
        }
    }
}
