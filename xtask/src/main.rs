//! `cargo xtask`: set-up, checks and releases of this workspace.
//!
//! Each command does all of its own set-up, so that a fresh clone on a fresh
//! machine needs nothing before it. Nothing here is part of the product.

mod arguments;
mod attack;
mod backports;
mod bench;
mod coverage;
mod dist;
mod failure;
mod fuzz;
mod machine;
mod packages;
mod program;
mod progress;
mod test;
mod up;
mod workspace;

use std::process::ExitCode;

use arguments::{Task, TestChoice};

fn main() -> ExitCode {
    let task = match arguments::parse(std::env::args().skip(1)) {
        Ok(task) => task,
        Err(failure) => {
            eprintln!("{failure}");
            return ExitCode::from(2);
        }
    };
    let result = match task {
        Task::Help => {
            print!("{}", arguments::USAGE);
            Ok(ExitCode::SUCCESS)
        }
        Task::Up(choice) => up::up(&choice),
        Task::Test(choice) => test::test(&choice),
        // Every whole run of the tests measures it.
        Task::Coverage => test::test(&TestChoice::default()),
        Task::Dist => dist::dist(),
        Task::Bench { name, arguments } => bench::bench(&name, &arguments),
        Task::Attack { arguments } => attack::attack(&arguments),
        Task::Fuzz { target, seconds } => fuzz::fuzz(target.as_deref(), seconds),
        Task::Machine { command } => machine::show(&command),
        Task::Leftovers => test::leftovers::list(),
    };
    result.unwrap_or_else(|failure| {
        eprintln!("{failure}");
        ExitCode::FAILURE
    })
}
