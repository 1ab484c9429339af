//! Templates that come with Atoll: their specs, and the files that their copy
//! steps take.

use std::fs::{self, Permissions};
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::{SpecError, TemplateName, TemplateSpec};

const BASE: &str = include_str!("../../../../templates/base.toml");
const BASE_OFFLINE: &str = include_str!("../../../../templates/base-offline.toml");
const INTERPRETER: &str = include_str!("../../../../templates/code-interpreter-v1.toml");
const INTERPRETER_SLIM: &str = include_str!("../../../../templates/code-interpreter-v1-slim.toml");
const INTERPRETER_TINY: &str = include_str!("../../../../templates/code-interpreter-v1-tiny.toml");

/// A file of the directory `templates`, by its name there.
macro_rules! file {
    ($name:literal) => {
        (
            $name,
            include_str!(concat!("../../../../templates/", $name)),
        )
    };
}

/// What copy steps of built-in templates take.
const FILES: [(&str, &str); 14] = [
    file!("kernels/bash.mjs"),
    file!("kernels/bash/shell.mjs"),
    file!("kernels/check.py"),
    file!("kernels/javascript.mjs"),
    file!("kernels/javascript/display.mjs"),
    file!("kernels/javascript/evaluator.mjs"),
    file!("kernels/javascript/source.mjs"),
    file!("kernels/kernel.mjs"),
    file!("kernels/output.mjs"),
    file!("kernels/package.json"),
    file!("kernels/package-lock.json"),
    file!("kernels/specifications/bash.json"),
    file!("kernels/specifications/javascript.json"),
    file!("kernels/wire.mjs"),
];

/// Modes of the files and directories, whatever the mask of this process is:
/// they are part of what a step is cached by.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

/// From where a built-in template is built.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Builtin {
    /// From the mirrors of the distribution.
    #[default]
    Network,
    /// From the packages of this host: less inside, but no network needed.
    Offline,
}

/// Names of the built-in templates.
#[must_use]
pub fn builtin_names() -> &'static [&'static str] {
    &[
        "base",
        "code-interpreter-v1",
        "code-interpreter-v1-slim",
        "code-interpreter-v1-tiny",
    ]
}

/// How long a built-in template takes to build on a small machine, in
/// minutes, on top of the one that it is made from; and that one.
fn built_in_minutes(name: &str) -> Option<(RangeInclusive<u32>, Option<&'static str>)> {
    match name {
        "base" => Some((1..=2, None)),
        "code-interpreter-v1-tiny" => Some((1..=2, Some("base"))),
        "code-interpreter-v1-slim" => Some((2..=4, Some("code-interpreter-v1-tiny"))),
        "code-interpreter-v1" => Some((3..=8, Some("code-interpreter-v1-slim"))),
        _ => None,
    }
}

/// How many minutes a built-in template takes to build, with everything below
/// it that is not there yet; `None` when there is none of that name.
#[must_use]
pub fn builtin_minutes(name: &str, is_built: impl Fn(&str) -> bool) -> Option<RangeInclusive<u32>> {
    let (minutes, mut parent) = built_in_minutes(name)?;
    let (mut least, mut most) = minutes.into_inner();
    while let Some(name) = parent.filter(|name| !is_built(name)) {
        let (minutes, next) = built_in_minutes(name)?;
        least += minutes.start();
        most += minutes.end();
        parent = next;
    }
    Some(least..=most)
}

/// The spec of a built-in template; `None` when there is none of that name,
/// or none that is built from there.
pub(super) fn builtin_spec(
    name: &TemplateName,
    kind: Builtin,
) -> Option<Result<TemplateSpec, SpecError>> {
    let (text, origin) = match (name.as_str(), kind) {
        ("base", Builtin::Network) => (BASE, "templates/base.toml"),
        ("base", Builtin::Offline) => (BASE_OFFLINE, "templates/base-offline.toml"),
        ("code-interpreter-v1", Builtin::Network) => {
            (INTERPRETER, "templates/code-interpreter-v1.toml")
        }
        ("code-interpreter-v1-slim", Builtin::Network) => {
            (INTERPRETER_SLIM, "templates/code-interpreter-v1-slim.toml")
        }
        ("code-interpreter-v1-tiny", Builtin::Network) => {
            (INTERPRETER_TINY, "templates/code-interpreter-v1-tiny.toml")
        }
        _ => return None,
    };
    Some(TemplateSpec::parse(text, origin))
}

