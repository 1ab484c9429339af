//! The command line of `cargo xtask`.

use std::path::PathBuf;

use crate::failure::{Failure, Outcome};

/// What can be asked for.
pub(crate) const USAGE: &str = "\
Tasks of the Atoll workspace. Each does all of its own set-up.

  cargo xtask up [--home DIR] [--once] install, build, start the server, run a program of E2B's
                                       Python SDK against it, and go on serving; --once stops then
  cargo xtask test [--full] [FILTER]   everything CI checks; with a FILTER only the tests it names
                                       --full adds the long tests and a machine with cgroup v2
  cargo xtask coverage                 the same as `test`: its line coverage is held against
                                       coverage-floor.txt
  cargo xtask dist                     the static release binary, in target/dist
  cargo xtask bench api [--count N] [--mib N] [--rounds N] [--connections N] [--seconds N]
                                       the server beside the same without it, and beside haproxy
  cargo xtask bench fleet [--count N] [--kernels N] [--burst N] [--gvisor N] [--pauses N]
                          [--freezes N] [--idle N] [--crowd N]
                                       first commands of sandboxes from a pool beside new ones,
                                       pauses, snapshots, forks, and what idle ones cost
  cargo xtask bench guest [--count N] [--mib N] [--rounds N]
                                       commands, output, files and watches beside plain ones
  cargo xtask bench net [--rounds N] [--mib N] [--count N]
                                       throughput and connections of a sandbox beside a bare pair
  cargo xtask bench run-code [--count N] [--cold N]
                                       cells beside jupyter_client and a bridge to Jupyter
  cargo xtask bench sessions [--count N] [--sessions N] [--calls N]
                                       calls in sessions beside those straight to a sandbox
  cargo xtask bench soak [--minutes N] [--clients N] [--gvisor N] [--seed N]
                                       half an hour of sandboxes that come, work, pause and go
  cargo xtask bench start [--count N] [--parallel N] [--idle N]
                                       start and end of sandboxes beside raw runc
  cargo xtask bench start --tier gvisor [--count N]
                                       the same of gVisor beside raw runsc
  cargo xtask attack [OPTION...]       the attack suite, then 50 sandboxes that attack at once;
                                       options go to `atoll selftest`
  cargo xtask fuzz [TARGET] [--seconds N]
                                       random bytes against parsers, 60 seconds each
  cargo xtask machine [COMMAND...]     run a command in the machine with cgroup v2
  cargo xtask leftovers                what Atoll has on this host right now
";

/// One thing to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Help,
    Up(UpChoice),
    Test(TestChoice),
    Coverage,
    Dist,
    Bench {
        name: String,
        arguments: Vec<String>,
    },
    Attack {
        arguments: Vec<String>,
    },
    Fuzz {
        target: Option<String>,
        seconds: u32,
    },
    Machine {
        command: Vec<String>,
    },
    Leftovers,
}

/// What to bring up.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct UpChoice {
    pub(crate) home: Option<PathBuf>,
    /// Whether the server stops after the demonstration.
    pub(crate) once: bool,
}

/// Which tests to run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TestChoice {
    pub(crate) full: bool,
    pub(crate) filter: Option<String>,
}

