//! One step of a build.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

/// What one step does. Its serialised form is part of the key of the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Runs a command with `/bin/bash -l -c`.
    Run {
        /// The command.
        command: String,
        /// Its user, when not the one in force.
        user: Option<String>,
    },
    /// Copies files from beside the spec.
    Copy {
        /// File or directory, relative to the directory of the spec.
        from: PathBuf,
        /// Where to: absolute, or relative to the directory in force. A
        /// file goes below it when it ends with `/`.
        to: String,
        /// Their owner, when not the user in force.
        user: Option<String>,
    },
    /// Adds to the environment.
    Env(BTreeMap<String, String>),
    /// Changes the user in force.
    User(String),
    /// Changes the directory in force and makes it if missing.
    Workdir(String),
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run { command, .. } => {
                let mut lines = command.lines().map(str::trim).filter(|line| {
                    !line.is_empty() && !line.starts_with('#') && !line.starts_with("set -")
                });
                let first: String = lines.next().unwrap_or_default().chars().take(100).collect();
                write!(
                    out,
                    "run {first}{}",
                    if lines.next().is_some() { " …" } else { "" }
                )
            }
            Self::Copy { from, to, .. } => write!(out, "copy {} to {to}", from.display()),
            Self::Env(variables) => {
                let names: Vec<_> = variables.keys().map(String::as_str).collect();
                write!(out, "env {}", names.join(" "))
            }
            Self::User(user) => write!(out, "user {user}"),
            Self::Workdir(directory) => write!(out, "workdir {directory}"),
        }
    }
}
