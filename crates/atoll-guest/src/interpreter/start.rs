//! Starts kernels: a fork of the warm parent for Python, a process of its own
//! for other languages, and a plain runner where Python has no kernel.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, TcpListener as StdTcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::ear::Ear;
use super::forkserver::{ForkError, Forkserver, Seed, Wish};
use super::kernel::{Kernel, Speech, hear, send};
use super::kernelspec::{InterruptMode, KernelSpec, Places, Transport, read_bounded};
use super::language::Language;
use super::message::{Kind, Message, Signer};
use super::place::{KernelDirectory, Place};
use super::process::KernelProcess;
use super::zmtp::{self, MESSAGE_BYTES_MAX, Role};
use crate::process::Commands;
use crate::process::launch::{self, Ends, Launch, LaunchError, Streams};
use crate::process::stream::Stream;
use crate::settings::Settings;
use crate::users::{User, UserError};

/// How long a kernel may take until it answers.
const START_BOUND: Duration = Duration::from_secs(25);

/// Between two tries to reach one that is starting.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// How long it may take until what it publishes is heard; then it is asked again.
const HEARD_BOUND: Duration = Duration::from_millis(100);

/// What is kept of what a kernel says beside the protocol.
const WORDS_BYTES_MAX: usize = 2048;

/// Variable of a template: modules that the parent of Python kernels imports
/// besides, with commas.
const PRELOAD_VARIABLE: &str = "ATOLL_KERNEL_PRELOAD";

/// Why a kernel does not run.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error(
        "this template has no Python, so it cannot run Python code\nhint: use a template that has one, such as `base` or `code-interpreter-v1`"
    )]
    NoPython,
    #[error("no kernel for '{language}' is installed (looked for `{kernel}`)\nhint: {}", installed(.there))]
    NoKernel {
        language: String,
        kernel: String,
        there: Vec<String>,
    },
    #[error(transparent)]
    User(#[from] UserError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Fork(#[from] ForkError),
    #[error("the kernel {exit} before it was ready{words}")]
    Ended {
        exit: super::process::Exit,
        words: String,
    },
    #[error("the kernel did not answer within {} s", START_BOUND.as_secs())]
    Late,
    #[error("the kernel cannot be prepared or reached: {0}")]
    Io(#[from] io::Error),
}

fn installed(names: &[String]) -> String {
    if names.is_empty() {
        "no kernels are installed in this template; `code-interpreter-v1` has them".to_owned()
    } else {
        format!("installed are {}", names.join(", "))
    }
}

/// Everything that kernels are started with.
pub(super) struct Starter {
    settings: Arc<Settings>,
    commands: Commands,
    place: Place,
    forkserver: AsyncMutex<Option<Arc<Forkserver>>>,
}

/// What a Jupyter kernel reads at its start.
#[derive(Serialize)]
struct ConnectionFile<'a> {
    transport: &'a str,
    ip: &'a str,
    shell_port: u16,
    iopub_port: u16,
    stdin_port: u16,
    control_port: u16,
    hb_port: u16,
    key: &'a str,
    signature_scheme: &'a str,
    kernel_name: &'a str,
}

/// Where the sockets of a kernel will be.
struct Sockets {
    transport: Transport,
    /// Prefix of paths, or an address.
    ip: String,
    shell: u16,
    iopub: u16,
    stdin: u16,
    control: u16,
    heartbeat: u16,
}

impl Starter {
    pub(super) fn new(settings: Arc<Settings>, commands: Commands) -> Self {
        Self {
            settings,
            commands,
            place: Place::default(),
            forkserver: AsyncMutex::default(),
        }
    }

    /// Variables of every context.
    pub(super) fn sandbox_env(&self) -> BTreeMap<String, String> {
        self.settings.env()
    }

    /// Directory of contexts that name none: the user's home.
    pub(super) fn default_directory(&self) -> String {
        self.settings
            .user(None)
            .map_or_else(|_| "/".to_owned(), |user| user.home)
    }

