//! One file per command; here only the way to it.

mod ca;
mod doctor;
mod gc;
mod inputs;
mod isolation;
mod key;
mod run;
mod selftest;
mod shell;
mod template;

use std::process::ExitCode;

use clap::CommandFactory as _;

use crate::arguments::{Arguments, Command};
use crate::home::Home;

/// Runs the command that was typed.
pub(crate) fn dispatch(arguments: Arguments) -> anyhow::Result<ExitCode> {
    // `gc` does it itself, and says what it found; keys and certificates have no sandboxes.
    if !matches!(
        arguments.command,
        Command::Gc(_) | Command::Key(_) | Command::Ca(_)
    ) {
        clean_up();
    }
    match arguments.command {
        Command::Completions { shell } => {
            clap_complete::generate(
                shell,
                &mut Arguments::command(),
                "atoll",
                &mut std::io::stdout(),
            );
            Ok(ExitCode::SUCCESS)
        }
        Command::Doctor(options) => asynchronous(doctor::doctor(arguments.home, &options)),
        Command::Run(options) => {
            let home = Home::open(arguments.home)?.verbose(arguments.verbose);
            asynchronous(run::run(&home, &options))
        }
        Command::Shell(options) => {
            let home = Home::open(arguments.home)?.verbose(arguments.verbose);
            asynchronous(shell::shell(&home, &options))
        }
        Command::Template(command) => {
            asynchronous(template::template(&Home::open(arguments.home)?, &command))
        }
        Command::Selftest(options) => {
            if options.in_world {
                // Before anything starts a thread.
                atoll_selftest::enter_world()?;
            }
            asynchronous(selftest::selftest(&Home::open(arguments.home)?, &options))
        }
        Command::Key(command) => asynchronous(key::key(
            &Home::without_sandboxes(arguments.home)?,
            &command,
        )),
        Command::Ca(options) => ca::ca(&Home::without_sandboxes(arguments.home)?, &options),
        Command::Gc(options) => asynchronous(gc::gc(&Home::open(arguments.home)?, &options)),
    }
}

fn asynchronous(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let result = runtime.block_on(work);
    // A thread that still waits for standard input must not keep the command from ending.
    runtime.shutdown_background();
    result
}

/// Removes what an interrupted run of any home left on this host. What cannot
/// be removed is said, and is in nobody's way: it keeps its lease.
fn clean_up() {
    if rustix::process::geteuid().is_root()
        && let Err(error) = atoll_engine::reconcile()
    {
        eprintln!("warning: cannot remove what an interrupted run left: {error}");
    }
}
