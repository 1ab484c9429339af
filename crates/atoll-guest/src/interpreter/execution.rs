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
use tokio::time::{Instant, interval_at, sleep, sleep_until, timeout};

use super::context::Seat;
use super::kernel::Kernel;
use super::language::Language;
use super::message::{ExecuteRequest, Kind, Message, Reply, Status};
use super::process::{CROWD_MAX, Exit, KernelProcess};
use super::telling::{self, Told};

/// How long what a kernel said last may take after its end.
const LAST_WORDS_BOUND: Duration = Duration::from_millis(300);

/// How long a kernel whose connection is gone may take to end.
const END_BOUND: Duration = Duration::from_millis(300);

/// How long a kernel may be silent after its answer until it says that it is
/// idle. Some drop what they publish when it is more than they can keep.
const IDLE_BOUND: Duration = Duration::from_secs(2);

/// How long an idle kernel may take to answer. Longer: both come by ways of
/// their own, and one that never answers is ended.
const REPLY_BOUND: Duration = Duration::from_secs(6);

/// How long a line may wait for its reader when the kernel is gone. Nobody
/// else can sit down meanwhile.
const UNREAD_BOUND: Duration = Duration::from_secs(1);

/// How long a kernel has for an interrupt, and how often it is told.
const INTERRUPT_BOUND: Duration = Duration::from_secs(6);
const INTERRUPT_AGAIN: Duration = Duration::from_secs(1);

/// How long setting variables may take. It is the first code that a kernel
/// runs, and Java takes seconds to compile its first line where processors are
/// busy: one that was given up too early looked as if its connection had broken.
const SILENT_BOUND: Duration = Duration::from_secs(25);

/// What a client asks for.
#[derive(Debug)]
pub(super) struct Code {
    pub(super) text: String,
    pub(super) env: BTreeMap<String, String>,
    /// How often the memory of the sandbox was restored so far.
    pub(super) restores: u64,
}

/// How the kernel came out of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It did what it was asked to.
    Done,
    /// The code of ours that it ran failed.
    Failed,
    /// It has no room for one more process, and has become very many.
    Crowded,
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
/// Afterwards the kernel is ready for more, or there is none any more. What
/// is returned is told when the seat is free: a client may take its time.
pub(super) async fn run(
    seat: &mut Seat,
    language: &Language,
    code: &Code,
    sandbox_env: &BTreeMap<String, String>,
    client: &mpsc::Sender<Bytes>,
) -> Option<Bytes> {
    if let Some(notice) = seat.notice.take() {
        let _ = client.send(telling::note(&notice)).await;
    }
    let kernel = seat.kernel.as_mut()?;
    let outcome = match prepare(kernel, language, code, sandbox_env).await {
        Ok(()) => execute(kernel, &code.text, client).await,
        Err(Outcome::Failed) => {
            let _ = client.send(telling::note(NOT_SET)).await;
            execute(kernel, &code.text, client).await
        }
        Err(outcome) => outcome,
    };
    let outcome = match outcome {
        // Copies of a kernel would all be interrupted, and then all be kernels.
        Outcome::ClientGone if kernel.process.is_crowd().await => {
            seat.notice = Some(crowded());
            seat.vacate_crowd().await;
            return None;
        }
        Outcome::ClientGone => match interrupt(kernel).await {
            Some(outcome) => outcome,
            None => {
                seat.notice = Some(
                    "[the kernel did not stop when its code was interrupted and was restarted: variables and imports of this context are lost]\n"
                        .to_owned(),
                );
                seat.vacate().await;
                return None;
            }
        },
        outcome => outcome,
    };
    match outcome {
        Outcome::Done | Outcome::Failed | Outcome::Aborted | Outcome::ClientGone => {
            reset(seat, language, code, sandbox_env).await;
        }
        Outcome::Crowded => {
            seat.vacate_crowd().await;
            return Some(telling::note(&crowded()));
        }
        Outcome::Ended(_) | Outcome::Lost => {
            let ending = seat.ending();
            seat.vacate().await;
            if let Some(ending) = ending {
                return Some(telling::error("ContextRestarting", ending));
            }
        }
    }
    match outcome {
        Outcome::Done | Outcome::Failed | Outcome::Crowded | Outcome::ClientGone => None,
        Outcome::Aborted => Some(telling::error(
            "ExecutionAborted",
            "the kernel did not run the code",
        )),
        Outcome::Ended(exit) => Some(telling::error(
            "ContextRestarting",
            &format!(
                "the kernel {exit} while it ran this code. All variables and imports of this context are lost; the next execution starts it anew."
            ),
        )),
        Outcome::Lost => Some(telling::error(
            "UnexpectedEndOfExecution",
            "the connection to the kernel broke and the kernel was ended. All variables and imports of this context are lost; the next execution starts it anew.",
        )),
    }
}

/// Said when variables of an execution could not be set.
const NOT_SET: &str =
    "[variables of the environment could not be set as they should: the code may miss some]\n";

