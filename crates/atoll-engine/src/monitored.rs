//! The tiers of this host, seen from the client: it starts a monitor for each
//! sandbox and talks to it. What differs between tiers is the monitor's
//! business, but for the way in (see `dial`).

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::config::{EngineConfig, GUEST_PORT, PASSAGE_OPEN, PASSAGE_PORT, PASSAGE_REFUSED};
use crate::host::process::{enter, pidfd};
use crate::host::{HostObject, program};
use crate::monitor::checkpoint;
use crate::monitor::message::{
    Answer, Entrance, MonitorRequest, Question, Ready, Report, receive, send,
};
use crate::reconcile::reconcile_one;
use crate::record::Records;
use crate::runtime::Stats;
use crate::{
    Attachment, CreateError, Dial, Memory, NetworkPolicy, Outcome, Runtime, Sandbox, SandboxError,
    SandboxId, SandboxSpec, Still, Tier, open_files_ceiling,
};

/// A monitor that has not made its sandbox by then is given up.
const CREATE_BOUND: Duration = Duration::from_secs(60);
/// Answers that need no waiting for the sandbox itself.
const ANSWER_BOUND: Duration = Duration::from_secs(30);
/// Ending all processes, and booting again.
const SUSPENSION_BOUND: Duration = Duration::from_secs(180);
/// Writing memory to disk or reading it back, with all the bounds of the steps of either, and
/// waiting for the disk.
const MEMORY_BOUND: Duration = Duration::from_secs(2 * checkpoint::BOUND.as_secs());
/// A monitor that has answered has nothing left to do but to exit.
const FAREWELL_BOUND: Duration = Duration::from_secs(5);
/// Pause between two looks at a record that is being written.
const RECORD_PAUSE: Duration = Duration::from_millis(5);
/// With less, gVisor's kernel takes longer to start a program than anybody waits.
const GVISOR_CPU_MILLIS_MIN: u64 = 50;
const DIAL_BOUND: Duration = Duration::from_secs(5);
/// A connection into a kernel of user space that is silent this long is asked
/// whether it lives; after so many questions without an answer it is broken.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_COUNT: u32 = 5;
/// A longer log starts anew.
const LOG_LIMIT: u64 = 4 * 1024 * 1024;
const REPORT_LIMIT: u64 = 64 * 1024;

/// Sandboxes of one tier on this host, each with a monitor beside it.
pub struct MonitoredRuntime {
    config: EngineConfig,
    tier: Tier,
}

impl MonitoredRuntime {
    /// A runtime of `tier` with these settings.
    #[must_use]
    pub fn new(config: EngineConfig, tier: Tier) -> Self {
        Self { config, tier }
    }

    /// Where monitors write what nobody is there to read.
    fn open_log(&self) -> io::Result<File> {
        let path = self.config.home.join("monitor.log");
        let too_long = std::fs::metadata(&path).is_ok_and(|metadata| metadata.len() > LOG_LIMIT);
        let mut options = File::options();
        options.create(true).append(true).mode(0o600);
        let log = options.open(path)?;
        if too_long {
            log.set_len(0)?;
        }
        Ok(log)
    }

    fn start_monitor(&self) -> io::Result<Child> {
        let mut command = Command::new(&self.config.program);
        command
            .arg("monitor")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(self.open_log()?)
            .env_clear();
        // The client's environment is nobody's business beyond this point.
        let kept = [
            "PATH",
            "ATOLL_FAILPOINT",
            "ATOLL_FAILPOINT_SCOPE",
            "ATOLL_FAILPOINT_LOG",
            "LLVM_PROFILE_FILE",
        ];
        command.envs(
            kept.iter()
                .filter_map(|name| Some((name, std::env::var_os(name)?))),
        );
        program::spawn(HostObject::MonitorProcess, &mut command)
    }
}

impl Runtime for MonitoredRuntime {
    fn tier(&self) -> Tier {
        self.tier
    }

