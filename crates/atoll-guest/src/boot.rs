//! Start and end of PID 1.
//!
//! Before anything else it binds its life to its parent, the monitor, so
//! that the sandbox cannot outlive it; that the monitor has not ended before,
//! the pipe at its standard input tells. Then it serves until `SIGTERM`; when
//! PID 1 ends, the kernel ends everything else in the sandbox.

pub(crate) mod connections;

use std::env;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use atoll_protocol::ENVD_PORT;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, WaitOptions};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::settings::Settings;
use crate::{access, files, filesystem, metrics, process, rpc};

/// Listens elsewhere and prints the bound address on stdout. For tests and
/// for tiers in which the loopback interface is not where the host dials.
const LISTEN_VARIABLE: &str = "ATOLL_GUEST_LISTEN";

/// Why the guest could not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BootError {
    /// It cannot bind its life to its parent.
    #[error("cannot prepare the process: {0}")]
    Process(#[source] io::Error),
    /// The address to listen on is none.
    #[error("`{LISTEN_VARIABLE}` is not an address: {0}")]
    Address(#[source] std::net::AddrParseError),
    /// It cannot serve.
    #[error("cannot serve: {0}")]
    Serve(#[source] io::Error),
}

/// Runs until `SIGTERM`.
pub(crate) fn run() -> Result<(), BootError> {
    prepare_process().map_err(BootError::Process)?;
    let listen = match env::var(LISTEN_VARIABLE) {
        Ok(text) => Some(text.parse().map_err(BootError::Address)?),
        Err(_) => None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(BootError::Serve)?;
    runtime.block_on(serve(listen)).map_err(BootError::Serve)?;
    Ok(())
}

fn prepare_process() -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // Keeps the memory that holds the token from being read or dumped. Not
    // essential: everybody who could is root in here already.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    if is_init() {
        // The kernel drops signals that PID 1 has no handler for. Rust's own, which only tell
        // of an overflown stack, would let root inside end it with a burst of these two.
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            // SAFETY: back to the default, before any other thread exists.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        if is_hung_up(&rustix::stdio::stdin())? {
            return Err(io::Error::other("whoever started this sandbox is gone"));
        }
        // Whatever the runtime left open belongs to the host.
        let nowhere = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/null")?;
        rustix::stdio::dup2_stdin(&nowhere)?;
        rustix::stdio::dup2_stdout(&nowhere)?;
        rustix::stdio::dup2_stderr(&nowhere)?;
    } else {
        // Orphans come to PID 1 by themselves; a test guest asks for them.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    }
    // SAFETY: mallopt takes numbers only and no other thread exists yet. One
    // arena: memory matters more here than allocating from many threads.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    Ok(())
}

/// Whether nobody holds the other end of a pipe any more.
fn is_hung_up(pipe: &impl std::os::fd::AsFd) -> io::Result<bool> {
    let mut asked = [PollFd::new(pipe, PollFlags::empty())];
    poll(&mut asked, Some(&Timespec::default()))?;
    Ok(asked[0].revents().contains(PollFlags::HUP))
}

/// Whether this is PID 1 of a sandbox and not a guest under test.
pub(crate) fn is_init() -> bool {
    rustix::process::getpid().as_raw_nonzero().get() == 1
}

async fn serve(listen: Option<SocketAddr>) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let children = signal(SignalKind::child())?;
    tokio::spawn(reap_zombies(children));

    let address = listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], ENVD_PORT)));
    let listener = TcpListener::bind(address).await?;
    if listen.is_some() {
        println!("{}", listener.local_addr()?);
    }

    let settings = Arc::new(Settings::default());
    let rpc = rpc::service(
        process::Commands::new(Arc::clone(&settings)),
        filesystem::Filesystem::new(Arc::clone(&settings)),
    );
    let app = routes(settings, rpc);
    tokio::select! {
        served = connections::serve(listener, app) => served,
        _ = terminate.recv() => {
            if !is_init() {
                process::tree::kill_descendants_of_self().await;
            }
            Ok(())
        }
    }
}

fn routes(settings: Arc<Settings>, rpc: rpc::Service) -> Router {
    // Outermost comes what is done last: even a refused upload is drained.
    let files = Router::new()
        .route("/files", get(files::download).post(files::upload))
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(
            Arc::clone(&settings),
            access::require_token_or_signature,
        ))
        .layer(from_fn(files::drain));
    let meter = Arc::new(metrics::Meter::default());
    Router::new()
        .route("/files/compose", post(files::compose))
        .route("/envs", get(access::envs))
        .route("/metrics", get(metrics::metrics).with_state(meter))
        .fallback_service(rpc)
        .layer(from_fn_with_state(
            Arc::clone(&settings),
            access::require_token,
        ))
        .merge(files)
        .route("/health", get(access::health))
        .route("/init", post(access::init))
        .with_state(settings)
}

/// Reaps whatever ends: reapers of commands and orphans alike. Nobody else
/// in this process waits for children.
async fn reap_zombies(mut children: tokio::signal::unix::Signal) {
    loop {
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
        if children.recv().await.is_none() {
            return;
        }
    }
}
