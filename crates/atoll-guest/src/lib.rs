//! PID 1 of a sandbox: processes, terminals and files behind E2B's envd
//! protocol on one loopback port. It knows nothing about the host.
//!
//! | module | owns |
//! |---|---|
//! | `boot` | start and end of PID 1, zombies, who may stay connected |
//! | `lifeline` | what the host says through standard input: make room, or that it is gone |
//! | `polling` | keeps events from the runtime that only a restored kernel reports |
//! | `passage` | the way to ports of the sandbox, where the host cannot enter its network |
//! | `sudo` | becoming root, where the kernel ignores the set-user-id bit |
//! | `access` | who may ask: `/init` first, then the token or a signature |
//! | `settings` | what `/init` said |
//! | `process` | commands: launch, output, input, tree kill, the RPC service |
//! | `filesystem` | what paths are, directories, watches: the RPC service |
//! | `files` | `/files`: whole files in and out |
//! | `interpreter` | code that keeps its state: kernels behind `/execute` and `/contexts` |
//! | `metadata` | what clients say about a file, in its attributes |
//! | `metrics` | `GET /metrics` |
//! | `rpc` | both RPC services as one |
//! | `users`, `paths`, `rights` | `/etc/passwd`, path rules, acting as a user |
//!
//! **Invariant:** nothing here calls NSS (`getpwnam`, `getaddrinfo`): a
//! static glibc would load code from the sandbox's own root.
//!
//! **Invariant:** no buffer grows with what a command or a client sends.

mod access;
mod boot;
mod files;
mod filesystem;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod interpreter;
mod lifeline;
mod metadata;
mod metrics;
mod passage;
mod paths;
mod polling;
mod priority;
mod process;
mod rights;
mod rpc;
mod settings;
mod sudo;
mod users;

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::process::ExitCode;

use atoll_protocol::KERNEL_RELEASE;

/// First argument with which the guest starts itself as the reaper of one command.
const COMMAND_REAPER: &str = "command-reaper";

/// First argument where the host cannot enter the sandbox's network; then
/// follow the sandbox's own address and that from which the host calls.
const NETWORK: &str = "--network";

/// Argument after those where the template has a `sudo`.
const SUDO: &str = "--sudo";

/// Where the host calls, if it cannot enter the sandbox's network.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Network {
    /// The sandbox's own address.
    pub(crate) address: Ipv4Addr,
    /// The host's end.
    pub(crate) gateway: Ipv4Addr,
    /// Whether the user may become root.
    pub(crate) has_sudo: bool,
}

/// Runs what the arguments, the program's own name first, ask for: the guest,
/// the reaper of one command, or `sudo`.
pub fn run(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let name = args.next().unwrap_or_default();
    if std::path::Path::new(&name).file_name() == Some("sudo".as_ref()) {
        return sudo::client::run(args);
    }
    let network = match args.next() {
        None => Ok(None),
        Some(first) if first == COMMAND_REAPER => return process::reaper::run(),
        Some(first) if first == KERNEL_RELEASE => {
            println!("{}", rustix::system::uname().release().to_string_lossy());
            return ExitCode::SUCCESS;
        }
        Some(first) if first == NETWORK => network(args.next(), args.next(), args.next()).map(Some),
        Some(other) => Err(format!("unexpected argument `{}`", other.display())),
    };
    let network = match network {
        Ok(network) => network,
        Err(what) => {
            eprintln!("error: {what}");
            return ExitCode::from(2);
        }
    };
    match boot::run(network) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn network(
    own: Option<OsString>,
    gateway: Option<OsString>,
    sudo: Option<OsString>,
) -> Result<Network, String> {
    let has_sudo = match sudo {
        None => false,
        Some(word) if word == SUDO => true,
        Some(other) => return Err(format!("unexpected argument `{}`", other.display())),
    };
    Ok(Network {
        address: address(own)?,
        gateway: address(gateway)?,
        has_sudo,
    })
}

fn address(text: Option<OsString>) -> Result<Ipv4Addr, String> {
    let text = text.unwrap_or_default();
    let parsed = text.to_str().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| format!("`{}` is not an IPv4 address", text.display()))
}