    fn create(&self, spec: &SandboxSpec) -> Result<Box<dyn Sandbox>, CreateError> {
        spec.limits.validate()?;
        spec.network.validate()?;
        refuse_what_the_tier_lacks(self.tier, spec)?;
        if let Some(memory) = &spec.memory {
            let checked = memory.check(self.tier, &self.config, spec);
            checked.map_err(|unfit| CreateError::Refused {
                what: unfit.what,
                hint: unfit.hint.to_owned(),
            })?;
        }
        let ceiling = open_files_ceiling();
        if spec.limits.open_files > ceiling {
            return Err(CreateError::Refused {
                what: format!(
                    "{} open files are more than this host allows ({ceiling})",
                    spec.limits.open_files
                ),
                hint: "ask for fewer, or raise the hard limit (`ulimit -Hn`) of the caller"
                    .to_owned(),
            });
        }
        let mut monitor = self
            .start_monitor()
            .map_err(|error| CreateError::Monitor(error.to_string()))?;
        match converse(
            &mut monitor,
            &MonitorRequest {
                config: self.config.clone(),
                tier: self.tier,
                spec: spec.clone(),
            },
        ) {
            Ok((Report::Ready(ready), lifeline)) => {
                let lifeline = (spec.attachment == Attachment::Client).then_some(lifeline);
                let sandbox = MonitoredSandbox::attach(
                    spec.id.clone(),
                    self.tier,
                    Records::new(self.config.records()),
                    &ready,
                    lifeline,
                    Some(monitor),
                );
                Ok(Box::new(sandbox.map_err(|error| {
                    CreateError::Monitor(error.to_string())
                })?))
            }
            Ok((Report::Failed(failure), _)) => {
                let _ = monitor.wait();
                Err(CreateError::Host {
                    what: failure.what,
                    hint: failure.hint,
                })
            }
            Err(error) => {
                let _ = monitor.kill();
                let _ = monitor.wait();
                let left = reconcile_one(&spec.id)
                    .err()
                    .map(|error| format!("; what it left could not be removed: {error}"));
                Err(CreateError::Monitor(format!(
                    "{error}{}",
                    left.unwrap_or_default()
                )))
            }
        }
    }
}

/// A limit that a tier cannot enforce is refused, and not quietly dropped.
fn refuse_what_the_tier_lacks(tier: Tier, spec: &SandboxSpec) -> Result<(), CreateError> {
    let (what, hint) = match (tier, spec.limits.inodes) {
        (Tier::Gvisor, Some(_)) => (
            "the gvisor tier cannot limit the number of files and directories: they are kept in the sandbox's memory".to_owned(),
            "leave the limit of inodes out (memory bounds them), or choose `--isolation container`".to_owned(),
        ),
        (Tier::Gvisor, None) if spec.limits.cpu_millis < GVISOR_CPU_MILLIS_MIN => (
            format!(
                "{}m CPUs are too few for the gvisor tier, whose own kernel needs some",
                spec.limits.cpu_millis
            ),
            format!(
                "allow at least {GVISOR_CPU_MILLIS_MIN}m CPUs, or choose `--isolation container`"
            ),
        ),
        (Tier::Microvm, _) => (
            "the microvm tier is not part of this version of Atoll".to_owned(),
            "choose `--isolation gvisor` or `--isolation container`".to_owned(),
        ),
        _ => return Ok(()),
    };
    Err(CreateError::Refused { what, hint })
}

/// Sends the request and waits for the report.
fn converse(monitor: &mut Child, request: &MonitorRequest) -> io::Result<(Report, ChildStdin)> {
    // One that goes on from memory reads all of that first.
    let bound = match request.spec.memory {
        Some(_) => MEMORY_BOUND,
        None => CREATE_BOUND,
    };
    let (Some(mut input), Some(output)) = (monitor.stdin.take(), monitor.stdout.take()) else {
        return Err(io::Error::other("the monitor has no pipes"));
    };
    let mut line = serde_json::to_string(request).map_err(io::Error::other)?;
    line.push('\n');
    input.write_all(line.as_bytes())?;
    let timeout = Timespec {
        tv_sec: i64::try_from(bound.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: 0,
    };
    // The death of the monitor is watched as well: what it forked may keep its pipe open.
    let process = pidfd(i32::try_from(monitor.id()).map_err(io::Error::other)?)?;
    let mut sources = [
        PollFd::new(&output, PollFlags::IN),
        PollFd::new(&process, PollFlags::IN),
    ];
    if poll(&mut sources, Some(&timeout))? == 0 {
        let what = format!("no report within {} s", bound.as_secs());
        return Err(io::Error::new(io::ErrorKind::TimedOut, what));
    }
    if !sources[0].revents().contains(PollFlags::IN) {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "it ended without a report",
        ));
    }
    let mut report = String::new();
    BufReader::new(output.take(REPORT_LIMIT)).read_line(&mut report)?;
    if report.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "it ended without a report",
        ));
    }
    Ok((
        serde_json::from_str(&report).map_err(io::Error::other)?,
        input,
    ))
}

