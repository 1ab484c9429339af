//! Running other programs: as this user or as root, shown or read.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, BufReader, IsTerminal as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use crate::failure::{Context as _, Failure, Outcome};

/// One call of a program.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    name: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    directory: Option<PathBuf>,
    as_root: bool,
}

impl Program {
    pub(crate) fn new(name: impl AsRef<OsStr>) -> Self {
        Self {
            name: name.as_ref().to_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
            directory: None,
            as_root: false,
        }
    }

    /// The cargo that runs this task, in the workspace.
    pub(crate) fn cargo() -> Self {
        Self::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .directory(crate::workspace::root())
    }

    /// A program that needs root: through `sudo` when this user is not root.
    pub(crate) fn root(name: impl AsRef<OsStr>) -> Self {
        Self {
            as_root: true,
            ..Self::new(name)
        }
    }

    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.arguments.extend(
            arguments
                .into_iter()
                .map(|argument| argument.as_ref().to_owned()),
        );
        self
    }

    pub(crate) fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment
            .push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    pub(crate) fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Runs it with its output shown; anything but success is an error.
    pub(crate) fn run(&self) -> Outcome<()> {
        let status = self.command().status().context(|| self.cannot_start())?;
        self.expect_success(status)
    }

    /// Runs it and reads what it prints; its errors are shown.
    pub(crate) fn read(&self) -> Outcome<String> {
        let output = self
            .command()
            .stderr(Stdio::inherit())
            .output()
            .context(|| self.cannot_start())?;
        self.expect_success(output.status)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs it in silence; whether it succeeded. A program that is missing did not.
    pub(crate) fn succeeds(&self) -> bool {
        self.command()
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }

    /// Runs it, hands over each line of its output as it comes, and returns how it ended.
    pub(crate) fn each_line(&self, mut line: impl FnMut(&str)) -> Outcome<ExitStatus> {
        let mut child = self
            .command()
            .stdout(Stdio::piped())
            .spawn()
            .context(|| self.cannot_start())?;
        if let Some(output) = child.stdout.take() {
            let mut reader = BufReader::new(output);
            let mut bytes = Vec::new();
            while reader
                .read_until(b'\n', &mut bytes)
                .context(|| format!("reading from {self}"))?
                > 0
            {
                line(String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']));
                bytes.clear();
            }
        }
        child.wait().context(|| format!("waiting for {self}"))
    }

    /// As the standard library wants it.
    pub(crate) fn command(&self) -> Command {
        let mut command = if self.as_root && !is_root() {
            let mut command = Command::new("sudo");
            if !std::io::stdin().is_terminal() {
                // Nobody is there to type a password: fail instead of waiting.
                command.arg("--non-interactive");
            }
            command.arg("env");
            for (name, value) in &self.environment {
                let mut pair = name.clone();
                pair.push("=");
                pair.push(value);
                command.arg(pair);
            }
            command.arg(found(&self.name));
            command
        } else {
            let mut command = Command::new(found(&self.name));
            command.envs(self.environment.iter().map(|(name, value)| (name, value)));
            command
        };
        command.args(&self.arguments).stdin(Stdio::null());
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        command
    }

    fn expect_success(&self, status: ExitStatus) -> Outcome<()> {
        if status.success() {
            Ok(())
        } else {
            Err(Failure::new(format!("{self} ended with {status}")))
        }
    }

    fn cannot_start(&self) -> String {
        format!("cannot start {self}")
    }
}

impl std::fmt::Display for Program {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = Path::new(&self.name).file_name().unwrap_or(&self.name);
        write!(formatter, "`{}", name.to_string_lossy())?;
        for argument in &self.arguments {
            write!(formatter, " {}", argument.to_string_lossy())?;
        }
        formatter.write_str("`")
    }
}

/// Where a program lies, also where only root's `PATH` leads.
pub(crate) fn find(name: impl AsRef<OsStr>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(system)
        .map(|directory| directory.join(name.as_ref()))
        .find(|file| file.is_file())
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

fn found(name: &OsStr) -> OsString {
    if Path::new(name).components().count() > 1 {
        return name.to_owned();
    }
    find(name).map_or_else(|| name.to_owned(), PathBuf::into_os_string)
}
