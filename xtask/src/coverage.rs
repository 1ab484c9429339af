//! `cargo xtask coverage`: line coverage of the tests, and a floor that only goes up.
//!
//! `cargo-llvm-cov` instruments and collects. Two things are special here.
//! The product starts itself again and its tests kill it, so counters are
//! kept in a mapped file all the time (`%c`) instead of being written at
//! exit. And where the toolchain brings no LLVM tools, Debian's of the same
//! version read the profiles as well, unpacked beside the build.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;

use crate::failure::{Context as _, Failure, Outcome};
use crate::packages;
use crate::program::Program;
use crate::progress::step;
use crate::test;
use crate::workspace;

/// Percent of lines, as text; below it the command fails.
const FLOOR_FILE: &str = "coverage-floor.txt";

/// Where LLVM is as new as Rust's.
const NEWER_DEBIAN: &str = "trixie";

/// Tasks for developers are not the product.
const NOT_COUNTED: &str = "/xtask/";

/// Lines that ran, of lines there are.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Lines {
    covered: u64,
    count: u64,
}

impl Lines {
    fn percent(self) -> f64 {
        // Line counts are far below where a float loses integers.
        let (covered, count) = (self.covered as f64, self.count as f64);
        if self.count == 0 {
            0.0
        } else {
            covered * 100.0 / count
        }
    }

    fn add(&mut self, other: Self) {
        self.covered += other.covered;
        self.count += other.count;
    }
}

/// Measures and compares with the floor.
pub(crate) fn coverage() -> Outcome<ExitCode> {
    packages::install(&[packages::RUN, packages::TEST, packages::CLIENTS])?;
    let tools = Tools::find()?;
    if !Program::cargo().args(["llvm-cov", "--version"]).succeeds() {
        step("installing cargo-llvm-cov");
        Program::cargo()
            .args(["install", "--locked", "cargo-llvm-cov"])
            .run()?;
    }
    let home = test::home()?;
    step("building what the tests need");
    test::cargo_test().arg("--no-run").run()?;
    test::build_template(&home, "base")?;
    test::build_template(&home, "code-interpreter-v1-tiny")?;
    test::clients::install()?;

    step("running the tests, instrumented");
    // Profiles of earlier builds do not fit, and pids come again.
    tools.llvm_cov().args(["clean", "--profraw-only"]).run()?;
    let tests = ["test", "--no-report", "--no-fail-fast", "--workspace"];
    let tests = test::run_as_root(tools.llvm_cov())
        .args(tests)
        .args(["--features", "atoll/failpoints"])
        .env("ATOLL_TEST_HOME", &home);
    let tally = test::tried_twice(&tests, |names| {
        let alone = ["--", "--exact", "--test-threads=1"];
        tests.clone().args(alone).args(names)
    })?;
    let report = tools
        .llvm_cov()
        .args(["report", "--json", "--summary-only"])
        .args(["--ignore-filename-regex", NOT_COUNTED])
        .read()?;

    let crates = per_crate(&report)?;
    let mut total = Lines::default();
    for (name, lines) in &crates {
        println!(
            "{name:24} {:6.2} %  {:6} of {:6} lines",
            lines.percent(),
            lines.covered,
            lines.count
        );
        total.add(*lines);
    }
    for name in &tally.unsteady {
        println!("unsteady {name}: failed among the others, passed alone");
    }
    for failure in &tally.failures {
        println!("failed {failure}");
    }
    println!("line coverage {:.2} %", total.percent());
    if tally.failed > 0 {
        return Err(Failure::new(format!("{tally}"))
            .hint("coverage counts only when all tests pass: `cargo xtask test`"));
    }
    compare(total.percent(), floor(&workspace::root().join(FLOOR_FILE))?)?;
    Ok(ExitCode::SUCCESS)
}

/// The two programs that read profiles; `None` when the toolchain has its own.
struct Tools(Option<PathBuf>);

impl Tools {
    fn find() -> Outcome<Self> {
        let about = Program::new("rustc").arg("-vV").read()?;
        let field = |name: &str| about.lines().find_map(|line| line.strip_prefix(name));
        let host = field("host: ").unwrap_or_default();
        let sysroot = Program::new("rustc").args(["--print", "sysroot"]).read()?;
        let own = Path::new(sysroot.trim()).join(format!("lib/rustlib/{host}/bin/llvm-profdata"));
        if own.exists() {
            return Ok(Self(None));
        }
        let major = field("LLVM version: ")
            .and_then(|version| version.split('.').next())
            .ok_or_else(|| Failure::new("`rustc -vV` names no version of LLVM"))?;
        let directory = PathBuf::from(format!("/usr/lib/llvm-{major}/bin"));
        if directory.join("llvm-profdata").exists() {
            return Ok(Self(Some(directory)));
        }
        unpacked(major)
            .map(|directory| Self(Some(directory)))
            .map_err(|failure| {
                failure.hint("or `rustup component add llvm-tools`, which brings the same programs")
            })
    }