/// Asks the monitor at `control`; no answer when it ends without one, and an
/// error of the kind `WouldBlock` when it takes longer than `bound`.
pub(crate) fn ask(
    control: &Path,
    question: &Question,
    bound: Duration,
) -> io::Result<Option<Answer>> {
    let mut stream = UnixStream::connect(control)?;
    send(&mut stream, question)?;
    receive(&stream, Some(bound))
}

/// What changes when a sandbox is suspended and woken up.
struct Life {
    /// The process with which it ends.
    init: OwnedFd,
    entrance: Entrance,
}

impl Life {
    fn of(ready: &Ready) -> io::Result<Self> {
        let init = pidfd(ready.init.pid)?;
        if !ready.init.is_alive() {
            return Err(io::Error::other("the sandbox ended right after its start"));
        }
        Ok(Self {
            init,
            entrance: ready.entrance,
        })
    }
}

/// A sandbox with a monitor beside it.
pub(crate) struct MonitoredSandbox {
    id: SandboxId,
    records: Records,
    control: PathBuf,
    life: Mutex<Arc<Life>>,
    tier: Tier,
    /// Closing it tells the monitor that this client is gone.
    lifeline: Mutex<Option<ChildStdin>>,
    monitor: Mutex<Option<Child>>,
}

impl MonitoredSandbox {
    pub(crate) fn attach(
        id: SandboxId,
        tier: Tier,
        records: Records,
        ready: &Ready,
        lifeline: Option<ChildStdin>,
        monitor: Option<Child>,
    ) -> io::Result<Self> {
        Ok(Self {
            id,
            records,
            control: ready.control.clone(),
            life: Mutex::new(Arc::new(Life::of(ready)?)),
            tier,
            lifeline: Mutex::new(lifeline),
            monitor: Mutex::new(monitor),
        })
    }

    fn ask(&self, question: &Question, bound: Duration) -> Result<Option<Answer>, SandboxError> {
        match ask(&self.control, question, bound) {
            Ok(Some(Answer::Failed(what))) => Err(SandboxError::Failed(what)),
            Ok(Some(Answer::Damaged(what))) => Err(SandboxError::Damaged(what)),
            Ok(Some(answer)) => Ok(Some(answer)),
            Ok(None) => Err(SandboxError::Gone),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(failed(&error)),
        }
    }

    /// Whether the process with which it ends is there.
    fn lives(&self) -> bool {
        let life = self.life();
        let mut source = [PollFd::new(&life.init, PollFlags::IN)];
        matches!(poll(&mut source, Some(&Timespec::default())), Ok(0))
    }

    fn life(&self) -> Arc<Life> {
        // A single step changes it, so a panic elsewhere leaves it whole.
        Arc::clone(&self.life.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Asks for something after which the sandbox is found elsewhere.
    fn move_on(&self, question: &Question) -> Result<(), SandboxError> {
        let bound = match self.tier {
            Tier::Gvisor => MEMORY_BOUND,
            Tier::Container | Tier::Microvm => SUSPENSION_BOUND,
        };
        match self.ask(question, bound)? {
            Some(Answer::Ready(ready)) => {
                let life = Life::of(&ready).map_err(|_| SandboxError::Gone)?;
                *self.life.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(life);
                Ok(())
            }
            // It could not be let go after something had failed.
            Some(Answer::Ended(_)) => Err(SandboxError::Gone),
            Some(other) => Err(unexpected(&other)),
            None => Err(no_answer(bound)),
        }
    }

    /// The end as it is on record, waited for.
    fn recorded_end(&self, bound: Duration) -> Result<Outcome, SandboxError> {
        let start = Instant::now();
        loop {
            // Also writes the record of one whose monitor was killed.
            reconcile_one(&self.id).map_err(|error| SandboxError::Failed(error.to_string()))?;
            let ended = self
                .records
                .get(&self.id)
                .ok()
                .flatten()
                .and_then(|record| record.ended);
            match ended {
                Some(ended) => return Ok(ended.outcome),
                None if start.elapsed() > bound => return Err(SandboxError::Gone),
                None => std::thread::sleep(RECORD_PAUSE),
            }
        }
    }

    fn ask_now(&self, question: &Question) -> Result<Answer, SandboxError> {
        self.ask(question, ANSWER_BOUND)?
            .ok_or_else(|| no_answer(ANSWER_BOUND))
    }
}

impl Dial for MonitoredSandbox {
    fn dial(&self, port: u16) -> io::Result<TcpStream> {
        let life = self.life();
        let (init, entrance) = (life.init.as_fd(), life.entrance);
        if matches!(entrance, Entrance::None) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        // A thread of its own: it leaves the host's network namespace for good.
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("dial".to_owned())
                .spawn_scoped(scope, move || {
                    enter(init, rustix::thread::ThreadNameSpaceType::NETWORK)?;
                    connect(entrance, port)
                })?;
            thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the dialing thread panicked")))
        })
    }
}

