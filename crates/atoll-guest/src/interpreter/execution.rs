//! One execution: the code goes to the kernel, what comes of it to the
//! client, and whatever happens to either of them is noticed.
//!
//! It is over when the kernel has both answered and become idle, when the
//! kernel ends, or when the client goes away; then the kernel is interrupted.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_protocol::CODE_KEEPALIVE;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{Instant, interval_at, sleep_until, timeout};

use super::context::Seat;
use super::kernel::Kernel;
use super::language::Language;
use super::message::{ExecuteRequest, Kind, Message, Reply, Status};
use super::process::{Exit, KernelProcess};
use super::telling::{self, Told};

/// How long what a kernel said last may take after its end.
const LAST_WORDS_BOUND: Duration = Duration::from_millis(300);

/// How long a kernel whose connection is gone may take to end.
const END_BOUND: Duration = Duration::from_millis(300);

/// How long a kernel may be silent between its answer and that it is idle,
/// whichever comes first. Some drop what they publish when it is more than
/// they can keep.
const IDLE_BOUND: Duration = Duration::from_secs(2);

/// How long a kernel has for an interrupt, and how often it is told.
const INTERRUPT_BOUND: Duration = Duration::from_secs(6);
const INTERRUPT_AGAIN: Duration = Duration::from_secs(1);

/// Processes of a kernel beyond which it is ended instead of interrupted.
const CROWD_MAX: usize = 64;

/// How long setting variables may take.
const SILENT_BOUND: Duration = Duration::from_secs(5);

/// What a client asks for.
#[derive(Debug)]
pub(super) struct Code {
    pub(super) text: String,
    pub(super) env: BTreeMap<String, String>,
}

/// How the kernel came out of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It did what it was asked to.
    Done,
    /// It refused, because of an error before.
    Aborted,
    /// It ended.
    Ended(Exit),
    /// It runs, and cannot be reached.
    Lost,
    /// Nobody is there to be told.
    ClientGone,
}

/// Runs code in the kernel of `seat`, which has one, and tells `client`.
/// Afterwards the kernel is ready for more, or there is none any more.
pub(super) async fn run(
    seat: &mut Seat,
    language: &Language,
    code: &Code,
    sandbox_env: &BTreeMap<String, String>,
    client: &mpsc::Sender<Bytes>,
) {
    if let Some(notice) = seat.notice.take() {
        let _ = client.send(telling::note(&notice)).await;
    }
    let Some(kernel) = &mut seat.kernel else {
        return;
    };
    let outcome = match prepare(kernel, language, code, sandbox_env).await {
        Ok(()) => execute(kernel, &code.text, client).await,
        Err(outcome) => outcome,
    };
    let outcome = match outcome {
        // Copies of a kernel would all be interrupted, and then all be kernels.
        Outcome::ClientGone if kernel.process.crowd() > CROWD_MAX => {
            seat.notice = Some(format!(
                "[code of this context had become more than {CROWD_MAX} processes when it was interrupted: they were ended and the kernel was restarted, variables and imports are lost]\n"
            ));
            seat.vacate().await;
            return;
        }
        Outcome::ClientGone => match interrupt(kernel).await {
            Some(outcome) => outcome,
            None => {
                seat.notice = Some(
                    "[the kernel did not stop when its code was interrupted and was restarted: variables and imports of this context are lost]\n"
                        .to_owned(),
                );
                seat.vacate().await;
                return;
            }
        },
        outcome => outcome,
    };
    let said = match outcome {
        Outcome::Done | Outcome::ClientGone => None,
        Outcome::Aborted => Some(telling::error(
            "ExecutionAborted",
            "the kernel did not run the code",
        )),
        Outcome::Ended(exit) => {
            let value = match seat.ending() {
                Some(ending) => ending.to_owned(),
                None => format!(
                    "the kernel {exit} while it ran this code. All variables and imports of this context are lost; the next execution starts it anew."
                ),
            };
            Some(telling::error("ContextRestarting", &value))
        }
        Outcome::Lost => Some(telling::error(
            "UnexpectedEndOfExecution",
            "the connection to the kernel broke and the kernel was ended. All variables and imports of this context are lost; the next execution starts it anew.",
        )),
    };
    if let Some(said) = said {
        let _ = client.send(said).await;
    }
    match outcome {
        Outcome::Ended(_) | Outcome::Lost => seat.vacate().await,
        Outcome::Done | Outcome::Aborted | Outcome::ClientGone => {
            if let Some(kernel) = &mut seat.kernel
                && restore(kernel, language, code, sandbox_env).await.is_err()
            {
                seat.notice = Some(
                    "[variables of the environment could not be reset after the last execution and the kernel was restarted: variables and imports of this context are lost]\n"
                        .to_owned(),
                );
                seat.vacate().await;
            }
        }
    }
}

