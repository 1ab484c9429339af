//! Builds the guest as a static binary, to be carried inside `atoll`.
//!
//! `ATOLL_GUEST_BINARY` names one that is built already.

use std::env;
use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed=ATOLL_GUEST_BINARY");
    let binary = match env::var_os("ATOLL_GUEST_BINARY") {
        Some(path) => PathBuf::from(path),
        None => build_guest()?,
    };
    println!("cargo::rerun-if-changed={}", binary.display());
    println!(
        "cargo::rustc-env=ATOLL_GUEST_BINARY={}",
        binary.canonicalize()?.display()
    );
    Ok(())
}

/// Runs cargo for the guest alone, in a target directory of its own so that
/// the two do not wait for each other's lock.
fn build_guest() -> Result<PathBuf, Box<dyn Error>> {
    let workspace = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?)
        .join("../..")
        .canonicalize()?;
    for part in [
        "crates/atoll-guest",
        "crates/atoll-protocol",
        "crates/atoll-siphon",
        "Cargo.toml",
    ] {
        println!("cargo::rerun-if-changed={}", workspace.join(part).display());
    }
    let target = format!("{}-unknown-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH")?);
    let target_dir = workspace.join("target/guest");
    let status = Command::new(env::var("CARGO")?)
        .current_dir(&workspace)
        .args([
            "build",
            "--locked",
            "--profile",
            "guest",
            "--package",
            "atoll-guest",
            "--target",
            &target,
            "--target-dir",
        ])
        .arg(&target_dir)
        // The outer build's flags (coverage, lints) are not the guest's.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTC_WRAPPER")
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .status()?;
    if !status.success() {
        return Err(format!("building the guest failed: {status}").into());
    }
    Ok(target_dir.join(target).join("guest/atoll-guest"))
}
