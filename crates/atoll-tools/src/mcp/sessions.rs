//! Sessions of clients in HTTP: whose they are, how many there are, and when
//! they end.
//!
//! Clients of protocols before 2026-07-28 have a session that they begin and
//! end. Later ones have none: all calls with one key, for one agent and one
//! task, share a desk, which ends when nobody used it for a while.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::desk::Desk;

/// Who a request comes from. A session is bound to it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Principal {
    tenant: String,
    key: String,
    agent: Option<String>,
    task: Option<String>,
}

impl Principal {
    /// A caller by whose sandboxes it may use, and the key that it showed.
    #[must_use]
    pub fn new(tenant: impl Into<String>, key: impl Into<String>) -> Self {
        Self {
            tenant: tenant.into(),
            key: key.into(),
            agent: None,
            task: None,
        }
    }

    /// The agent and the task that the caller says it acts for. Those without
    /// sessions share a desk only with the same.
    #[must_use]
    pub fn on_behalf_of(mut self, agent: Option<String>, task: Option<String>) -> Self {
        (self.agent, self.task) = (agent, task);
        self
    }

    fn has_key_of(&self, other: &Self) -> bool {
        (&self.tenant, &self.key) == (&other.tenant, &other.key)
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
    /// Of one tenant, with all its keys.
    pub sessions_per_tenant: usize,
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
            sessions_per_tenant: 128,
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
        let is_own = session.principal.has_key_of(principal);
        is_own.then(|| Arc::clone(&session.desk))
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

    /// The desk that all clients without sessions share that show this key, for
    /// the same agent and task.
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
        let begun = open.begun.values().map(|session| &session.principal);
        let (mut all, mut of_tenant, mut with_key) = (0, 0, 0);
        for other in begun.chain(open.shared.keys()) {
            all += 1;
            of_tenant += usize::from(other.tenant == principal.tenant);
            with_key += usize::from(other.has_key_of(principal));
        }
        let is_full = all >= self.bounds.sessions
            || of_tenant >= self.bounds.sessions_per_tenant
            || with_key >= self.bounds.sessions_per_key;
        if is_full { Err(Full) } else { Ok(()) }
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
        all.sort();
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
    use super::*;
    use crate::workplace::nowhere::Nowhere;

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
    #[tokio::test]
    async fn no_tenant_takes_all_the_room() {
        let sessions = Sessions::new(SessionBounds {
            sessions: 4,
            sessions_per_tenant: 3,
            sessions_per_key: 2,
            ..SessionBounds::default()
        });
        let (one, other) = (principal("a", "1"), principal("a", "2"));
        assert_eq!(sessions.begin("1", &one, desk()), Ok(()));
        assert_eq!(sessions.begin("2", &one, desk()), Ok(()));
        let shared = |who: &Principal| sessions.shared(who, || Ok::<_, Full>(desk())).map(drop);
        assert_eq!(shared(&one), Err(Full));
        assert_eq!(shared(&other), Ok(()));
        assert_eq!(sessions.begin("3", &other, desk()), Err(Full));
        assert_eq!(sessions.begin("3", &principal("b", "3"), desk()), Ok(()));
    }

    #[tokio::test]
    async fn agents_share_sessions_by_name_only_and_each_has_a_desk_without() {
        let sessions = Sessions::new(SessionBounds::default());
        let agent = |name: &str| principal("a", "1").on_behalf_of(Some(name.to_owned()), None);
        let shared = |who: &Principal| sessions.shared(who, || Ok::<_, Full>(desk())).unwrap();
        let (ada, bob) = (agent("ada"), agent("bob"));
        assert!(Arc::ptr_eq(&shared(&ada), &shared(&ada)));
        assert!(!Arc::ptr_eq(&shared(&ada), &shared(&bob)));
        sessions.begin("s", &ada, desk()).unwrap();
        assert!(sessions.find("s", &bob).is_some());
    }
}