/// Sets variables before the code runs.
async fn prepare(
    kernel: &mut Kernel,
    language: &Language,
    code: &Code,
    sandbox_env: &BTreeMap<String, String>,
) -> Result<(), Outcome> {
    let mut wanted: BTreeMap<&str, Option<&str>> = BTreeMap::new();
    if !kernel.is_told {
        let all = sandbox_env.iter();
        // What its process has from the start need not be said again.
        let news = all.filter(|(name, value)| {
            language.needs_telling() || kernel.env.get(*name) != Some(*value)
        });
        wanted.extend(news.map(|(name, value)| (name.as_str(), Some(value.as_str()))));
    }
    for (name, value) in &code.env {
        wanted.insert(name, Some(value));
    }
    let setting = language.set(&wanted);
    kernel.is_told = true;
    match setting {
        Some(setting) => silently(kernel, &setting).await,
        None => Ok(()),
    }
}

/// Gives variables of one execution the values that they had before.
async fn restore(
    kernel: &mut Kernel,
    language: &Language,
    code: &Code,
    sandbox_env: &BTreeMap<String, String>,
) -> Result<(), Outcome> {
    let process_env = kernel.env.clone();
    let wanted: BTreeMap<&str, Option<&str>> = code
        .env
        .keys()
        .map(|name| {
            let value = sandbox_env.get(name).or_else(|| process_env.get(name));
            (name.as_str(), value.map(String::as_str))
        })
        .collect();
    match language.set(&wanted) {
        Some(setting) => silently(kernel, &setting).await,
        None => Ok(()),
    }
}

/// Runs code of ours that nobody sees.
async fn silently(kernel: &mut Kernel, code: &str) -> Result<(), Outcome> {
    let request = ExecuteRequest::silent(code);
    let run = follow(kernel, &request, Audience::Nobody);
    match timeout(SILENT_BOUND, run).await {
        Ok(Outcome::Done) => Ok(()),
        Ok(outcome) => Err(outcome),
        Err(_) => Err(Outcome::Lost),
    }
}

async fn execute(kernel: &mut Kernel, code: &str, client: &mpsc::Sender<Bytes>) -> Outcome {
    follow(
        kernel,
        &ExecuteRequest::of_user(code),
        Audience::Client(client),
    )
    .await
}

/// Interrupts the kernel until it is free; `None` when it does not stop.
async fn interrupt(kernel: &mut Kernel) -> Option<Outcome> {
    let process = kernel.process.clone();
    let by_signal = kernel.is_interrupted_by_signal();
    kernel.interrupt().await;
    // Free is who answers the next question.
    let request = ExecuteRequest::silent("");
    let answered = follow(kernel, &request, Audience::Nobody);
    let deadline = sleep_until(Instant::now() + INTERRUPT_BOUND);
    let mut again = interval_at(Instant::now() + INTERRUPT_AGAIN, INTERRUPT_AGAIN);
    tokio::pin!(answered, deadline);
    loop {
        tokio::select! {
            biased;
            outcome = &mut answered => return Some(match outcome {
                // A question that waited may be given up with the code before it.
                Outcome::Done | Outcome::Aborted => Outcome::ClientGone,
                outcome => outcome,
            }),
            () = &mut deadline => return None,
            _ = again.tick(), if by_signal => process.interrupt(),
        }
    }
}

/// Who hears of an execution.
#[derive(Clone, Copy)]
enum Audience<'a> {
    Client(&'a mpsc::Sender<Bytes>),
    Nobody,
}

