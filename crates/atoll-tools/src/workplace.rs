//! Where sandboxes come from, as far as tools care: made in this process, or
//! by a server. Everything inside of a sandbox goes through its guest's client,
//! which both kinds have.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::Duration;

use atoll_client::{Sandbox, SandboxState};
use atoll_guest_client::{GuestClient, Lanes};

use crate::error::ToolError;

/// An answer that takes time.
pub type Promise<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A sandbox that is wanted. What is not said is as the workplace has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Name of its template.
    pub template: Option<String>,
    /// When it ends by itself.
    pub timeout: Option<Duration>,
    /// What is written on it.
    pub metadata: BTreeMap<String, String>,
    /// Environment of everything in it.
    pub envs: BTreeMap<String, String>,
    /// Whether it may reach the internet.
    pub internet: Option<bool>,
    /// What it may use.
    pub limits: WantedLimits,
}

/// What a sandbox may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WantedLimits {
    /// Memory.
    pub memory_mib: Option<u64>,
    /// Thousandths of a processor.
    pub cpu_millis: Option<u64>,
    /// Writable disk.
    pub disk_mib: Option<u64>,
}

/// A sandbox that can be worked in.
#[derive(Debug, Clone)]
pub struct Place {
    /// Its name.
    pub id: String,
    /// Its template.
    pub template: String,
    /// Commands and files.
    pub guest: GuestClient,
    /// Code.
    pub code: GuestClient,
    /// What a server said of it, where one did.
    pub served: Option<Sandbox>,
}

impl Place {
    /// A way for files that are never large enough to leave HTTP.
    pub(crate) fn plain(&self) -> GuestClient {
        self.guest.clone().with_lanes(Lanes::Never)
    }
}

/// A sandbox in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub id: String,
    /// Its template.
    pub template: String,
    /// `running` or `paused`.
    pub state: String,
    /// When it was made, in RFC 3339.
    pub started_at: Option<String>,
    /// When it ends by itself, in RFC 3339.
    pub end_at: Option<String>,
    /// What is written on it.
    pub metadata: BTreeMap<String, String>,
}

/// How a port of a sandbox is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// The address.
    pub url: String,
    /// Headers that a request needs.
    pub headers: BTreeMap<String, String>,
    /// Who can open it.
    pub reach: String,
}

/// What tools need of sandboxes.
pub trait Workplace: Send + Sync + 'static {
    /// Makes a sandbox.
    fn create(&self, wanted: Wanted) -> Promise<'_, Result<Place, ToolError>>;

    /// Finds one that runs, or wakes it up; an error where there is none that
    /// this workplace's owner may use.
    fn find<'a>(&'a self, id: &'a str) -> Promise<'a, Result<Place, ToolError>>;

    /// What one does that the owner may use. Neither wakes it up nor lets it
    /// live longer.
    fn look<'a>(&'a self, id: &'a str) -> Promise<'a, Result<SandboxState, ToolError>>;

    /// All that the owner may use.
    fn list(&self) -> Promise<'_, Result<Vec<Listed>, ToolError>>;

    /// Ends one.
    fn kill<'a>(&'a self, id: &'a str) -> Promise<'a, Result<(), ToolError>>;

    /// Lets one that was made here without a timeout of its own live for at
    /// least `busy` more: it is being used.
    fn keep<'a>(&'a self, id: &'a str, busy: Duration) -> Promise<'a, ()>;

    /// How a port of one is reached.
    fn preview<'a>(
        &'a self,
        place: &'a Place,
        port: u16,
    ) -> Promise<'a, Result<Preview, ToolError>>;
}

/// For tests of what needs no sandbox.
#[cfg(test)]
pub(crate) mod nowhere {
    use super::*;

    /// Has no sandboxes, and makes none.
    pub(crate) struct Nowhere;

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
}
