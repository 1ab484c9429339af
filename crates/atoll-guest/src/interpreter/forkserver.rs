//! The parent of Python kernels (`kernels/forkserver.py`): started once,
//! asked for forks, and heard about their ends.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex as AsyncMutex, oneshot, watch};
use tokio::time::timeout;

use super::process::{Exit, KernelProcess};
use crate::process::identity::Identity;
use crate::process::launch;
use crate::process::mark::Mark;
use crate::process::reaper::Order;
use crate::process::spare::Spare;
use crate::process::tree;
use crate::users::User;

/// How long it may take to import everything.
const READY_BOUND: Duration = Duration::from_secs(18);

/// How long a fork may take. One that takes longer is not waited for: the
/// parent may have been stopped by code of the user.
const FORK_BOUND: Duration = Duration::from_secs(4);

/// Longest line it may say.
const LINE_BYTES_MAX: u64 = 64 * 1024;

/// Most that is believed of the reason why it could not start.
const REASON_CHARS_MAX: usize = 2000;

/// Why there is no fork.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForkError {
    #[error("the parent of Python kernels could not be started: {0}")]
    Launch(#[from] launch::LaunchError),
    #[error("the parent of Python kernels could not be started: {0}")]
    Failed(String),
    #[error("the parent of Python kernels did not {what} within {} s", .bound.as_secs())]
    Late { what: &'static str, bound: Duration },
    #[error("the parent of Python kernels ended")]
    Gone,
    #[error("a Python kernel could not be forked: {0}")]
    Refused(String),
    #[error("the parent of Python kernels cannot be reached: {0}")]
    Io(#[from] io::Error),
}

impl ForkError {
    /// Whether another parent might do what this one did not.
    pub(super) fn is_of_this_parent(&self) -> bool {
        match self {
            Self::Late { .. } | Self::Gone | Self::Io(_) => true,
            Self::Launch(_) | Self::Failed(_) | Self::Refused(_) => false,
        }
    }
}

/// How the parent is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seed {
    pub(super) python: String,
    pub(super) program: String,
    pub(super) hooks: String,
    /// Modules that are imported as well, with commas.
    pub(super) preload: String,
    pub(super) env: BTreeMap<String, String>,
    pub(super) user: User,
}

/// A fork that is wanted.
#[derive(Debug, Serialize)]
pub(super) struct Wish<'a> {
    pub(super) connection_file: &'a str,
    pub(super) arguments: &'a [String],
    pub(super) cwd: &'a str,
    pub(super) env: &'a BTreeMap<String, String>,
}

#[derive(Serialize)]
struct Asked<'a> {
    fork: u64,
    mark: Mark,
    #[serde(flatten)]
    wish: &'a Wish<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Told {
    Ready { ready: bool },
    Failed { failed: String },
    Forked { forked: u64, pid: i32 },
    Refused { refused: u64, why: String },
    Ended { ended: i32, status: i32 },
}

type Answer = Result<(Identity, watch::Receiver<Option<Exit>>), String>;

/// Who waits for what.
#[derive(Debug, Default)]
struct Table {
    next: u64,
    asked: HashMap<u64, oneshot::Sender<Answer>>,
    forks: HashMap<i32, (Identity, watch::Sender<Option<Exit>>)>,
}

/// The parent. Dropped, it is ended: when no more forks are wanted of it and
/// none is left.
#[derive(Debug)]
pub(super) struct Forkserver {
    seed: Seed,
    identity: Identity,
    table: Arc<Mutex<Table>>,
    speech: AsyncMutex<OwnedWriteHalf>,
    gone: watch::Receiver<bool>,
}

