//! The command line: names, defaults, help and examples.

mod mcp;
pub(crate) mod remote;
mod repl;
mod run;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use atoll_control::identity::Role;
use atoll_control::isolation::Wish;
use atoll_engine::{Cidr, Limits, NetworkPolicy, Tier};
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Deserialize;

pub(crate) use mcp::{McpArguments, ToolsArguments, ToolsFormat};
pub(crate) use repl::ReplArguments;
pub(crate) use run::RunArguments;

use crate::failure::Hinted;
use crate::home::NetworkDefaults;
use crate::quantity::{cpu_millis, duration, duration_or_none, mebibytes};

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
  atoll run --rich plot.py                     save its plots, show its tables
  atoll run notebook.ipynb                     run a notebook, write its outputs back
  atoll repl                                   cells, one after the other
  atoll shell                                  a terminal in a fresh sandbox
  atoll serve                                  a server for E2B's SDKs and CLI
  atoll mcp                                    tools for an MCP client, without a server
  atoll doctor                                 what this host offers, and what is missing"
)]
pub(crate) struct Arguments {
    /// Where Atoll keeps its data [default: /var/lib/atoll as root, else ~/.atoll].
    #[arg(long, env = "ATOLL_HOME", global = true, value_name = "DIRECTORY")]
    pub(crate) home: Option<PathBuf>,

