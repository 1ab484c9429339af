//! One session of one client: its sandboxes, the processes that it started,
//! and the plots that it has seen.
//!
//! A sandbox is made when a call needs one and names none. The desk's own
//! sandboxes end with it: [`Desk::close`]. **Invariant**: nothing in it grows
//! without a bound.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_client::SandboxState;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::error::{ErrorCode, ToolError};
use crate::process::Watched;
use crate::workplace::{Place, Wanted, WantedLimits, Workplace};

/// Sandboxes of one session.
pub const SANDBOXES_MAX: usize = 16;
/// Processes that one session follows, ended ones included until others need the room.
pub const PROCESSES_MAX: usize = 32;
/// Plots that one session can read again.
pub const PLOTS_MAX: usize = 32;
/// Bytes of them, as they are sent.
const PLOTS_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bytes of the plots of all desks together that share room for them.
pub(crate) const SHARED_PLOTS_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Calls of one session at once.
pub(crate) const CALLS_MAX: usize = 32;
/// Names of sessions within a session (`sessionId` of `executeCode`).
const NAME_CHARS_MAX: usize = 128;
/// Sandboxes that end at the same time when a desk is closed.
const CLOSE_BOUND: Duration = Duration::from_secs(30);

/// A picture that code drew.
#[derive(Debug, Clone)]
pub(crate) struct Plot {
    pub(crate) sandbox: String,
    pub(crate) number: u64,
    pub(crate) mime_type: &'static str,
    /// In base64.
    pub(crate) data: Arc<str>,
    /// Its part of what all desks may keep, given back with the last copy.
    _room: Arc<OwnedSemaphorePermit>,
}

impl Plot {
    pub(crate) fn uri(&self) -> String {
        let kind = self.mime_type.rsplit('/').next().unwrap_or_default();
        format!(
            "atoll://sandbox/{}/plots/{}.{kind}",
            self.sandbox, self.number
        )
    }
}

#[derive(Default)]
struct Inner {
    is_closed: bool,
    /// The sandbox of calls that name none.
    default: Option<String>,
    /// Sandboxes of names that clients gave.
    named: HashMap<String, String>,
    /// Everything that was made here, and has not been ended here.
    own: BTreeMap<String, Place>,
    /// What those may use for which that was said.
    limits: HashMap<String, WantedLimits>,
    processes: BTreeMap<u64, Arc<Watched>>,
    processes_started: u64,
    plots: VecDeque<Plot>,
    plots_drawn: u64,
    last_used: Option<Instant>,
    in_use: usize,
}

/// One session of one client.
pub struct Desk {
    workplace: Arc<dyn Workplace>,
    inner: Mutex<Inner>,
    /// Two calls at once must not make two sandboxes.
    making: tokio::sync::Mutex<()>,
    /// Bytes that plots may take.
    plots_room: Arc<Semaphore>,
}

/// A call that is being answered. As long as it exists, the desk is not idle.
pub struct InUse(Arc<Desk>);

impl Drop for InUse {
    fn drop(&mut self) {
        let mut inner = self.0.inner();
        inner.in_use -= 1;
        inner.last_used = Some(Instant::now());
    }
}

impl Desk {
    /// A session without sandboxes.
    #[must_use]
    pub fn new(workplace: Arc<dyn Workplace>) -> Self {
        Self::sharing(workplace, Arc::new(Semaphore::new(PLOTS_BYTES_MAX)))
    }

