//! Commands that ask a server: names, defaults, help and examples.

use std::time::Duration;

use clap::{Args, Subcommand};

use crate::quantity::{duration, duration_or_none};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  atoll ps
  atoll ps --metadata user=ada --json")]
pub(crate) struct PsArguments {
    /// Only sandboxes with this written on them; repeatable.
    #[arg(long, short, value_name = "NAME=VALUE")]
    pub(crate) metadata: Vec<String>,

    /// Only sandboxes of this template.
    #[arg(long, short, value_name = "NAME")]
    pub(crate) template: Option<String>,

    /// Print a JSON array.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  atoll pool
  atoll pool --json")]
pub(crate) struct PoolArguments {
    /// Print a JSON array.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  atoll create
  atoll create base --timeout 1h --env TOKEN --metadata user=ada
  ID=$(atoll create) && atoll exec $ID -- python3 -c 'print(6*7)'")]
pub(crate) struct CreateArguments {
    /// Template to start from.
    #[arg(default_value = "base", value_name = "TEMPLATE")]
    pub(crate) template: String,

    /// How long it lives [default: the server's].
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) timeout: Option<Duration>,

    /// Environment variable; without a value it is taken from your environment.
    #[arg(long = "env", short, value_name = "NAME[=VALUE]")]
    pub(crate) environment: Vec<String>,

    /// What to write on it, to find it again; repeatable.
    #[arg(long, short, value_name = "NAME=VALUE")]
    pub(crate) metadata: Vec<String>,

    /// Pause it at the end of its time, instead of ending it.
    #[arg(long)]
    pub(crate) auto_pause: bool,

    /// Let traffic wake it up when it is paused.
    #[arg(long)]
    pub(crate) auto_resume: bool,

    /// Keep it from the internet.
    #[arg(long, help_heading = "Network")]
    pub(crate) no_internet: bool,

    /// Address or CIDR it may reach whatever is denied; repeatable.
    #[arg(long, value_name = "CIDR", help_heading = "Network")]
    pub(crate) allow_out: Vec<String>,

    /// Address or CIDR it may not reach; repeatable.
    #[arg(long, value_name = "CIDR", help_heading = "Network")]
    pub(crate) deny_out: Vec<String>,

    /// Let only holders of its traffic token reach its ports.
    #[arg(long, help_heading = "Network")]
    pub(crate) private: bool,

    /// Print a JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Standard input goes to the command unless it is a terminal.

Exit status:
  the command's own; 128 + N if signal N ended it; 124 after a timeout;
  125 if Atoll itself failed.

Examples:
  atoll exec $ID -- python3 -c 'print(6*7)'
  atoll exec $ID --user root -- apt-get install -y jq
  cat data.csv | atoll exec $ID -- wc -l
  atoll exec $ID --tty -- htop")]
pub(crate) struct ExecArguments {
    /// The sandbox.
    pub(crate) sandbox: String,

    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<String>,

    /// Give it a terminal.
    #[arg(long, short)]
    pub(crate) tty: bool,

    /// Environment variable; without a value it is taken from your environment.
    #[arg(long = "env", short, value_name = "NAME[=VALUE]")]
    pub(crate) environment: Vec<String>,

    /// Directory to start in [default: the template's].
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) cwd: Option<String>,

    /// Whose rights it has [default: the template's user].
    #[arg(long, short, value_name = "NAME")]
    pub(crate) user: Option<String>,

    /// How long it may run [default: as long as the sandbox].
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) timeout: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  atoll logs $ID
  atoll logs -f $ID")]
pub(crate) struct LogsArguments {
    /// The sandbox.
    pub(crate) sandbox: String,

    /// Go on until the sandbox ends or you press Ctrl-C.
    #[arg(long, short)]
    pub(crate) follow: bool,

    /// Print JSON objects, one a line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Kinds: created, paused, resumed, snapshotted, forked, killed, expired, crashed, adopted.

Examples:
  atoll events
  atoll events -f --kind crashed,expired --json
  atoll events --sandbox $ID")]
pub(crate) struct EventsArguments {
    /// Go on until you press Ctrl-C.
    #[arg(long, short)]
    pub(crate) follow: bool,

