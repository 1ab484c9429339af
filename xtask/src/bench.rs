//! `cargo xtask bench`: every promise with a number, measured beside its baseline.

use std::process::ExitCode;

use crate::failure::Outcome;
use crate::packages;
use crate::program::Program;
use crate::progress::step;
use crate::test;
use crate::workspace;

/// The benchmark of the code interpreter, and what it runs in.
const RUN_CODE: &str = "run_code";
const RUN_CODE_TEMPLATES: [&str; 2] = [
    "code-interpreter-v1-tiny",
    "crates/atoll/benches/run_code/template.toml",
];

/// The benchmarks of many sandboxes, and what those with kernels are made from.
const FLEETS: [&str; 2] = ["fleet", "soak"];
const FLEET_TEMPLATES: [&str; 1] = ["code-interpreter-v1-tiny"];

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
    let atoll = || {
        Program::root(&binary)
            .directory(workspace::root())
            .arg("--home")
            .arg(&home)
    };
    atoll().args(["template", "build", "base"]).run()?;
    // Also unpacks the guest into the home.
    atoll()
        .args(["run", "--lang", "bash", "--code", "true"])
        .run()?;

    let mut run = cargo().arg("--").args(arguments).env("ATOLL_HOME", &home);
    if name == RUN_CODE {
        test::clients::install()?;
        run = run.env("ATOLL_TEST_CLIENTS", test::clients::directory());
    }
    let templates: &[&str] = match name {
        RUN_CODE => &RUN_CODE_TEMPLATES,
        name if FLEETS.contains(&name) => &FLEET_TEMPLATES,
        _ => &[],
    };
    for spec in templates {
        step(format_args!("making the template of `{spec}`"));
        atoll().args(["template", "build", spec]).run()?;
    }
    step(format_args!("bench {name}"));
    run.run()?;
    Ok(ExitCode::SUCCESS)
}
