//! `atoll`: sandboxes for AI agents, in one binary.

mod arguments;
mod commands;
mod failure;
mod home;
mod log;
mod quantity;
mod terminal;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    log::start();
    // The monitor forks, so it must be reached before anything starts a thread.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|argument| argument == "monitor")
    {
        return atoll_engine::run_monitor();
    }
    let arguments = arguments::Arguments::parse();
    commands::dispatch(arguments).unwrap_or_else(|failure| failure::show(&failure))
}
