//! `atoll repl`: names, defaults, help and examples.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::SandboxArguments;
use crate::cells::Language;
use crate::quantity::{bytes, duration};

#[derive(Debug, Args)]
#[command(after_help = "\
What is typed runs as a cell once it is whole; a block ends with an empty line. Names stay from
one cell to the next. Ctrl-C interrupts a cell and keeps them, Ctrl-D ends. `:restart` begins
with an empty kernel, `:help` says the same again.

Without a terminal it reads cells from standard input, and exits with 1 if one of them failed.

Examples:
  atoll repl
  atoll repl --lang javascript --output plots
  atoll repl --file data.csv:data.csv --net full
  atoll repl < analysis.py")]
pub(crate) struct ReplArguments {
    /// Language: python, javascript, typescript, bash, r, java, or the name of a kernel.
    #[arg(short, long, default_value = "python", value_name = "LANGUAGE")]
    pub(crate) lang: Language,

    /// Directory for plots [default: here].
    #[arg(long, short, value_name = "DIRECTORY")]
    pub(crate) output: Option<PathBuf>,

    /// How long the sandbox may live.
    #[arg(long, value_parser = duration, default_value = "24h", value_name = "DURATION", help_heading = "Limits")]
    pub(crate) timeout: Duration,

    /// How much one cell may print and show.
    #[arg(long, value_parser = bytes, default_value = "256M", value_name = "SIZE", help_heading = "Limits")]
    pub(crate) max_output: u64,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArguments,
}
