//! `atoll run`: programs, cells and notebooks.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::{Language, SandboxArguments};
use crate::failure::Hinted;
use crate::quantity::{bytes, duration};

/// What a sandbox may live beyond the timeout of its program: copying in, cleaning up.
const LIFETIME_MARGIN: Duration = Duration::from_secs(300);

#[derive(Debug, Args)]
#[command(after_help = "\
Exit status:
  the program's own; 128 + N if signal N ended it; 124 after a timeout;
  137 when memory ran out; 125 if Atoll itself failed. Of a cell or a
  notebook: 0, or 1 after an error; `sys.exit` and Bash have their own.

Examples:
  atoll run script.py one two                  arguments go to the program
  atoll run -c 'console.log(6*7)' --lang javascript
  echo 'print(6*7)' | atoll run --lang python -
  atoll run train.py --memory 4G --cpus 2 --timeout 1h --net full
  atoll run fetch.py --net full --net-deny 0.0.0.0/0 --net-allow 192.0.2.0/24
  atoll run report.py --file data.csv:data.csv --json
  atoll run --rich plot.py                     plots become chart-1.png, …
  atoll run --rich plot.py --output plots      the same, in a directory
  atoll run --rich -c 'sum(range(10))' --lang python
  atoll run notebook.ipynb                     outputs go back into it
  atoll run notebook.ipynb --output done.ipynb --keep-going")]
pub(crate) struct RunArguments {
    /// Program to run; `-` reads it from standard input. A notebook (.ipynb) is run cell by cell.
    #[arg(value_name = "PROGRAM", required_unless_present = "code")]
    program: Option<String>,

    /// Arguments of the program.
    #[arg(
        value_name = "ARGUMENT",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    arguments: Vec<String>,

    /// Program text.
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) code: Option<String>,

    /// Language of the program [default: by the extension of its file, or what the notebook says].
    #[arg(short, long, value_enum)]
    pub(crate) lang: Option<Language>,

    /// Run it as a cell: save its plots, show its tables and its result.
    #[arg(long, help_heading = "Cells and notebooks")]
    pub(crate) rich: bool,

    /// With --rich, the directory for plots [default: here]; for a notebook, the file to write
    /// [default: the notebook itself].
    #[arg(long, short, value_name = "PATH", help_heading = "Cells and notebooks")]
    pub(crate) output: Option<PathBuf>,

    /// Run the cells of a notebook after one that failed, too.
    #[arg(long, help_heading = "Cells and notebooks")]
    pub(crate) keep_going: bool,

    /// How long the program may run.
    #[arg(long, value_parser = duration, default_value = "5m", value_name = "DURATION", help_heading = "Limits")]
    pub(crate) timeout: Duration,

    /// How much it may print.
    #[arg(long, value_parser = bytes, default_value = "256M", value_name = "SIZE", help_heading = "Limits")]
    pub(crate) max_output: u64,

    /// Print one JSON object at the end instead of live output.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArguments,
}

impl RunArguments {
    /// The file to run; `None` with `-c`, where the first word is an argument already.
    pub(crate) fn program(&self) -> Option<&Path> {
        self.program
            .as_deref()
            .filter(|_| self.code.is_none())
            .map(Path::new)
    }

    /// Everything that goes to the program.
    pub(crate) fn program_arguments(&self) -> Vec<String> {
        let first = self.program.iter().filter(|_| self.code.is_some());
        first.chain(&self.arguments).cloned().collect()
    }

    /// The notebook to run, if it is one.
    pub(crate) fn notebook(&self) -> Option<&Path> {
        self.program()
            .filter(|path| path.extension().is_some_and(|kind| kind == "ipynb"))
    }

    /// How long the sandbox lives, whoever watches.
    pub(crate) fn lifetime(&self) -> Duration {
        self.timeout.saturating_add(LIFETIME_MARGIN)
    }

    /// Refuses options that say nothing about what is to be run.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let is_notebook = self.notebook().is_some();
        let is_cell = is_notebook || self.rich;
        let (what, hint) = if self.output.is_some() && !is_cell {
            (
                "--output is for plots and notebooks",
                "add --rich, or redirect the program's output with `>`",
            )
        } else if self.keep_going && !is_notebook {
            (
                "--keep-going is for notebooks",
                "name a notebook (.ipynb), or leave it out",
            )
        } else if is_cell && !self.program_arguments().is_empty() {
            (
                "a cell has no arguments",
                "pass values with --env NAME=VALUE, or leave out --rich",
            )
        } else {
            return Ok(());
        };
        Err(Hinted::error(what, hint))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Arguments, Command};

    #[test]
    fn a_run_lives_five_minutes_longer_than_its_program_may() {
        for (timeout, lifetime) in [(vec![], 600), (vec!["--timeout", "10s"], 310)] {
            let line = [vec!["atoll", "run", "program.py"], timeout].concat();
            let Command::Run(run) = Arguments::try_parse_from(line).unwrap().command else {
                panic!("it is a run");
            };
            assert_eq!(run.lifetime(), Duration::from_secs(lifetime));
        }
    }
}