/// Makes a connection notice that its other end is gone without a word: a
/// kernel in user space that is killed closes nothing.
fn watched(stream: TcpStream) -> io::Result<TcpStream> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_COUNT)?;
    Ok(stream)
}

/// Connects to `port` of a sandbox, from the namespace in which its entrance is.
fn connect(entrance: Entrance, port: u16) -> io::Result<TcpStream> {
    let to = |address: IpAddr, port: u16| -> io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&SocketAddr::from((address, port)), DIAL_BOUND)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    match entrance {
        Entrance::Loopback => match to(Ipv4Addr::LOCALHOST.into(), port) {
            // What listens on `localhost` may have chosen the other one.
            Err(error)
                if error.kind() == io::ErrorKind::ConnectionRefused && port != GUEST_PORT =>
            {
                to(Ipv6Addr::LOCALHOST.into(), port).map_err(|_| error)
            }
            connected => connected,
        },
        Entrance::None => Err(io::ErrorKind::ConnectionRefused.into()),
        Entrance::Guest(address) if port == GUEST_PORT => watched(to(address.into(), port)?),
        Entrance::Guest(address) => {
            let mut stream = watched(to(address.into(), PASSAGE_PORT)?)?;
            stream.write_all(&port.to_be_bytes())?;
            let mut answer = [u8::MAX];
            stream.set_read_timeout(Some(DIAL_BOUND))?;
            stream.read_exact(&mut answer)?;
            stream.set_read_timeout(None)?;
            match answer[0] {
                PASSAGE_OPEN => Ok(stream),
                PASSAGE_REFUSED => Err(io::ErrorKind::ConnectionRefused.into()),
                _ => Err(io::Error::other(format!(
                    "the sandbox cannot connect to its port {port}"
                ))),
            }
        }
    }
}

