//! The tests that depend on cgroups once more, inside the machine.
//!
//! The test binaries of the host are copied in together with `atoll` and the
//! tests' home, so nothing is compiled or built inside. What tests ask of
//! their surroundings is given by environment variables: `ATOLL_BIN`,
//! `ATOLL_TEST_HOME`, and `ATOLL_TEST_TIME_FACTOR`, by which an emulated
//! processor is slower and time bounds should be longer.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{INSIDE, Machine, Payload};
use crate::failure::{Failure, Outcome};
use crate::program::Program;
use crate::test::{self, Tally};
use crate::workspace;

/// Lines of the console that are ours, around the output of each binary.
const BEGIN: &str = "ATOLL-MACHINE-TESTS ";
const END: &str = "ATOLL-MACHINE-TESTS-END ";

/// One test binary, and what came out of it.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) tally: Tally,
    /// Seconds inside the machine.
    pub(crate) took: u64,
}

/// A test binary of the workspace.
#[derive(Debug, PartialEq, Eq)]
struct Binary {
    name: String,
    executable: PathBuf,
    /// Where cargo would run it.
    directory: PathBuf,
}

/// Runs them all as `cargo_test` builds them, one test at a time: an emulated processor is slow enough. What is
/// ignored there is in the rows but not in the sum.
pub(crate) fn run(
    cargo_test: Program,
    home: &Path,
    filter: Option<&str>,
) -> Outcome<(Vec<Row>, Tally)> {
    let binaries = binaries(cargo_test)?;
    let machine = Machine::prepare()?;
    let mut rows: Vec<Row> = Vec::new();
    let status = machine.run(&payload(&binaries, home, filter)?, |line| {
        println!("machine: {line}");
        if let Some(name) = line.strip_prefix(BEGIN) {
            rows.push(Row {
                name: name.to_owned(),
                tally: Tally::default(),
                took: 0,
            });
        } else if let Some(row) = rows.last_mut() {
            row.line(line);
        }
    })?;
    let mut sum = Tally::default();
    for row in &rows {
        let failures = row
            .tally
            .failures
            .iter()
            .map(|name| format!("{name} (in the machine)"))
            .collect();
        sum.add(Tally {
            failures,
            skipped: Vec::new(),
            ..row.tally.clone()
        });
    }
    if rows.len() < binaries.len() || (status != 0 && sum.failed == 0) {
        sum.fail(format!(
            "the machine ran {} of {} test binaries and ended with status {status}",
            rows.len(),
            binaries.len()
        ));
    }
    Ok((rows, sum))
}

impl Row {
    fn line(&mut self, line: &str) {
        let Some(end) = line.strip_prefix(END) else {
            self.tally.line(line);
            return;
        };
        let mut numbers = end
            .split(' ')
            .map(|number| number.parse::<u64>().unwrap_or(0));
        let status = numbers.next().unwrap_or(0);
        self.took = numbers.next().unwrap_or(0);
        if status != 0 && self.tally.failed == 0 {
            self.tally
                .fail(format!("{} ended with status {status}", self.name));
        }
    }
}

fn payload(binaries: &[Binary], home: &Path, filter: Option<&str>) -> Outcome<Payload> {
    let program = test::binary();
    let root = workspace::root();
    let mut script = format!(
        "export ATOLL_BIN={INSIDE}/atoll ATOLL_TEST_HOME={INSIDE}/home ATOLL_TEST_TIME_FACTOR=10 TMPDIR={INSIDE}/tmp\n\
         export LLVM_PROFILE_FILE=/dev/null # lines are counted on the host\n\
         ulimit -n 65536\n\
         mkdir $TMPDIR\n\
         mkdir -p {parent} && ln -s {INSIDE}/workspace {root}\n\
         mkdir -p {debug} && ln -s {INSIDE}/atoll {program}\n\
         failed=0\n",
        parent = quoted(root.parent().unwrap_or(root)),
        root = quoted(root),
        debug = quoted(program.parent().unwrap_or(root)),
        program = quoted(&program),
    );
    let filter = filter
        .map(|filter| quoted(Path::new(filter)))
        .unwrap_or_default();
    let other_modules = test::all_modules_but(&TESTS)?.join(" ");
    let mut files = Vec::new();
    for (
        number,
        Binary {
            name,
            executable,
            directory,
        },
    ) in binaries.iter().enumerate()
    {
        let copy = format!("tests/{number}");
        let directory = quoted(directory);
        let skipped = match name.ends_with(test::TIER_BINARY) {
            true => &other_modules,
            false => "",
        };
        script.push_str(&format!(
            "echo; echo {BEGIN}{name}; start=$(date +%s)\n\
             (mkdir -p {directory} && cd {directory} && exec {INSIDE}/{copy} --test-threads=1 {filter} {skipped}); status=$?\n\
             [ $status = 0 ] || failed=1\n\
             echo; echo {END}$status $(($(date +%s) - start))\n",
        ));
        files.push((executable.clone(), copy));
    }
    script.push_str("exit $failed\n");

    let mut payload = Payload::new(script);
    for (from, to) in files {
        payload.file(from, to);
    }
    for part in ["examples", "templates"] {
        payload.file(root.join(part), format!("workspace/{part}"));
    }
    payload.atoll(home)?;
    Ok(payload)
}

