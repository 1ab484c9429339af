//! Sessions after a start of the server: those that can be used are known
//! again, and sandboxes that were left without one end.

use std::sync::{Arc, Mutex};

use atoll_store::db::{Database, DatabaseError, Fence, Sandbox, SessionId};

use super::{LiveSession, SESSION_MARK, SessionSettings, Sessions, Shared, lock};
use crate::executions::Places;
use crate::identity::{Caller, Role, Sealer};

impl Sessions {
    /// The sessions of a node whose sandboxes have been taken up.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn open(
        places: Places,
        database: Database,
        fence: Fence,
        sealer: Sealer,
        settings: SessionSettings,
    ) -> Result<Self, DatabaseError> {
        let active = database.active_sessions().await?.into_iter();
        let active = active.map(|row| {
            let (id, live) = (row.session_id, LiveSession::new(row));
            // The last use is written now and then, and while there was no server
            // nobody could use it.
            live.touch();
            (id, Arc::new(live))
        });
        let shared = Shared {
            places,
            fence,
            sealer,
            settings,
            active: Mutex::new(active.collect()),
            database,
        };
        let sessions = Self {
            shared: Arc::new(shared),
        };
        for row in sessions
            .shared
            .database
            .sandboxes_of_node(sessions.shared.database.node())
            .await?
        {
            if sessions.shared.is_orphan(&row) {
                sessions.shared.end_orphan(&row).await;
            }
        }
        Ok(sessions)
    }
}

impl Shared {
    /// Whether a sandbox was made for a session that has ended, or has another.
    fn is_orphan(&self, row: &Sandbox) -> bool {
        let Some(mark) = row.metadata.0.get(SESSION_MARK) else {
            return false;
        };
        let Ok(session) = mark.parse::<SessionId>() else {
            return false; // somebody else's word
        };
        match self.live(session) {
            None => true,
            Some(live) => lock(&live.row).sandbox_id.as_ref() != Some(&row.sandbox_id),
        }
    }

    async fn end_orphan(&self, row: &Sandbox) {
        let caller = Caller {
            tenant: row.tenant_id,
            key: row.key_id,
            role: Role::Agent,
            agent_id: None,
            task_id: None,
        };
        let id = &row.sandbox_id;
        match self.places.lifecycle().kill(&caller, id).await {
            Ok(()) => tracing::info!("sandbox {id} had no session any more, and is ended"),
            Err(error) => tracing::warn!("sandbox {id} has no session, and stays: {error}"),
        }
    }
}
