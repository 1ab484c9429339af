//! PID 1 of a sandbox: processes, terminals and files behind E2B's envd
//! protocol on one loopback port. It knows nothing about the host.
//!
//! | module | owns |
//! |---|---|
//! | `boot` | start and end of PID 1, zombies, who may stay connected |
//! | `lifeline` | what the host says through standard input: make room, or that it is gone |
//! | `passage` | the way to ports of the sandbox, where the host cannot enter its network |
//! | `sudo` | becoming root, where the kernel ignores the set-user-id bit |
//! | `access` | who may ask: `/init` first, then the token or a signature |
//! | `settings` | what `/init` said |
//! | `process` | commands: launch, output, input, tree kill, the RPC service |
//! | `filesystem` | what paths are, directories, watches: the RPC service |
//! | `files` | `/files`: whole files in and out |
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
mod lifeline;
mod metadata;
mod metrics;
mod passage;
mod paths;
mod process;
mod rights;
mod rpc;
mod settings;
mod sudo;
mod users;

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::process::ExitCode;

/// First argument with which the guest starts itself as the reaper of one command.
const COMMAND_REAPER: &str = "command-reaper";

/// First argument where the host's end of the network is the address that follows.
const GATEWAY: &str = "--gateway";

/// Runs what the arguments, the program's own name first, ask for: the guest,
/// the reaper of one command, or `sudo`.
pub fn run(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let name = args.next().unwrap_or_default();
    if std::path::Path::new(&name).file_name() == Some("sudo".as_ref()) {
        return sudo::client::run(args);
    }
    let gateway = match args.next() {
        None => Ok(None),
        Some(first) if first == COMMAND_REAPER => return process::reaper::run(),
        Some(first) if first == GATEWAY => address(args.next()).map(Some),
        Some(other) => Err(format!("unexpected argument `{}`", other.display())),
    };
    let gateway = match gateway {
        Ok(gateway) => gateway,
        Err(what) => {
            eprintln!("error: {what}");
            return ExitCode::from(2);
        }
    };
    match boot::run(gateway) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn address(text: Option<OsString>) -> Result<Ipv4Addr, String> {
    let text = text.unwrap_or_default();
    let parsed = text.to_str().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| format!("`{GATEWAY} {}` is not an IPv4 address", text.display()))
}
