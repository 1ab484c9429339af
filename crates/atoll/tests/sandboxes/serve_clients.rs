//! E2B's own SDKs and the control plane: released clients, unchanged.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::server::Server;
use crate::harness::{home_for_builds, installed_clients, tier};

fn program(name: &str) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/control_plane");
    sources.join(name)
}

/// Runs a program against a server of its own, which must say that all of these cases hold.
fn run(mut command: Command, server: &Server, cases: &[&str]) {
    let url = format!("http://{}", server.address());
    let output = command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", server.work())
        .env("LANG", "C.UTF-8")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("E2B_API_KEY", &server.key)
        .env("E2B_API_URL", &url)
        .env("E2B_SANDBOX_URL", &url)
        .env("TIER", tier().to_string())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let held: Vec<&str> = said
        .lines()
        .filter_map(|line| line.strip_prefix("ok "))
        .collect();
    assert!(
        output.status.success() && held == cases,
        "{held:?}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(server.leased(), Vec::<String>::new());
}

#[test]
fn the_python_sdk_makes_finds_changes_and_ends_sandboxes() {
    let server = Server::start(home_for_builds());
    let mut command = Command::new(installed_clients().join("python/bin/python"));
    command.arg(program("sandboxes.py"));
    let cases = [
        "create and info",
        "lists",
        "timeouts and connect",
        "network",
        "metrics",
        "kill",
        "errors",
        "snapshots",
        "forks",
        "pause and resume",
        "pause without memory",
        "auto-pause and auto-resume",
        "asynchronous",
    ];
    run(command, &server, &cases);
}

#[test]
fn the_javascript_sdk_makes_finds_changes_and_ends_sandboxes() {
    let server = Server::start(home_for_builds());
    // Node looks for packages where a program lies, and nowhere else.
    let directory = server.work().join("node");
    fs::create_dir(&directory).unwrap();
    let target = directory.join("sandboxes.mjs");
    fs::copy(program("sandboxes.mjs"), &target).unwrap();
    let clients = installed_clients();
    symlink(
        clients.join("node/node_modules"),
        directory.join("node_modules"),
    )
    .unwrap();
    let mut command = Command::new(clients.join("node/node"));
    command.arg(target);
    let cases = [
        "create and info",
        "lists",
        "timeouts and connect",
        "network",
        "kill",
        "errors",
        "snapshots",
        "forks",
        "pause and resume",
        "pause without memory",
    ];
    run(command, &server, &cases);
}