/// Reads the arguments after the program's name.
pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Outcome<Task> {
    let mut arguments = arguments.peekable();
    let Some(name) = arguments.next() else {
        return Ok(Task::Help);
    };
    let task = match name.as_str() {
        "help" | "--help" | "-h" => return Ok(Task::Help),
        "up" => {
            let mut choice = UpChoice::default();
            while let Some(argument) = arguments.next() {
                match argument.as_str() {
                    "--home" => {
                        let directory = arguments.next();
                        let directory =
                            directory.ok_or_else(|| misuse("`--home` needs a directory"))?;
                        choice.home = Some(PathBuf::from(directory));
                    }
                    "--once" => choice.once = true,
                    other => return Err(unknown(other)),
                }
            }
            Task::Up(choice)
        }
        "test" => {
            let mut choice = TestChoice::default();
            for argument in arguments.by_ref() {
                if argument == "--full" {
                    choice.full = true;
                } else if argument.starts_with('-') || choice.filter.is_some() {
                    return Err(unknown(&argument));
                } else {
                    choice.filter = Some(argument);
                }
            }
            Task::Test(choice)
        }
        "machine" => {
            arguments.next_if(|argument| argument == "--");
            Task::Machine {
                command: arguments.by_ref().collect(),
            }
        }
        "fuzz" => {
            let (mut target, mut seconds) = (None, 60);
            while let Some(argument) = arguments.next() {
                if argument == "--seconds" {
                    let number = arguments.next().and_then(|text| text.parse().ok());
                    seconds = number.ok_or_else(|| misuse("`--seconds` needs a number"))?;
                } else if argument.starts_with('-') || target.is_some() {
                    return Err(unknown(&argument));
                } else {
                    crate::fuzz::known(&argument)?;
                    target = Some(argument);
                }
            }
            Task::Fuzz { target, seconds }
        }
        "coverage" => Task::Coverage,
        "dist" => Task::Dist,
        "leftovers" => Task::Leftovers,
        "attack" => Task::Attack {
            arguments: arguments.by_ref().collect(),
        },
        "bench" => match arguments.next().as_deref() {
            Some(
                name @ ("api" | "fleet" | "guest" | "net" | "run-code" | "sessions" | "soak"
                | "start"),
            ) => {
                let rest: Vec<String> = arguments.by_ref().collect();
                bench(&name.replace('-', "_"), rest)?
            }
            Some(other) => return Err(misuse(format!("there is no benchmark `{other}`"))),
            None => return Err(misuse("`bench` needs the name of a benchmark")),
        },
        other => return Err(misuse(format!("there is no task `{other}`"))),
    };
    arguments
        .next()
        .map_or(Ok(task), |rest| Err(unknown(&rest)))
}

fn unknown(argument: &str) -> Failure {
    misuse(format!("unexpected argument `{argument}`"))
}

fn misuse(what: impl Into<String>) -> Failure {
    Failure::new(what).hint("`cargo xtask help` lists the tasks")
}

/// A benchmark; that of starts has one for each tier.
fn bench(name: &str, mut arguments: Vec<String>) -> Outcome<Task> {
    let mut name = name.to_owned();
    if let Some(at) = arguments.iter().position(|argument| argument == "--tier") {
        match (name.as_str(), arguments.get(at + 1).map(String::as_str)) {
            ("start", Some("container")) => {}
            ("start", Some("gvisor")) => "start_gvisor".clone_into(&mut name),
            _ => return Err(misuse("`--tier` is for `start`: container or gvisor")),
        }
        arguments.drain(at..at + 2);
    }
    Ok(Task::Bench { name, arguments })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Outcome<Task> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn each_task_is_understood() {
        let both = TestChoice {
            full: true,
            filter: Some("limits".to_owned()),
        };
        let cases = [
            ("", Task::Help),
            ("up", Task::Up(UpChoice::default())),
            (
                "up --home /x --once",
                Task::Up(UpChoice {
                    home: Some("/x".into()),
                    once: true,
                }),
            ),
            ("test", Task::Test(TestChoice::default())),
            ("test limits --full", Task::Test(both)),
            (
                "machine -- uname -r",
                Task::Machine {
                    command: vec!["uname".into(), "-r".into()],
                },
            ),
            ("leftovers", Task::Leftovers),
        ];
        for (line, task) in cases {
            assert_eq!(parsed(line).unwrap(), task, "{line}");
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for line in [
            "up --home",
            "up now",
            "test --fast",
            "test a b",
            "dist x",
            "tset",
        ] {
            let message = parsed(line).unwrap_err().to_string();
            assert!(
                message.contains("hint: `cargo xtask help`"),
                "{line}: {message}"
            );
        }
    }
}
