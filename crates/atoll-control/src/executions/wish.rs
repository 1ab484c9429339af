//! What is to be run, checked before a sandbox hears of it.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_engine::Tier;
use atoll_guest_client::{CodeToRun, Command};
use atoll_store::db::{Execution, ExecutionId, ExecutionStatus};

use super::Place;
use crate::identity::{Caller, now_ms};

/// Longest code or command.
pub const CODE_BYTES_MAX: usize = 1024 * 1024;
/// Longest time that an execution may take.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// How long one may take when nothing is said.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(300);
/// Most output of an execution, and how much it is when nothing is said.
pub const OUTPUT_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// See [`OUTPUT_BYTES_MAX`].
pub const OUTPUT_BYTES_DEFAULT: u64 = 16 * 1024 * 1024;
/// Most packages at once.
const PACKAGES_MAX: usize = 100;
/// Longest name of a package, with its version.
const PACKAGE_LEN_MAX: usize = 200;
/// Longest name of a language, a user, a context.
const NAME_LEN_MAX: usize = 128;
/// Longest path.
const PATH_LEN_MAX: usize = 4096;
/// Most bytes of variables, names and values together.
const ENVIRONMENT_BYTES_MAX: usize = 256 * 1024;

/// Kind of the executions that are processes in the background.
pub(super) const PROCESS: &str = "process";

/// Who installs packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackageManager {
    /// Python's.
    Pip,
    /// Node's.
    Npm,
    /// Debian's, as root.
    Apt,
}

/// What is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Code in a kernel, which keeps its state.
    Code {
        /// The code.
        text: String,
        /// Its language; Python when absent.
        language: Option<String>,
        /// The context that it runs in.
        context: Option<String>,
    },
    /// A line for a shell.
    Command {
        /// The line.
        line: String,
    },
    /// A line for a shell, in the background, which can be written to.
    Process {
        /// The line.
        line: String,
    },
    /// Packages to install.
    Packages {
        /// By whom.
        manager: PackageManager,
        /// Their names, with versions as the manager writes them.
        names: Vec<String>,
    },
}

/// What is to be run, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionWish {
    /// What.
    pub work: Work,
    /// Variables that win over the sandbox's.
    pub environment: BTreeMap<String, String>,
    /// Where a command begins.
    pub cwd: Option<String>,
    /// As whom a command runs.
    pub user: Option<String>,
    /// When it is ended; never, if absent.
    pub timeout: Option<Duration>,
    /// How much it may say before it is ended.
    pub output_bytes: u64,
}

/// Why something cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidExecution {
    /// Nothing to run.
    #[error("there is nothing to run: the code or command is empty")]
    Empty,
    /// More text than anybody runs.
    #[error("'{what}' has more than {limit} bytes")]
    TooLong {
        /// Of what.
        what: &'static str,
        /// How much there may be.
        limit: usize,
    },
    /// A time that is none.
    #[error("a timeout lies between 1 ms and 24 hours")]
    Timeout,
    /// No output at all, or more than anybody takes.
    #[error("'output_bytes' lies between 1 and {OUTPUT_BYTES_MAX}")]
    Output,
    /// A variable that no command could have.
    #[error("'{0}' cannot be an environment variable")]
    Variable(String),
    /// Something that code in a kernel does not have.
    #[error("'{0}' is for commands; code runs where its context began, as the sandbox's user")]
    NotForCode(&'static str),
    /// A context has one language.
    #[error("name a context or a language, and not both: a context has one language")]
    ContextAndLanguage,
    /// A text with a NUL, or one that is no name.
    #[error("'{0}' cannot have that value")]
    Value(&'static str),
    /// A package that no manager knows by that name.
    #[error("'{0}' cannot be the name of a package")]
    Package(String),
    /// No packages, or too many at once.
    #[error("1 to {PACKAGES_MAX} packages can be installed at once")]
    Packages,
}

impl PackageManager {
    /// What runs.
    fn command(self, names: &[String]) -> Command {
        let (cmd, args): (&str, &[&str]) = match self {
            Self::Pip => (
                "python3",
                &[
                    "-m",
                    "pip",
                    "install",
                    "--no-input",
                    "--disable-pip-version-check",
                    "--",
                ],
            ),
            Self::Npm => ("npm", &["install", "--no-audit", "--no-fund", "--"]),
            // A fresh template has no lists of packages.
            Self::Apt => (
                "/bin/sh",
                &[
                    "-c",
                    "apt-get update -qq && exec apt-get install -y --no-install-recommends -- \"$@\"",
                    "apt-get",
                ],
            ),
        };
        let mut args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        args.extend_from_slice(names);
        Command {
            cmd: cmd.to_owned(),
            args,
            ..Command::default()
        }
    }

    /// In one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pip => "pip",
            Self::Npm => "npm",
            Self::Apt => "apt",
        }
    }
}