/// Modules of integration tests whose subject depends on how the kernel counts and limits.
/// All others say the same on every kernel, and each sandbox takes seconds on
/// an emulated processor.
const TESTS: [&str; 2] = ["limits", "monitor"];

/// Those tests, and the unit tests of the engine.
fn binaries(cargo_test: Program) -> Outcome<Vec<Binary>> {
    let messages = cargo_test
        .args(["--no-run", "--message-format=json"])
        .read()?;
    let binaries: Vec<_> = messages
        .lines()
        .filter_map(|line| binary(&serde_json::from_str(line).ok()?))
        .collect();
    if binaries.is_empty() {
        return Err(Failure::new(
            "cargo named no test binary to run in the machine",
        ));
    }
    Ok(binaries)
}

/// The binary that a message of cargo tells of, if it is to run in the machine.
fn binary(message: &Value) -> Option<Binary> {
    let executable = PathBuf::from(message.get("executable")?.as_str()?);
    message.pointer("/profile/test")?.as_bool()?.then_some(())?;
    let name = message.pointer("/target/name")?.as_str()?;
    let kind = message.pointer("/target/kind/0")?.as_str()?;
    let directory = Path::new(message.get("manifest_path")?.as_str()?)
        .parent()?
        .to_owned();
    let package = directory.file_name()?.to_str()?;
    let wanted = (kind == "test" && name == test::TIER_BINARY)
        || (package == "atoll-engine" && kind == "lib");
    wanted.then(|| Binary {
        name: format!("{package}/{name}"),
        executable,
        directory: directory.clone(),
    })
}

/// For a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integration_tests_are_picked_out_of_cargos_messages() {
        let message = |package: &str, kind: &str, test: bool| {
            serde_json::json!({
                "reason": "compiler-artifact", "manifest_path": format!("/w/crates/{package}/Cargo.toml"),
                "target": {"kind": [kind], "name": "sandboxes"}, "profile": {"test": test}, "executable": "/w/target/sandboxes-1",
            })
        };
        let expected = Binary {
            name: "atoll/sandboxes".into(),
            executable: "/w/target/sandboxes-1".into(),
            directory: "/w/crates/atoll".into(),
        };
        assert_eq!(binary(&message("atoll", "test", true)), Some(expected));
        assert_eq!(binary(&message("atoll", "bin", true)), None);
        let mut other = message("atoll", "test", true);
        other["target"]["name"] = "completions".into();
        assert_eq!(binary(&other), None);
        assert_eq!(binary(&message("atoll", "bin", false)), None);
        assert!(binary(&message("atoll-engine", "lib", true)).is_some());
    }

    #[test]
    fn a_row_ends_with_status_and_time() {
        let mut row = Row {
            name: "atoll/limits".into(),
            tally: Tally::default(),
            took: 0,
        };
        row.line("test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 9.1s");
        row.line("ATOLL-MACHINE-TESTS-END 0 12");
        assert_eq!((row.tally.passed, row.tally.failed, row.took), (2, 0, 12));
        row.line("ATOLL-MACHINE-TESTS-END 139 12");
        assert_eq!(row.tally.failures, ["atoll/limits ended with status 139"]);
    }
}
