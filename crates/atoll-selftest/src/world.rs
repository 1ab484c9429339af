//! The world around the sandboxes of network cases.
//!
//! These cases need an internet with a metadata service, private ranges and a
//! name server in it, and must not touch the operator's. So they are played in
//! a process that moved to a network namespace of its own ([`enter_world`]):
//! there, that namespace is "the host", with rules and interfaces of its own,
//! and `attacks/world.py` connects it to another namespace that plays the rest.

use std::io;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::keeper::random_text;
use crate::program::{self, Report};
use crate::room::{self, Order};

const WORLD: &str = include_str!("../attacks/world.py");
/// Making two namespaces and a few sockets.
const READY_BOUND: Duration = Duration::from_secs(30);

/// Moves this process, which must not have started a thread, to a network
/// namespace of its own. Everything it starts later is born there.
///
/// # Errors
/// When the kernel refuses.
pub fn enter_world() -> io::Result<()> {
    // SAFETY: replaces the network namespace of this thread alone; no descriptor
    // or memory is unshared.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }?;
    Ok(())
}

/// A world that is up; it ends when this is dropped.
pub(crate) struct World {
    /// Where everything in it is.
    pub(crate) target: Map<String, Value>,
    held: room::Held,
}

impl World {
    /// Makes one around the network namespace of this process.
    pub(crate) async fn open(program: &Path, plain: Order, range: &str) -> Result<Self, String> {
        let mut target = Map::new();
        let secret = random_text().map_err(|error| error.to_string())?;
        target.insert("world_secret".to_owned(), Value::from(secret));
        let order = Order {
            program: program::text(WORLD, &target),
            ..plain
        };
        let opened = room::hold(program, &order);
        let (line, held) = tokio::time::timeout(READY_BOUND, opened)
            .await
            .map_err(|_| "the world does not come up".to_owned())?
            .map_err(|error| error.to_string())?;
        let report = Report::find(line.as_bytes())
            .ok_or_else(|| format!("the world does not come up: {line}"))?;
        let mut target: Map<String, Value> =
            serde_json::from_str(&report.got).map_err(|error| error.to_string())?;
        target.insert("range".to_owned(), Value::from(range));
        Ok(Self { target, held })
    }

    /// Ends it, and waits for that.
    pub(crate) async fn close(self) -> io::Result<()> {
        self.held.close().await
    }
}