    /// Whether Python has a kernel here, which is worth starting early.
    pub(super) fn has_python_kernel(&self) -> bool {
        self.settings.user(None).is_ok_and(|user| {
            let env = launch::environment(&user, self.settings.env(), []);
            Places::new(&env, &user.home).kernel("python3").is_some()
        })
    }

    /// Removes what was put on the disk.
    pub(super) fn clear(&self) {
        self.place.clear();
    }

    /// Starts a kernel for `language` in `cwd`.
    pub(super) async fn start(&self, language: &Language, cwd: &str) -> Result<Kernel, StartError> {
        let user = self.settings.user(None)?;
        let env = launch::environment(&user, self.settings.env(), []);
        let places = Places::new(&env, &user.home);
        let Some(spec) = places.kernel(language.kernel()) else {
            return match language {
                Language::Python => self.start_plain(&places, env, user, cwd).await,
                _ => Err(StartError::NoKernel {
                    language: language.name().to_owned(),
                    kernel: language.kernel().to_owned(),
                    there: places.names(),
                }),
            };
        };
        let mut env = env;
        env.extend(spec.env.clone());
        let directory = self.place.directory(&user)?;
        let sockets = Sockets::reserve(spec.transport, &directory)?;
        let key = uuid::Uuid::new_v4().simple().to_string();
        let file = directory.path("connection.json")?;
        directory.write(
            "connection.json",
            &sockets.file(&key, language.kernel())?,
            &user,
        )?;
        let (process, words) = self
            .start_process(&spec, &places, &env, &user, cwd, &file)
            .await?;
        let process = Arc::new(process);
        let signer = Signer::new(&key, uuid::Uuid::new_v4().simple().to_string())
            .ok_or_else(|| io::Error::other("the key cannot sign"))?;
        let connected = async {
            tokio::select! {
                biased;
                connected = connect(&sockets, signer, spec.interrupt) => connected.map_err(StartError::Io),
                exit = process.exited() => Err(StartError::Ended {
                    exit,
                    words: told(&read_bounded(format!("{file}.failure").as_ref())
                        .unwrap_or_else(|| words.text())),
                }),
            }
        };
        let (speech, ear) = timeout(START_BOUND, connected)
            .await
            .map_err(|_| StartError::Late)??;
        Ok(Kernel::new(process, ear, env, speech, Some(directory)))
    }

    async fn start_process(
        &self,
        spec: &KernelSpec,
        places: &Places,
        env: &BTreeMap<String, String>,
        user: &User,
        cwd: &str,
        file: &str,
    ) -> Result<(KernelProcess, Words), StartError> {
        let with_file = |words: &[String]| -> Vec<String> {
            let fill = |word: &String| word.replace("{connection_file}", file);
            words.iter().map(fill).collect()
        };
        if let Some((python, rest)) = spec.as_ipykernel()
            && let Some(python) = places.program(python)
        {
            let seed = Seed {
                python,
                program: self.place.program("forkserver.py")?,
                hooks: self.place.program("hooks.py")?,
                preload: env.get(PRELOAD_VARIABLE).cloned().unwrap_or_default(),
                env: env.clone(),
                user: user.clone(),
            };
            std::fs::metadata(cwd)
                .and_then(|stat| {
                    if stat.is_dir() {
                        Ok(())
                    } else {
                        Err(io::ErrorKind::NotADirectory.into())
                    }
                })
                .map_err(|source| LaunchError::Directory {
                    cwd: cwd.to_owned(),
                    source,
                })?;
            let parent = self.parent(seed).await?;
            let wish = Wish {
                connection_file: file,
                arguments: &with_file(rest),
                cwd,
                env,
            };
            return Ok((parent.fork(&wish).await?, Words::default()));
        }
        let argv = with_file(&spec.argv);
        let (cmd, args) = argv
            .split_first()
            .ok_or_else(|| io::Error::other("its kernel.json names no program"))?;
        let launch = Launch {
            // Not by the guest's own path: the kernel's decides.
            cmd: places.program(cmd).unwrap_or_else(|| cmd.clone()),
            args: args.to_vec(),
            env: env.clone(),
            cwd: cwd.to_owned(),
            user: user.clone(),
            streams: Streams::OutputOnly,
        };
        let launched = launch::launch(launch, self.commands.spare()).await?;
        let words = Words::default();
        if let Ends::Pipes { stdout, stderr, .. } = launched.ends {
            tokio::spawn(words.clone().keep(stdout));
            tokio::spawn(words.clone().keep(stderr));
        }
        let process = KernelProcess::launched(launched.pid, launched.reports);
        Ok((process, words))
    }

