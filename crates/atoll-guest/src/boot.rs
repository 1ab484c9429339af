//! Start and end of PID 1.
//!
//! Before anything else it binds its life to its parent, the monitor, so
//! that the sandbox cannot outlive it; that the monitor has not ended before,
//! the pipe at its standard input tells. Then it serves until `SIGTERM`; when
//! PID 1 ends, the kernel ends everything else in the sandbox.

pub(crate) mod connections;

use std::env;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdTcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use atoll_protocol::ENVD_PORT;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};
use axum::{Extension, Router};
use connections::Callers;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, WaitOptions};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::Network;
use crate::interpreter::{self, Interpreter};
use crate::process::spare::Spare;
use crate::settings::Settings;
use crate::{access, files, filesystem, lifeline, metrics, passage, polling, process, rpc, sudo};

/// Listens elsewhere and prints the bound address on stdout. For tests.
const LISTEN_VARIABLE: &str = "ATOLL_GUEST_LISTEN";

/// Set where the kernel is gVisor's and not Linux.
static ON_GVISOR: AtomicBool = AtomicBool::new(false);

/// Whether the kernel is gVisor's.
pub(crate) fn is_on_gvisor() -> bool {
    ON_GVISOR.load(Ordering::Relaxed)
}

/// Why the guest could not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BootError {
    /// It cannot bind its life to its parent.
    #[error("cannot prepare the process: {0}")]
    Process(#[source] io::Error),
    /// The address to listen on is none.
    #[error("`{LISTEN_VARIABLE}` is not an address: {0}")]
    Address(#[source] std::net::AddrParseError),
    /// This binary was linked in another way than it should be.
    #[error("it would not survive a checkpoint: `epoll_wait` is the C library's")]
    Polling,
    /// It cannot serve.
    #[error("cannot serve: {0}")]
    Serve(#[source] io::Error),
}

/// What keeps an empty `/tmp` from becoming memory while gVisor starts.
const TMP_MARKER: &str = "/tmp/.atoll";

/// Told to the host when it can call.
const READY: &[u8] = b"r";

/// What the host gave to PID 1.
struct Inherited {
    /// Standard input: see [`lifeline`].
    lifeline: OwnedFd,
    /// Standard output: where it waits for [`READY`], if it cannot enter this network.
    host: OwnedFd,
}

/// What there is only where the host cannot enter the sandbox's network.
struct Outside {
    network: Network,
    listener: StdTcpListener,
}

/// Runs until `SIGTERM`. Where the host cannot enter the sandbox's network, this
/// listens on `network` as well as on the loopback interface.
pub(crate) fn run(network: Option<Network>) -> Result<(), BootError> {
    let inherited = prepare_process().map_err(BootError::Process)?;
    let (mut outside, mut spare) = (None, Arc::<Spare>::default());
    if let Some(network) = network {
        ON_GVISOR.store(true, Ordering::Relaxed);
        if !polling::is_in_place() {
            return Err(BootError::Polling);
        }
        // The host connects while the rest is made; it is served when all is.
        outside = Some(open(network, inherited.as_ref()).map_err(BootError::Serve)?);
        spare = Spare::with_starter().map_err(BootError::Serve)?;
        // It has done its work; where it is not, nothing has to be done.
        let _ = std::fs::remove_file(TMP_MARKER);
    }
    let lifeline = inherited.map(|inherited| inherited.lifeline);
    let listen = match env::var(LISTEN_VARIABLE) {
        Ok(text) => Some(text.parse().map_err(BootError::Address)?),
        Err(_) => None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(BootError::Serve)?;
    runtime
        .block_on(serve(listen, outside, spare, lifeline))
        .map_err(BootError::Serve)?;
    Ok(())
}

/// Listens for the host and tells it so.
fn open(network: Network, inherited: Option<&Inherited>) -> io::Result<Outside> {
    let listener = StdTcpListener::bind((network.address, ENVD_PORT))?;
    listener.set_nonblocking(true)?;
    if let Some(inherited) = inherited {
        rustix::io::write(&inherited.host, READY)?;
    }
    Ok(Outside { network, listener })
}

/// Returns what the monitor gave, where this is PID 1.
fn prepare_process() -> io::Result<Option<Inherited>> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // Keeps the memory that holds the token from being read or dumped. Not
    // essential: everybody who could is root in here already.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let mut inherited = None;
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
        inherited = Some(Inherited {
            lifeline: rustix::stdio::stdin().try_clone_to_owned()?,
            host: rustix::stdio::stdout().try_clone_to_owned()?,
        });
        // Whatever the runtime left open belongs to the host.
        let nowhere = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/null")?;
        rustix::stdio::dup2_stdin(&nowhere)?;
        rustix::stdio::dup2_stdout(&nowhere)?;
        rustix::stdio::dup2_stderr(&nowhere)?;
        ignore_signals();
    } else {
        // Orphans come to PID 1 by themselves; a test guest asks for them.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    }
    // SAFETY: mallopt takes numbers only and no other thread exists yet. One
    // arena: memory matters more here than allocating from many threads.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    Ok(inherited)
}

/// Linux keeps signals without a handler from PID 1 by itself, gVisor does not.
/// Commands get the defaults back (see `process::reaper`).
fn ignore_signals() {
    for signal in [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGPIPE,
        libc::SIGALRM,
        libc::SIGUSR1,
        libc::SIGUSR2,
    ] {
        // SAFETY: ignoring a signal installs no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
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

async fn serve(
    listen: Option<SocketAddr>,
    outside: Option<Outside>,
    spare: Arc<Spare>,
    lifeline: Option<OwnedFd>,
) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let children = signal(SignalKind::child())?;
    tokio::spawn(reap_zombies(children));

    let address = listen.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, ENVD_PORT)));
    let listener = TcpListener::bind(address).await?;
    if listen.is_some() {
        println!("{}", listener.local_addr()?);
    }

    let settings = Arc::new(Settings::default());
    let commands = process::Commands::new(Arc::clone(&settings), spare);
    // Each address by itself: where all of them are taken at once, gVisor lets
    // others take a single one.
    let mut host = None;
    if let Some(Outside { network, listener }) = outside {
        host = Some((TcpListener::from_std(listener)?, network.gateway));
        tokio::spawn(passage::serve(passage::bind(network).await?));
        if network.has_sudo {
            let callers = sudo::service::bind()?;
            tokio::spawn(sudo::service::serve(callers, commands.clone()));
        }
    }
    let interpreter = Interpreter::new(Arc::clone(&settings), commands.clone());
    let rpc = rpc::service(commands, filesystem::Filesystem::new(Arc::clone(&settings)));
    let app = routes(settings, rpc, interpreter.clone());
    tokio::select! {
        served = connections::serve(listener, app.clone(), Callers::Anybody) => served,
        served = serve_outside(host, app) => served,
        gone = lifeline::listen(lifeline, &interpreter) => gone,
        _ = terminate.recv() => {
            if !is_init() {
                process::tree::kill_descendants_of_self().await;
                interpreter.clear();
            }
            Ok(())
        }
    }
}

/// Serves the host where it calls from outside.
async fn serve_outside(host: Option<(TcpListener, Ipv4Addr)>, app: Router) -> io::Result<()> {
    match host {
        Some((listener, gateway)) => {
            connections::serve(listener, app, Callers::Only(gateway)).await
        }
        None => std::future::pending().await,
    }
}

fn routes(settings: Arc<Settings>, rpc: rpc::Service, interpreter: Interpreter) -> Router {
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
        .merge(interpreter::routes::router(interpreter.clone()))
        .fallback_service(rpc)
        .layer(from_fn_with_state(
            Arc::clone(&settings),
            access::require_token,
        ))
        .merge(files)
        .route("/health", get(access::health))
        .route("/init", post(access::init))
        .layer(Extension(interpreter))
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
