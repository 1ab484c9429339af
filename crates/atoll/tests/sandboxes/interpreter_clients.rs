//! E2B's own code-interpreter SDKs, unchanged, against kernels in real sandboxes;
//! and what Python kernels show, tried inside of one.
//!
//! `clients/interpreter` has the programs. They run alone as well: see `run.py`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::server::Server;
use crate::harness::{installed_clients, second_home};

/// The template that `cargo xtask test` builds for these tests.
const TINY: Template = Template {
    name: "code-interpreter-v1-tiny",
    kind: "tiny",
};

/// What a fresh home would get; `cargo xtask test --full` builds it.
const FULL: Template = Template {
    name: "code-interpreter-v1",
    kind: "full",
};

/// What no program takes for all of its cases; each of them has a bound of its own.
const BOUND_S: &str = "1800";

/// Where code runs, and what the programs may expect of it.
#[derive(Clone, Copy)]
struct Template {
    name: &'static str,
    kind: &'static str,
}

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/interpreter")
}

/// Fails unless every case holds and there are enough of them.
fn holds(mut command: Command, server: &Server, template: Template, cases_min: usize) {
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
        .env("INTERPRETER_TEMPLATE", template.name)
        .env("INTERPRETER_KIND", template.kind)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let held = said.lines().filter(|line| line.starts_with("ok ")).count();
    let failed: Vec<&str> = said
        .lines()
        .filter(|line| !line.starts_with("ok "))
        .collect();
    assert!(
        output.status.success() && failed.is_empty() && held >= cases_min,
        "{}, {held} cases held instead of {cases_min}: {failed:#?}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    println!("{held} cases held");
    assert_eq!(server.leased(), Vec::<String>::new());
}

fn python(way: &str) -> Command {
    let mut command = Command::new("timeout");
    command
        .arg(BOUND_S)
        .arg(installed_clients().join("python/bin/python"))
        .args(["run.py", way])
        .current_dir(programs());
    command
}

/// Node looks for packages where a program lies, and nowhere else.
fn node(server: &Server) -> Command {
    let directory = server.work().join("node");
    fs::create_dir(&directory).unwrap();
    for entry in fs::read_dir(programs().join("node")).unwrap().flatten() {
        fs::copy(entry.path(), directory.join(entry.file_name())).unwrap();
    }
    let modules = installed_clients().join("node/node_modules");
    symlink(modules, directory.join("node_modules")).unwrap();
    let mut command = Command::new("timeout");
    command
        .arg(BOUND_S)
        .arg(installed_clients().join("node/node"))
        .arg(directory.join("run.mjs"));
    command
}

#[test]
fn the_python_sdk_runs_code() {
    let server = Server::start(second_home());
    holds(python("sync"), &server, TINY, 70);
}

#[test]
fn the_asynchronous_python_sdk_runs_code() {
    let server = Server::start(second_home());
    holds(python("async"), &server, TINY, 70);
}

#[test]
fn the_javascript_sdk_runs_code() {
    let server = Server::start(second_home());
    holds(node(&server), &server, TINY, 22);
}

#[test]
#[ignore = "takes the template that `cargo xtask test --full` builds"]
fn sdks_run_code_in_all_languages() {
    let server = Server::start(second_home());
    holds(python("sync"), &server, FULL, 79);
    holds(node(&server), &server, FULL, 24);
}

#[test]
fn hooks_of_python_kernels_keep_their_promises() {
    let home = second_home();
    let hooks = Path::new(env!("CARGO_MANIFEST_DIR")).join("../atoll-guest/kernels");
    let files = format!("{}:kernels", hooks.canonicalize().unwrap().display());
    let code = "PYTHONDONTWRITEBYTECODE=1 python3 kernels/test_hooks.py";
    let run = ["run", "--template", TINY.name, "--file", &files];
    let finished = home.run(run.into_iter().chain(["--lang", "bash", "-c", code]));
    let held = finished
        .stdout
        .lines()
        .filter(|line| line.starts_with("ok "));
    let held = held.count();
    assert!(
        finished.code == 0 && held >= 45,
        "{held} held: {finished:#?}"
    );
}
