//! Checks of the source itself: format, lints, dependencies.

use super::Session;
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
    session.check(
        "lints",
        &Program::cargo()
            .args(["clippy", "--workspace", "--all-targets", "--all-features"])
            .args(super::locked())
            .args(["--", "--deny", "warnings"]),
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
