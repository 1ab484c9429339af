//! A package from Debian's backports, without changing where this machine gets
//! its packages from.
//!
//! The machine's own apt source, with the suite changed, is written to a
//! directory of its own that only this one call of `apt-get` reads. Nothing
//! else can be upgraded from there, now or later.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::{Context as _, Failure, Outcome};
use crate::program::Program;
use crate::progress::step;

const SOURCES: &str = "/etc/apt";

/// Installs `package` from the backports of the Debian release `codename`.
pub(crate) fn install(package: &str, codename: &str) -> Outcome<()> {
    let source = backports(&own_sources(Path::new(SOURCES)), codename).ok_or_else(|| {
        Failure::new(format!(
            "no apt source of this machine names the suite `{codename}`"
        ))
        .hint(format!(
            "install `{package}` from {codename}-backports by hand"
        ))
    })?;
    step(format_args!(
        "installing {package} from {codename}-backports"
    ));
    let place = std::env::temp_dir().join(format!("atoll-backports-{}", std::process::id()));
    let installed = write(&place, &source).and_then(|()| run(&place, package));
    // As root: apt's own files are in it.
    let removed = Program::root("rm").args(["-rf", "--"]).arg(&place).run();
    installed.and(removed)
}

fn write(place: &Path, source: &str) -> Outcome<()> {
    for directory in ["parts", "lists/partial"] {
        fs::create_dir_all(place.join(directory))
            .context(|| format!("cannot make `{}`", place.display()))?;
    }
    let file = place.join("parts/backports.sources");
    fs::write(&file, source).context(|| format!("cannot write `{}`", file.display()))
}

fn run(place: &Path, package: &str) -> Outcome<()> {
    let apt = || {
        let option = |name: &str, value: &str| format!("{name}={}", place.join(value).display());
        Program::root("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["--quiet", "-o"])
            .arg(option("Dir::Etc::sourcelist", "none"))
            .arg("-o")
            .arg(option("Dir::Etc::sourceparts", "parts"))
            .arg("-o")
            .arg(option("Dir::State::lists", "lists"))
    };
    apt().arg("update").run()?;
    apt()
        .args(["install", "--yes", "--no-install-recommends", package])
        .run()
}

/// Every apt source of this machine, as text.
fn own_sources(directory: &Path) -> Vec<String> {
    let parts = fs::read_dir(directory.join("sources.list.d"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let named = |path: &PathBuf| {
        path.extension()
            .is_some_and(|extension| extension == "sources" || extension == "list")
    };
    let mut files: Vec<PathBuf> = parts.filter(named).collect();
    files.sort();
    files.push(directory.join("sources.list"));
    files
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .collect()
}

/// The first source of `codename` itself, with its suite changed.
fn backports(sources: &[String], codename: &str) -> Option<String> {
    sources
        .iter()
        .find_map(|text| from_stanzas(text, codename).or_else(|| from_lines(text, codename)))
}

/// Of the newer format: fields, one a line, stanzas apart by an empty line.
fn from_stanzas(text: &str, codename: &str) -> Option<String> {
    text.split("\n\n").find_map(|stanza| {
        let suites = stanza
            .lines()
            .find_map(|line| line.strip_prefix("Suites:"))?;
        suites
            .split_whitespace()
            .any(|suite| suite == codename)
            .then(|| {
                let mut changed = String::new();
                for line in stanza.lines().filter(|line| !line.starts_with('#')) {
                    let line = if line.starts_with("Suites:") {
                        format!("Suites: {codename}-backports")
                    } else {
                        line.to_owned()
                    };
                    let _ = writeln!(changed, "{line}");
                }
                changed
            })
    })
}

/// Of the older format, `deb [options] address suite components…`, as a stanza of the newer one.
fn from_lines(text: &str, codename: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let rest = line.trim().strip_prefix("deb ")?.trim();
        let (options, rest) = match rest.strip_prefix('[') {
            Some(rest) => rest.split_once(']')?,
            None => ("", rest),
        };
        let mut words = rest.split_whitespace();
        let (address, suite) = (words.next()?, words.next()?);
        if suite != codename {
            return None;
        }
        let components: Vec<&str> = words.collect();
        let mut stanza = format!(
            "Types: deb\nURIs: {address}\nSuites: {codename}-backports\nComponents: {}\n",
            components.join(" ")
        );
        let signed = options
            .split_whitespace()
            .find_map(|option| option.strip_prefix("signed-by="));
        if let Some(signed) = signed {
            let _ = writeln!(stanza, "Signed-By: {signed}");
        }
        Some(stanza)
    })
}

/// The codename of this machine's Debian, if it is one.
pub(crate) fn codename() -> Option<String> {
    let text = fs::read_to_string("/etc/os-release").ok()?;
    let value = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .map(|value| value.trim_matches('"').to_owned())
    };
    (value("ID")? == "debian").then(|| value("VERSION_CODENAME"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_source_is_copied_with_another_suite() {
        let stanzas = "Types: deb\n# a note\nURIs: http://security.example/\nSuites: bookworm-security\nComponents: main\n\nTypes: deb\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\nComponents: main\nSigned-By: /key.gpg\n";
        let expected = "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm-backports\nComponents: main\nSigned-By: /key.gpg\n";
        assert_eq!(
            backports(&[stanzas.to_owned()], "bookworm").as_deref(),
            Some(expected)
        );
        let lines = "# deb http://no.example bookworm main\ndeb-src http://mirror.example/debian bookworm main\ndeb [arch=amd64 signed-by=/key.gpg] http://mirror.example/debian bookworm main\n";
        assert_eq!(
            backports(&[lines.to_owned()], "bookworm").as_deref(),
            Some(expected)
        );
        assert_eq!(backports(&[stanzas.to_owned()], "trixie"), None);
    }
}
