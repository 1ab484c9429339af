//! PID 1 of a sandbox: processes, terminals and files behind E2B's envd
//! protocol on one loopback port. It knows nothing about the host.
//!
//! | module | owns |
//! |---|---|
//! | `boot` | start and end of PID 1, zombies, who may stay connected |
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
mod metadata;
mod metrics;
mod paths;
mod process;
mod rights;
mod rpc;
mod settings;
mod users;

use std::ffi::OsString;
use std::process::ExitCode;

/// First argument with which the guest starts itself as the reaper of one command.
const COMMAND_REAPER: &str = "command-reaper";

/// Runs the guest, or the reaper of one command when the arguments say so.
pub fn run(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    match args.next() {
        Some(first) if first == COMMAND_REAPER => process::reaper::run(),
        Some(other) => {
            eprintln!("error: unexpected argument `{}`", other.display());
            ExitCode::from(2)
        }
        None => match boot::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::FAILURE
            }
        },
    }
}
