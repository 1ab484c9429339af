//! The life of a sandbox as its monitor sees it: one loop over everything
//! that can happen, until something ends it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, WaitOptions, WaitStatus};

use super::assemble::Running;
use super::checkpoint::WriteError;
use super::exhaustion::{Exhaustion, Room};
use super::message::{Answer, MonitorRequest, Question, Ready, receive, send};
use super::resolver::Resolver;
use super::suspension::{Phase, WakeError};
use crate::disk::Disks;
use crate::lease::{HostLock, Lease, LeasedNetwork};
use crate::network;
use crate::record::Records;
use crate::runtime::Stats;
use crate::{Attachment, Limits, Memory, NetworkPolicy, Outcome};

/// A client that opens the control socket and then says nothing is cut off.
const QUESTION_BOUND: Duration = Duration::from_secs(1);

/// The end of a sandbox, and who wants to be told when it is removed.
pub(super) struct Ending {
    pub(super) outcome: Outcome,
    pub(super) waiting: Vec<UnixStream>,
}

/// Watches until the end and says why it came. The caller removes the sandbox.
pub(super) fn watch(mut running: Running, request: &MonitorRequest) -> io::Result<Ending> {
    let terminate = termination_signals()?;
    let resolver = Resolver::start(running.foundation.network.dns.take())?;
    // Nobody waits now. A pool that cannot be filled only makes the next start slower.
    let _ = Disks::new(request.config.disks()).refill(&request.spec.limits);

    let mut watch = Watch {
        lifetime: Lifetime::of(request.spec.lifetime),
        request,
        running,
        resolver,
        records: Records::new(request.config.records()),
        waiting: Vec::new(),
        reader: None,
        memory_kills: 0,
    };
    let outcome = watch.until_the_end(&terminate)?;
    watch.resolver.stop()?;
    Ok(Ending {
        outcome,
        waiting: watch.waiting,
    })
}

/// A descriptor that becomes readable when somebody asks this process to end.
fn termination_signals() -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd as _;
    // SAFETY: the set is initialised before use and the result is checked before it becomes an owned descriptor.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(OwnedFd::from_raw_fd(fd))
        }
    }
}

/// How long a sandbox lives, counted from when it began to be watched.
struct Lifetime {
    began: Instant,
    limit: Option<Duration>,
}

impl Lifetime {
    fn of(limit: Option<Duration>) -> Self {
        Self {
            began: Instant::now(),
            limit,
        }
    }

    /// Lets it end `left` from now.
    fn end_after(&mut self, left: Duration) {
        self.limit = Some(self.began.elapsed().saturating_add(left));
    }

    /// What is left of it; nothing is known of the end of one without a limit.
    fn left(&self) -> Option<Duration> {
        self.limit
            .map(|limit| limit.saturating_sub(self.began.elapsed()))
    }

    fn ended(&self) -> Outcome {
        let limit = self.limit.unwrap_or_default().as_millis();
        Outcome::LifetimeEnded {
            limit_ms: u64::try_from(limit).unwrap_or(u64::MAX),
        }
    }
}

struct Watch<'a> {
    lifetime: Lifetime,
    request: &'a MonitorRequest,
    running: Running,
    resolver: Resolver,
    records: Records,
    waiting: Vec<UnixStream>,
    /// Who reads its disk while every process holds still.
    reader: Option<UnixStream>,
    /// Processes that the guest was asked to end for memory.
    memory_kills: u64,
}

