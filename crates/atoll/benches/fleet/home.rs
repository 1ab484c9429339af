//! A home with the templates of the benchmark's, and a configuration of its own.
#![allow(dead_code, reason = "each benchmark uses its part")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use atoll_client::{Client, Pool};

use crate::support::server::Server;
use crate::support::{self, Result};

/// How long a pool may take to fill.
const FILL_BOUND: Duration = Duration::from_secs(300);
/// Pause between two looks at it: often enough, and in nobody's way.
const LOOK: Duration = Duration::from_millis(20);

/// A server in a home of its own. Fields are dropped in their order.
pub(crate) struct Fleet {
    pub(crate) client: Client,
    pub(crate) server: Server,
    home: tempfile::TempDir,
}

impl Fleet {
    /// A server with this configuration.
    pub(crate) fn start(isolation: &str, config: &str) -> Result<Self> {
        let shared = support::home()?;
        // Beside the other one: layers may be linked and moved.
        let beside = shared.parent().unwrap_or(Path::new("/"));
        let home = tempfile::Builder::new()
            .prefix("fleet-")
            .tempdir_in(beside)?;
        for part in ["templates", "layers", "blobs"] {
            symlink(shared.join(part).canonicalize()?, home.path().join(part))?;
        }
        fs::write(home.path().join("config.toml"), config)?;
        let server = Server::start_in(home.path(), isolation)?;
        Ok(Self {
            client: server.client()?,
            server,
            home,
        })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.home.path()
    }

    /// The same with a pool of `size` members.
    pub(crate) fn with_pool(isolation: &str, template: &str, size: usize) -> Result<Self> {
        let pool = format!("[[pool]]\ntemplate = \"{template}\"\nsize = {size}\n");
        Self::start(isolation, &pool)
    }

    /// Waits until its pool has `size` members.
    pub(crate) async fn filled(&self, size: usize) -> Result<Pool> {
        let end = Instant::now() + FILL_BOUND;
        loop {
            let pool = self.client.pools().await?.into_iter().next();
            let pool = pool.ok_or("the server has no pool")?;
            if pool.ready >= size {
                return Ok(pool);
            }
            if Instant::now() > end {
                return Err(format!("the pool does not fill: {pool:?}").into());
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}