impl Sandbox for MonitoredSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn tier(&self) -> Tier {
        self.tier
    }

    fn freeze(&self) -> Result<(), SandboxError> {
        self.ask_now(&Question::Freeze).map(drop)
    }

    fn thaw(&self) -> Result<(), SandboxError> {
        self.ask_now(&Question::Thaw).map(drop)
    }

    fn suspend(&self) -> Result<(), SandboxError> {
        self.move_on(&Question::Suspend)
    }

    fn checkpoint(&self) -> Result<(), SandboxError> {
        if self.tier != Tier::Gvisor {
            return Err(SandboxError::Unsupported {
                tier: self.tier,
                operation: "keep the memory of a sandbox on disk",
            });
        }
        self.move_on(&Question::Checkpoint)
    }

    fn write_memory(&self, directory: &Path) -> Result<Memory, SandboxError> {
        if self.tier != Tier::Gvisor {
            return Err(SandboxError::Unsupported {
                tier: self.tier,
                operation: "write the memory of a sandbox to disk",
            });
        }
        let question = Question::WriteMemory(directory.to_owned());
        match self.ask(&question, MEMORY_BOUND) {
            Ok(Some(Answer::Memory(memory))) => Ok(memory),
            Ok(Some(Answer::Ended(_))) => Err(SandboxError::Gone),
            Ok(Some(other)) => Err(unexpected(&other)),
            Ok(None) => Err(no_answer(MEMORY_BOUND)),
            Err(SandboxError::Gone) if self.lives() => Err(SandboxError::Failed(
                "its monitor is of an older release, which cannot do that".to_owned(),
            )),
            Err(error) => Err(error),
        }
    }

    fn settle(&self) -> Result<(), SandboxError> {
        self.ask_now(&Question::Settle).map(drop)
    }

    fn wake(&self) -> Result<(), SandboxError> {
        self.move_on(&Question::Wake)
    }

    fn stats(&self) -> Result<Stats, SandboxError> {
        match self.ask_now(&Question::Stats)? {
            Answer::Stats(stats) => Ok(stats),
            other => Err(unexpected(&other)),
        }
    }

    fn counters(&self) -> Result<Stats, SandboxError> {
        match self.ask_now(&Question::Counters) {
            Ok(Answer::Stats(stats)) => Ok(stats),
            // A monitor that was started before there was such a question answers nothing.
            Ok(_) | Err(_) => self.stats(),
        }
    }

    fn set_network(&self, policy: &NetworkPolicy) -> Result<(), SandboxError> {
        policy
            .validate()
            .map_err(|error| SandboxError::Failed(error.to_string()))?;
        self.ask_now(&Question::SetNetwork(policy.clone()))
            .map(drop)
    }

    fn end_after(&self, left: Duration) -> Result<(), SandboxError> {
        self.ask_now(&Question::EndAfter(left)).map(drop)
    }

    fn end_signal(&self) -> io::Result<OwnedFd> {
        self.life().init.try_clone()
    }

    fn halt(&self) -> Result<PathBuf, SandboxError> {
        if self.tier == Tier::Gvisor {
            return Err(SandboxError::Unsupported {
                tier: self.tier,
                operation: "show the changes of a sandbox as files",
            });
        }
        match self.ask_now(&Question::Halt)? {
            Answer::Halted(directory) => Ok(directory),
            other => Err(unexpected(&other)),
        }
    }

    fn hold_still(&self) -> Result<Still, SandboxError> {
        if self.tier == Tier::Gvisor {
            return Err(SandboxError::Unsupported {
                tier: self.tier,
                operation: "show the changes of a sandbox as files",
            });
        }
        let connected = UnixStream::connect(&self.control).and_then(|mut monitor| {
            send(&mut monitor, &Question::HoldStill)?;
            Ok((receive(&monitor, Some(ANSWER_BOUND))?, monitor))
        });
        match connected.map_err(|error| failed(&error))? {
            (Some(Answer::Still { changes, layers }), monitor) => {
                Ok(Still::new(changes, layers, monitor))
            }
            (Some(Answer::Failed(what)), _) => Err(SandboxError::Failed(what)),
            (Some(other), _) => Err(unexpected(&other)),
            (None, _) => Err(SandboxError::Gone),
        }
    }

    fn wait(&self, bound: Duration) -> Result<Option<Outcome>, SandboxError> {
        match self.ask(&Question::Wait, bound) {
            Ok(None) => Ok(None),
            Ok(Some(Answer::Ended(outcome))) => Ok(Some(outcome)),
            Ok(Some(other)) => Err(unexpected(&other)),
            // The monitor has stopped listening: it is about to write the end down, or was killed.
            Err(SandboxError::Gone) => self.recorded_end(bound).map(Some),
            Err(error) => Err(error),
        }
    }

    fn destroy(&self) -> Result<Outcome, SandboxError> {
        let answer = self.ask_now(&Question::Destroy);
        if let Ok(mut lifeline) = self.lifeline.lock() {
            lifeline.take();
        }
        if let Ok(mut monitor) = self.monitor.lock()
            && let Some(monitor) = monitor.take()
        {
            farewell(monitor);
        }
        match answer {
            Ok(Answer::Ended(outcome)) => Ok(outcome),
            Ok(other) => Err(unexpected(&other)),
            Err(SandboxError::Gone) => {
                // Its monitor has ended: by itself, then nothing is left; or killed, then this finds it.
                reconcile_one(&self.id).map_err(|error| SandboxError::Failed(error.to_string()))?;
                Err(SandboxError::Gone)
            }
            Err(error) => {
                reconcile_one(&self.id).map_err(|error| SandboxError::Failed(error.to_string()))?;
                Err(error)
            }
        }
    }
}

/// Why a monitor could not be asked.
fn failed(error: &io::Error) -> SandboxError {
    match error.kind() {
        // It ended while we asked.
        io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionRefused
        | io::ErrorKind::NotFound => SandboxError::Gone,
        _ => SandboxError::Failed(format!("the monitor does not answer: {error}")),
    }
}

fn no_answer(bound: Duration) -> SandboxError {
    SandboxError::Failed(format!(
        "the monitor gave no answer within {} s",
        bound.as_secs()
    ))
}

fn unexpected(answer: &Answer) -> SandboxError {
    SandboxError::Failed(format!("the monitor gave an unexpected answer: {answer:?}"))
}

/// Collects a monitor that has said its last word, or ends one that does not go.
fn farewell(mut monitor: Child) {
    let start = Instant::now();
    while let Ok(None) = monitor.try_wait() {
        if start.elapsed() > FAREWELL_BOUND {
            let _ = monitor.kill();
            let _ = monitor.wait();
            return;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}
