//! Line coverage of a run of the tests, and a floor that only goes up.
//!
//! What is ours is compiled with counters ([`counted`]); what it depends on is
//! not. The product starts itself again and its tests kill it, so counters are
//! kept in a mapped file all the time (`%c`) instead of being written at exit, one
//! for all processes of a binary (`%m`). Where the toolchain brings no LLVM tools,
//! Debian's of the same version read them as well, unpacked beside the build.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::failure::{Context as _, Failure, Outcome};
use crate::program::Program;
use crate::progress::step;
use crate::workspace;

/// Percent of lines, as text; below it the tests fail.
const FLOOR_FILE: &str = "coverage-floor.txt";

/// Where LLVM is as new as Rust's.
const NEWER_DEBIAN: &str = "trixie";

/// What is not the product: tasks for developers, tests, and code of others.
const NOT_COUNTED: &str =
    r"/xtask/|/tests/|/tests\.rs$|/benches/|/examples/|/target/|/\.cargo/|/rustc/|/registry/";

/// Files that are named because most is to be gained there.
const FILES_SHOWN: usize = 10;

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

    fn missing(self) -> u64 {
        self.count.saturating_sub(self.covered)
    }
}

/// Where counters are kept during a run.
fn profiles() -> PathBuf {
    workspace::target().join("coverage/profiles")
}

/// What tells a binary with counters where to keep them: without it, it leaves
/// a file where it stands.
pub(crate) fn variable() -> (&'static str, PathBuf) {
    ("LLVM_PROFILE_FILE", profiles().join("atoll-%m%c.profraw"))
}

/// Compiles what is ours with counters, by the compiler that `cargo` would use
/// for it, and lets everything that it runs count.
///
/// # Errors
/// When the target directory cannot be written to.
pub(crate) fn counted(cargo: Program, compiler: &str) -> Outcome<Program> {
    let wrapper = workspace::target().join("coverage").join(compiler);
    let script = format!(
        "#!/bin/bash\nexec {compiler} \"$@\" -C instrument-coverage \
         -C llvm-args=-runtime-counter-relocation\n"
    );
    program(&wrapper, &script)?;
    let (name, value) = variable();
    Ok(cargo
        .env("RUSTC_WORKSPACE_WRAPPER", wrapper)
        .env(name, value))
}

/// Begins to count at zero: counters of an earlier build do not fit.
pub(crate) fn begin() -> Outcome<()> {
    let profiles = profiles();
    Program::root("rm").arg("-rf").arg(&profiles).run()?;
    fs::create_dir_all(&profiles).context(|| format!("making `{}`", profiles.display()))
}

/// Shows what ran of each crate since [`begin`], and holds it against the
/// floor. `binaries` are what counted.
pub(crate) fn compared(tools: &Tools, binaries: &BTreeSet<PathBuf>) -> Outcome<()> {
    let merged = workspace::target().join("coverage/merged.profdata");
    tools
        .program("llvm-profdata")
        .args(["merge", "--sparse", "--output"])
        .arg(&merged)
        .arg(profiles())
        .run()?;
    let report = tools
        .program("llvm-cov")
        .args(["export", "--summary-only", "--ignore-filename-regex"])
        .arg(NOT_COUNTED)
        .arg("--instr-profile")
        .arg(&merged)
        .args(binaries.iter().flat_map(|binary| {
            let path = binary.as_os_str();
            [std::ffi::OsStr::new("--object"), path]
        }))
        .read()?;
    let files = files(&report)?;
    let mut total = Lines::default();
    for (name, lines) in per_crate(&files) {
        println!(
            "{name:24} {:6.2} %  {:6} of {:6} lines",
            lines.percent(),
            lines.covered,
            lines.count
        );
        total.add(lines);
    }
    let mut files: Vec<_> = files.into_iter().collect();
    files.sort_by_key(|(_, lines)| std::cmp::Reverse(lines.missing()));
    for (name, lines) in files.iter().take(FILES_SHOWN) {
        println!("{:6} lines of {name} did not run", lines.missing());
    }
    println!("line coverage {:.2} %", total.percent());
    let floor = floor(&workspace::root().join(FLOOR_FILE))?;
    let earlier = Program::new("git")
        .directory(workspace::root())
        .args(["log", "--patch", "--unified=0", "--format=", "--"])
        .arg(FLOOR_FILE)
        .read()
        .unwrap_or_default(); // a source without a history has none to go by
    never_lower(floor, &earlier)?;
    compare(total.percent(), floor)
}

/// Where the two programs are that read counters.
pub(crate) struct Tools(PathBuf);