    fn llvm_cov(&self) -> Program {
        let program = Program::cargo()
            .arg("llvm-cov")
            .env("LLVM_PROFILE_FILE_NAME", "atoll-%p-%m%c.profraw")
            // What `%c` needs on Linux.
            .env("RUSTFLAGS", "-C llvm-args=-runtime-counter-relocation");
        match &self.0 {
            Some(directory) => program
                .env("LLVM_COV", directory.join("llvm-cov"))
                .env("LLVM_PROFDATA", directory.join("llvm-profdata")),
            None => program,
        }
    }
}

/// The programs of a newer Debian, beside the build: nothing of it is installed
/// here, and each is started with the libraries it was made for.
fn unpacked(major: &str) -> Outcome<PathBuf> {
    let root = workspace::target().join(format!("llvm-{major}"));
    let programs = root.join("programs");
    if programs.join("llvm-profdata").exists() {
        return Ok(programs);
    }
    step(format_args!(
        "unpacking llvm-{major} of Debian's {NEWER_DEBIAN}"
    ));
    let tree = root.join("tree");
    if tree.exists() {
        fs::remove_dir_all(&tree).context(|| format!("removing `{}`", tree.display()))?;
    }
    fs::create_dir_all(&root).context(|| format!("making `{}`", root.display()))?;
    Program::root("mmdebstrap")
        .args(["--quiet", "--variant=extract"])
        .arg(format!("--include=llvm-{major}"))
        .arg(NEWER_DEBIAN)
        .arg(&tree)
        .run()?;
    let written = fs::create_dir_all(&programs).and_then(|()| {
        for name in ["llvm-cov", "llvm-profdata"] {
            let usr = tree.join("usr");
            let script = format!(
                "#!/bin/sh\nexec {usr}/lib64/ld-linux-x86-64.so.2 --library-path \
                 {usr}/lib/x86_64-linux-gnu:{usr}/lib/llvm-{major}/lib \
                 {usr}/lib/llvm-{major}/bin/{name} \"$@\"\n",
                usr = usr.display(),
            );
            let path = programs.join(name);
            fs::write(&path, script)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(())
    });
    written.context(|| format!("writing to `{}`", programs.display()))?;
    Ok(programs)
}

/// Sums up the files of a report by the crate they belong to.
fn per_crate(report: &str) -> Outcome<BTreeMap<String, Lines>> {
    let unreadable = || Failure::new("the report of `cargo llvm-cov` is not as expected");
    let report: Value = serde_json::from_str(report).map_err(|_| unreadable())?;
    let files = report
        .pointer("/data/0/files")
        .and_then(Value::as_array)
        .ok_or_else(unreadable)?;
    let mut crates = BTreeMap::<String, Lines>::new();
    for file in files {
        let number = |path: &str| {
            file.pointer(path)
                .and_then(Value::as_u64)
                .ok_or_else(unreadable)
        };
        let name = file
            .get("filename")
            .and_then(Value::as_str)
            .ok_or_else(unreadable)?;
        let name = name
            .split_once("/crates/")
            .map_or(name, |(_, below)| below.split('/').next().unwrap_or(below));
        let lines = Lines {
            covered: number("/summary/lines/covered")?,
            count: number("/summary/lines/count")?,
        };
        crates.entry(name.to_owned()).or_default().add(lines);
    }
    Ok(crates)
}

/// The floor; none yet is one of zero.
fn floor(path: &Path) -> Outcome<f64> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0.0),
        Err(error) => return Err(error).context(|| format!("reading `{}`", path.display())),
    };
    text.trim()
        .parse()
        .map_err(|_| Failure::new(format!("`{}` is not a number of percent", path.display())))
}

fn compare(percent: f64, floor: f64) -> Outcome<()> {
    if percent < floor {
        return Err(Failure::new(format!(
            "line coverage is {percent:.2} %, below the floor of {floor:.2} %"
        ))
        .hint("add tests for what this change adds; the floor does not go down"));
    }
    if percent > floor + 1.0 {
        let better = (percent * 10.0).floor() / 10.0;
        step(format_args!(
            "the floor of {floor:.2} % can go up: `echo {better:.1} > {FLOOR_FILE}`"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_summed_up_by_crate() {
        let file = |name: &str, covered: u64, count: u64| serde_json::json!({"filename": name, "summary": {"lines": {"covered": covered, "count": count}}});
        let report = serde_json::json!({"data": [{"files": [
            file("/w/crates/atoll/src/main.rs", 1, 4),
            file("/w/crates/atoll/src/commands/run.rs", 3, 4),
            file("/w/crates/atoll-engine/src/lib.rs", 5, 5),
        ]}]});
        let crates = per_crate(&report.to_string()).unwrap();
        let expected = [
            (
                "atoll",
                Lines {
                    covered: 4,
                    count: 8,
                },
            ),
            (
                "atoll-engine",
                Lines {
                    covered: 5,
                    count: 5,
                },
            ),
        ];
        assert_eq!(
            crates,
            expected
                .map(|(name, lines)| (name.to_owned(), lines))
                .into()
        );
        assert!((crates["atoll"].percent() - 50.0).abs() < 1e-9);
    }

    #[test]
    fn only_a_drop_below_the_floor_fails() {
        assert!(compare(89.9, 90.0).is_err());
        assert!(compare(90.0, 90.0).is_ok());
        assert!(compare(95.0, 90.0).is_ok());
    }
}
