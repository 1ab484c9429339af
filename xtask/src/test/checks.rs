//! Checks of the source itself: format and dependencies. Lints are checked by
//! the build, see [`linted`].

use super::Session;
use crate::coverage;
use crate::failure::Outcome;
use crate::program::Program;
use crate::progress::step;

/// Runs all of them; each counts as one test.
pub(super) fn run(session: &mut Session, install_missing: bool) -> Outcome<()> {
    if !(Program::cargo().args(["fmt", "--version"]).succeeds()
        && Program::cargo().args(["clippy", "--version"]).succeeds())
    {
        Program::new("rustup")
            .args(["component", "add", "rustfmt", "clippy"])
            .run()
            .map_err(|failure| {
                failure.hint(
                    "`cargo fmt` and `cargo clippy` are needed: install them as Rust was installed",
                )
            })?;
    }
    session.check(
        "format",
        &Program::cargo().args(["fmt", "--all", "--check"]),
    );
    if !Program::cargo().args(["deny", "--version"]).succeeds() {
        if !install_missing {
            step(
                "dependencies: skipped, for `cargo-deny` is missing (`cargo install --locked cargo-deny`)",
            );
            session.tally.skip(
                "dependencies: `cargo-deny` is not installed (`cargo install --locked cargo-deny`)",
            );
            return Ok(());
        }
        Program::cargo()
            .args(["install", "--locked", "cargo-deny"])
            .run()?;
    }
    session.check(
        "dependencies",
        &Program::cargo().args([
            "deny",
            "--log-level",
            "error",
            "check",
            "licenses",
            "bans",
            "sources",
        ]),
    );
    Ok(())
}

/// Lets clippy compile what is ours, so that everything is compiled once and
/// not once more for its lints, each of which is an error; with counters, so that
/// it is not compiled once more for them either.
pub(super) fn linted(cargo: Program) -> Outcome<Program> {
    // The separator that `cargo clippy` hands its arguments over with.
    let cargo = cargo.env(
        "CLIPPY_ARGS",
        "--deny__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__",
    );
    coverage::counted(cargo, "clippy-driver")
}
