//! Sandboxes that begin as another one is, with what a snapshot of it would have.

use std::time::Duration;

use atoll_engine::{Limits, SandboxId};
use atoll_store::db::Sandbox;

use super::snapshot::{DEFAULT_TAG, SnapshotError, sweep_soon, to_its_end};
use super::view::parse;
use super::{CreateError, CreateWish, Created, Lifecycle, LifecycleView, Shared};
use crate::identity::{Caller, SandboxSecrets};
use crate::sessions::SESSION_MARK;
use crate::templates::{Snapshot, TemplateId};

/// Forks that are made by one request.
pub(super) const FORKS_MAX: usize = 100;

impl Lifecycle {
    /// Sandboxes that begin as a sandbox of `caller` is, which runs on: with its
    /// environment, metadata, traffic and what happens at the end of their time.
    ///
    /// # Errors
    /// When there is none, it is paused, or it cannot be written down. What becomes of each
    /// fork is in the list.
    pub async fn fork(
        &self,
        caller: &Caller,
        id: &str,
        count: usize,
        time: Duration,
    ) -> Result<Vec<Result<Created, CreateError>>, SnapshotError> {
        if !(1..=FORKS_MAX).contains(&count) {
            return Err(SnapshotError::Count);
        }
        let (id, row) = self.shared.row(caller, id).await?;
        // Before anybody is kept still for what cannot be.
        let wish = self.shared.wish_of(&row, time)?;
        wish.check(self.settings().lifetime_max)?;
        let (whole, caller) = (self.clone(), caller.clone());
        let pending = self.shared.pending(&caller)?;
        to_its_end(async move {
            let made = whole.make_forks(&caller, &id, &wish, count).await;
            drop(pending);
            made
        })
        .await
    }

    async fn make_forks(
        &self,
        caller: &Caller,
        id: &SandboxId,
        wish: &CreateWish,
        count: usize,
    ) -> Result<Vec<Result<Created, CreateError>>, SnapshotError> {
        let shared = &self.shared;
        let catalog = &shared.foundation.catalog;
        let turn = shared.readers.acquire().await.ok();
        // Until each fork has its lease, which keeps the layers.
        let held = catalog.hold_layers().await?;
        let moment = shared.moment_of(id).await?;
        drop(turn);
        // Retired from the start: it is there for as long as a fork stands on it.
        let retired = Snapshot {
            build: TemplateId::random()?,
            template: moment.template.clone(),
            name: None,
            tag: DEFAULT_TAG.to_owned(),
            tenant: caller.tenant.to_string(),
            sandbox: id.to_string(),
            is_retired: true,
        };
        catalog.save_snapshot(&retired)?;
        let making =
            (0..count).map(|_| self.create_of(caller, wish.clone(), moment.template.clone(), id));
        let made = futures_util::future::join_all(making).await;
        // Its memory is nobody's from here on.
        drop((held, moment));
        sweep_soon(shared);
        shared.note(id, "sandbox forked").await;
        Ok(made)
    }
}

impl Shared {
    /// A sandbox like that of `row`.
    fn wish_of(&self, row: &Sandbox, time: Duration) -> Result<CreateWish, SnapshotError> {
        let secrets: SandboxSecrets = self
            .foundation
            .identity
            .sealer
            .open_sandbox(&row.sandbox_id, &row.sealed)?;
        let lifecycle: LifecycleView = parse("description of its end", &row.lifecycle)?;
        let mut metadata = row.metadata.0.clone();
        // A fork is nobody's session's, and ends with none.
        metadata.remove(SESSION_MARK);
        Ok(CreateWish {
            template: row.template_name.clone(),
            timeout: time,
            metadata,
            environment: secrets.environment,
            limits: parse::<Limits>("description of limits", &row.limits)?.into(),
            traffic: parse("description of traffic", &row.network)?,
            pauses: lifecycle.pauses,
            pause_mode: lifecycle.pause_mode,
            auto_resumes: lifecycle.auto_resumes,
            client: row.client.clone(),
        })
    }
}
