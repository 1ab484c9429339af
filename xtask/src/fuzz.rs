//! `cargo xtask fuzz`: random bytes against what reads bytes of strangers.
//!
//! The targets are in `fuzz/`, each says what must hold. What they found
//! worth keeping is in `fuzz/corpus`, which is committed; an input that
//! breaks a target is left in `fuzz/artifacts`.

use std::process::ExitCode;

use crate::failure::{Failure, Outcome};
use crate::packages;
use crate::program::Program;
use crate::progress::step;
use crate::workspace;

/// All targets, as `fuzz/Cargo.toml` has them.
pub(crate) const TARGETS: &[&str] = &["frames", "multipart", "paths", "signatures", "users"];

/// Longest input, in bytes.
const INPUT_BYTES_MAX: u32 = 8192;

/// Runs one target, or all one after the other, for so many seconds each.
pub(crate) fn fuzz(target: Option<&str>, seconds: u32) -> Outcome<ExitCode> {
    packages::install(&[packages::TEST])?;
    if !Program::cargo().args(["fuzz", "--version"]).succeeds() {
        step("installing cargo-fuzz");
        Program::cargo()
            .args(["install", "--locked", "cargo-fuzz"])
            .run()?;
    }
    for name in TARGETS
        .iter()
        .filter(|name| target.is_none_or(|only| only == **name))
    {
        step(format_args!("fuzz {name} for {seconds} s"));
        Program::cargo()
            // Instrumentation is a feature of nightly compilers, which this one has too.
            .env("RUSTC_BOOTSTRAP", "1")
            .directory(workspace::root().join("fuzz"))
            .args(["fuzz", "run", "--fuzz-dir", ".", name])
            .arg("--")
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-max_len={INPUT_BYTES_MAX}"))
            .run()
            .map_err(|failure| {
                failure.hint("the input is in fuzz/artifacts; `cargo fuzz` says how to shrink it")
            })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether there is such a target.
pub(crate) fn known(target: &str) -> Outcome<()> {
    if TARGETS.contains(&target) {
        return Ok(());
    }
    Err(Failure::new(format!("there is no target `{target}`"))
        .hint(format!("targets: {}", TARGETS.join(", "))))
}