    /// A session whose plots take room that others use too, in bytes.
    pub(crate) fn sharing(workplace: Arc<dyn Workplace>, plots_room: Arc<Semaphore>) -> Self {
        Self {
            plots_room,
            workplace,
            inner: Mutex::new(Inner {
                last_used: Some(Instant::now()),
                ..Inner::default()
            }),
            making: tokio::sync::Mutex::new(()),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn workplace(&self) -> &Arc<dyn Workplace> {
        &self.workplace
    }

    /// Says that somebody works here until the result is dropped.
    ///
    /// # Errors
    /// When as many do as may: each takes memory.
    pub fn use_it(self: &Arc<Self>) -> Result<InUse, ToolError> {
        let mut inner = self.inner();
        if inner.in_use >= CALLS_MAX {
            return Err(ToolError::new(
                ErrorCode::QuotaExceeded,
                format!("{CALLS_MAX} calls of this session are under way"),
                "call again when one of them has ended",
            ));
        }
        inner.in_use += 1;
        Ok(InUse(Arc::clone(self)))
    }

    /// For how long nobody has worked here.
    #[must_use]
    pub fn idle(&self) -> Duration {
        let inner = self.inner();
        match inner.last_used {
            Some(moment) if inner.in_use == 0 => moment.elapsed(),
            _ => Duration::ZERO,
        }
    }

    /// The sandbox `id`, or the session's own, which is made if there is none.
    pub(crate) async fn place(&self, id: Option<&str>) -> Result<Place, ToolError> {
        match id {
            Some(id) => self.existing(id).await,
            None => self.default_place(None, WantedLimits::default()).await,
        }
    }

    /// The sandbox that belongs to a name, or to calls without one, which is
    /// made with these limits if there is none.
    pub(crate) async fn limited_place(
        &self,
        name: Option<&str>,
        limits: WantedLimits,
    ) -> Result<Place, ToolError> {
        let Some(name) = name else {
            return self.default_place(None, limits).await;
        };
        if name.is_empty() || name.chars().count() > NAME_CHARS_MAX {
            return Err(ToolError::arguments(
                format!("a session's name has 1 to {NAME_CHARS_MAX} characters"),
                "use a shorter `sessionId`",
            ));
        }
        self.default_place(Some(name), limits).await
    }

    async fn default_place(
        &self,
        name: Option<&str>,
        limits: WantedLimits,
    ) -> Result<Place, ToolError> {
        let _making = self.making.lock().await;
        let known = {
            let inner = self.inner();
            let id = match name {
                Some(name) => inner.named.get(name),
                None => inner.default.as_ref(),
            };
            let place = id.and_then(|id| inner.own.get(id)).cloned();
            place.map(|place| (inner.limits.get(&place.id).copied(), place))
        };
        if let Some((its, place)) = known {
            if limits != WantedLimits::default() && its != Some(limits) {
                return Err(ToolError::new(
                    ErrorCode::Unsupported,
                    "the sandbox of this session has other limits, which were set when it was made",
                    "leave the limits out, give those of the first call, or use another session",
                ));
            }
            return Ok(place);
        }
        let wanted = Wanted {
            limits,
            ..Wanted::default()
        };
        let place = self.make(wanted).await?;
        let mut inner = self.inner();
        match name {
            Some(name) => drop(inner.named.insert(name.to_owned(), place.id.clone())),
            None => inner.default = Some(place.id.clone()),
        }
        Ok(place)
    }

    /// Makes one more sandbox.
    pub(crate) async fn create(&self, wanted: Wanted) -> Result<Place, ToolError> {
        let _making = self.making.lock().await;
        self.make(wanted).await
    }

    async fn make(&self, wanted: Wanted) -> Result<Place, ToolError> {
        if self.inner().own.len() >= SANDBOXES_MAX {
            return Err(ToolError::new(
                ErrorCode::QuotaExceeded,
                format!("this session has {SANDBOXES_MAX} sandboxes"),
                "end one with `kill_sandbox`",
            ));
        }
        let limits = wanted.limits;
        let place = self.workplace.create(wanted).await?;
        let is_closed = {
            let mut inner = self.inner();
            if !inner.is_closed {
                if limits != WantedLimits::default() {
                    inner.limits.insert(place.id.clone(), limits);
                }
                inner.own.insert(place.id.clone(), place.clone());
            }
            inner.is_closed
        };
        if is_closed {
            // The session ended meanwhile: nobody would end it later.
            let _ = self.workplace.kill(&place.id).await;
            return Err(session_over());
        }
        Ok(place)
    }

    async fn existing(&self, id: &str) -> Result<Place, ToolError> {
        if !is_id(id) {
            return Err(ToolError::no_sandbox(id));
        }
        let own = self.inner().own.get(id).cloned();
        match own {
            Some(place) => Ok(place),
            None => self.workplace.find(id).await,
        }
    }

    /// What an error in a sandbox means once it is known whether it still runs.
    /// One that does not is forgotten, so that the next call makes another.
    pub(crate) async fn judge(&self, place: &Place, error: ToolError) -> ToolError {
        if error.code != ErrorCode::SandboxUnavailable {
            return error;
        }
        match self.workplace.look(&place.id).await {
            Ok(SandboxState::Running) => error,
            Ok(SandboxState::Paused) => ToolError::sandbox_paused(&place.id),
            Err(gone) if gone.code == ErrorCode::SandboxNotFound => {
                self.forget(&place.id);
                ToolError::sandbox_ended(&place.id)
            }
            // Whoever does not know does not give up a sandbox.
            Err(_) => error,
        }
    }

    /// A sandbox that runs, for whoever only wants to know about it: it is not
    /// woken up, and lives no longer.
    pub(crate) async fn running_place(&self, id: Option<&str>) -> Result<Place, ToolError> {
        let Some(id) = id.map(str::to_owned).or_else(|| self.default_id()) else {
            return self.place(None).await;
        };
        if !is_id(&id) {
            return Err(ToolError::no_sandbox(&id));
        }
        match self.workplace.look(&id).await {
            Ok(SandboxState::Running) => self.existing(&id).await,
            Ok(SandboxState::Paused) => Err(ToolError::sandbox_paused(&id)),
            Err(gone) if gone.code == ErrorCode::SandboxNotFound && self.is_own(&id) => {
                self.forget(&id);
                Err(ToolError::sandbox_ended(&id))
            }
            Err(error) => Err(error),
        }
    }

    fn is_own(&self, id: &str) -> bool {
        self.inner().own.contains_key(id)
    }

    /// Ends a sandbox.
    pub(crate) async fn kill(&self, id: &str) -> Result<(), ToolError> {
        if !is_id(id) {
            return Err(ToolError::no_sandbox(id));
        }
        let killed = self.workplace.kill(id).await;
        match &killed {
            Ok(()) => self.forget(id),
            Err(gone) if gone.code == ErrorCode::SandboxNotFound => self.forget(id),
            Err(_) => {}
        }
        killed
    }

    fn forget(&self, id: &str) {
        let mut inner = self.inner();
        inner.own.remove(id);
        inner.limits.remove(id);
        inner.named.retain(|_, own| own != id);
        inner.plots.retain(|plot| plot.sandbox != id);
        inner.processes.retain(|_, process| process.sandbox() != id);
        if inner.default.as_deref() == Some(id) {
            inner.default = None;
        }
    }

    /// Names of the sandboxes that this session made.
    pub(crate) fn own(&self) -> Vec<String> {
        self.inner().own.keys().cloned().collect()
    }

    /// The sandbox of calls that name none, if there is one.
    pub(crate) fn default_id(&self) -> Option<String> {
        self.inner().default.clone()
    }

    /// Follows a process from now on.
    pub(crate) fn watch(&self, process: Watched) -> Result<(u64, Arc<Watched>), ToolError> {
        let mut inner = self.inner();
        if inner.processes.len() >= PROCESSES_MAX {
            let ended = inner.processes.iter().find(|(_, one)| one.has_ended());
            let Some(number) = ended.map(|(number, _)| *number) else {
                return Err(ToolError::new(
                    ErrorCode::QuotaExceeded,
                    format!("this session follows {PROCESSES_MAX} processes"),
                    "end one with `stop_process`",
                ));
            };
            inner.processes.remove(&number);
        }
        inner.processes_started += 1;
        let number = inner.processes_started;
        let process = Arc::new(process);
        inner.processes.insert(number, Arc::clone(&process));
        Ok((number, process))
    }

    pub(crate) fn process(&self, number: u64) -> Option<Arc<Watched>> {
        self.inner().processes.get(&number).cloned()
    }

    /// Keeps a plot, and says where it can be read again; nowhere when there
    /// is no room for it.
    pub(crate) fn keep_plot(
        &self,
        sandbox: &str,
        mime_type: &'static str,
        data: &str,
    ) -> Option<String> {
        let length = u32::try_from(data.len()).ok()?;
        let mut inner = self.inner();
        let mut bytes: usize = inner.plots.iter().map(|plot| plot.data.len()).sum();
        let room = loop {
            let fits = inner.plots.len() < PLOTS_MAX && bytes + data.len() <= PLOTS_BYTES_MAX;
            let room = fits.then(|| Arc::clone(&self.plots_room).try_acquire_many_owned(length));
            if let Some(Ok(room)) = room {
                break room;
            }
            // Those of others stay.
            bytes -= inner.plots.pop_front()?.data.len();
        };
        inner.plots_drawn += 1;
        let plot = Plot {
            sandbox: sandbox.to_owned(),
            number: inner.plots_drawn,
            mime_type,
            data: data.into(),
            _room: Arc::new(room),
        };
        let uri = plot.uri();
        inner.plots.push_back(plot);
        Some(uri)
    }

    pub(crate) fn plots(&self) -> Vec<Plot> {
        self.inner().plots.iter().cloned().collect()
    }

    /// Ends the session: its sandboxes, and with them everything in them.
    pub async fn close(&self) {
        let own: Vec<String> = {
            let mut inner = self.inner();
            inner.is_closed = true;
            inner.processes.clear();
            inner.plots.clear();
            std::mem::take(&mut inner.own).into_keys().collect()
        };
        let ending = own.iter().map(|id| async move {
            match tokio::time::timeout(CLOSE_BOUND, self.workplace.kill(id)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) if error.code == ErrorCode::SandboxNotFound => {}
                Ok(Err(error)) => tracing::warn!("sandbox {id} was not ended: {}", error.cause),
                Err(_) => tracing::warn!("sandbox {id} was not ended within {CLOSE_BOUND:?}"),
            }
        });
        futures_util::future::join_all(ending).await;
    }
}

/// Whether a text can be a sandbox's name at all: what is no name is asked of nobody.
fn is_id(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

pub(crate) fn session_over() -> ToolError {
    ToolError::new(
        ErrorCode::SandboxUnavailable,
        "the session is over",
        "connect again",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workplace::nowhere::Nowhere;

    #[tokio::test]
    async fn plots_of_all_desks_take_no_more_than_their_room() {
        let room = Arc::new(Semaphore::new(10));
        let desk = || Desk::sharing(Arc::new(Nowhere), Arc::clone(&room));
        let (one, other) = (desk(), desk());
        let keep = |desk: &Desk, data: &str| desk.keep_plot("s", "image/png", data).is_some();
        assert!(keep(&one, "123456"));
        assert!(keep(&other, "1234"));
        // An own one makes room, one of somebody else does not.
        assert!(keep(&other, "4321"));
        assert!(!keep(&other, "12345"));
        let kept = |desk: &Desk| -> Vec<u64> {
            let plots = desk.plots();
            plots.iter().map(|plot| plot.number).collect()
        };
        assert_eq!((kept(&one), kept(&other)), (vec![1], vec![]));
        one.close().await;
        assert_eq!(room.available_permits(), 10);
        assert!(keep(&other, "12345"));
        assert!(!keep(&other, "12345678901"));
    }

    #[tokio::test]
    async fn a_session_has_so_many_calls_at_once_and_no_more() {
        let desk = Arc::new(Desk::new(Arc::new(Nowhere)));
        let mut calls: Vec<InUse> = (0..CALLS_MAX).map(|_| desk.use_it().unwrap()).collect();
        let refused = desk.use_it().map(drop).unwrap_err();
        assert_eq!(refused.code, ErrorCode::QuotaExceeded);
        calls.pop();
        assert!(desk.use_it().is_ok());
    }
}