impl Forkserver {
    /// Starts it, and waits until it can fork.
    pub(super) async fn start(seed: Seed, spare: &Spare) -> Result<Self, ForkError> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let order = Order {
            cmd: seed.python.clone(),
            args: vec![
                seed.program.clone(),
                seed.hooks.clone(),
                seed.preload.clone(),
            ],
            env: seed.env.clone().into_iter().collect(),
            cwd: "/".to_owned(),
            uid: seed.user.uid,
            gid: seed.user.gid,
            groups: seed.user.groups.clone(),
            terminal: false,
        };
        let nowhere = || -> io::Result<OwnedFd> {
            Ok(std::fs::File::options()
                .write(true)
                .open("/dev/null")?
                .into())
        };
        let streams = [OwnedFd::from(theirs), nowhere()?, nowhere()?];
        let behind = launch::start(&order, streams, spare).await?;
        let (hearing, speech) = UnixStream::from_std(ours)?.into_split();
        let mut hearing = Hearing(BufReader::new(hearing));
        let ready = match timeout(READY_BOUND, hearing.next()).await {
            Ok(Some(Told::Ready { ready: true })) => Ok(()),
            Ok(Some(Told::Failed { failed })) => Err(ForkError::Failed(shortened(&failed))),
            Ok(Some(_)) => Err(ForkError::Failed("it said something else".to_owned())),
            Ok(None) => Err(ForkError::Failed(
                "it ended before it was ready\nhint: does this Python work, and is its ipykernel complete?"
                    .to_owned(),
            )),
            Err(_) => Err(ForkError::Late {
                what: "become ready",
                bound: READY_BOUND,
            }),
        };
        if let Err(error) = ready {
            tree::kill_below_reaper(behind.reaper).await;
            return Err(error);
        }
        let identity = Identity::of(behind.pid).ok_or(ForkError::Gone)?;
        let table = Arc::<Mutex<Table>>::default();
        let (ended, gone) = watch::channel(false);
        tokio::spawn(listen(hearing, behind.pid, Arc::clone(&table), ended));
        Ok(Self {
            seed,
            identity,
            table,
            speech: AsyncMutex::new(speech),
            gone,
        })
    }

    /// Whether it can be asked for what `seed` would be started for.
    pub(super) fn serves(&self, seed: &Seed) -> bool {
        let key = |seed: &Seed| {
            // Each fork has variables of its own.
            let Seed {
                python,
                program,
                hooks,
                preload,
                env: _,
                user,
            } = seed.clone();
            (
                python,
                program,
                hooks,
                preload,
                user.uid,
                user.gid,
                user.groups,
            )
        };
        !*self.gone.borrow() && key(&self.seed) == key(seed)
    }

    /// A new kernel.
    pub(super) async fn fork(
        self: &Arc<Self>,
        wish: &Wish<'_>,
    ) -> Result<KernelProcess, ForkError> {
        // Code of the user may have stopped it.
        self.identity.send(Signal::CONT);
        let (answer, answered) = oneshot::channel();
        let number = with(&self.table, |table| {
            table.next += 1;
            table.asked.insert(table.next, answer);
            table.next
        });
        let mark = Mark::new();
        let asked = Asked {
            fork: number,
            mark,
            wish,
        };
        let mut line = serde_json::to_vec(&asked).map_err(io::Error::from)?;
        line.push(b'\n');
        let mut gone = self.gone.clone();
        let forked = async {
            self.speech.lock().await.write_all(&line).await?;
            tokio::select! {
                answer = answered => match answer {
                    Ok(Ok((fork, exit))) => {
                        Ok(KernelProcess::forked(fork, exit, mark, Arc::clone(self)))
                    }
                    Ok(Err(why)) => Err(ForkError::Refused(shortened(&why))),
                    Err(_) => Err(ForkError::Gone),
                },
                _ = gone.wait_for(|gone| *gone) => Err(ForkError::Gone),
            }
        };
        let late = ForkError::Late {
            what: "fork",
            bound: FORK_BOUND,
        };
        let forked = timeout(FORK_BOUND, forked).await.unwrap_or(Err(late));
        with(&self.table, |table| table.asked.remove(&number));
        forked
    }
}

impl Drop for Forkserver {
    fn drop(&mut self) {
        self.identity.send(Signal::KILL);
    }
}

