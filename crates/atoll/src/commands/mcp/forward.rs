//! A port of a sandbox on this host's loopback, for as long as the sandbox is known here.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use atoll_control::LiveSandbox;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

/// Connections at once.
const CONNECTIONS_MAX: usize = 64;
/// How long it is waited after a failure to accept.
const PAUSE: Duration = Duration::from_millis(100);

/// A port that leads into a sandbox. Dropped, it is closed.
pub(super) struct Forward {
    pub(super) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Forward {
    pub(super) async fn open(live: LiveSandbox, port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        Ok(Self {
            address: listener.local_addr()?,
            task: tokio::spawn(accept(listener, live, port)),
        })
    }
}

async fn accept(listener: TcpListener, live: LiveSandbox, port: u16) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // They end with this task.
    let mut connections = JoinSet::new();
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let Ok((client, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let live = live.clone();
        connections.spawn(async move {
            if let Err(error) = pass(client, live, port).await {
                tracing::debug!("a connection to port {port}: {error}");
            }
            drop(permit);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn pass(mut client: TcpStream, live: LiveSandbox, port: u16) -> io::Result<()> {
    let sandbox = Arc::clone(live.sandbox());
    let dialed = tokio::task::spawn_blocking(move || sandbox.dial(port)).await;
    let stream = dialed.map_err(io::Error::other)??;
    stream.set_nonblocking(true)?;
    let mut inside = TcpStream::from_std(stream)?;
    copy_bidirectional(&mut client, &mut inside).await?;
    Ok(())
}
