//! A client program: how it is found, run, bounded and judged.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;

use super::guest::Guest;
use crate::harness::command::Stream;
use crate::harness::{TestHome, installed_clients};

/// What no program takes for all of its cases; each case has a bound of its own.
const BOUND: Duration = Duration::from_secs(900);

/// What the guest calls its secret in these tests.
const TOKEN: &str = "token-of-the-protocol-tests";

/// One line of a program's output.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    ok: bool,
    detail: String,
}

/// Which program, with which arguments.
pub(crate) enum Program {
    Python(&'static [&'static str]),
    Node(&'static [&'static str]),
}

/// Runs a program against a sandbox of its own. At least so many cases must
/// have been run, and each of them must hold.
pub(crate) fn run(program: &Program, cases_min: usize) {
    let guest = Guest::start(TOKEN);
    let target = Target {
        url: format!("http://{}", guest.address),
        token: &guest.token,
        sandbox_id: &guest.sandbox_id,
        template_id: &guest.template_id,
        home: &guest.sandboxes.home,
    };
    run_against(&target, program, cases_min);
}

/// Where a sandbox can be called, and a directory to work in.
pub(crate) struct Target<'t> {
    pub(crate) url: String,
    pub(crate) token: &'t str,
    pub(crate) sandbox_id: &'t str,
    pub(crate) template_id: &'t str,
    pub(crate) home: &'t TestHome,
}

/// As [`run`], against a sandbox that is there.
pub(crate) fn run_against(target: &Target<'_>, program: &Program, cases_min: usize) {
    let clients = installed_clients();
    let mut command = match program {
        Program::Python(arguments) => {
            let mut command = Command::new(clients.join("python/bin/python"));
            command.arg("run.py").args(*arguments);
            command.current_dir(sources().join("python"));
            command.env("PYTHONDONTWRITEBYTECODE", "1");
            command
        }
        Program::Node(arguments) => {
            // Node looks for packages where a program lies, and nowhere else.
            let directory = target.home.work().join("node");
            copy(&sources().join("node"), &directory);
            symlink(
                clients.join("node/node_modules"),
                directory.join("node_modules"),
            )
            .unwrap();
            let mut command = Command::new(clients.join("node/node"));
            command.args(*arguments).current_dir(directory);
            command.env(
                "GUEST_DESCRIPTORS",
                target
                    .home
                    .file("envd.binpb", atoll_protocol::FILE_DESCRIPTORS),
            );
            command
        }
    };
    let kept = ["PATH", "ATOLL_TEST_TIME_FACTOR"];
    let kept = kept.map(|name| (name, std::env::var_os(name)));
    let own = command.get_envs();
    let own: Vec<_> = own
        .map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned)))
        .collect();
    command.env_clear();
    let kept = kept.map(|(name, value)| (name.into(), value));
    for (name, value) in kept.into_iter().chain(own) {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command
        .env("HOME", target.home.work())
        .env("LANG", "C.UTF-8")
        .env("GUEST_URL", &target.url)
        .env("GUEST_TOKEN", target.token)
        .env("GUEST_SANDBOX_ID", target.sandbox_id)
        .env("GUEST_TEMPLATE_ID", target.template_id);
    judge(Running::start(command).finish(), cases_min);
}

/// Fails unless every case holds and there are enough of them.
fn judge(finished: Finished, cases_min: usize) {
    let Finished {
        status,
        stdout,
        stderr,
    } = finished;
    let cases: Vec<Case> = stdout
        .lines()
        .map(|line| {
            serde_json::from_str(line)
                .unwrap_or_else(|error| panic!("{error} in the line {line:?}"))
        })
        .collect();
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names.len(), cases.len(), "two cases have the same name");
    let failed: Vec<_> = cases.iter().filter(|case| !case.ok).collect();
    for case in &failed {
        println!("case {} FAILED\n{}\n", case.name, case.detail);
    }
    println!("{} cases, {} failed", cases.len(), failed.len());
    let ended_well = status.is_some_and(|status| status.success());
    assert!(
        ended_well,
        "the program ended with {status:?} after {} cases: {stderr}",
        cases.len()
    );
    let names: Vec<_> = failed.iter().map(|case| &case.name).collect();
    assert!(failed.is_empty(), "these cases failed: {names:#?}");
    assert!(
        cases.len() >= cases_min,
        "{} cases were run instead of {cases_min}",
        cases.len()
    );
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A program that runs. Dropped, its process group is killed.
struct Running {
    child: Child,
    stdout: Stream,
    stderr: Stream,
}

struct Finished {
    /// `None` when it had to be killed.
    status: Option<ExitStatus>,
    stdout: String,
    stderr: String,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            stdout: Stream::read(child.stdout.take().unwrap()),
            stderr: Stream::read(child.stderr.take().unwrap()),
            child,
        }
    }

    fn finish(mut self) -> Finished {
        let end = Instant::now() + BOUND;
        // Its output ends with it.
        let _ = self.stdout.wait(BOUND, |_| false);
        let mut status = self.child.try_wait().unwrap();
        while status.is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
            status = self.child.try_wait().unwrap();
        }
        Finished {
            status,
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}
