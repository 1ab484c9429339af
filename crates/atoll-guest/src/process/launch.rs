//! Starts a command behind its reaper.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use tokio::io::{AsyncBufReadExt, BufReader, Interest, Lines};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::reaper::{Order, Report, Step};
use super::spare::Spare;
use super::stream::Stream;
use super::tree;
use crate::users::User;

/// `PATH` of commands when the guest has none.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How long a program may take until it runs.
const START_BOUND: Duration = Duration::from_secs(30);

/// What to start.
#[derive(Debug)]
pub(crate) struct Launch {
    /// Program.
    pub(crate) cmd: String,
    /// Arguments after the program's name.
    pub(crate) args: Vec<String>,
    /// The whole environment.
    pub(crate) env: BTreeMap<String, String>,
    /// Absolute directory to start in.
    pub(crate) cwd: String,
    /// Whose rights it has.
    pub(crate) user: User,
    /// Where it reads and writes.
    pub(crate) streams: Streams,
}

/// Where a command reads and writes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Streams {
    /// A terminal of this size.
    Terminal(Winsize),
    /// Three pipes.
    Pipes,
    /// Two pipes, and `/dev/null` to read from.
    OutputOnly,
}

/// Our side of a command's streams.
#[derive(Debug)]
pub(crate) enum Ends {
    /// The master side of its terminal.
    Terminal(Stream),
    /// Pipes.
    Pipes {
        /// Its input, when it has one.
        stdin: Option<Stream>,
        /// Its output.
        stdout: Stream,
        /// Its error output.
        stderr: Stream,
    },
}

/// A command that runs.
#[derive(Debug)]
pub(crate) struct Launched {
    /// Its own pid.
    pub(crate) pid: i32,
    /// The pid of its reaper.
    pub(crate) reaper: i32,
    /// Tells how it ends.
    pub(crate) reports: Reports,
    /// Its streams.
    pub(crate) ends: Ends,
}