    /// The parent of Python kernels; started, if it does not run.
    async fn parent(&self, seed: Seed) -> Result<Arc<Forkserver>, StartError> {
        let mut forkserver = self.forkserver.lock().await;
        if let Some(parent) = &*forkserver
            && parent.serves(&seed)
        {
            return Ok(Arc::clone(parent));
        }
        let parent = Arc::new(Forkserver::start(seed, self.commands.spare()).await?);
        *forkserver = Some(Arc::clone(&parent));
        Ok(parent)
    }

    async fn start_plain(
        &self,
        places: &Places,
        env: BTreeMap<String, String>,
        user: User,
        cwd: &str,
    ) -> Result<Kernel, StartError> {
        let python = places
            .program("python3")
            .or_else(|| places.program("python"))
            .ok_or(StartError::NoPython)?;
        let launch = Launch {
            cmd: python,
            args: vec!["-u".to_owned(), self.place.program("plain.py")?],
            env: env.clone(),
            cwd: cwd.to_owned(),
            user,
            streams: Streams::Pipes,
        };
        let launched = launch::launch(launch, self.commands.spare()).await?;
        let process = KernelProcess::launched(launched.pid, launched.reports);
        let Ends::Pipes {
            stdin: Some(stdin),
            stdout,
            stderr,
        } = launched.ends
        else {
            return Err(io::Error::other("the runner has no pipes").into());
        };
        let ear = Ear::new();
        tokio::spawn(hear_lines(stdout, ear.clone()));
        tokio::spawn(Words::default().keep(stderr));
        Ok(Kernel::new(
            Arc::new(process),
            ear,
            env,
            Speech::Plain(stdin),
            None,
        ))
    }
}

impl Sockets {
    fn reserve(transport: Transport, directory: &KernelDirectory) -> io::Result<Self> {
        let (ip, [shell, iopub, stdin, control, heartbeat]) = match transport {
            Transport::Ipc => (directory.path("socket")?, [1, 2, 3, 4, 5]),
            Transport::Tcp => (Ipv4Addr::LOCALHOST.to_string(), free_ports()?),
        };
        Ok(Self {
            transport,
            ip,
            shell,
            iopub,
            stdin,
            control,
            heartbeat,
        })
    }

    fn file(&self, key: &str, kernel_name: &str) -> io::Result<Vec<u8>> {
        Ok(serde_json::to_vec(&ConnectionFile {
            transport: match self.transport {
                Transport::Ipc => "ipc",
                Transport::Tcp => "tcp",
            },
            ip: &self.ip,
            shell_port: self.shell,
            iopub_port: self.iopub,
            stdin_port: self.stdin,
            control_port: self.control,
            hb_port: self.heartbeat,
            key,
            signature_scheme: "hmac-sha256",
            kernel_name,
        })?)
    }