    /// Only what happened to this sandbox.
    #[arg(long, value_name = "ID")]
    pub(crate) sandbox: Option<String>,

    /// Only these kinds, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "KIND")]
    pub(crate) kind: Vec<String>,

    /// Begin with so many of the newest.
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) last: u32,

    /// Print JSON objects, one a line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
One side is SANDBOX:PATH; a relative PATH is below the home of the sandbox's user.
Directories are copied with what is in them. Every copy is checked against its source.

Examples:
  atoll cp report.csv $ID:data/report.csv
  atoll cp $ID:/home/user/out ./out
  atoll cp ./project $ID:project")]
pub(crate) struct CpArguments {
    /// What to copy.
    pub(crate) source: String,

    /// Where to.
    pub(crate) target: String,

    /// Believe the transfer without reading the copies again.
    #[arg(long)]
    pub(crate) no_verify: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  atoll kill $ID
  atoll kill --all")]
pub(crate) struct KillArguments {
    /// The sandboxes.
    #[arg(required_unless_present = "all", value_name = "SANDBOX")]
    pub(crate) sandboxes: Vec<String>,

    /// All that the key may end.
    #[arg(long, conflicts_with = "sandboxes")]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  atoll pause $ID                              until `atoll resume $ID`")]
pub(crate) struct PauseArguments {
    /// The sandboxes.
    #[arg(required = true, value_name = "SANDBOX")]
    pub(crate) sandboxes: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  atoll resume $ID --timeout 1h")]
pub(crate) struct ResumeArguments {
    /// The sandboxes.
    #[arg(required = true, value_name = "SANDBOX")]
    pub(crate) sandboxes: Vec<String>,

    /// How long they live from then on.
    #[arg(long, value_parser = duration, default_value = "5m")]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Make a template of what a sandbox has on its disk right now.
    #[command(after_help = "\
The sandbox holds still meanwhile and runs on. Memory and processes are not part of it.

Examples:
  atoll snapshot create $ID
  atoll snapshot create $ID --name work:v2
  atoll create work:v2")]
    Create {
        /// The sandbox.
        sandbox: String,

        /// What to call it; a snapshot of the same name and tag is replaced.
        #[arg(long, short, value_name = "NAME[:TAG]")]
        name: Option<String>,

        /// Print a JSON object.
        #[arg(long)]
        json: bool,
    },
    /// List snapshots, the newest first.
    #[command(after_help = "\
Examples:
  atoll snapshot list
  atoll snapshot list --name work --json")]
    List {
        /// Only those of this sandbox.
        #[arg(long, value_name = "SANDBOX")]
        sandbox: Option<String>,

        /// Only those of this name.
        #[arg(long, short, value_name = "NAME[:TAG]")]
        name: Option<String>,

        /// Print a JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Delete snapshots; sandboxes that were made of them run on.
    #[command(after_help = "\
Examples:
  atoll snapshot rm work:v2
  atoll snapshot rm work                       all tags of it")]
    Rm {
        /// The snapshots.
        #[arg(required = true, value_name = "SNAPSHOT")]
        snapshots: Vec<String>,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
Forks have the files, the environment and the settings of their source, which runs on.

Examples:
  atoll fork $ID
  atoll fork $ID --count 4 --timeout 10m")]
pub(crate) struct ForkArguments {
    /// The sandbox to begin with.
    pub(crate) sandbox: String,

    /// How many.
    #[arg(long, short = 'n', default_value_t = 1)]
    pub(crate) count: usize,

    /// How long they live [default: the server's].
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) timeout: Option<Duration>,

    /// Print a JSON array.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  atoll inspect $ID
  atoll inspect $ID --json")]
pub(crate) struct InspectArguments {
    /// The sandbox.
    pub(crate) sandbox: String,

    /// Print a JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  atoll timeout $ID 2h
  atoll timeout $ID 0                          end it now")]
pub(crate) struct TimeoutArguments {
    /// The sandbox.
    pub(crate) sandbox: String,

    /// How long it lives from now on.
    #[arg(value_parser = duration_or_none)]
    pub(crate) timeout: Duration,
}