/// Why a command does not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    /// The request cannot be met.
    #[error("error starting process '{cmd}': {source}")]
    Refused {
        /// The program.
        cmd: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The directory cannot be entered.
    #[error("cwd '{cwd}' cannot be entered: {source}")]
    Directory {
        /// The directory.
        cwd: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The guest itself lacks something, such as descriptors or processes.
    #[error("cannot start processes: {0}")]
    Guest(#[from] io::Error),
}

/// The environment of a command: the guest's `PATH`, the user, the
/// sandbox's variables, then those of the request.
pub(crate) fn environment(
    user: &User,
    sandbox: BTreeMap<String, String>,
    request: impl IntoIterator<Item = (String, String)>,
) -> BTreeMap<String, String> {
    let path = std::env::var("PATH")
        .ok()
        .filter(|path| !path.is_empty())
        .unwrap_or_else(|| DEFAULT_PATH.to_owned());
    let mut env = BTreeMap::from([
        ("PATH".to_owned(), path),
        ("HOME".to_owned(), user.home.clone()),
        ("USER".to_owned(), user.name.clone()),
        ("LOGNAME".to_owned(), user.name.clone()),
    ]);
    env.extend(sandbox);
    env.extend(request);
    env
}

/// Starts a command and waits until it runs. Must be called on the main
/// thread: a reaper's life is bound to the thread that forks it.
pub(crate) async fn launch(launch: Launch, spare: &Spare) -> Result<Launched, LaunchError> {
    let (ends, streams) = open_streams(launch.streams, &launch.user)?;
    let order = Order {
        cmd: launch.cmd,
        args: launch.args,
        env: launch.env.into_iter().collect(),
        cwd: launch.cwd,
        uid: launch.user.uid,
        gid: launch.user.gid,
        groups: launch.user.groups,
        terminal: matches!(launch.streams, Streams::Terminal(_)),
    };
    let Behind {
        pid,
        reaper,
        reports,
    } = start(&order, streams, spare).await?;
    Ok(Launched {
        pid,
        reaper,
        reports,
        ends,
    })
}

/// A command that runs behind its reaper, whoever has its streams.
#[derive(Debug)]
pub(crate) struct Behind {
    /// Its own pid.
    pub(crate) pid: i32,
    /// The pid of its reaper.
    pub(crate) reaper: i32,
    /// Tells how it ends.
    pub(crate) reports: Reports,
}

/// Starts what `order` says with these streams and waits until it runs. Must be
/// called on the main thread: a reaper's life is bound to the thread that forks it.
pub(crate) async fn start(
    order: &Order,
    streams: [OwnedFd; 3],
    spare: &Spare,
) -> Result<Behind, LaunchError> {
    let taken = match hand_over(order, &streams, spare).await? {
        // The one that waited may have been ended by somebody inside.
        None => hand_over(order, &streams, spare).await?,
        taken => taken,
    };
    let Some((reaper, mut reports)) = taken else {
        let what = "reapers of commands end before they take an order";
        return Err(io::Error::other(what).into());
    };
    drop(streams);
    // So that the next one need not wait.
    spare.replace();

    match next_in_time(&mut reports, reaper).await? {
        Some(Report::Started { pid }) => Ok(Behind {
            pid,
            reaper,
            reports,
        }),
        Some(Report::Failed { step, errno }) => Err(refused(order, step, errno)),
        Some(Report::Taken | Report::Exited { .. } | Report::Signaled { .. }) | None => {
            Err(io::Error::other("the reaper of the command ended without a word").into())
        }
    }
}

/// Gives an order to a reaper, and returns it once it carries that out; `None` when it ended
/// before, so that nothing was started.
async fn hand_over(
    order: &Order,
    streams: &[OwnedFd; 3],
    spare: &Spare,
) -> Result<Option<(i32, Reports)>, LaunchError> {
    let ordered = timeout(START_BOUND, spare.order(order, streams));
    let (reaper, control) = match ordered.await.map_err(|_| late())? {
        Ok(ordered) => ordered,
        Err(error) if is_hung_up(&error) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut reports = Reports(BufReader::new(control).lines());
    match next_in_time(&mut reports, reaper).await? {
        Some(Report::Taken) => Ok(Some((reaper, reports))),
        Some(Report::Failed { step, errno }) => Err(refused(order, step, errno)),
        Some(Report::Started { .. } | Report::Exited { .. } | Report::Signaled { .. }) | None => {
            Ok(None)
        }
    }
}

/// What a reaper says next; one that says nothing in time is ended.
async fn next_in_time(reports: &mut Reports, reaper: i32) -> io::Result<Option<Report>> {
    let Ok(report) = timeout(START_BOUND, reports.next()).await else {
        // Stopped by somebody inside; nothing of it may start later.
        tree::send(reaper, rustix::process::Signal::KILL);
        return Err(late());
    };
    Ok(report)
}

fn is_hung_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

fn late() -> io::Error {
    io::ErrorKind::TimedOut.into()
}

fn refused(order: &Order, step: Step, errno: i32) -> LaunchError {
    let source = io::Error::from_raw_os_error(errno);
    match step {
        Step::Supervise => LaunchError::Guest(source),
        Step::Directory => LaunchError::Directory {
            cwd: order.cwd.clone(),
            source,
        },
        Step::Terminal | Step::User | Step::Execute => LaunchError::Refused {
            cmd: order.cmd.clone(),
            source,
        },
    }
}

/// What the reaper says.
#[derive(Debug)]
pub(crate) struct Reports(Lines<BufReader<UnixStream>>);

impl Reports {
    /// Its next report; `None` when it is gone.
    pub(crate) async fn next(&mut self) -> Option<Report> {
        let line = self.0.next_line().await.ok().flatten()?;
        serde_json::from_str(&line).ok()
    }
}

/// Our ends of a command's streams, and what it gets as its first three descriptors.
fn open_streams(streams: Streams, user: &User) -> io::Result<(Ends, [OwnedFd; 3])> {
    match streams {
        Streams::Terminal(size) => {
            let (master, slave) = open_terminal(size, user)?;
            let theirs = [slave.try_clone()?, slave.try_clone()?, slave];
            Ok((
                Ends::Terminal(Stream::new(
                    master,
                    Interest::READABLE | Interest::WRITABLE,
                )?),
                theirs,
            ))
        }
        Streams::Pipes | Streams::OutputOnly => {
            let (stdout, their_stdout) = pipe()?;
            let (stderr, their_stderr) = pipe()?;
            let (stdin, their_stdin) = if matches!(streams, Streams::Pipes) {
                let (read, write) = pipe()?;
                (Some(Stream::new(write, Interest::WRITABLE)?), read)
            } else {
                (None, OwnedFd::from(File::open("/dev/null")?))
            };
            let ends = Ends::Pipes {
                stdin,
                stdout: Stream::new(stdout, Interest::READABLE)?,
                stderr: Stream::new(stderr, Interest::READABLE)?,
            };
            Ok((ends, [their_stdin, their_stdout, their_stderr]))
        }
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

fn open_terminal(size: Winsize, user: &User) -> io::Result<(OwnedFd, OwnedFd)> {
    let master =
        rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::unlockpt(&master)?;
    let name = rustix::pty::ptsname(&master, Vec::new())?;
    let slave = rustix::fs::open(
        name.as_c_str(),
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    rustix::termios::tcsetwinsize(&master, size)?;
    // So that the user's programs may open it by name. Fails where the guest
    // is not root, and then the terminal is the user's already.
    let _ = std::os::unix::fs::fchown(File::from(slave.try_clone()?), Some(user.uid), None);
    Ok((master, slave))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_request_win() {
        let user = User {
            name: "u".to_owned(),
            uid: 1,
            gid: 1,
            groups: vec![1],
            home: "/home/u".to_owned(),
        };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut env = environment(
            &user,
            BTreeMap::from([
                pair("A", "sandbox"),
                pair("B", "sandbox"),
                pair("HOME", "/elsewhere"),
            ]),
            [pair("B", "request")],
        );
        assert!(env.remove("PATH").is_some());
        let expected = [
            ("A", "sandbox"),
            ("B", "request"),
            ("HOME", "/elsewhere"),
            ("LOGNAME", "u"),
            ("USER", "u"),
        ];
        assert_eq!(env, expected.map(|(name, value)| pair(name, value)).into());
    }
}
