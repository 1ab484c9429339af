//! `cargo xtask test`: everything CI checks, from a fresh clone.
//!
//! Stages in order: packages, checks of the source, everything built and
//! linted (with clients of others installed meanwhile), the tests that need no
//! sandbox (with the base template built meanwhile, in a home of its own), those
//! with sandboxes, what is left on the host, how many lines ran. Each stage says how long it took, and
//! the last line is `N passed, N failed, N skipped`, whatever happened before.
//!
//! What failed among the others is tried once more alone. What passes then is
//! listed as `unsteady`: two cores of a busy machine are no reason to fail, and a
//! reason to mend the test.

mod checks;
pub(crate) mod clients;
pub(crate) mod leftovers;
mod report;
mod tally;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use crate::arguments::TestChoice;
use crate::coverage;
use crate::failure::{Context as _, Failure, Outcome};
use crate::machine;
use crate::packages;
use crate::program::{Program, is_root};
use crate::progress::{self, Stage, step};
use crate::workspace;
use serde_json::Value;
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
    for name in &session.tally.unsteady {
        println!("unsteady {name}: failed among the others, passed alone");
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
        let tools = thread::scope(|scope| {
            let clients = scope.spawn(clients::install);
            let tools = scope.spawn(|| choice.filter.is_none().then(coverage::Tools::find));
            self.stage("build and lints", || build(choice))?;
            self.stage("clients", || joined(clients))?;
            Ok::<_, Failure>(self.stage("tools of LLVM", || joined(tools)))
        })?;
        coverage::begin()?;

        let before = leftovers::observe()?;
        let tests = thread::scope(|scope| {
            let templates = scope.spawn(|| build_templates(choice, &home));
            let tests = self.stage("tests without sandboxes", || {
                let mut tests = run_tests(choice, Targets::WithoutSandboxes, &home)?;
                tests.add(run_tests(choice, Targets::Documentation, &home)?);
                Ok::<_, Failure>(tests)
            })?;
            self.stage("templates", || joined(templates))?;
            Ok::<_, Failure>(tests)
        })?;
        self.tally.add(tests);
        let tests = self.stage("tests", || run_tests(choice, Targets::WithSandboxes, &home))?;
        self.tally.add(tests);
        let tests = self.stage("tests, gvisor tier", || {
            run_tests(choice, Targets::Tier, &home)
        })?;
        self.tally.add(tests);
        let left = self.stage("leftovers", || leftovers::since(&before))?;
        self.tally.check("leftovers", left.is_empty());
        for object in &left {
            println!("left on this host: {object}");
        }

        match tools {
            None => {}
            Some(Err(failure)) => {
                let reason = failure.to_string().replace('\n', "; ");
                self.tally.skip(format!("coverage: {reason}"));
            }
            Some(Ok(tools)) => {
                let compared = self.stage("coverage", || {
                    coverage::compared(&tools, &counting(choice)?)
                });
                if let Err(failure) = &compared {
                    eprintln!("{failure}");
                }
                self.tally.check("coverage", compared.is_ok());
            }
        }

        if choice.full {
            let filter = choice.filter.as_deref();
            let (rows, tally) = self.stage("machine with cgroup v2", || {
                machine::suite::run(cargo_for(choice)?, &home, filter)
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

/// What the thread did in the end, with a panic passed on.
fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Builds what the tests need as the tests will want it, so that nothing is
/// compiled twice; benchmarks and examples too, where all is checked.
fn build(choice: &TestChoice) -> Outcome<()> {
    let cargo = cargo_for(choice)?.arg("--no-run");
    match choice.filter {
        None => cargo.arg("--all-targets").run(),
        Some(_) => cargo.run(),
    }
}

pub(crate) fn build_template(home: &Path, name: &str) -> Outcome<()> {
    let (variable, value) = coverage::variable();
    Program::root(binary())
        .directory(workspace::root())
        .env(variable, value)
        .arg("--home")
        .arg(home)
        .args(["template", "build", name])
        .run()
        .context(|| format!("the template `{name}` is needed by the tests and could not be built"))
}

/// What sandboxes of the tests start from: the smallest that will do, and for
/// a full run also what a user would have.
fn build_templates(choice: &TestChoice, home: &Path) -> Outcome<()> {
    build_template(home, "base")?;
    build_template(home, "code-interpreter-v1-tiny")?;
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
            "atoll/failpoints,atoll-guest/fuzzing",
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

/// `cargo test` as a run wants it. Who runs a few tests over and over does not
/// want to hear of lints.
fn cargo_for(choice: &TestChoice) -> Outcome<Program> {
    match choice.filter {
        None => checks::linted(cargo_test()),
        Some(_) => Ok(cargo_test()),
    }
}

/// Everything that counts the lines it runs.
fn counting(choice: &TestChoice) -> Outcome<BTreeSet<PathBuf>> {
    let messages = cargo_for(choice)?
        .args(["--no-run", "--message-format=json"])
        .read()?;
    let mut binaries: BTreeSet<_> = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|message| Some(PathBuf::from(message.get("executable")?.as_str()?)))
        .collect();
    binaries.insert(binary());
    Ok(binaries)
}

/// Parts of the tests. Each names its targets and none its packages: another
/// choice of packages may mean other features, and everything built again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Targets {
    WithoutSandboxes,
    WithSandboxes,
    Documentation,
    /// See [`TIER_TESTS`].
    Tier,
}

/// The package whose integration tests need sandboxes.
const WITH_SANDBOXES: &str = "atoll";

impl Targets {
    /// What `cargo test` is told.
    fn arguments(self, choice: &TestChoice) -> Outcome<Vec<String>> {
        let named = |names: Vec<String>| {
            names
                .into_iter()
                .flat_map(|name| ["--test".to_owned(), name])
                .collect::<Vec<_>>()
        };
        Ok(match self {
            Self::Documentation => vec!["--doc".to_owned()],
            Self::WithSandboxes => named(integration_tests(|name| name == WITH_SANDBOXES)?),
            Self::WithoutSandboxes => {
                let mut arguments = vec!["--lib".to_owned(), "--bins".to_owned()];
                arguments.extend(named(integration_tests(|name| name != WITH_SANDBOXES)?));
                arguments
            }
            Self::Tier => {
                let long = LONG_TIER_BINARIES.iter().filter(|_| choice.full);
                let names = [TIER_BINARY].iter().chain(long).copied();
                named(names.map(str::to_owned).collect())
            }
        })
    }

    /// What the test binaries are told: all but some modules.
    fn skipped(self, choice: &TestChoice) -> Outcome<Vec<String>> {
        if self != Self::Tier {
            return Ok(Vec::new());
        }
        let long = LONG_TIER_TESTS.iter().filter(|_| choice.full);
        let wanted: Vec<_> = TIER_TESTS.iter().chain(long).copied().collect();
        all_modules_but(&wanted)
    }
}

/// Arguments by which the binary with all the sandboxes runs these modules
/// alone, whatever else chooses among its tests.
pub(crate) fn all_modules_but(wanted: &[&str]) -> Outcome<Vec<String>> {
    let directory = format!("crates/{WITH_SANDBOXES}/tests/{TIER_BINARY}");
    let modules = entries(&workspace::root().join(directory))?;
    let modules = modules.iter().map(|file| stem(file));
    Ok(modules
        .filter(|name| name != "main" && !wanted.contains(&name.as_str()))
        .flat_map(|name| ["--skip".to_owned(), format!("{name}::")])
        .collect())
}

/// Names of the integration tests of some packages, each once.
fn integration_tests(wanted: impl Fn(&str) -> bool) -> Outcome<Vec<String>> {
    let mut names = BTreeSet::new();
    for package in entries(&workspace::root().join("crates"))? {
        let tests = package.join("tests");
        if !tests.is_dir() || !wanted(&stem(&package)) {
            continue;
        }
        for file in entries(&tests)? {
            let is_one = file.extension().is_some_and(|kind| kind == "rs");
            if is_one || file.join("main.rs").is_file() {
                names.insert(stem(&file));
            }
        }
    }
    Ok(names.into_iter().collect())
}

fn entries(directory: &Path) -> Outcome<Vec<PathBuf>> {
    fs::read_dir(directory)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .context(|| format!("reading `{}`", directory.display()))
}

fn stem(path: &Path) -> String {
    path.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn run_tests(choice: &TestChoice, targets: Targets, home: &Path) -> Outcome<Tally> {
    let cargo = run_as_root(cargo_for(choice)?)
        .env("ATOLL_TEST_HOME", home)
        .args(targets.arguments(choice)?);
    let cargo = match targets {
        Targets::Tier => cargo.env("ATOLL_TEST_TIER", "gvisor"),
        Targets::WithoutSandboxes | Targets::WithSandboxes | Targets::Documentation => cargo,
    };
    let all = cargo.clone().args(&choice.filter);
    let skipped = targets.skipped(choice)?;
    let all = all.args(harness_arguments(choice, &[])).args(skipped);
    tried_twice(&all, |names| cargo.args(harness_arguments(choice, names)))
}

/// Runs tests, and those that fail once more alone, by what `alone` makes of
/// their names.
pub(crate) fn tried_twice(
    all: &Program,
    alone: impl FnOnce(&[String]) -> Program,
) -> Outcome<Tally> {
    let mut tally = counted(all)?;
    if let Some(names) = tally.second_chances(SECOND_CHANCES_MAX) {
        step(format_args!("once more, alone: {}", names.join(", ")));
        let alone = counted(&alone(names))?;
        tally.retried(&alone);
    }
    Ok(tally)
}

/// More failures than this are no accident.
const SECOND_CHANCES_MAX: usize = 5;

/// What the test binaries are told: which tests, by whole names, one at a time,
/// or all of them.
fn harness_arguments(choice: &TestChoice, names: &[String]) -> Vec<String> {
    let mut arguments = vec!["--".to_owned()];
    if choice.full {
        arguments.push("--include-ignored".to_owned());
    }
    if !names.is_empty() {
        arguments.extend(["--exact".to_owned(), "--test-threads=1".to_owned()]);
        arguments.extend_from_slice(names);
    }
    arguments
}

/// Where the tests are for which `ATOLL_TEST_TIER` chooses the tier.
pub(crate) const TIER_BINARY: &str = "sandboxes";

/// Modules of it that say what every tier must do.
const TIER_TESTS: [&str; 13] = [
    "run",
    "shell",
    "limits",
    "guest",
    "monitor",
    "attach",
    "dial",
    "tiers",
    "serve",
    "serve_checkpoint",
    "serve_clients",
    "serve_memory",
    "serve_pause",
];

/// The same of those that take minutes.
const LONG_TIER_TESTS: [&str; 5] = [
    "interpreter_clients",
    "protocol",
    "network",
    "selftest",
    "serve_restart",
];

/// Binaries of which the same is true.
const LONG_TIER_BINARIES: [&str; 1] = ["serve_crash"];

fn counted(program: &Program) -> Outcome<Tally> {
    let mut tally = Tally::default();
    let status = program.each_line(|line| {
        println!("{line}");
        tally.line(line);
    })?;
    if tally.unended > 0 {
        tally.fail(format!(
            "{} test binaries died before they could say how it ended: see above",
            tally.unended
        ));
    }
    if !status.success() && tally.failed == 0 {
        tally.fail(format!(
            "`cargo test` ended with {status}, and no test says that it failed: see its errors above"
        ));
    }
    Ok(tally)
}
