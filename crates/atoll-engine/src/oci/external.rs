//! `runc`, or a program with the same command line.

use std::fs::{self, File};
use std::io::{self, PipeReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::OciRuntime;
use crate::bundle::SeccompBy;
use crate::host::program;

pub(crate) struct External {
    program: PathBuf,
}

impl External {
    pub(crate) fn new(program: PathBuf) -> Self {
        Self { program }
    }

    /// Runs one verb. Its output goes to a file: a container's first process
    /// inherits it, so a pipe would stay open as long as the sandbox.
    fn call(&self, state: &Path, arguments: &[&str], input: Stdio) -> io::Result<()> {
        let log = state.join("runtime.log");
        let output = File::create(&log)?;
        let mut command = Command::new(&self.program);
        command
            .arg("--root")
            .arg(state)
            .args(arguments)
            .stdin(input)
            .stdout(output.try_clone()?)
            .stderr(output);
        let status = program::status(&mut command).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("`{}`: {error}", self.program.display()),
            )
        })?;
        if status.success() {
            return Ok(());
        }
        let text = fs::read_to_string(&log).unwrap_or_default();
        Err(io::Error::other(format!(
            "`{} {}` failed: {}",
            self.program.display(),
            arguments[0],
            text.trim()
        )))
    }
}

impl OciRuntime for External {
    fn seccomp_by(&self) -> SeccompBy {
        SeccompBy::Bundle
    }

    fn create(
        &mut self,
        id: &str,
        bundle: &Path,
        state: &Path,
        lifeline: PipeReader,
    ) -> io::Result<i32> {
        let pid_file = state.join("pid");
        let (bundle, pid_path) = (bundle.display().to_string(), pid_file.display().to_string());
        self.call(
            state,
            &["create", "--bundle", &bundle, "--pid-file", &pid_path, id],
            lifeline.into(),
        )?;
        fs::read_to_string(pid_file)?
            .trim()
            .parse()
            .map_err(|_| io::Error::other("the runtime wrote no pid"))
    }

    fn start(&mut self, id: &str, state: &Path) -> io::Result<()> {
        self.call(state, &["start", id], Stdio::null())
    }
}
