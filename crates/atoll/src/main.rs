//! `atoll`: sandboxes for AI agents, in one binary.

mod arguments;
mod cells;
mod commands;
mod endpoint;
mod failure;
mod home;
mod log;
mod notebook;
mod quantity;
mod terminal;
mod webhook_settings;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    log::start();
    // These fork or change namespaces, so they must be reached before anything starts a thread.
    let first = std::env::args_os().nth(1).unwrap_or_default();
    if first == "monitor" {
        return atoll_engine::run_monitor();
    }
    if first == atoll_selftest::PART_ARGUMENT {
        return atoll_selftest::run_part();
    }
    let arguments = arguments::Arguments::parse();
    commands::dispatch(arguments).unwrap_or_else(|failure| failure::show(&failure))
}
