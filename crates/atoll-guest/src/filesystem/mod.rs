//! What paths are, directories, and what happens in them.
//!
//! - [`service`]: the RPC service.

pub(crate) mod service;

use std::sync::Arc;

use crate::settings::Settings;

/// The file system as clients see it.
#[derive(Clone)]
pub(crate) struct Filesystem {
    settings: Arc<Settings>,
}

impl Filesystem {
    /// Nothing is watched yet.
    pub(crate) fn new(settings: Arc<Settings>) -> Self {
        Self { settings }
    }
}
