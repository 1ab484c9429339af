//! The command line: names, defaults, help and examples.

use std::path::{Path, PathBuf};
use std::time::Duration;

use atoll_engine::{Limits, NetworkMode};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::quantity::{bytes, cpu_millis, duration, duration_or_none, mebibytes};

/// Run untrusted code in strong isolation, on your own machine.
#[derive(Debug, Parser)]
#[command(
    name = "atoll",
    version,
    propagate_version = true,
    max_term_width = 100,
    after_help = "\
Examples:
  atoll run script.py                          run a program, pass its exit code on
  atoll run -c 'print(6*7)' --lang python      run a line of code
  atoll shell                                  a terminal in a fresh sandbox
  atoll doctor                                 what this host offers, and what is missing"
)]
pub(crate) struct Arguments {
    /// Where Atoll keeps its data [default: /var/lib/atoll as root, else ~/.atoll].
    #[arg(long, env = "ATOLL_HOME", global = true, value_name = "DIRECTORY")]
    pub(crate) home: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program in a fresh sandbox and show its output.
    Run(RunArguments),
    /// Open a terminal in a fresh sandbox.
    Shell(ShellArguments),
    /// Build, list, inspect and remove templates.
    #[command(subcommand)]
    Template(TemplateCommand),
    /// Make, list, revoke and rotate API keys.
    #[command(subcommand)]
    Key(KeyCommand),
    /// Tell what isolation this host offers and how to add what is missing.
    Doctor(DoctorArguments),
    /// Remove what is not needed any more.
    Gc(GcArguments),
    /// Print a completion script for a shell.
    #[command(after_help = "Example:\n  atoll completions bash > /etc/bash_completion.d/atoll")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Language {
    #[value(alias = "py", alias = "python3")]
    Python,
    #[value(alias = "js", alias = "node")]
    Javascript,
    #[value(alias = "sh", alias = "shell")]
    Bash,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Network {
    /// A loopback interface and nothing else.
    None,
    /// The internet; private ranges, this host and other sandboxes closed.
    Full,
}

impl From<Network> for NetworkMode {
    fn from(network: Network) -> Self {
        match network {
            Network::None => Self::None,
            Network::Full => Self::Full,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Isolation {
    /// The strongest that works on this host.
    Auto,
    /// Namespaces, seccomp and cgroups on the host's kernel.
    Container,
}

/// What a sandbox is made of, the same for every command that makes one.
#[derive(Debug, Args)]
pub(crate) struct SandboxArguments {
    /// Template to start from.
    #[arg(long, short, default_value = "base", value_name = "NAME")]
    pub(crate) template: String,

    /// How the sandbox is kept apart from the host.
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) isolation: Isolation,

    /// Memory, for example 512M or 2G [default: 1G].
    #[arg(long, value_parser = mebibytes, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) memory: Option<u64>,

    /// CPUs, for example 2 or 0.5 [default: 2].
    #[arg(long, value_parser = cpu_millis, value_name = "NUMBER", help_heading = "Limits")]
    pub(crate) cpus: Option<u64>,

    /// Size of the writable disk [default: 4G].
    #[arg(long, value_parser = mebibytes, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) disk: Option<u64>,

    /// Files and directories on the writable disk [default: by its size].
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    pub(crate) inodes: Option<u64>,

    /// Processes and threads at once [default: 1024].
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    pub(crate) pids: Option<u64>,

    /// Open files of one process [default: 16384].
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    pub(crate) open_files: Option<u64>,

    /// What the sandbox can reach.
    #[arg(long, value_enum, default_value = "none")]
    pub(crate) net: Network,

    /// Environment variable; without a value it is taken from your environment.
    #[arg(long = "env", short, value_name = "NAME[=VALUE]")]
    pub(crate) environment: Vec<String>,

    /// File or directory to copy in; a relative target is below /home/user.
    #[arg(long = "file", short, value_name = "SOURCE:TARGET")]
    pub(crate) files: Vec<String>,
}

impl SandboxArguments {
    /// What was asked for; the rest as in `default`.
    pub(crate) fn limits(&self, default: &Limits) -> Limits {
        Limits {
            memory_mib: self.memory.unwrap_or(default.memory_mib),
            cpu_millis: self.cpus.unwrap_or(default.cpu_millis),
            pids: self.pids.unwrap_or(default.pids),
            disk_mib: self.disk.unwrap_or(default.disk_mib),
            inodes: self.inodes.or(default.inodes),
            open_files: self.open_files.unwrap_or(default.open_files),
            shm_mib: default.shm_mib,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exit status:
  the program's own; 128 + N if signal N ended it; 124 after a timeout;
  137 when memory ran out; 125 if Atoll itself failed.

Examples:
  atoll run script.py one two                  arguments go to the program
  atoll run -c 'console.log(6*7)' --lang javascript
  echo 'print(6*7)' | atoll run --lang python -
  atoll run train.py --memory 4G --cpus 2 --timeout 1h --net full
  atoll run report.py --file data.csv:data.csv --json")]
pub(crate) struct RunArguments {
    /// Program to run; `-` reads it from standard input.
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

    /// Language of the program [default: by the extension of its file].
    #[arg(short, long, value_enum)]
    pub(crate) lang: Option<Language>,

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
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  atoll shell
  atoll shell --net full --memory 2G --file ./project:project")]
pub(crate) struct ShellArguments {
    /// How long the sandbox may live.
    #[arg(long, value_parser = duration, default_value = "24h", value_name = "DURATION", help_heading = "Limits")]
    pub(crate) timeout: Duration,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArguments,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    /// Build a template from a spec file, or one of the built-in ones by name.
    Build(BuildArguments),
    /// List templates.
    #[command(alias = "ls")]
    List {
        /// Print a JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Show everything about one template.
    Inspect {
        /// Its name.
        name: String,
    },
    /// Remove a template and the layers that no other one uses.
    #[command(alias = "remove")]
    Rm {
        /// Its name.
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key and print it, this once.
    Create(KeyCreateArguments),
    /// List keys.
    #[command(alias = "ls")]
    List {
        /// Only those of this tenant.
        #[arg(long, value_name = "NAME")]
        tenant: Option<String>,

        /// Print a JSON array.
        #[arg(long)]
        json: bool,
    },
    /// End a key, its tokens and what it has open, at once.
    Revoke {
        /// Its id, or its name if no other active key has it.
        key: String,
    },
    /// Make a key in the place of another and print it, this once.
    Rotate {
        /// Id of the old key, or its name if no other active key has it.
        key: String,

        /// How long the old one still works; 0 ends it now.
        #[arg(long, value_parser = duration_or_none, default_value = "1h", value_name = "DURATION")]
        grace: Duration,

        /// Print a JSON object.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  atoll key create --name laptop
  atoll key create --name ci --tenant build --expires 30d --json
  export E2B_API_KEY=$(atoll key create --name ci)")]
pub(crate) struct KeyCreateArguments {
    /// What to call it.
    #[arg(long, default_value = "default", value_name = "NAME")]
    pub(crate) name: String,

    /// Whom it stands for; made if there is no tenant of that name.
    #[arg(long, default_value = atoll_control::identity::DEFAULT_TENANT, value_name = "NAME")]
    pub(crate) tenant: String,

    /// How long it works, for example 30d [default: until it is revoked].
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) expires: Option<Duration>,

    /// Print a JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  atoll template build base                    the built-in template
  atoll template build base --offline          the same from this host's packages
  atoll template build ./data-science.toml     from a spec file
  atoll template build base --no-cache         every step anew")]
pub(crate) struct BuildArguments {
    /// Spec file, or the name of a built-in template.
    pub(crate) spec: String,

    /// Run every step again, also those that are cached.
    #[arg(long)]
    pub(crate) no_cache: bool,

    /// Build a built-in template from packages of this host, without the network.
    #[arg(long)]
    pub(crate) offline: bool,

    /// Print events as JSON, one a line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Print a JSON array of checks.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GcArguments {
    /// Say what would be removed, and remove nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Forget sandboxes that ended longer ago than this.
    #[arg(long, value_parser = duration, default_value = "168h", value_name = "DURATION")]
    pub(crate) older_than: Duration,

    /// Print a JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn help_names_the_limits_that_are_in_force() {
        let mut command = Arguments::command();
        let run = command.find_subcommand_mut("run").unwrap();
        let help = run.render_long_help().to_string();
        let limits = Limits::default();
        for expected in [
            format!("512M or 2G [default: {}G]", limits.memory_mib / 1024),
            format!("2 or 0.5 [default: {}]", limits.cpu_millis / 1000),
            format!("writable disk [default: {}G]", limits.disk_mib / 1024),
            format!("at once [default: {}]", limits.pids),
            format!("one process [default: {}]", limits.open_files),
        ] {
            assert!(help.contains(&expected), "{expected}");
        }
    }
}
