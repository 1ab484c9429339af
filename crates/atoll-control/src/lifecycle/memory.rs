//! The memory of a sandbox that runs, as a template: what is made of it goes on where the
//! sandbox was.
//!
//! The sandbox holds still while its memory is written, then runs on. Whatever is open to it
//! breaks; who comes meanwhile waits. What was written counts once a record of it is there:
//! before that, it is removed by whoever sweeps.

use std::path::PathBuf;
use std::sync::Arc;

use atoll_engine::{Memory, SandboxId};
use atoll_store::db::{Sandbox, SandboxState};
use tokio::sync::{oneshot, watch};

use super::snapshot::{Moment, SnapshotError, digests};
use super::task::{Order, SandboxTask};
use super::view::parse;
use super::{OperationError, Shared, Step};
use crate::identity::{SandboxSecrets, SealError, now_ms};
use crate::running::Running;
use crate::templates::{Template, TemplateMemory};

impl Shared {
    /// A sandbox that runs, as a template with its memory, which may not be on disk yet.
    pub(super) async fn memory_of(&self, id: &SandboxId) -> Result<Moment, SnapshotError> {
        let foundation = &self.foundation;
        let (directory, held) = foundation.catalog.place_for_memory().await?;
        let (reply, answer) = oneshot::channel();
        self.order(id, Order::WriteMemory { directory, reply })
            .await?;
        let (image, row) = answer.await.unwrap_or(Err(OperationError::NotFound))?;
        let sealer = &foundation.identity.sealer;
        let secrets: SandboxSecrets = sealer.open_sandbox(&row.sandbox_id, &row.sealed)?;
        let owner = TemplateMemory::owner(&image);
        let sealed_token = sealer.seal(&owner, secrets.guest_token.as_bytes())?;
        let layers = digests(image.layers())?;
        let template = self.template_of(&row, &layers)?;
        let limits: atoll_engine::Limits = parse("description of limits", &row.limits)?;
        let template = Template {
            layers,
            created_at_ms: u64::try_from(now_ms()).unwrap_or(0),
            total_bytes: template.total_bytes.saturating_add(image.bytes()),
            // What it needs is what its memory was written with.
            resources: limits.into(),
            memory: Some(TemplateMemory {
                image,
                sealed_token,
            }),
            ..template
        };
        Ok(Moment {
            template,
            _memory: Some(held),
        })
    }

    /// What opens the guest that goes on in `memory`.
    pub(super) fn token_in(&self, memory: &TemplateMemory) -> Result<String, SealError> {
        let owner = TemplateMemory::owner(&memory.image);
        let sealer = &self.foundation.identity.sealer;
        let token = sealer.open(&owner, &memory.sealed_token)?;
        String::from_utf8(token).map_err(|_| SealError::Broken)
    }
}

impl SandboxTask {
    /// Writes its memory into `directory`, if it runs; it runs on.
    pub(super) async fn write_memory(
        &mut self,
        directory: PathBuf,
    ) -> Result<(Memory, Sandbox), OperationError> {
        if self.row.state != SandboxState::Running {
            return Err(OperationError::Paused);
        }
        let foundation = &self.shared.foundation;
        let (done, released) = watch::channel(false);
        foundation.running.hold(Arc::clone(&self.running), released);
        foundation.access.break_off(&self.running.id);
        let writing = self.running.live.write_memory(directory);
        let image = Step::WriteMemory.around(writing).await;
        // Whoever kept connections to it knows it by this.
        self.running = Arc::new(Running::clone(&self.running));
        foundation.running.insert(Arc::clone(&self.running));
        done.send_replace(true);
        Ok((image?, self.row.clone()))
    }
}
