//! Starts kernels: a fork of the warm parent for Python, a process of its own
//! for other languages, and a plain runner where Python has no kernel.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, timeout};

use super::ear::Ear;
use super::forkserver::{ForkError, Forkserver, Seed, Wish};
use super::kernel::{Kernel, Listeners, Speech};
use super::kernelspec::{KernelSpec, Places};
use super::language::Language;
use super::message::{Message, Signer};
use super::place::Place;
use super::process::KernelProcess;
use super::sockets::{Connected, Sockets, connect};
use super::zmtp::MESSAGE_BYTES_MAX;
use crate::process::Commands;
use crate::process::launch::{self, Ends, Launch, LaunchError, Streams};
use crate::process::stream::Stream;
use crate::settings::Settings;
use crate::users::{User, UserError};

/// How long a kernel may take until it answers, with everything that has to be
/// started for it. Less than the host waits: it is to hear why there is none.
const START_BOUND: Duration = Duration::from_secs(28);

/// How long a kernel has to answer after whatever came before.
const ANSWER_BOUND_MIN: Duration = Duration::from_secs(5);

/// What is kept of what a kernel says beside the protocol.
const WORDS_BYTES_MAX: usize = 2048;

/// Where a fork says why it could not become a kernel.
const FAILURE: &str = "connection.json.failure";

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

/// What a kernel is started with, whatever it is.
struct Surroundings<'a> {
    places: &'a Places,
    env: &'a BTreeMap<String, String>,
    user: &'a User,
    cwd: &'a str,
    /// Where it finds its sockets.
    file: &'a str,
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
        let begun = Instant::now();
        let directory = self.place.directory()?;
        let sockets = Sockets::reserve(spec.transport, &directory)?;
        let key = uuid::Uuid::new_v4().simple().to_string();
        let file = directory.path("connection.json")?;
        let connection = sockets.file(&key, language.kernel())?;
        directory.give_with("connection.json", &connection, &user)?;
        let surroundings = Surroundings {
            places: &places,
            env: &env,
            user: &user,
            cwd,
            file: &file,
        };
        let mut listeners = Listeners::default();
        let (process, words) = self
            .start_process(&spec, &surroundings, &mut listeners)
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
                    words: told(&directory.read_of(FAILURE, &user)
                        .unwrap_or_else(|| words.text())),
                }),
            }
        };
        let left = START_BOUND.saturating_sub(begun.elapsed());
        let connected = timeout(left.max(ANSWER_BOUND_MIN), connected)
            .await
            .map_err(|_| StartError::Late)??;
        let Connected {
            speech,
            ear,
            listeners: hearing,
        } = connected;
        listeners.join(hearing);
        Ok(Kernel::new(
            process,
            ear,
            env,
            speech,
            listeners,
            Some(directory),
        ))
    }

    async fn start_process(
        &self,
        spec: &KernelSpec,
        &Surroundings {
            places,
            env,
            user,
            cwd,
            file,
        }: &Surroundings<'_>,
        listeners: &mut Listeners,
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
            let wish = Wish {
                connection_file: file,
                arguments: &with_file(rest),
                cwd,
                env,
            };
            return Ok((self.fork(seed, &wish).await?, Words::default()));
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
            listeners.add(words.clone().keep(stdout));
            listeners.add(words.clone().keep(stderr));
        }
        let process = KernelProcess::launched(launched.pid, launched.reaper, launched.reports);
        Ok((process, words))
    }

    /// A fork of the parent of Python kernels. One that does not do its part
    /// is left to the kernels that it has, and another one asked, once.
    async fn fork(&self, seed: Seed, wish: &Wish<'_>) -> Result<KernelProcess, StartError> {
        let parent = self.parent(seed.clone()).await?;
        match parent.fork(wish).await {
            Err(error) if error.is_of_this_parent() => {
                let mut current = self.forkserver.lock().await;
                if current
                    .as_ref()
                    .is_some_and(|one| Arc::ptr_eq(one, &parent))
                {
                    *current = None;
                }
                drop((current, parent));
                Ok(self.parent(seed).await?.fork(wish).await?)
            }
            forked => Ok(forked?),
        }
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
        let process = KernelProcess::launched(launched.pid, launched.reaper, launched.reports);
        let Ends::Pipes {
            stdin: Some(stdin),
            stdout,
            stderr,
        } = launched.ends
        else {
            return Err(io::Error::other("the runner has no pipes").into());
        };
        let (ear, mut listeners) = (Ear::new(), Listeners::default());
        listeners.add(hear_lines(stdout, ear.clone()));
        listeners.add(Words::default().keep(stderr));
        Ok(Kernel::new(
            Arc::new(process),
            ear,
            env,
            Speech::Plain(stdin),
            listeners,
            None,
        ))
    }
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
