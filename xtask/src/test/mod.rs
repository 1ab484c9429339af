//! `cargo xtask test`: everything CI checks, from a fresh clone.
//!
//! Stages in order: packages, checks of the source, the binary with
//! failpoints, the base template in a home of its own, clients of others, the
//! tests, what is left on the host. Each stage says how long it took, and the last line is
//! `N passed, N failed, N skipped`, whatever happened before.

mod checks;
pub(crate) mod clients;
pub(crate) mod leftovers;
mod report;
mod tally;

use std::path::PathBuf;
use std::process::ExitCode;

use crate::arguments::TestChoice;
use crate::failure::{Context as _, Failure, Outcome};
use crate::machine;
use crate::packages;
use crate::program::{Program, is_root};
use crate::progress::{self, Stage, step};
use crate::workspace;
pub(crate) use tally::Tally;

/// One run: what it has found so far.
#[derive(Default)]
struct Session {
    tally: Tally,
    stages: Vec<Stage>,
    machine: Vec<machine::suite::Row>,
}

/// Runs what was chosen. An error before the tests counts as a failure.
pub(crate) fn test(choice: &TestChoice) -> Outcome<ExitCode> {
    let mut session = Session::default();
    if let Err(failure) = session.run(choice) {
        eprintln!("{failure}");
        session.tally.fail("the run itself: see the error above");
    }
    for skipped in &session.tally.skipped {
        println!("skipped {skipped}");
    }
    for failure in &session.tally.failures {
        println!("failed {failure}");
    }
    if choice.full {
        let path = report::write(&session.tally, &session.stages, &session.machine)?;
        step(format_args!("report: {}", path.display()));
    }
    println!("{}", session.tally);
    Ok(if session.tally.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

impl Session {
    fn run(&mut self, choice: &TestChoice) -> Outcome<()> {
        let mut wanted = vec![packages::RUN, packages::TEST, packages::CLIENTS];
        if choice.full {
            wanted.push(packages::MACHINE);
        }
        self.stage("packages", || {
            packages::install(&wanted).and_then(|()| packages::install_gvisor())
        })?;
        if choice.filter.is_none() {
            checks::run(self, choice.full)?;
        }
        let home = home()?;
        self.stage("build", build)?;
        self.stage("templates", || build_templates(choice, &home))?;
        self.stage("clients", clients::install)?;

        let before = leftovers::observe()?;
        let tests = self.stage("tests", || run_tests(choice, &home))?;
        self.tally.add(tests);
        let tests = self.stage("tests, gvisor tier", || run_gvisor_tests(choice, &home))?;
        self.tally.add(tests);
        let left = self.stage("leftovers", || leftovers::since(&before))?;
        self.tally.check("leftovers", left.is_empty());
        for object in &left {
            println!("left on this host: {object}");
        }

        if choice.full {
            let filter = choice.filter.as_deref();
            let (rows, tally) = self.stage("machine with cgroup v2", || {
                machine::suite::run(&home, filter)
            })?;
            self.machine = rows;
            self.tally.add(tally);
        }
        Ok(())
    }

    fn stage<T>(&mut self, name: &str, work: impl FnOnce() -> T) -> T {
        progress::stage(&mut self.stages, name, work)
    }

    /// A stage that is one program and counts as one test.
    fn check(&mut self, name: &str, program: &Program) {
        let result = self.stage(name, || program.run());
        if let Err(failure) = &result {
            eprintln!("{failure}");
        }
        self.tally.check(name, result.is_ok());
    }
}

/// The home that tests share: `$ATOLL_TEST_HOME`, or one in the target directory.
pub(crate) fn home() -> Outcome<PathBuf> {
    let home = std::env::var_os("ATOLL_TEST_HOME").filter(|home| !home.is_empty());
    let home = home.map_or_else(|| workspace::target().join("test-home"), PathBuf::from);
    if home.is_absolute() {
        return Ok(home);
    }
    Err(Failure::new(format!(
        "ATOLL_TEST_HOME is `{}`, which is not an absolute path",
        home.display()
    ))
    .hint("unset it, or set it to an absolute path"))
}

/// `--locked` where nobody is there to commit a changed lock file.
fn locked() -> &'static [&'static str] {
    if std::env::var_os("CI").is_some() {
        &["--locked"]
    } else {
        &[]
    }
}

/// The binary that tests drive.
pub(crate) fn binary() -> PathBuf {
    workspace::target().join("debug/atoll")
}

/// Builds what the tests need as the tests will want it, so that nothing is compiled twice.
pub(crate) fn build() -> Outcome<()> {
    cargo_test().arg("--no-run").run()
}

pub(crate) fn build_template(home: &std::path::Path, name: &str) -> Outcome<()> {
    Program::root(binary())
        .directory(workspace::root())
        .arg("--home")
        .arg(home)
        .args(["template", "build", name])
        .run()
        .context(|| {
            format!("the template `{name}` is needed by the tests and could not be built")
        })
}

/// What sandboxes of the tests start from: the smallest that will do, and for
/// a full run also what a user would have.
fn build_templates(choice: &TestChoice, home: &std::path::Path) -> Outcome<()> {
    build_template(home, "base")?;
    build_template(home, "templates/code-interpreter-v1-tiny.toml")?;
    if choice.full {
        build_template(home, "code-interpreter-v1")?;
    }
    Ok(())
}

/// What `cargo test` gets in every case.
pub(crate) fn cargo_test() -> Program {
    Program::cargo()
        .args([
            "test",
            "--workspace",
            "--features",
            "atoll/failpoints",
            "--no-fail-fast",
        ])
        .args(locked())
}

/// Lets cargo compile as this user and run tests as root, who find what they need.
pub(crate) fn run_as_root(cargo: Program) -> Program {
    let cargo = cargo.env("ATOLL_TEST_CLIENTS", clients::directory());
    if is_root() {
        return cargo;
    }
    let architecture = std::env::consts::ARCH.to_uppercase();
    cargo.env(
        format!("CARGO_TARGET_{architecture}_UNKNOWN_LINUX_GNU_RUNNER"),
        "sudo --preserve-env",
    )
}

fn run_tests(choice: &TestChoice, home: &std::path::Path) -> Outcome<Tally> {
    let program = run_as_root(cargo_test()).env("ATOLL_TEST_HOME", home);
    counted(choice, program)
}

/// Tests of what every tier must do, for which `ATOLL_TEST_TIER` chooses the tier.
const TIER_TESTS: [&str; 9] = [
    "run", "shell", "limits", "guest", "monitor", "attach", "dial", "tiers", "serve",
];

/// The same of those that take minutes.
const LONG_TIER_TESTS: [&str; 6] = [
    "interpreter_clients",
    "protocol",
    "network",
    "selftest",
    "serve_restart",
    "serve_crash",
];

fn run_gvisor_tests(choice: &TestChoice, home: &std::path::Path) -> Outcome<Tally> {
    let mut program = run_as_root(Program::cargo())
        .args(["test", "--package", "atoll", "--features", "failpoints"])
        .arg("--no-fail-fast")
        .args(locked())
        .env("ATOLL_TEST_HOME", home)
        .env("ATOLL_TEST_TIER", "gvisor");
    let long = LONG_TIER_TESTS.iter().filter(|_| choice.full);
    for name in TIER_TESTS.iter().chain(long) {
        program = program.args(["--test", name]);
    }
    counted(choice, program)
}

fn counted(choice: &TestChoice, program: Program) -> Outcome<Tally> {
    let mut program = program.args(&choice.filter);
    if choice.full {
        program = program.args(["--", "--include-ignored"]);
    }
    let mut tally = Tally::default();
    let status = program.each_line(|line| {
        println!("{line}");
        tally.line(line);
    })?;
    if !status.success() && tally.failed == 0 {
        tally.fail(format!(
            "`cargo test` ended with {status}, and no test says that it failed: see its errors above"
        ));
    }
    Ok(tally)
}
