//! What callers are told of their sandboxes. Nothing is changed here.

use atoll_engine::SandboxId;
use atoll_store::db::{
    Cursor, DatabaseError, LogEntry, LogQuery, MetricSample, SandboxQuery, SandboxState,
};

use super::{Created, Lifecycle, OperationError, SandboxView};
use crate::identity::{Caller, now_ms};

/// States of sandboxes that callers see.
const VISIBLE: [SandboxState; 4] = [
    SandboxState::Running,
    SandboxState::Pausing,
    SandboxState::Paused,
    SandboxState::Resuming,
];

/// How old the newest sample may be that is still of now.
const RECENT_MS: i64 = 60_000;

impl Lifecycle {
    /// A sandbox of `caller`, running or paused, and the way in.
    ///
    /// # Errors
    /// When there is none.
    pub async fn get(&self, caller: &Caller, id: &str) -> Result<Created, OperationError> {
        let (_, row) = self.shared.row(caller, id).await?;
        self.way_in(caller, row.try_into()?).await
    }

    /// Some of the sandboxes of `caller`, and where the rest begins. Of the
    /// states that are asked for, those count that callers may see.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn list(
        &self,
        caller: &Caller,
        mut query: SandboxQuery,
    ) -> Result<(Vec<SandboxView>, Option<Cursor>), OperationError> {
        query.states.retain(|state| VISIBLE.contains(state));
        let database = &self.shared.foundation.database;
        let page = database.list_sandboxes(caller.tenant, &query).await?;
        let views: Result<Vec<SandboxView>, DatabaseError> =
            page.sandboxes.into_iter().map(TryInto::try_into).collect();
        Ok((views?, page.next))
    }

    /// What a sandbox of `caller` used from one moment to another.
    ///
    /// # Errors
    /// When there is none.
    pub async fn metrics(
        &self,
        caller: &Caller,
        id: &str,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<MetricSample>, OperationError> {
        let (id, _) = self.shared.row(caller, id).await?;
        let database = &self.shared.foundation.database;
        let samples = database
            .samples(caller.tenant, id.as_str(), from_ms, to_ms)
            .await?;
        Ok(samples)
    }

    /// What a sandbox of `caller` used last; none of one that is not there.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn latest_metric(
        &self,
        caller: &Caller,
        id: &str,
    ) -> Result<Option<MetricSample>, OperationError> {
        let now_ms = now_ms();
        match self.metrics(caller, id, now_ms - RECENT_MS, now_ms).await {
            Ok(mut samples) => Ok(samples.pop()),
            Err(OperationError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What happened to a sandbox of `caller`, also to one that has ended.
    ///
    /// # Errors
    /// When there never was one that is still known.
    pub async fn logs(
        &self,
        caller: &Caller,
        id: &str,
        query: &LogQuery,
    ) -> Result<Vec<LogEntry>, OperationError> {
        let id: SandboxId = id.parse().map_err(|_| OperationError::NotFound)?;
        let database = &self.shared.foundation.database;
        let (tenant, name) = (caller.tenant, id.as_str());
        let is_known = database.sandbox(tenant, name).await?.is_some()
            || database.tombstone(tenant, name).await?.is_some();
        if !is_known {
            return Err(OperationError::NotFound);
        }
        Ok(database.logs(tenant, name, query).await?)
    }
}