    /// Connects as soon as the kernel listens.
    async fn open(&self, number: u16, role: Role) -> io::Result<(zmtp::Receiver, zmtp::Sender)> {
        loop {
            let opened = match self.transport {
                Transport::Ipc => {
                    let path = format!("{}-{number}", self.ip);
                    UnixStream::connect(path).await.map(boxed)
                }
                Transport::Tcp => TcpStream::connect((Ipv4Addr::LOCALHOST, number))
                    .await
                    .and_then(|stream| {
                        stream.set_nodelay(true)?;
                        Ok(boxed(stream))
                    }),
            };
            match opened {
                Ok((reading, writing)) => return zmtp::open(reading, writing, role).await,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                    ) =>
                {
                    sleep(LOOK_AGAIN).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn boxed(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> (zmtp::Reading, zmtp::Writing) {
    let (reading, writing) = tokio::io::split(stream);
    (Box::new(reading), Box::new(writing))
}

/// Ports that nobody has at this moment.
fn free_ports() -> io::Result<[u16; 5]> {
    let mut held = Vec::new();
    let mut ports = [0; 5];
    for port in &mut ports {
        let listener = StdTcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

/// Connects, and waits until the kernel answers and is heard.
async fn connect(
    sockets: &Sockets,
    signer: Signer,
    interrupt: InterruptMode,
) -> io::Result<(Speech, Ear)> {
    let (published, _) = sockets.open(sockets.iopub, Role::Subscriber).await?;
    let (answers, mut shell) = sockets.open(sockets.shell, Role::Dealer).await?;
    let (_, control) = sockets.open(sockets.control, Role::Dealer).await?;
    let ear = Ear::new();
    let published_ear = ear.clone();
    tokio::spawn(async move {
        hear(published, published_ear.clone()).await;
        // Everything that it published was heard by now.
        published_ear.lose();
    });
    tokio::spawn(hear(answers, ear.clone()));

    #[derive(Serialize)]
    struct Empty {}
    // A subscription takes effect at some moment: asked until it has.
    for number in 0_u32.. {
        let id = format!("hello-{number}");
        let mut heard = ear.listen(&id);
        send(&mut shell, &signer, &id, "kernel_info_request", &Empty {}).await?;
        let (mut is_answered, mut is_published) = (false, false);
        let mut deadline = None;
        while !(is_answered && is_published) {
            let message = match deadline {
                None => heard.recv().await,
                Some(deadline) => match timeout_at(deadline, heard.recv()).await {
                    Ok(message) => message,
                    Err(_) => break,
                },
            };
            match message.map(|message| message.kind) {
                Some(Kind::KernelInfoReply) => {
                    is_answered = true;
                    deadline = Some(Instant::now() + HEARD_BOUND);
                }
                Some(_) => is_published = true,
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        if is_answered && is_published {
            break;
        }
    }
    let speech = Speech::Jupyter {
        shell,
        control,
        signer,
        interrupt,
    };
    Ok((speech, ear))
}

/// Hears the lines of a plain runner; of one that is too long, what it is about.
async fn hear_lines(stdout: Stream, ear: Ear) {
    let mut buffer = vec![0; 64 * 1024];
    let (mut line, mut dropped) = (Vec::new(), 0_u64);
    while let Ok(Some(bytes)) = stdout.read(&mut buffer).await {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let end = rest.iter().position(|byte| *byte == b'\n');
            let piece = &rest[..end.unwrap_or(rest.len())];
            let room = MESSAGE_BYTES_MAX - line.len();
            line.extend_from_slice(&piece[..piece.len().min(room)]);
            dropped += piece.len().saturating_sub(room) as u64;
            let Some(end) = end else { break };
            rest = &rest[end + 1..];
            let message = match dropped {
                0 => Message::parse_line(&line),
                dropped => Message::parse_cut_line(&line, dropped),
            };
            if let Some(message) = message {
                ear.hear(message).await;
            }
            line.clear();
            line.shrink_to(64 * 1024);
            dropped = 0;
        }
    }
    ear.lose();
}

/// The end of what a kernel says beside the protocol.
#[derive(Debug, Clone, Default)]
struct Words(Arc<Mutex<Vec<u8>>>);

impl Words {
    /// Reads and keeps the last of it.
    async fn keep(self, source: Stream) {
        let mut buffer = vec![0; WORDS_BYTES_MAX];
        while let Ok(Some(bytes)) = source.read(&mut buffer).await {
            let mut words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            words.extend_from_slice(&bytes);
            let beyond = words.len().saturating_sub(WORDS_BYTES_MAX);
            words.drain(..beyond);
        }
    }

    fn text(&self) -> String {
        let words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&words).into_owned()
    }
}

/// What somebody said, as the end of a sentence.
fn told(words: &str) -> String {
    let words = words.trim();
    if words.is_empty() {
        String::new()
    } else {
        format!(":\n{words}")
    }
}