    /// Say what is decided on the way, such as the isolation of a sandbox and why.
    #[arg(long, short)]
    pub(crate) verbose: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program in a fresh sandbox and show its output.
    Run(RunArguments),
    /// Run cells in a fresh sandbox, one after the other, by hand.
    Repl(ReplArguments),
    /// Open a terminal in a fresh sandbox, or in one of a server.
    Shell(ShellArguments),
    /// List the sandboxes of a server.
    Ps(remote::PsArguments),
    /// Make a sandbox on a server and print its name.
    Create(remote::CreateArguments),
    /// Run a command in a sandbox of a server.
    Exec(remote::ExecArguments),
    /// Show what happened to a sandbox of a server.
    Logs(remote::LogsArguments),
    /// What happened to your sandboxes.
    Events(remote::EventsArguments),
    /// Copy files into a sandbox of a server, or out of it.
    Cp(remote::CpArguments),
    /// End sandboxes of a server.
    Kill(remote::KillArguments),
    /// Show everything about a sandbox of a server.
    Inspect(remote::InspectArguments),
    /// Change how long a sandbox of a server lives.
    Timeout(remote::TimeoutArguments),
    /// Let sandboxes of a server hold still, with everything in them.
    Pause(remote::PauseArguments),
    /// Let paused sandboxes of a server run on.
    Resume(remote::ResumeArguments),
    /// Keep the files of sandboxes of a server as templates.
    #[command(subcommand)]
    Snapshot(remote::SnapshotCommand),
    /// Make sandboxes that begin with the files of another one.
    Fork(remote::ForkArguments),
    /// Show the warm pools of the server of this home.
    Pool(remote::PoolArguments),
    /// Serve sandboxes to E2B's SDKs and CLI.
    Serve(ServeArguments),
    /// Serve tools to an MCP client on standard streams, with sandboxes of its own.
    Mcp(McpArguments),
    /// Print the tools' schemas, for function-calling APIs.
    Tools(ToolsArguments),
    /// Print the variables that lead E2B's clients to the server of this home.
    Env(EnvArguments),
    /// Stop the server of this home; its sandboxes live on.
    Stop(StopArguments),
    /// Build, list, inspect and remove templates.
    #[command(subcommand)]
    Template(TemplateCommand),
    /// Make, list, revoke and rotate API keys.
    #[command(subcommand)]
    Key(KeyCommand),
    /// Print the authority that signs the server's certificates, and how to trust it.
    Ca(CaArguments),
    /// Tell what isolation this host offers and how to add what is missing.
    Doctor(DoctorArguments),
    /// Attack sandboxes on this host in every known way, and tell which walls held.
    Selftest(SelftestArguments),
    /// Remove what is not needed any more.
    Gc(GcArguments),
    /// Print a completion script for a shell.
    #[command(after_help = "Example:\n  atoll completions bash > /etc/bash_completion.d/atoll")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// Whether it first removes what an interrupted run left on this host: all but those that
    /// only ask a server, which may be on another host and has a home that it keeps in order
    /// itself, and `gc`, which does that too and says what it found.
    pub(crate) fn cleans_up(&self) -> bool {
        match self {
            Self::Shell(shell) => shell.running.is_none(),
            Self::Run(_)
            | Self::Repl(_)
            | Self::Serve(_)
            | Self::Mcp(_)
            | Self::Tools(_)
            | Self::Env(_)
            | Self::Stop(_)
            | Self::Template(_)
            | Self::Key(_)
            | Self::Ca(_)
            | Self::Doctor(_)
            | Self::Selftest(_)
            | Self::Completions { .. } => true,
            Self::Ps(_)
            | Self::Create(_)
            | Self::Exec(_)
            | Self::Logs(_)
            | Self::Events(_)
            | Self::Cp(_)
            | Self::Kill(_)
            | Self::Inspect(_)
            | Self::Timeout(_)
            | Self::Pause(_)
            | Self::Resume(_)
            | Self::Snapshot(_)
            | Self::Fork(_)
            | Self::Pool(_)
            | Self::Gc(_) => false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Language {
    #[value(alias = "py", alias = "python3")]
    Python,
    #[value(alias = "js", alias = "node")]
    Javascript,
    #[value(alias = "ts")]
    Typescript,
    #[value(alias = "sh", alias = "shell")]
    Bash,
    R,
    Java,
}

impl Language {
    /// What the code interpreter calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Javascript => "javascript",
            Self::Typescript => "typescript",
            Self::Bash => "bash",
            Self::R => "r",
            Self::Java => "java",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Network {
    /// A loopback interface and nothing else.
    None,
    /// The internet; private ranges, this host and other sandboxes closed.
    Full,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Isolation {
    /// The strongest that works on this host.
    Auto,
    /// Namespaces, seccomp and cgroups on the host's kernel.
    Container,
    /// gVisor: a kernel of its own, in user space.
    Gvisor,
    /// A virtual machine (not part of this version).
    Microvm,
}

impl From<Isolation> for Wish {
    fn from(isolation: Isolation) -> Self {
        match isolation {
            Isolation::Auto => Self::Strongest,
            Isolation::Container => Self::Exactly(Tier::Container),
            Isolation::Gvisor => Self::Exactly(Tier::Gvisor),
            Isolation::Microvm => Self::Exactly(Tier::Microvm),
        }
    }
}

/// What a sandbox is made of, the same for every command that makes one.
#[derive(Debug, Clone, Args)]
pub(crate) struct SandboxArguments {
    /// Template to start from [default: base; for cells code-interpreter-v1-slim].
    #[arg(long, short, value_name = "NAME")]
    pub(crate) template: Option<String>,

    /// How the sandbox is kept apart from the host [default: as configured, else auto].
    #[arg(long, value_enum)]
    pub(crate) isolation: Option<Isolation>,

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

    /// What the sandbox can reach [default: none, or as configured].
    #[arg(long, value_enum, help_heading = "Network")]
    pub(crate) net: Option<Network>,

    /// Address or CIDR to open although --net-deny names it; repeatable.
    #[arg(long, value_name = "CIDR", help_heading = "Network")]
    pub(crate) net_allow: Vec<Cidr>,

    /// Address or CIDR to close; repeatable. 0.0.0.0/0 leaves only what is allowed.
    #[arg(long, value_name = "CIDR", help_heading = "Network")]
    pub(crate) net_deny: Vec<Cidr>,

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

    /// What was asked for; the rest as in `default`. A list takes the place of a configured one.
    pub(crate) fn network(&self, default: &NetworkDefaults) -> anyhow::Result<NetworkPolicy> {
        let lists_asked = !(self.net_allow.is_empty() && self.net_deny.is_empty());
        let list = |asked: &Vec<Cidr>, configured: &Vec<Cidr>| {
            if asked.is_empty() { configured } else { asked }.clone()
        };
        let policy = match self.net.or(default.network).unwrap_or(Network::None) {
            Network::None if lists_asked => {
                return Err(Hinted::error(
                    "--net-allow and --net-deny say nothing to a sandbox without a network",
                    "add --net full",
                ));
            }
            Network::None => NetworkPolicy::None,
            Network::Full => NetworkPolicy::Full {
                allow: list(&self.net_allow, &default.allow),
                deny: list(&self.net_deny, &default.deny),
            },
        };
        policy.validate().map_err(|error| {
            Hinted::error(
                error.to_string(),
                "private ranges, the host and other sandboxes cannot be opened; see docs/network.md",
            )
        })?;
        Ok(policy)
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  atoll shell
  atoll shell --net full --memory 2G --file ./project:project
  atoll shell $(atoll create)                  in a sandbox of a server")]
pub(crate) struct ShellArguments {
    /// A sandbox of a server; without it a fresh one is made, for this shell alone.
    #[arg(value_name = "SANDBOX", conflicts_with_all = [
        "template", "isolation", "memory", "cpus", "disk", "inodes", "pids", "open_files",
        "net", "net_allow", "net_deny", "environment", "files", "timeout",
    ])]
    pub(crate) running: Option<String>,

    /// How long the sandbox may live.
    #[arg(long, value_parser = duration, default_value = "24h", value_name = "DURATION", help_heading = "Limits")]
    pub(crate) timeout: Duration,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArguments,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Sandboxes outlive the server: SIGTERM and Ctrl-C stop it and nothing else. The next start
takes them up again, with their names, tokens and timeouts.

Examples:
  atoll serve
  atoll serve --listen 127.0.0.1:8080 --isolation gvisor
  atoll serve --json                           one line of JSON when it is ready
  atoll serve --domain my.zone                 names and TLS, with a certificate of its own
  atoll serve --domain my.zone --certificate chain.pem --key key.pem")]
pub(crate) struct ServeArguments {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:7300", value_name = "ADDRESS:PORT")]
    pub(crate) listen: SocketAddr,

    /// Answer to `api.DOMAIN` and `PORT-SANDBOX.DOMAIN` too, with TLS.
    #[arg(long, value_name = "DOMAIN", help_heading = "Names and TLS")]
    pub(crate) domain: Option<String>,

    /// Where to listen for them.
    #[arg(
        long,
        default_value = "0.0.0.0:443",
        value_name = "ADDRESS:PORT",
        requires = "domain",
        help_heading = "Names and TLS"
    )]
    pub(crate) tls_listen: SocketAddr,

    /// Certificate for DOMAIN and *.DOMAIN, with its chain, as PEM [default: made; see `atoll ca`].
    #[arg(long, value_name = "FILE", requires_all = ["domain", "key"], help_heading = "Names and TLS")]
    pub(crate) certificate: Option<PathBuf>,

    /// Key of the certificate, as PEM.
    #[arg(
        long,
        value_name = "FILE",
        requires = "certificate",
        help_heading = "Names and TLS"
    )]
    pub(crate) key: Option<PathBuf>,

    /// How sandboxes are kept apart from the host [default: as configured, else auto].
    #[arg(long, value_enum)]
    pub(crate) isolation: Option<Isolation>,

    /// Print one JSON object when it is ready.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The certificate goes to standard output, what to do with it to standard error.

Examples:
  atoll ca > atoll-ca.crt
  atoll ca --domain my.zone                    make it before the first `atoll serve`")]
pub(crate) struct CaArguments {
    /// The domain it signs for [default: the only one of this home].
    #[arg(long)]
    pub(crate) domain: Option<String>,

    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  eval \"$(atoll env)\" && python3 my_e2b_program.py")]
pub(crate) struct EnvArguments {
    /// Print a JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  atoll stop                                   sandboxes live on until their time is over
  atoll stop --kill                            and end with it")]
pub(crate) struct StopArguments {
    /// End all sandboxes that the server made.
    #[arg(long)]
    pub(crate) kill: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    /// Build a template from a spec file, or one of the built-in ones by name.
    Build(BuildArguments),
    /// List templates.
    #[command(after_help = "\
Examples:
  atoll template list
  atoll template list --json")]
    #[command(alias = "ls")]
    List {
        /// Print a JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Show everything about one template.
    #[command(after_help = "\
Example:
  atoll template inspect base                  a JSON object")]
    Inspect {
        /// Its name.
        name: String,
    },
    /// Remove a template and the layers that no other one uses.
    #[command(after_help = "\
Example:
  atoll template rm data-science")]
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
    #[command(after_help = "\
Examples:
  atoll key list
  atoll key list --tenant build --json")]
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
    #[command(after_help = "\
Example:
  atoll key revoke ci")]
    Revoke {
        /// Its id, or its name if no other active key has it.
        key: String,
    },
    /// Make a key in the place of another and print it, this once.
    #[command(after_help = "\
Examples:
  atoll key rotate ci                          the old one works for another hour
  atoll key rotate ci --grace 0                and ends now")]
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
  atoll key create --name dashboard --role viewer
  export E2B_API_KEY=$(atoll key create --name ci)")]
pub(crate) struct KeyCreateArguments {
    /// What to call it.
    #[arg(long, default_value = "default", value_name = "NAME")]
    pub(crate) name: String,

    /// Whom it stands for; made if there is no tenant of that name.
    #[arg(long, default_value = atoll_control::identity::DEFAULT_TENANT, value_name = "NAME")]
    pub(crate) tenant: String,

    /// What it may do: viewer looks, agent makes and uses sandboxes, operator also changes
    /// templates and snapshots, admin also sees what all tenants have.
    #[arg(long, default_value = "operator", value_name = "ROLE")]
    pub(crate) role: Role,

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
#[command(after_help = "\
Exit status:
  0 if sandboxes can be made here, 1 if something that they need is missing.

Examples:
  atoll doctor
  atoll doctor --json")]
pub(crate) struct DoctorArguments {
    /// Print a JSON array of checks.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SelftestTier {
    /// Namespaces, seccomp and cgroups on the host's kernel.
    Container,
    /// gVisor's user-space kernel.
    Gvisor,
    /// Every tier that works on this host.
    All,
}

#[derive(Debug, Args)]
#[command(after_help = "\
It is safe on a host in use: attacks aim at files, processes and sockets that it makes
and removes itself, floods are bounded, and calls that could do harm are made with
arguments that cannot. Each attack is also made where its wall is missing and must
succeed there, or it counts as `inconclusive`.

Exit status:
  0 if every wall held or does not apply; 1 otherwise; 125 if Atoll itself failed.

Examples:
  atoll selftest                               everything
  atoll selftest --only mounts                 one group
  atoll selftest --only '*.ptrace*' --json     some cases, for machines
  atoll selftest --list                        what would be tried
  atoll selftest --survey                      what an attacker sees first")]
pub(crate) struct SelftestArguments {
    /// Which sandboxes to attack.
    #[arg(long, value_enum, default_value = "all")]
    pub(crate) tier: SelftestTier,

    /// Only these cases: a group, a name, or a pattern with `*`.
    #[arg(long, value_name = "PATTERN")]
    pub(crate) only: Option<String>,

    /// List the cases and run none.
    #[arg(long, conflicts_with = "survey")]
    pub(crate) list: bool,

    /// Show what an attacker inside finds out, without a verdict.
    #[arg(long)]
    pub(crate) survey: bool,

    /// Have this many sandboxes attack at once, and measure what the host feels of it. Not
    /// for a host in use: it takes whatever their limits add up to.
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["survey", "list", "only"])]
    pub(crate) siege: Option<usize>,

    /// How long a siege lasts.
    #[arg(long, value_parser = duration, default_value = "60s", value_name = "DURATION", requires = "siege")]
    pub(crate) siege_time: Duration,

    /// Print JSON: an array of cases, or the object of a siege.
    #[arg(long, conflicts_with = "survey")]
    pub(crate) json: bool,

    /// Play the cases of the network, in a network namespace of its own.
    #[arg(long, hide = true)]
    pub(crate) in_world: bool,

    /// Template to attack from; it needs Python.
    #[arg(long, short, default_value = "base", value_name = "NAME")]
    pub(crate) template: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  atoll gc --dry-run                           what would be removed
  atoll gc
  atoll gc --older-than 24h")]
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

    /// Every command that does something itself, with the words that lead to it.
    fn leaves(command: &clap::Command, path: &str) -> Vec<(String, clap::Command)> {
        let shown = command.get_subcommands().filter(|one| !one.is_hide_set());
        let below: Vec<_> = shown
            .flat_map(|one| leaves(one, &format!("{path} {}", one.get_name())))
            .collect();
        if below.is_empty() {
            vec![(path.to_owned(), command.clone())]
        } else {
            below
        }
    }

    #[test]
    fn every_command_shows_an_example_that_it_understands() {
        let root = Arguments::command();
        let leaves = leaves(&root, "atoll");
        assert!(leaves.len() > 30, "{}", leaves.len());
        for (path, mut command) in leaves {
            let help = command.render_help().to_string();
            let (_, examples) = help
                .split_once("Example:\n")
                .or_else(|| help.split_once("Examples:\n"))
                .unwrap_or_else(|| panic!("`{path}` shows no example: {help}"));
            assert!(
                examples.contains(&path),
                "`{path}` shows others: {examples}"
            );
            // What follows two spaces is said about the example; quotes and pipes are the shell's.
            let own = examples
                .lines()
                .filter(|line| line.starts_with(&format!("  {path}")));
            for line in own {
                let line = line.trim_start().replace("$ID", "NAME");
                let typed = line.split("  ").next().unwrap_or_default();
                if typed.contains(['"', '\'', '$', '|', '<', '>']) {
                    continue;
                }
                let parsed = Arguments::try_parse_from(typed.split_whitespace());
                assert!(parsed.is_ok(), "`{typed}`: {:?}", parsed.err());
            }
        }
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
