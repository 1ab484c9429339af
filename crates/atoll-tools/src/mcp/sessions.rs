//! Sessions of clients in HTTP: whose they are, how many there are, and when
//! they end.
//!
//! Clients of protocols before 2026-07-28 have a session that they begin and
//! end. Later ones have none: all calls with one key share a desk, which ends
//! when nobody used it for a while.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::desk::Desk;

/// Who a request comes from. A session is bound to it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Principal {
    tenant: String,
    key: String,
}

impl Principal {
    /// A caller by whose sandboxes it may use, and the key that it showed.
    #[must_use]
    pub fn new(tenant: impl Into<String>, key: impl Into<String>) -> Self {
        Self {
            tenant: tenant.into(),
            key: key.into(),
        }
    }

    /// The key, to be looked at again.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }
}

impl fmt::Debug for Principal {
    /// Without the key.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Principal")
            .field("tenant", &self.tenant)
            .finish_non_exhaustive()
    }
}

/// How many sessions there may be, and for how long.
#[derive(Debug, Clone)]
pub struct SessionBounds {
    /// All together.
    pub sessions: usize,
    /// With one key.
    pub sessions_per_key: usize,
    /// Without a call.
    pub idle: Duration,
    /// How often it is looked after them.
    pub sweep: Duration,
}

impl Default for SessionBounds {
    fn default() -> Self {
        Self {
            sessions: 512,
            sessions_per_key: 64,
            idle: crate::served::IDLE,
            sweep: Duration::from_secs(2),
        }
    }
}

struct Session {
    principal: Principal,
    desk: Arc<Desk>,
}

#[derive(Default)]
struct Open {
    /// By the names that clients were given.
    begun: HashMap<String, Session>,
    /// Of clients that have no sessions.
    shared: HashMap<Principal, Arc<Desk>>,
}

/// There is no room for one more session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full;

/// All sessions.
pub(super) struct Sessions {
    bounds: SessionBounds,
    open: Mutex<Open>,
}

impl Sessions {
    pub(super) fn new(bounds: SessionBounds) -> Self {
        Self {
            bounds,
            open: Mutex::new(Open::default()),
        }
    }

    pub(super) fn bounds(&self) -> &SessionBounds {
        &self.bounds
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The desk of a session; `None` as well where it is somebody else's.
    pub(super) fn find(&self, id: &str, principal: &Principal) -> Option<Arc<Desk>> {
        let open = self.open();
        let session = open.begun.get(id)?;
        (session.principal == *principal).then(|| Arc::clone(&session.desk))
    }

    /// Takes up a session that has begun.
    pub(super) fn begin(
        &self,
        id: &str,
        principal: &Principal,
        desk: Arc<Desk>,
    ) -> Result<(), Full> {
        let mut open = self.open();
        self.room(&open, principal)?;
        let session = Session {
            principal: principal.clone(),
            desk,
        };
        open.begun.insert(id.to_owned(), session);
        Ok(())
    }

    /// The desk that all clients without sessions share that show this key.
    pub(super) fn shared<E: From<Full>>(
        &self,
        principal: &Principal,
        desk: impl FnOnce() -> Result<Arc<Desk>, E>,
    ) -> Result<Arc<Desk>, E> {
        if let Some(desk) = self.open().shared.get(principal) {
            return Ok(Arc::clone(desk));
        }
        let made = desk()?;
        let mut open = self.open();
        if let Some(desk) = open.shared.get(principal) {
            return Ok(Arc::clone(desk));
        }
        self.room(&open, principal)?;
        open.shared.insert(principal.clone(), Arc::clone(&made));
        Ok(made)
    }

    fn room(&self, open: &Open, principal: &Principal) -> Result<(), Full> {
        let own = open
            .begun
            .values()
            .filter(|session| session.principal == *principal);
        let all = open.begun.len() + open.shared.len();
        if all >= self.bounds.sessions || own.count() >= self.bounds.sessions_per_key {
            return Err(Full);
        }
        Ok(())
    }

    /// Forgets a session, and hands out its desk to be closed.
    pub(super) fn end(&self, id: &str) -> Option<Arc<Desk>> {
        let session = self.open().begun.remove(id);
        session.map(|session| session.desk)
    }

    /// Names of all sessions, and whose they are.
    pub(super) fn begun(&self) -> Vec<(String, Principal, Arc<Desk>)> {
        let open = self.open();
        let all = open.begun.iter().map(|(id, session)| {
            let desk = Arc::clone(&session.desk);
            (id.clone(), session.principal.clone(), desk)
        });
        all.collect()
    }

    /// Everybody who has a session, and whether one has ended.
    pub(super) fn principals(&self) -> Vec<Principal> {
        let open = self.open();
        let begun = open.begun.values().map(|session| &session.principal);
        let mut all: Vec<Principal> = begun.chain(open.shared.keys()).cloned().collect();
        all.sort_by(|one, other| (&one.tenant, &one.key).cmp(&(&other.tenant, &other.key)));
        all.dedup();
        all
    }

    /// Takes the shared desks out that are over.
    pub(super) fn end_shared(&self, is_over: impl Fn(&Principal, &Desk) -> bool) -> Vec<Arc<Desk>> {
        let mut ended = Vec::new();
        self.open().shared.retain(|principal, desk| {
            let is_over = is_over(principal, desk);
            if is_over {
                ended.push(Arc::clone(desk));
            }
            !is_over
        });
        ended
    }
}

#[cfg(test)]
mod tests {
    use atoll_client::SandboxState;