impl Watch<'_> {
    fn until_the_end(&mut self, terminate: &OwnedFd) -> io::Result<Outcome> {
        let stdin = io::stdin();
        loop {
            // What it was lent to write its memory, or to read it.
            if let Some(outcome) = self.relieve(false, false)? {
                return Ok(outcome);
            }
            let timeout = self.lifetime.left();
            if timeout == Some(Duration::ZERO) {
                return Ok(self.lifetime.ended());
            }
            let mut sources = vec![
                PollFd::new(terminate, PollFlags::IN),
                PollFd::new(&self.running.control, PollFlags::IN),
            ];
            let lifeline = (self.request.spec.attachment == Attachment::Client).then(|| {
                sources.push(PollFd::new(&stdin, PollFlags::IN));
                sources.len() - 1
            });
            let is_awake = self.running.phase == Phase::Awake;
            let init = is_awake.then(|| {
                sources.push(PollFd::new(&self.running.started.init_fd, PollFlags::IN));
                sources.len() - 1
            });
            let reader = self.reader.as_ref().map(|reader| {
                sources.push(PollFd::new(reader, PollFlags::IN));
                sources.len() - 1
            });
            // What has no processes uses up nothing.
            let exhaustion = self.running.started.exhaustion.as_ref();
            let exhaustion = exhaustion.filter(|_| is_awake);
            let memory = exhaustion.and_then(Exhaustion::memory).map(|memory| {
                sources.push(PollFd::from_borrowed_fd(memory, PollFlags::IN));
                sources.len() - 1
            });
            let processes = exhaustion.map(|exhaustion| {
                let processes = exhaustion.processes();
                sources.push(PollFd::from_borrowed_fd(processes, PollFlags::PRI));
                sources.len() - 1
            });
            let timeout = timeout.map(|timeout| Timespec {
                tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(timeout.subsec_nanos()),
            });
            match poll(&mut sources, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let happened = |index: usize| !sources[index].revents().is_empty();
            let (asked_to_end, question) = (happened(0), happened(1));
            let (client_gone, init_ended) =
                (lifeline.is_some_and(happened), init.is_some_and(happened));
            let reader_spoke = reader.is_some_and(happened);
            let (memory, processes) = (
                memory.is_some_and(happened),
                processes.is_some_and(happened),
            );
            if init_ended {
                return Ok(self.end_of_init());
            }
            if let Some(outcome) = self.relieve(memory, processes)? {
                return Ok(outcome);
            }
            if asked_to_end {
                return Ok(Outcome::Killed);
            }
            if reader_spoke {
                self.run_on()?;
            }
            if question && let Some(outcome) = self.answer_next()? {
                return Ok(outcome);
            }
            if client_gone {
                return Ok(Outcome::ClientGone);
            }
        }
    }

    /// Acts on what has run out; the outcome when that is the end.
    fn relieve(&mut self, memory: bool, processes: bool) -> io::Result<Option<Outcome>> {
        let Some(exhaustion) = &self.running.started.exhaustion else {
            return Ok(None);
        };
        if exhaustion.is_lent() && self.running.phase == Phase::Awake {
            match exhaustion.call_in(&self.running.lifeline) {
                Room::Enough => {}
                Room::Made => self.memory_kills += 1,
                Room::None(outcome) => return Ok(Some(outcome)),
            }
        }
        if memory {
            match exhaustion.make_room(&self.running.lifeline)? {
                Room::Enough => {}
                Room::Made => self.memory_kills += 1,
                Room::None(outcome) => return Ok(Some(outcome)),
            }
        }
        Ok(if processes {
            exhaustion.out_of_processes()
        } else {
            None
        })
    }

    /// Why PID 1 is gone, from the host's own evidence.
    fn end_of_init(&self) -> Outcome {
        let status = Pid::from_raw(self.running.started.init.pid).and_then(|pid| {
            rustix::process::waitpid(Some(pid), WaitOptions::NOHANG)
                .ok()
                .flatten()
        });
        let status = status.map(|(_, status)| status);
        why_it_ended(
            self.usage().oom_kills,
            status.and_then(WaitStatus::exit_status),
            status.and_then(WaitStatus::terminating_signal),
            &self.request.spec.limits,
        )
    }

    /// Takes one question; an outcome comes back if it was the wish to end.
    fn answer_next(&mut self) -> io::Result<Option<Outcome>> {
        let mut client = match self.running.control.accept() {
            Ok((client, _)) => client,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        client.set_nonblocking(false)?;
        client.set_write_timeout(Some(QUESTION_BOUND))?;
        let Ok(Some(question)) = receive(&client, Some(QUESTION_BOUND)) else {
            return Ok(None);
        };
        let cgroup = &self.running.foundation.cgroup;
        let answer = match question {
            Question::Stats => self.stats().map(Answer::Stats),
            Question::Counters => self.counters().map(Answer::Stats),
            Question::Freeze
            | Question::Thaw
            | Question::HoldStill
            | Question::Suspend
            | Question::Checkpoint
            | Question::WriteMemory(_)
            | Question::Wake
                if self.reader.is_some() =>
            {
                Err(io::Error::other("its disk is being read"))
            }
            Question::Freeze | Question::Thaw | Question::HoldStill | Question::Halt
                if matches!(self.running.phase, Phase::Suspended(_)) =>
            {
                Err(io::Error::other("it is suspended"))
            }
            Question::Suspend => self
                .running
                .suspend(self.request)
                .map(|()| Answer::Ready(self.running.ready())),
            Question::Checkpoint => match self.checkpoint() {
                Ok(ready) => Ok(Answer::Ready(ready)),
                Err(WriteError::Failed(error)) => Err(error),
                Err(WriteError::Stuck(what)) => return Ok(Some(stuck(&mut client, what))),
            },
            Question::WriteMemory(directory) => match self.write_memory(&directory) {
                Ok(memory) => Ok(Answer::Memory(memory)),
                Err(WriteError::Failed(error)) => Err(error),
                Err(WriteError::Stuck(what)) => return Ok(Some(stuck(&mut client, what))),
            },
            Question::Wake => self.wake(),
            Question::Settle => {
                // Whoever asks does not wait for the disk.
                let _ = send(&mut client, &Answer::Done);
                if let Err(error) = self.running.settle(self.request) {
                    // It goes with the sandbox, or when the next one is written.
                    tracing::warn!("memory on disk stays: {error}");
                }
                return Ok(None);
            }
            Question::Freeze => cgroup.freeze().map(|()| Answer::Done),
            Question::Thaw => cgroup.thaw().map(|()| Answer::Done),
            Question::HoldStill => match cgroup.freeze() {
                Ok(()) => {
                    self.reader = Some(client.try_clone()?);
                    Ok(Answer::Still {
                        changes: self.changes(),
                        layers: self.request.spec.layers.clone(),
                    })
                }
                Err(error) => Err(error),
            },
            Question::Release => Err(io::Error::other("it is not held still here")),
            Question::SetNetwork(policy) => self.set_network(&policy).map(|()| Answer::Done),
            Question::EndAfter(left) => {
                self.lifetime.end_after(left);
                Ok(Answer::Done)
            }
            Question::Introduce => Ok(Answer::Ready(self.running.ready())),
            Question::Halt => self.halt().map(Answer::Halted),
            Question::Wait => {
                self.waiting.push(client);
                return Ok(None);
            }
            Question::Destroy => {
                self.waiting.push(client);
                return Ok(Some(Outcome::Killed));
            }
        };
        // A client that went away before its answer is not the sandbox's trouble.
        let _ = send(
            &mut client,
            &answer.unwrap_or_else(|error| Answer::Failed(error.to_string())),
        );
        Ok(None)
    }

    /// Lets it run on after it was suspended.
    fn wake(&mut self) -> io::Result<Answer> {
        // Whatever starts processes is forked from here.
        self.resolver.stop()?;
        let woken = self.running.wake(self.request);
        self.resolver.go_on()?;
        match woken {
            Ok(()) => Ok(Answer::Ready(self.running.ready())),
            Err(WakeError::Damaged(what)) => Ok(Answer::Damaged(what)),
            Err(WakeError::Failed(error)) => Err(error),
        }
    }

    /// Suspends it with its memory on disk.
    fn checkpoint(&mut self) -> Result<Ready, WriteError> {
        // What writes it is started from here.
        self.resolver.stop()?;
        let written = self.running.checkpoint(self.request);
        self.resolver.go_on()?;
        written.map(|()| self.running.ready())
    }

    /// Writes its memory for others to begin with.
    fn write_memory(&mut self, directory: &Path) -> Result<Memory, WriteError> {
        // What writes it is started from here.
        self.resolver.stop()?;
        let written = self.running.write_memory(self.request, directory);
        self.resolver.go_on()?;
        written
    }

    /// The intent is on record before the effect, so that rules which have to be
    /// loaded anew know the new lists.
    fn set_network(&self, policy: &NetworkPolicy) -> io::Result<()> {
        let Some(network) = &self.running.lease.network else {
            return if policy.has_interface() {
                Err(io::Error::other(
                    "the sandbox was made without a network and cannot get one",
                ))
            } else {
                Ok(())
            };
        };
        let lease = Lease {
            network: Some(LeasedNetwork {
                policy: policy.clone(),
                ..network.clone()
            }),
            ..self.running.lease.clone()
        };
        HostLock::take()?.update(&lease)?;
        self.records.change_network(&lease.sandbox, policy)?;
        network::change(policy, lease.slot, &network.range).map_err(io::Error::other)
    }

    fn stats(&self) -> io::Result<Stats> {
        Ok(Stats {
            network: match self.running.lease.network {
                Some(_) => network::usage(self.running.lease.slot).map_err(io::Error::other)?,
                None => None,
            },
            ..self.with_disk(self.usage())?
        })
    }

    fn counters(&self) -> io::Result<Stats> {
        let counted = self.running.foundation.cgroup.counters();
        self.with_disk(self.with_own_kills(counted))
    }

    fn with_disk(&self, stats: Stats) -> io::Result<Stats> {
        let disk = rustix::fs::statvfs(&self.running.foundation.disk)?;
        Ok(Stats {
            disk_free_bytes: disk.f_bavail * disk.f_frsize,
            disk_total_bytes: disk.f_blocks * disk.f_frsize,
            inodes_free: disk.f_ffree,
            inodes_total: disk.f_files,
            ..stats
        })
    }

    /// What the kernel counted, and what was ended in its place.
    fn usage(&self) -> Stats {
        self.with_own_kills(self.running.foundation.cgroup.stats())
    }

    fn with_own_kills(&self, counted: Stats) -> Stats {
        Stats {
            oom_kills: counted.oom_kills + self.memory_kills,
            ..counted
        }
    }

    /// Lets every process run on, because the reader of its disk is done or gone.
    fn run_on(&mut self) -> io::Result<()> {
        let Some(mut reader) = self.reader.take() else {
            return Ok(());
        };
        let is_done = matches!(
            receive(&reader, Some(QUESTION_BOUND)),
            Ok(Some(Question::Release))
        );
        self.running.foundation.cgroup.thaw()?;
        if is_done {
            // A client that went away before its answer is not the sandbox's trouble.
            let _ = send(&mut reader, &Answer::Done);
        }
        Ok(())
    }

    fn halt(&mut self) -> io::Result<PathBuf> {
        self.running.phase = Phase::Halted;
        self.running.foundation.cgroup.kill()?;
        Ok(self.changes())
    }

    /// Where the changes over the layers can be read from outside.
    fn changes(&self) -> PathBuf {
        let inside = self.running.foundation.disk.join("upper");
        let inside = inside.strip_prefix("/").unwrap_or(&inside);
        PathBuf::from(format!("/proc/{}/root", std::process::id())).join(inside)
    }
}

/// The end of a sandbox that holds still and cannot be let go: nobody would ever hear of it.
fn stuck(client: &mut UnixStream, what: String) -> Outcome {
    let outcome = Outcome::Crashed { detail: what };
    // A client that went away before its answer is not the sandbox's trouble.
    let _ = send(client, &Answer::Ended(outcome.clone()));
    outcome
}

/// Why a sandbox whose first process is gone has ended. What the kernel counted
/// comes first: with version 2 of cgroups it picks whom it kills for memory,
/// gVisor's own kernel too, and the status says only that somebody was killed.
fn why_it_ended(
    oom_kills: u64,
    code: Option<i32>,
    signal: Option<i32>,
    limits: &Limits,
) -> Outcome {
    if oom_kills > 0 {
        return Outcome::MemoryLimit {
            limit_mib: limits.memory_mib,
        };
    }
    let detail = match (code, signal) {
        (Some(code), _) => format!("PID 1 exited with status {code}"),
        (_, Some(signal)) => format!("PID 1 was ended by signal {signal}"),
        _ => "PID 1 ended".to_owned(),
    };
    Outcome::Crashed { detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_can_be_set_anew_and_tells_how_long_it_was() {
        let mut lifetime = Lifetime::of(Some(Duration::from_secs(60)));
        assert!(lifetime.left().unwrap() > Duration::from_secs(50));
        lifetime.end_after(Duration::ZERO);
        assert_eq!(lifetime.left(), Some(Duration::ZERO));
        let Outcome::LifetimeEnded { limit_ms } = lifetime.ended() else {
            panic!("another end");
        };
        assert!(limit_ms < 60_000);
        lifetime.end_after(Duration::MAX);
        assert!(lifetime.left().unwrap() > Duration::from_secs(60));
        assert_eq!(Lifetime::of(None).left(), None);
    }

    #[test]
    fn an_end_after_a_kill_for_memory_is_the_memory_limit() {
        let limits = Limits::default();
        let limit = Outcome::MemoryLimit {
            limit_mib: limits.memory_mib,
        };
        // As a container whose PID 1 was killed, and as gVisor's keeper, which
        // ends with the status of whatever it kept.
        assert_eq!(why_it_ended(1, None, Some(9), &limits), limit);
        assert_eq!(why_it_ended(1, Some(1), None, &limits), limit);
        let crashed = |detail: &str| Outcome::Crashed {
            detail: detail.to_owned(),
        };
        assert_eq!(
            why_it_ended(0, None, Some(9), &limits),
            crashed("PID 1 was ended by signal 9")
        );
        assert_eq!(
            why_it_ended(0, Some(1), None, &limits),
            crashed("PID 1 exited with status 1")
        );
    }
}