fn with<T>(table: &Mutex<Table>, work: impl FnOnce(&mut Table) -> T) -> T {
    work(&mut table.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Hears what the parent says until its end.
async fn listen(
    mut hearing: Hearing,
    parent: i32,
    table: Arc<Mutex<Table>>,
    gone: watch::Sender<bool>,
) {
    while let Some(told) = hearing.next().await {
        match told {
            Told::Forked { forked, pid } => {
                // Code of the user may speak in its place, and name any process.
                let fork = Identity::child_of(parent, pid);
                with(&table, |table| table.forked(forked, fork));
            }
            Told::Refused { refused, why } => with(&table, |table| {
                if let Some(asked) = table.asked.remove(&refused) {
                    let _ = asked.send(Err(why));
                }
            }),
            Told::Ended { ended, status } => with(&table, |table| {
                if let Some((_, end)) = table.forks.remove(&ended) {
                    end.send_replace(Some(Exit::from_wait_status(status)));
                }
            }),
            Told::Ready { .. } | Told::Failed { .. } => {}
        }
    }
    gone.send_replace(true);
    // Nobody would hear of their ends.
    let orphans = with(&table, |table| {
        table.asked.clear();
        std::mem::take(&mut table.forks)
    });
    for (fork, end) in orphans.into_values() {
        fork.send(Signal::KILL);
        // What it leaves is ended by whoever hears of this.
        end.send_replace(Some(Exit::Unknown));
    }
}

impl Table {
    /// Passes a fork on to whoever asked for it.
    fn forked(&mut self, number: u64, fork: Option<Identity>) {
        let asked = self.asked.remove(&number);
        let Some(fork) = fork else {
            if let Some(asked) = asked {
                let _ = asked.send(Err("it ended at once".to_owned()));
            }
            return;
        };
        let (end, exit) = watch::channel(None);
        if let Some(asked) = asked {
            self.forks.insert(fork.pid(), (fork, end));
            if asked.send(Ok((fork, exit))).is_ok() {
                return;
            }
        }
        // Nobody waits for it any more.
        fork.send(Signal::KILL);
    }
}

/// What the parent says, line by line.
#[derive(Debug)]
struct Hearing(BufReader<OwnedReadHalf>);

impl Hearing {
    /// `None` when it ended, or says what nobody understands.
    async fn next(&mut self) -> Option<Told> {
        let mut line = Vec::new();
        let mut bounded = (&mut self.0).take(LINE_BYTES_MAX);
        bounded.read_until(b'\n', &mut line).await.ok()?;
        if line.last() != Some(&b'\n') {
            return None;
        }
        serde_json::from_slice(&line).ok()
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(REASON_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// What somebody is told who asked for a fork, when the parent says this.
    async fn answered(said: &str) -> Answer {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let table = Arc::<Mutex<Table>>::default();
        let (answer, answered) = oneshot::channel();
        with(&table, |table| table.asked.insert(1, answer));
        let (ended, _gone) = watch::channel(false);
        let (hearing, _) = ours.into_split();
        let own = i32::try_from(std::process::id()).unwrap();
        let hearing = Hearing(BufReader::new(hearing));
        let listening = tokio::spawn(listen(hearing, own, table, ended));
        let (_, mut speech) = theirs.into_split();
        speech.write_all(said.as_bytes()).await.unwrap();
        let answer = answered.await.unwrap();
        listening.abort();
        answer
    }

    #[tokio::test]
    async fn a_fork_that_is_not_the_parents_own_is_not_believed() {
        // A child of ours, and one of its own.
        let mut child = Command::new("sh")
            .args(["-c", "sleep 1000 & echo $!; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
        let grandchild: i32 = line.trim().parse().unwrap();
        let own = i32::try_from(child.id()).unwrap();
        let told = answered(&format!("{{\"forked\":1,\"pid\":{own}}}\n")).await;
        assert_eq!(told.unwrap().0.pid(), own);
        for pid in [grandchild, 1, 0, -1, i32::MIN, i32::MAX] {
            let told = answered(&format!("{{\"forked\":1,\"pid\":{pid}}}\n")).await;
            assert!(told.is_err(), "{pid}");
        }
        assert!(Identity::of(grandchild).is_some());
        tree::send(grandchild, Signal::KILL);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
