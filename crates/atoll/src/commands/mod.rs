//! One file per command; here only the way to it.

mod ca;
mod doctor;
mod env;
mod gc;
mod inputs;
mod interruption;
mod isolation;
mod key;
mod local_tree;
mod mcp;
mod node;
mod program;
mod remote;
mod repl;
mod run;
mod run_notebook;
mod run_rich;
mod selftest;
mod serve;
mod shell;
mod stop;
mod template;
mod terminal_session;
mod tools;

use std::process::ExitCode;

use clap::CommandFactory as _;

use crate::arguments::{Arguments, Command};
use crate::home::Home;

/// Runs the command that was typed.
pub(crate) fn dispatch(arguments: Arguments) -> anyhow::Result<ExitCode> {
    if arguments.command.cleans_up() {
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
        Command::Repl(options) => {
            let home = Home::open(arguments.home)?.verbose(arguments.verbose);
            asynchronous(repl::repl(&home, &options))
        }
        Command::Shell(options) if options.running.is_some() => {
            let home = Home::without_sandboxes(arguments.home)?;
            let sandbox = options.running.unwrap_or_default();
            asynchronous(remote::shell(&home, &sandbox))
        }
        Command::Ps(options) => asynchronous(remote::ps(
            &Home::without_sandboxes(arguments.home)?,
            &options,
        )),
        Command::Pool(options) => asynchronous(remote::pool(
            &Home::without_sandboxes(arguments.home)?,
            &options,
        )),
        Command::Create(options) => asynchronous(remote::create(
            &Home::without_sandboxes(arguments.home)?,
            &options,
        )),
        Command::Exec(options) => asynchronous(remote::exec(
            &Home::without_sandboxes(arguments.home)?,
            &options,
        )),
        Command::Logs(options) => asynchronous(remote::logs(
            &Home::without_sandboxes(arguments.home)?,
            &options,
        )),
        Command::Events(options) => asynchronous(remote::events(
            &Home::without_sandboxes(arguments.home)?,
            &options,
        )),
        Command::Cp(options) => asynchronous(remote::cp(
            &Home::without_sandboxes(arguments.home)?,
            &options,
        )),
        Command::Kill(options) => asynchronous(remote::kill(
            &Home::without_sandboxes(arguments.home)?,
            &options,
        )),
        Command::Inspect(options) => asynchronous(remote::inspect(
            &Home::without_sandboxes(arguments.home)?,
            &options,
        )),
        Command::Pause(options) => asynchronous(remote::pause(
            &Home::without_sandboxes(arguments.home)?,
            &options,
        )),
        Command::Resume(options) => asynchronous(remote::resume(
            &Home::without_sandboxes(arguments.home)?,
            &options,
        )),
        Command::Snapshot(command) => asynchronous(remote::snapshot(
            &Home::without_sandboxes(arguments.home)?,
            &command,
        )),
        Command::Fork(options) => asynchronous(remote::fork(
            &Home::without_sandboxes(arguments.home)?,
            &options,
        )),
        Command::Timeout(options) => asynchronous(remote::timeout(
            &Home::without_sandboxes(arguments.home)?,
            &options,
        )),
        Command::Shell(options) => {
            let home = Home::open(arguments.home)?.verbose(arguments.verbose);
            asynchronous(shell::shell(&home, &options))
        }
        Command::Serve(options) => {
            let home = Home::open(arguments.home)?.verbose(arguments.verbose);
            many_threads(serve::serve(&home, &options))
        }
        Command::Mcp(options) => {
            let home = Home::open(arguments.home)?.verbose(arguments.verbose);
            many_threads(mcp::mcp(home, options))
        }
        Command::Tools(options) => tools::tools(&options),
        Command::Env(options) => env::env(&Home::without_sandboxes(arguments.home)?, &options),
        Command::Stop(options) => asynchronous(stop::stop(&Home::open(arguments.home)?, &options)),
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
        Command::Gc(options) => {
            // Who only looks puts nothing in order either.
            let home = if options.dry_run {
                Home::without_sandboxes(arguments.home)?
            } else {
                Home::open(arguments.home)?
            };
            asynchronous(gc::gc(&home, &options))
        }
    }
}

/// The same for work that serves many at once.
fn many_threads(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let result = runtime.block_on(work);
    runtime.shutdown_background();
    result
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