    use super::*;
    use crate::error::ToolError;
    use crate::workplace::{Listed, Place, Preview, Promise, Wanted, Workplace};

    struct Nowhere;

    impl Workplace for Nowhere {
        fn create(&self, _: Wanted) -> Promise<'_, Result<Place, ToolError>> {
            Box::pin(async { Err(ToolError::no_sandbox("")) })
        }
        fn find<'a>(&'a self, id: &'a str) -> Promise<'a, Result<Place, ToolError>> {
            Box::pin(async move { Err(ToolError::no_sandbox(id)) })
        }
        fn look<'a>(&'a self, id: &'a str) -> Promise<'a, Result<SandboxState, ToolError>> {
            Box::pin(async move { Err(ToolError::no_sandbox(id)) })
        }
        fn list(&self) -> Promise<'_, Result<Vec<Listed>, ToolError>> {
            Box::pin(async { Ok(Vec::new()) })
        }
        fn kill<'a>(&'a self, id: &'a str) -> Promise<'a, Result<(), ToolError>> {
            Box::pin(async move { Err(ToolError::no_sandbox(id)) })
        }
        fn keep<'a>(&'a self, _: &'a str, _: Duration) -> Promise<'a, ()> {
            Box::pin(async {})
        }
        fn preview<'a>(
            &'a self,
            place: &'a Place,
            _: u16,
        ) -> Promise<'a, Result<Preview, ToolError>> {
            Box::pin(async move { Err(ToolError::no_sandbox(&place.id)) })
        }
    }

    fn desk() -> Arc<Desk> {
        Arc::new(Desk::new(Arc::new(Nowhere)))
    }

    fn principal(tenant: &str, key: &str) -> Principal {
        Principal::new(tenant, key)
    }

    #[tokio::test]
    async fn a_session_is_there_for_the_key_that_began_it_and_for_nobody_else() {
        let sessions = Sessions::new(SessionBounds::default());
        let ada = principal("a", "1");
        sessions.begin("s", &ada, desk()).unwrap();
        assert!(sessions.find("s", &ada).is_some());
        assert!(sessions.find("s", &principal("a", "2")).is_none());
        assert!(sessions.find("s", &principal("b", "1")).is_none());
        assert!(sessions.find("t", &ada).is_none());
        assert!(sessions.end("s").is_some());
        assert!(sessions.find("s", &ada).is_none());
    }

    #[tokio::test]
    async fn there_are_no_more_sessions_than_there_may_be() {
        let sessions = Sessions::new(SessionBounds {
            sessions: 3,
            sessions_per_key: 2,
            ..SessionBounds::default()
        });
        let (ada, bob) = (principal("a", "1"), principal("b", "2"));
        assert_eq!(sessions.begin("1", &ada, desk()), Ok(()));
        assert_eq!(sessions.begin("2", &ada, desk()), Ok(()));
        assert_eq!(sessions.begin("3", &ada, desk()), Err(Full));
        assert_eq!(sessions.begin("3", &bob, desk()), Ok(()));
        assert_eq!(sessions.begin("4", &bob, desk()), Err(Full));
        let shared = sessions.shared(&bob, || Ok::<_, Full>(desk()));
        assert_eq!(shared.map(drop), Err(Full));
        sessions.end("1");
        assert_eq!(sessions.begin("4", &bob, desk()), Ok(()));
    }
}
