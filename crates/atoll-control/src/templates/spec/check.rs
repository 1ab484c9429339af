//! What values the fields of a spec may have.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use toml::Spanned;

use super::{RawStep, Source, SpecError};
use crate::templates::Step;

/// Where a message points to.
pub(super) struct Check<'text> {
    pub(super) text: &'text str,
    pub(super) origin: &'text str,
}

impl Check<'_> {
    pub(super) fn field<Raw, Checked>(
        &self,
        field: &str,
        value: &Spanned<Raw>,
        check: impl FnOnce(&Raw) -> Result<Checked, String>,
    ) -> Result<Checked, SpecError> {
        check(value.get_ref()).map_err(|problem| SpecError::Field {
            origin: self.origin.to_owned(),
            line: self.line(&value.span()),
            field: field.to_owned(),
            problem,
        })
    }

    fn line(&self, span: &Range<usize>) -> usize {
        self.text
            .bytes()
            .take(span.start)
            .filter(|byte| *byte == b'\n')
            .count()
            + 1
    }
}

pub(super) fn checked_source(source: &Source, name: &Spanned<String>) -> Result<Source, String> {
    match source {
        Source::Debian(debian) => {
            for package in &debian.packages {
                let allowed = |byte: u8| {
                    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte)
                };
                let starts = package
                    .bytes()
                    .next()
                    .is_some_and(|byte| byte.is_ascii_alphanumeric());
                if !starts || !package.bytes().all(allowed) {
                    return Err(format!(
                        "has `{package}`, which is not the name of a package"
                    ));
                }
            }
        }
        Source::Template(parent) if parent.as_str() == name.get_ref() => {
            return Err("names the template itself".to_owned());
        }
        Source::Host | Source::Template(_) => {}
    }
    Ok(source.clone())
}

pub(super) fn checked_env(
    env: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, String> {
    for (name, value) in env {
        let valid = !name.is_empty()
            && !name.starts_with(|first: char| first.is_ascii_digit())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !valid {
            return Err(format!("has `{name}`, which is not the name of a variable"));
        }
        if value.contains('\0') {
            return Err(format!("has a zero byte in `{name}`"));
        }
    }
    Ok(env.clone())
}

pub(super) fn checked_user(user: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let valid = (1..=32).contains(&user.len())
        && user.bytes().all(allowed)
        && !user.starts_with(['-', '.']);
    if valid {
        Ok(user.to_owned())
    } else {
        Err(format!(
            "is `{}`, which is not the name of a user",
            user.escape_debug()
        ))
    }
}

pub(super) fn checked_directory(path: &str) -> Result<String, String> {
    let climbs = Path::new(path)
        .components()
        .any(|part| part == Component::ParentDir);
    if !path.starts_with('/') || climbs || path.contains('\0') || path.len() > 4000 {
        return Err(format!(
            "is `{}`, but must be an absolute path without `..`",
            path.escape_debug()
        ));
    }
    Ok(path.to_owned())
}

pub(super) fn checked_step(step: &RawStep) -> Result<Step, String> {
    let user = step.user.as_deref().map(checked_user).transpose()?;
    match step {
        RawStep {
            run: Some(command),
            copy: None,
            env: None,
            workdir: None,
            ..
        } => {
            if command.trim().is_empty() || command.contains('\0') {
                return Err("has an empty `run`".to_owned());
            }
            Ok(Step::Run {
                command: command.clone(),
                user,
            })
        }
        RawStep {
            run: None,
            copy: Some(copy),
            env: None,
            workdir: None,
            ..
        } => {
            let from = checked_context_path(&copy.from)?;
            let climbs = Path::new(&copy.to)
                .components()
                .any(|part| part == Component::ParentDir);
            if copy.to.is_empty() || climbs || copy.to.contains('\0') {
                return Err(format!(
                    "copies to `{}`, but that must be a path without `..`",
                    copy.to.escape_debug()
                ));
            }
            Ok(Step::Copy {
                from,
                to: copy.to.clone(),
                user,
            })
        }
        RawStep {
            run: None,
            copy: None,
            env: Some(env),
            user: None,
            workdir: None,
        } => checked_env(env).map(Step::Env),
        RawStep {
            run: None,
            copy: None,
            env: None,
            workdir: Some(path),
            user: None,
        } => checked_directory(path).map(Step::Workdir),
        RawStep {
            run: None,
            copy: None,
            env: None,
            workdir: None,
            user: Some(_),
        } => user.map(Step::User).ok_or_else(|| "has no user".to_owned()),
        _ => Err(
            "must have exactly one of `run`, `copy`, `env`, `user` and `workdir` \
                  (`user` may stand beside `run` and `copy`)"
                .to_owned(),
        ),
    }
}

fn checked_context_path(from: &str) -> Result<PathBuf, String> {
    let path = Path::new(from);
    let inside = path
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if from.is_empty() || !inside || from.contains('\0') {
        return Err(format!(
            "copies `{}`, but files come from the directory of the spec only",
            from.escape_debug()
        ));
    }
    Ok(path.to_owned())
}