fn crowded() -> String {
    format!(
        "[code of this context had become more than {CROWD_MAX} processes: they were ended and the kernel was restarted, variables and imports of this context are lost]\n"
    )
}

/// Proves that the kernel of `seat` runs code, and lets it load what its first
/// execution needs. One that does not is ended.
pub(super) async fn prove(seat: &mut Seat) -> bool {
    let Some(kernel) = seat.kernel.as_mut() else {
        return false;
    };
    let request = ExecuteRequest::proof();
    let run = follow(kernel, &request, Audience::Nobody);
    if timeout(SILENT_BOUND, run).await == Ok(Outcome::Done) {
        return true;
    }
    seat.vacate().await;
    false
}

/// Takes variables of one execution away again; a kernel with which that
/// cannot be done is ended, and what is not as it should be is told.
async fn reset(
    seat: &mut Seat,
    language: &Language,
    code: &Code,
    sandbox_env: &BTreeMap<String, String>,
) {
    let Some(kernel) = &mut seat.kernel else {
        return;
    };
    match restore(kernel, language, code, sandbox_env).await {
        Ok(()) => {}
        Err(Outcome::Failed) => {
            seat.notice = Some(
                "[variables of the environment could not be reset after the last execution: some may still have its values]\n"
                    .to_owned(),
            );
        }
        Err(_) => {
            seat.notice = Some(
                "[variables of the environment could not be reset after the last execution and the kernel was restarted: variables and imports of this context are lost]\n"
                    .to_owned(),
            );
            seat.vacate().await;
        }
    }
}

/// Seeds a kernel whose memory was on disk, and sets variables, before the code runs.
async fn prepare(
    kernel: &mut Kernel,
    language: &Language,
    code: &Code,
    sandbox_env: &BTreeMap<String, String>,
) -> Result<(), Outcome> {
    if kernel.seeded_at != code.restores {
        kernel.seeded_at = code.restores;
        let seeded = match language.seed() {
            Some(seed) => silently(kernel, seed).await,
            None => Ok(()),
        };
        match seeded {
            // Code of before may have put something else in the place of the generator.
            Ok(()) | Err(Outcome::Failed) => {}
            Err(outcome) => return Err(outcome),
        }
    }
    let mut wanted: BTreeMap<&str, Option<&str>> = BTreeMap::new();
    if !kernel.is_told {
        let all = sandbox_env.iter();
        // What its process has from the start need not be said again.
        let news = all.filter(|(name, value)| {
            language.can_have(name, value)
                && (language.needs_telling() || kernel.env.get(*name) != Some(*value))
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
                Outcome::Done | Outcome::Failed | Outcome::Aborted => Outcome::ClientGone,
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
    /// Waits for the client, but not for ever when `process` is gone.
    async fn tell(self, line: Bytes, process: &KernelProcess) -> Result<(), Outcome> {
        let Self::Client(client) = self else {
            return Ok(());
        };
        let given_up = async {
            let exit = process.exited().await;
            sleep(UNREAD_BOUND).await;
            exit
        };
        tokio::select! {
            biased;
            sent = client.send(line) => sent.map_err(|_| Outcome::ClientGone),
            exit = given_up => Err(Outcome::Ended(exit)),
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
    is_failed: bool,
    is_idle: bool,
}

impl Progress {
    /// How it came out, as far as the kernel says.
    fn outcome(&self, audience: Audience<'_>) -> Outcome {
        match audience {
            _ if self.is_aborted => Outcome::Aborted,
            // Errors of a client's code were told.
            Audience::Nobody if self.is_failed => Outcome::Failed,
            Audience::Nobody | Audience::Client(_) => Outcome::Done,
        }
    }
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
            break progress.outcome(audience);
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
                        if let Err(outcome) = audience.tell(line, &process).await {
                            return outcome;
                        }
                        spoke = Instant::now();
                    }
                }
                if progress.is_answered {
                    other_half = Some(Instant::now() + IDLE_BOUND);
                } else if progress.is_idle {
                    other_half = Some(Instant::now() + REPLY_BOUND);
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
                break if progress.is_answered {
                    progress.outcome(audience)
                } else {
                    Outcome::Lost
                };
            }
            () = sleep_until(spoke + CODE_KEEPALIVE), if audience.is_there() => {
                if let Err(outcome) = audience.tell(telling::keepalive(), &process).await {
                    return outcome;
                }
                spoke = Instant::now();
            }
        }
    };
    if let Some(line) = told.last_words() {
        // The code is through: there is nothing to interrupt for who is gone.
        let _ = audience.tell(line, &process).await;
    }
    if outcome == Outcome::Done && told.has_no_room() && process.is_crowd().await {
        return Outcome::Crowded;
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
                if let Ok(reply) = serde_json::from_slice::<Reply<'_>>(&message.content) {
                    self.is_aborted = reply.status == "aborted";
                    self.is_failed = reply.status == "error";
                }
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