/// Writes what copy steps take into a directory.
pub(super) fn write_builtin_files(directory: &Path) -> io::Result<()> {
    for (name, text) in FILES {
        let mut place = directory.to_owned();
        for part in Path::new(name).parent().into_iter().flatten() {
            place.push(part);
            if !place.exists() {
                fs::create_dir(&place)?;
                fs::set_permissions(&place, Permissions::from_mode(DIRECTORY_MODE))?;
            }
        }
        let path = directory.join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, Permissions::from_mode(FILE_MODE))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use super::super::Source;
    use super::*;

    #[test]
    fn every_built_in_spec_is_valid_and_named_as_it_is_asked_for() {
        for name in builtin_names() {
            let name: TemplateName = name.parse().unwrap();
            for kind in [Builtin::Network, Builtin::Offline] {
                let Some(spec) = builtin_spec(&name, kind) else {
                    assert_eq!(kind, Builtin::Offline, "{name} cannot be built");
                    continue;
                };
                let spec = spec.unwrap();
                assert_eq!(spec.name, name);
                assert_eq!(
                    (spec.user.as_deref(), spec.workdir.as_deref()),
                    (Some("user"), Some("/home/user"))
                );
                // What it is made from can be built as well.
                if let Source::Template(parent) = &spec.from {
                    assert!(builtin_names().contains(&parent.as_str()), "{parent}");
                }
            }
        }
        let base = "base".parse().unwrap();
        assert!(builtin_spec(&base, Builtin::Offline).is_some());
        assert!(builtin_spec(&"moon".parse().unwrap(), Builtin::Network).is_none());
    }

    #[test]
    fn the_time_of_a_build_includes_what_it_stands_on() {
        for name in builtin_names() {
            let spec = builtin_spec(&name.parse().unwrap(), Builtin::Network);
            let parent = match spec.unwrap().unwrap().from {
                Source::Template(parent) => Some(parent.to_string()),
                _ => None,
            };
            let (_, known) = built_in_minutes(name).unwrap();
            assert_eq!(known.map(str::to_owned), parent, "{name}");
        }
        let minutes = |name, built: &[&str]| builtin_minutes(name, |name| built.contains(&name));
        assert_eq!(minutes("base", &[]), Some(1..=2));
        assert_eq!(minutes("code-interpreter-v1", &[]), Some(7..=16));
        assert_eq!(
            minutes("code-interpreter-v1", &["code-interpreter-v1-slim"]),
            Some(3..=8)
        );
        assert_eq!(minutes("moon", &[]), None);
    }

    fn files_below(directory: &Path, found: &mut BTreeSet<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files_below(&path, found);
            } else {
                found.insert(path);
            }
        }
    }

    #[test]
    fn what_is_copied_is_all_that_lies_beside_the_specs() {
        let templates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../templates");
        let mut there = BTreeSet::new();
        files_below(&templates.join("kernels"), &mut there);
        let known: BTreeSet<_> = FILES.iter().map(|(name, _)| templates.join(name)).collect();
        assert_eq!(there, known);
    }

    #[test]
    fn files_are_written_with_their_directories_and_modes() {
        let directory = tempfile::tempdir().unwrap();
        write_builtin_files(directory.path()).unwrap();
        for (name, text) in FILES {
            let path = directory.path().join(name);
            assert_eq!(fs::read_to_string(&path).unwrap(), text, "{name}");
            let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(&path), FILE_MODE, "{name}");
            assert_eq!(mode(path.parent().unwrap()), DIRECTORY_MODE, "{name}");
        }
    }
}
