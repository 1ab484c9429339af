//! What was run: looked up, listed, summed up, and forgotten in time.

use std::time::Duration;

use atoll_store::db::{
    DatabaseError, ExecutionId, ExecutionPlace, ExecutionQuery, ExecutionUsage, HistoryBounds,
};

use super::{ExecutionState, Executions};
use crate::identity::{Caller, now_ms};

/// Time between two looks at what is too old.
const CLEANING_INTERVAL: Duration = Duration::from_secs(60);

impl Executions {
    /// An execution of `caller`, whenever it was.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn get(
        &self,
        caller: &Caller,
        id: ExecutionId,
    ) -> Result<Option<ExecutionState>, DatabaseError> {
        if let Some(live) = self.live(caller, id) {
            return Ok(Some(live.state()));
        }
        self.flush().await;
        let stored = self.shared.database.execution(caller.tenant, id).await?;
        Ok(stored.map(ExecutionState::from))
    }

    /// A page of the history of `caller`, and where the next one begins.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn list(
        &self,
        caller: &Caller,
        query: &ExecutionQuery,
    ) -> Result<(Vec<ExecutionState>, Option<ExecutionPlace>), DatabaseError> {
        self.flush().await;
        let page = self.shared.database.list_executions(caller.tenant, query);
        let page = page.await?;
        let states = page.executions.into_iter().map(ExecutionState::from);
        Ok((states.collect(), page.next))
    }

    /// What the executions of `caller` took in that time, by agent.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn usage(
        &self,
        caller: &Caller,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<ExecutionUsage>, DatabaseError> {
        self.flush().await;
        let database = &self.shared.database;
        database
            .execution_usage(caller.tenant, from_ms, to_ms)
            .await
    }

    /// Forgets what is too old or too much, once a minute, for ever.
    pub async fn keep_clean(&self) {
        loop {
            tokio::time::sleep(CLEANING_INTERVAL).await;
            let settings = self.shared.history;
            let kept_ms = i64::try_from(settings.kept.as_millis()).unwrap_or(i64::MAX);
            let bounds = HistoryBounds {
                before_ms: now_ms().saturating_sub(kept_ms),
                per_tenant: settings.per_tenant,
            };
            match self.shared.database.forget_executions(bounds).await {
                Ok(0) => {}
                Ok(gone) => tracing::info!("{gone} executions left the history"),
                Err(error) => tracing::warn!("the history is not cleaned up: {error}"),
            }
            if let Err(error) = self.shared.database.forget_usage(bounds.before_ms).await {
                tracing::warn!("old sums of usage stay: {error}");
            }
        }
    }
}
