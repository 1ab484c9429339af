//! PID 1 of a sandbox; see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    atoll_guest::run(std::env::args_os())
}