/// What the guest is asked for.
pub(super) enum Asked {
    Code(CodeToRun),
    Command(Box<Command>),
}

impl Work {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Code { .. } => "code",
            Self::Command { .. } => "command",
            Self::Process { .. } => PROCESS,
            Self::Packages { .. } => "packages",
        }
    }

    /// What it is known by in the history.
    fn text(&self) -> String {
        match self {
            Self::Code { text, .. } => text.clone(),
            Self::Command { line } | Self::Process { line } => line.clone(),
            Self::Packages { names, .. } => names.join(" "),
        }
    }
}

impl ExecutionWish {
    /// The usual bounds around `work`.
    #[must_use]
    pub fn new(work: Work) -> Self {
        Self {
            work,
            environment: BTreeMap::new(),
            cwd: None,
            user: None,
            timeout: Some(TIMEOUT_DEFAULT),
            output_bytes: OUTPUT_BYTES_DEFAULT,
        }
    }

    /// Refuses what cannot be.
    ///
    /// # Errors
    /// With what it is.
    pub fn check(&self) -> Result<(), InvalidExecution> {
        self.check_work()?;
        if self
            .timeout
            .is_some_and(|time| time < Duration::from_millis(1) || time > TIMEOUT_MAX)
        {
            return Err(InvalidExecution::Timeout);
        }
        if !(1..=OUTPUT_BYTES_MAX).contains(&self.output_bytes) {
            return Err(InvalidExecution::Output);
        }
        within("cwd", self.cwd.as_deref(), PATH_LEN_MAX)?;
        within("user", self.user.as_deref(), NAME_LEN_MAX)?;
        let variables = self.environment.iter();
        let bytes: usize = variables
            .map(|(name, value)| name.len() + value.len())
            .sum();
        if bytes > ENVIRONMENT_BYTES_MAX {
            return Err(InvalidExecution::TooLong {
                what: "environment",
                limit: ENVIRONMENT_BYTES_MAX,
            });
        }
        for (name, value) in &self.environment {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(InvalidExecution::Variable(name.chars().take(100).collect()));
            }
        }
        Ok(())
    }

    fn check_work(&self) -> Result<(), InvalidExecution> {
        match &self.work {
            Work::Code {
                text,
                language,
                context,
            } => {
                filled("code", text)?;
                within("language", language.as_deref(), NAME_LEN_MAX)?;
                within("context_id", context.as_deref(), NAME_LEN_MAX)?;
                if language.is_some() && context.is_some() {
                    return Err(InvalidExecution::ContextAndLanguage);
                }
                match (&self.cwd, &self.user) {
                    (Some(_), _) => Err(InvalidExecution::NotForCode("cwd")),
                    (None, Some(_)) => Err(InvalidExecution::NotForCode("user")),
                    (None, None) => Ok(()),
                }
            }
            Work::Command { line } | Work::Process { line } => {
                filled("command", line)?;
                if line.contains('\0') {
                    return Err(InvalidExecution::Value("command"));
                }
                Ok(())
            }
            Work::Packages { names, .. } => {
                if !(1..=PACKAGES_MAX).contains(&names.len()) {
                    return Err(InvalidExecution::Packages);
                }
                let wrong = names.iter().find(|name| !is_package(name));
                wrong.map_or(Ok(()), |name| {
                    let shown = name.chars().take(100).collect();
                    Err(InvalidExecution::Package(shown))
                })
            }
        }
    }

    /// What of the guest is asked for.
    pub(super) fn asked(&self) -> Asked {
        let command = |command: Command| {
            Asked::Command(Box::new(Command {
                envs: self.environment.clone(),
                cwd: self.cwd.clone(),
                user: command.user.or_else(|| self.user.clone()),
                timeout: self.timeout,
                ..command
            }))
        };
        let shell = |line: &str, stdin: bool| Command {
            cmd: "/bin/bash".to_owned(),
            args: ["-l", "-c", line].map(str::to_owned).to_vec(),
            stdin,
            ..Command::default()
        };
        match &self.work {
            Work::Code {
                text,
                language,
                context,
            } => Asked::Code(CodeToRun {
                text: text.clone(),
                context: context.clone(),
                language: language.clone(),
                envs: self.environment.clone(),
            }),
            Work::Command { line } => command(shell(line, false)),
            Work::Process { line } => command(shell(line, true)),
            Work::Packages { manager, names } => {
                let installing = manager.command(names);
                match manager {
                    PackageManager::Apt => command(Command {
                        user: Some("root".to_owned()),
                        ..installing
                    }),
                    PackageManager::Pip | PackageManager::Npm => command(installing),
                }
            }
        }
    }

    /// What the history knows when it begins.
    pub(super) fn first_row(
        &self,
        id: ExecutionId,
        caller: &Caller,
        place: &Place,
        tier: Tier,
    ) -> Execution {
        let text = self.work.text();
        let language = match &self.work {
            Work::Code {
                language, context, ..
            } => match (language, context) {
                (Some(language), _) => Some(language.clone()),
                // Its context knows.
                (None, Some(_)) => None,
                (None, None) => Some("python".to_owned()),
            },
            Work::Packages { manager, .. } => Some(manager.as_str().to_owned()),
            Work::Command { .. } | Work::Process { .. } => Some("bash".to_owned()),
        };
        Execution {
            execution_id: id,
            tenant_id: caller.tenant,
            key_id: caller.key,
            agent_id: caller.agent_id.clone(),
            task_id: caller.task_id.clone().or_else(|| place.task_id.clone()),
            session_id: place.session.map(|session| session.to_string()),
            sandbox_id: place.sandbox.id.to_string(),
            template_id: place.template_id.clone(),
            tier: tier.to_string(),
            kind: self.work.kind().to_owned(),
            language,
            digest: format!("blake3:{}", blake3::hash(text.as_bytes()).to_hex()),
            code_bytes: i64::try_from(text.len()).unwrap_or(i64::MAX),
            status: ExecutionStatus::Running,
            outcome: None,
            exit_code: None,
            report: "{}".to_owned(),
            stdout_bytes: 0,
            stderr_bytes: 0,
            created_at_ms: now_ms(),
            ended_at_ms: None,
            duration_ms: None,
            cpu_usec: None,
            memory_peak_bytes: None,
        }
    }
}

fn filled(what: &'static str, text: &str) -> Result<(), InvalidExecution> {
    if text.trim().is_empty() {
        return Err(InvalidExecution::Empty);
    }
    if text.len() > CODE_BYTES_MAX {
        return Err(InvalidExecution::TooLong {
            what,
            limit: CODE_BYTES_MAX,
        });
    }
    Ok(())
}

fn within(what: &'static str, text: Option<&str>, limit: usize) -> Result<(), InvalidExecution> {
    let is_fine = text.is_none_or(|text| (1..=limit).contains(&text.len()) && !text.contains('\0'));
    if is_fine {
        Ok(())
    } else {
        Err(InvalidExecution::Value(what))
    }
}

/// A name that is no option, and whose manager reads it as one name.
fn is_package(name: &str) -> bool {
    (1..=PACKAGE_LEN_MAX).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '@')
        && name
            .chars()
            .all(|one| one.is_ascii_alphanumeric() || "@/._-+=<>!~^,[]:".contains(one))
        && !name.contains("://")
        && !name.contains("..")
        // With which apt takes a package away.
        && !name.ends_with('-')
}

#[cfg(test)]
mod tests;
