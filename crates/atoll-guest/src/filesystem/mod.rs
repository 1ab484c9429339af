//! What paths are, directories, and what happens in them.
//!
//! Every operation runs on a thread of its own in the name of the user who
//! asks; see `rights`.
//!
//! - [`service`]: the RPC service; [`error`]: refusals and their codes.
//! - [`entry`]: what a path is.
//! - [`change`]: new directories and names; [`removal`]: their end.
//! - [`listing`]: what is in a directory; [`descent`]: the way down a tree.
//! - [`watch`]: what happens in a directory; [`follow`]: as a stream;
//!   [`watchers`]: for clients that ask from time to time.
//!
//! **Invariant:** nothing here recurses: a tree may be deeper than a stack.

mod change;
mod descent;
mod entry;
mod error;
mod follow;
mod listing;
pub(crate) mod removal;
pub(crate) mod service;
mod watch;
mod watchers;

use std::sync::Arc;

use axum::http::HeaderMap;
use error::FilesystemError;
use watchers::Watchers;

use crate::access::basic_user;
use crate::rights::act_as;
use crate::settings::Settings;
use crate::users::{Names, User, Users};

/// The file system as clients see it.
#[derive(Clone)]
pub(crate) struct Filesystem {
    settings: Arc<Settings>,
    watchers: Arc<Watchers>,
}

impl Filesystem {
    /// Nothing is watched yet.
    pub(crate) fn new(settings: Arc<Settings>) -> Self {
        Self {
            settings,
            watchers: Arc::default(),
        }
    }

    /// The user in whose name a request acts.
    fn user(&self, headers: &HeaderMap) -> Result<User, FilesystemError> {
        Ok(self.settings.user(basic_user(headers).as_deref())?)
    }

    /// The absolute path that a user means.
    fn resolve(&self, path: &str, user: &User) -> Result<String, FilesystemError> {
        Ok(self.settings.resolve(path, user)?)
    }
}

/// Runs `work` in the name of `user`. It gets the names of all ids, read
/// once for all entries that it tells.
async fn acting<T: Send + 'static>(
    user: &User,
    work: impl FnOnce(&Names) -> Result<T, FilesystemError> + Send + 'static,
) -> Result<T, FilesystemError> {
    act_as(user, move || Ok(work(&Users::load().names())))
        .await
        .map_err(FilesystemError::Thread)?
}
