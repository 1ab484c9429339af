//! `cargo xtask bench`: every promise with a number, measured beside its baseline.

use std::process::ExitCode;

use crate::failure::Outcome;
use crate::packages;
use crate::program::Program;
use crate::progress::step;
use crate::test;
use crate::workspace;

/// Builds the benchmark `name` and runs it with `arguments` on the template `base`.
pub(crate) fn bench(name: &str, arguments: &[String]) -> Outcome<ExitCode> {
    packages::install(&[packages::RUN, packages::TEST, packages::BENCH])?;
    packages::install_gvisor()?;
    let home = test::home()?;
    step("building the benchmark");
    let cargo =
        || Program::cargo().args(["bench", "--locked", "--package", "atoll", "--bench", name]);
    // Builds the binary itself as well.
    cargo().arg("--no-run").run()?;

    step("making the template `base`");
    let binary = workspace::target().join("release/atoll");
    let atoll = || Program::root(&binary).arg("--home").arg(&home);
    atoll().args(["template", "build", "base"]).run()?;
    // Also unpacks the guest into the home.
    atoll()
        .args(["run", "--lang", "bash", "--code", "true"])
        .run()?;

    step(format_args!("bench {name}"));
    cargo()
        .arg("--")
        .args(arguments)
        .env("ATOLL_HOME", &home)
        .run()?;
    Ok(ExitCode::SUCCESS)
}