impl Tools {
    /// Those of the toolchain, of this machine, or of a newer Debian.
    pub(crate) fn find() -> Outcome<Self> {
        let about = Program::new("rustc").arg("-vV").read()?;
        let field = |name: &str| about.lines().find_map(|line| line.strip_prefix(name));
        let host = field("host: ").unwrap_or_default();
        let sysroot = Program::new("rustc").args(["--print", "sysroot"]).read()?;
        let major = field("LLVM version: ")
            .and_then(|version| version.split('.').next())
            .ok_or_else(|| Failure::new("`rustc -vV` names no version of LLVM"))?;
        let installed = [
            Path::new(sysroot.trim()).join(format!("lib/rustlib/{host}/bin")),
            PathBuf::from(format!("/usr/lib/llvm-{major}/bin")),
        ];
        for directory in installed {
            if directory.join("llvm-profdata").exists() {
                return Ok(Self(directory));
            }
        }
        unpacked(major).map(Self).map_err(|failure| {
            failure.hint("or `rustup component add llvm-tools`, which brings the same programs")
        })
    }

    fn program(&self, name: &str) -> Program {
        Program::new(self.0.join(name))
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
    for name in ["llvm-cov", "llvm-profdata"] {
        let usr = tree.join("usr");
        let script = format!(
            "#!/bin/sh\nexec {usr}/lib64/ld-linux-x86-64.so.2 --library-path \
             {usr}/lib/x86_64-linux-gnu:{usr}/lib/llvm-{major}/lib \
             {usr}/lib/llvm-{major}/bin/{name} \"$@\"\n",
            usr = usr.display(),
        );
        program(&programs.join(name), &script)?;
    }
    Ok(programs)
}

/// Writes a script that can be started.
fn program(path: &Path, script: &str) -> Outcome<()> {
    let written = fs::create_dir_all(path.parent().unwrap_or(path)).and_then(|()| {
        // Cargo compiles everything again when it is newer.
        if fs::read_to_string(path).is_ok_and(|text| text == script) {
            return Ok(());
        }
        fs::write(path, script)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
    });
    written.context(|| format!("writing `{}`", path.display()))
}

/// The files of a report, by their paths from the root.
fn files(report: &str) -> Outcome<BTreeMap<String, Lines>> {
    let unreadable = || Failure::new("the report of `llvm-cov` is not as expected");
    let report: Value = serde_json::from_str(report).map_err(|_| unreadable())?;
    let files = report
        .pointer("/data/0/files")
        .and_then(Value::as_array)
        .ok_or_else(unreadable)?;
    let mut read = BTreeMap::<String, Lines>::new();
    for file in files {
        let number = |path: &str| {
            file.pointer(path)
                .and_then(Value::as_u64)
                .ok_or_else(unreadable)
        };
        let path = file
            .get("filename")
            .and_then(Value::as_str)
            .ok_or_else(unreadable)?;
        let name = path.rsplit_once("crates/").map_or(path, |(_, below)| below);
        let lines = Lines {
            covered: number("/summary/lines/covered")?,
            count: number("/summary/lines/count")?,
        };
        read.entry(name.to_owned()).or_default().add(lines);
    }
    Ok(read)
}

/// Sums them up by the crate they belong to.
fn per_crate(files: &BTreeMap<String, Lines>) -> BTreeMap<&str, Lines> {
    let mut crates = BTreeMap::<&str, Lines>::new();
    for (name, lines) in files {
        let name = name.split('/').next().unwrap_or(name);
        crates.entry(name).or_default().add(*lines);
    }
    crates
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

/// Compares the floor with what it was in each change of `history`.
fn never_lower(floor: f64, history: &str) -> Outcome<()> {
    let added = history.lines().filter_map(|line| line.strip_prefix('+'));
    let earlier = added.filter_map(|text| text.trim().parse::<f64>().ok());
    let highest = earlier.fold(0.0, f64::max);
    if floor < highest {
        return Err(Failure::new(format!(
            "`{FLOOR_FILE}` says {floor:.2} %, and said {highest:.2} % before"
        ))
        .hint("the floor only goes up"));
    }
    Ok(())
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
        let lines = |covered, count| Lines { covered, count };
        let files = files(&report.to_string()).unwrap();
        assert_eq!(
            files,
            [
                ("atoll/src/main.rs", lines(1, 4)),
                ("atoll/src/commands/run.rs", lines(3, 4)),
                ("atoll-engine/src/lib.rs", lines(5, 5)),
            ]
            .map(|(name, lines)| (name.to_owned(), lines))
            .into()
        );
        let crates = per_crate(&files);
        assert_eq!(
            crates,
            [("atoll", lines(4, 8)), ("atoll-engine", lines(5, 5))].into()
        );
        assert!((crates["atoll"].percent() - 50.0).abs() < 1e-9);
    }

    #[test]
    fn only_a_drop_below_the_floor_fails() {
        assert!(compare(89.9, 90.0).is_err());
        assert!(compare(90.0, 90.0).is_ok());
        assert!(compare(95.0, 90.0).is_ok());
    }

    #[test]
    fn a_floor_that_was_higher_before_fails() {
        let history = "--- a/coverage-floor.txt\n+++ b/coverage-floor.txt\n@@ -1 +1 @@\n-80.0\n+85.5\n\n+80.0\n";
        assert!(never_lower(85.4, history).is_err());
        assert!(never_lower(85.5, history).is_ok());
        assert!(never_lower(0.0, "").is_ok());
    }
}
