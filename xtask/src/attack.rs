//! `cargo xtask attack`: the attack suite and a siege on a release build, and a
//! look at what both left on the host.

use std::process::ExitCode;

use crate::failure::Outcome;
use crate::packages;
use crate::program::Program;
use crate::progress::step;
use crate::test;
use crate::workspace;

/// Attackers of a siege, unless the command line says otherwise.
const ATTACKERS: &str = "50";

/// Builds `atoll`, attacks sandboxes one by one, then many at once. `arguments`
/// go to both, for example `--tier container`.
pub(crate) fn attack(arguments: &[String]) -> Outcome<ExitCode> {
    packages::install(&[packages::RUN])?;
    packages::install_gvisor()?;
    let home = test::home()?;
    step("building");
    Program::cargo()
        .args(["build", "--locked", "--release", "--package", "atoll"])
        .run()?;
    let binary = workspace::target().join("release/atoll");
    let atoll = || Program::root(&binary).arg("--home").arg(&home);

    step("making the template `base`");
    atoll().args(["template", "build", "base"]).run()?;

    let before = test::leftovers::observe()?;
    step("the attack suite");
    atoll().arg("selftest").args(arguments).run()?;

    step(format_args!("{ATTACKERS} attackers at once"));
    atoll()
        .args(["selftest", "--siege", ATTACKERS])
        .args(arguments)
        .run()?;

    step("what is left on the host");
    let left = test::leftovers::since(&before)?;
    if left.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    for object in left {
        eprintln!("left on the host: {object}");
    }
    Ok(ExitCode::FAILURE)
}
