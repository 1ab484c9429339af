//! `cargo xtask up`: from a fresh machine to a program that ran in a sandbox.

use std::path::Path;
use std::process::ExitCode;

use crate::failure::{Context as _, Outcome};
use crate::packages;
use crate::program::{Program, is_root};
use crate::progress::step;
use crate::workspace;

/// Does everything, and says what to try next.
pub(crate) fn up(home: Option<&Path>) -> Outcome<ExitCode> {
    packages::install(&[packages::RUN])?;
    // The container tier works without it, and `atoll doctor` says what is missing.
    if let Err(failure) = packages::install_gvisor() {
        eprintln!("{failure}");
        step("going on without gVisor");
    }

    step("building atoll (a few minutes the first time)");
    Program::cargo()
        .args(["build", "--release", "--locked", "--package", "atoll"])
        .run()
        .map_err(|failure| failure.hint("the compiler's messages above say why"))?;
    let binary = workspace::target().join("release/atoll");
    let atoll = || {
        let program = Program::root(&binary).directory(workspace::root());
        match home {
            Some(home) => program.arg("--home").arg(home),
            None => program,
        }
    };

    step("making the template `base` (a minute or two the first time)");
    atoll()
        .args(["template", "build", "base"])
        .run()
        .map_err(|failure| {
            failure.hint(
                "the lines above say which step failed; the same command goes on where it stopped",
            )
        })?;

    step("running examples/hello.py in a sandbox");
    atoll()
        .arg("run")
        .arg(workspace::example())
        .run()
        .context(|| "the example did not run".to_owned())
        .map_err(|failure| {
            failure.hint(format!(
                "`{} doctor` says what this host lacks",
                binary.display()
            ))
        })?;

    step("ready; try");
    let prefix = next_command(&binary, home);
    eprintln!("    {prefix} run -c 'print(6*7)' --lang python");
    eprintln!("    {prefix} shell --net full");
    eprintln!("    {prefix} doctor");
    Ok(ExitCode::SUCCESS)
}

/// How a person calls the binary from where they stand.
fn next_command(binary: &Path, home: Option<&Path>) -> String {
    let here = std::env::current_dir().ok();
    let short = here
        .as_deref()
        .and_then(|here| binary.strip_prefix(here).ok())
        .unwrap_or(binary);
    let sudo = if is_root() { "" } else { "sudo " };
    let home = home
        .map(|home| format!(" --home {}", home.display()))
        .unwrap_or_default();
    format!("{sudo}{}{home}", short.display())
}