impl Audience<'_> {
    async fn tell(self, line: Bytes) -> Result<(), Outcome> {
        match self {
            Self::Client(client) => client.send(line).await.map_err(|_| Outcome::ClientGone),
            Self::Nobody => Ok(()),
        }
    }

    /// Waits until it is gone.
    async fn gone(self) {
        match self {
            Self::Client(client) => client.closed().await,
            Self::Nobody => std::future::pending().await,
        }
    }

    fn is_there(self) -> bool {
        matches!(self, Self::Client(_))
    }
}

/// How far an execution is.
#[derive(Debug, Default)]
struct Progress {
    is_answered: bool,
    is_aborted: bool,
    is_idle: bool,
}

/// Sends a request and tells what comes of it until it is over.
async fn follow(
    kernel: &mut Kernel,
    request: &ExecuteRequest<'_>,
    audience: Audience<'_>,
) -> Outcome {
    let id = kernel.next_request();
    let mut heard = kernel.ear.listen(&id);
    let (ear, process) = (kernel.ear.clone(), kernel.process.clone());
    let asked = tokio::select! {
        biased;
        () = audience.gone() => return Outcome::ClientGone,
        exit = process.exited() => return Outcome::Ended(exit),
        asked = kernel.execute(&id, request) => asked,
    };
    if asked.is_err() {
        return ended_or_lost(&process).await;
    }
    let (mut told, mut progress) = (Told::default(), Progress::default());
    let mut spoke = Instant::now();
    let mut ended: Option<(Exit, Instant)> = None;
    let mut other_half = None;
    let outcome = loop {
        // What nobody hears need not be waited for.
        if progress.is_answered && (progress.is_idle || !audience.is_there()) {
            break if progress.is_aborted {
                Outcome::Aborted
            } else {
                Outcome::Done
            };
        }
        tokio::select! {
            biased;
            () = audience.gone() => return Outcome::ClientGone,
            message = heard.recv() => {
                let Some(message) = message else {
                    return ended_or_lost(&process).await;
                };
                progress.note(&message);
                if audience.is_there() {
                    for line in told.lines(&message) {
                        if let Err(outcome) = audience.tell(line).await {
                            return outcome;
                        }
                        spoke = Instant::now();
                    }
                }
                if progress.is_answered || progress.is_idle {
                    other_half = Some(Instant::now() + IDLE_BOUND);
                }
            }
            exit = process.exited(), if ended.is_none() => {
                ended = Some((exit, Instant::now() + LAST_WORDS_BOUND));
            }
            () = at(ended.map(|(_, until)| until)), if ended.is_some() => {
                break Outcome::Ended(ended.map_or(Exit::Unknown, |(exit, _)| exit));
            }
            // All that was said before has been heard above.
            () = ear.lost() => break ended_or_lost(&process).await,
            () = at(other_half), if other_half.is_some() => {
                break if progress.is_answered { Outcome::Done } else { Outcome::Lost };
            }
            () = sleep_until(spoke + CODE_KEEPALIVE), if audience.is_there() => {
                if let Err(outcome) = audience.tell(telling::keepalive()).await {
                    return outcome;
                }
                spoke = Instant::now();
            }
        }
    };
    if let Some(line) = told.last_words() {
        // The code is through: there is nothing to interrupt for who is gone.
        let _ = audience.tell(line).await;
    }
    outcome
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Why a kernel is not heard any more.
async fn ended_or_lost(process: &KernelProcess) -> Outcome {
    match timeout(END_BOUND, process.exited()).await {
        Ok(exit) => Outcome::Ended(exit),
        Err(_) => Outcome::Lost,
    }
}

impl Progress {
    fn note(&mut self, message: &Message) {
        match message.kind {
            Kind::ExecuteReply => {
                self.is_answered = true;
                let reply = serde_json::from_slice::<Reply<'_>>(&message.content);
                self.is_aborted = reply.is_ok_and(|reply| reply.status == "aborted");
            }
            Kind::Status => {
                let status = serde_json::from_slice::<Status<'_>>(&message.content);
                if status.is_ok_and(|status| status.execution_state == "idle") {
                    self.is_idle = true;
                }
            }
            Kind::ExecuteInput
            | Kind::ExecuteResult
            | Kind::DisplayData
            | Kind::Stream
            | Kind::Error
            | Kind::KernelInfoReply
            | Kind::Other => {}
        }
    }
}
