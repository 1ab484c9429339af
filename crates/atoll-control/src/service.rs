//! The start command of a template: what runs from the first moment of each
//! of its sandboxes, and how it says that it is ready.

use std::time::Duration;

use atoll_guest_client::{Command, ExitStatus, GuestError, ProcessEvent};

use crate::LiveSandbox;
use crate::templates::Template;

/// How long a start command may take to become ready.
const READY_BOUND: Duration = Duration::from_secs(120);
/// Pause between two questions whether it is.
const READY_PAUSE: Duration = Duration::from_millis(100);
/// How long one question may take.
const QUESTION_BOUND: Duration = Duration::from_secs(10);

/// Why the service of a template does not run.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// It could not be started or asked.
    #[error("cannot run the template's {what}")]
    Guest {
        /// Which command.
        what: &'static str,
        /// Why.
        #[source]
        source: GuestError,
    },
    /// It never became ready.
    #[error("the template's ready command `{command}` did not succeed within {} s (last: {last})", READY_BOUND.as_secs())]
    NotReady {
        /// The command that should have succeeded.
        command: String,
        /// How it ended the last time.
        last: String,
    },
}

/// Starts what `template` wants to run in every sandbox, and waits until it is ready.
///
/// # Errors
/// When it cannot be started or does not become ready in time.
pub async fn start(live: &LiveSandbox, template: &Template) -> Result<(), ServiceError> {
    if let Some(text) = &template.start_cmd {
        let failed = |source| ServiceError::Guest {
            what: "start command",
            source,
        };
        // Nobody listens to it; dropping the stream does not end it.
        drop(
            live.guest()
                .start(&shell(template, text, None))
                .await
                .map_err(failed)?,
        );
    }
    let Some(text) = &template.ready_cmd else {
        return Ok(());
    };
    let question = shell(template, text, Some(QUESTION_BOUND));
    let mut last = "not asked".to_owned();
    let asking = async {
        loop {
            match ask(live, &question).await? {
                ExitStatus::Exited(0) => return Ok(()),
                other => last = other.text(),
            }
            tokio::time::sleep(READY_PAUSE).await;
        }
    };
    match tokio::time::timeout(READY_BOUND, asking).await {
        Ok(answer) => answer.map_err(|source| ServiceError::Guest {
            what: "ready command",
            source,
        }),
        Err(_) => Err(ServiceError::NotReady {
            command: text.clone(),
            last,
        }),
    }
}

/// Runs a command as the template's user, and says how it ended.
///
/// # Errors
/// When it cannot be run; one that takes longer than `bound` is killed.
pub(crate) async fn run(
    live: &LiveSandbox,
    template: &Template,
    text: &str,
    bound: Duration,
) -> Result<ExitStatus, GuestError> {
    let command = shell(template, text, Some(bound));
    let what = "run a command";
    tokio::time::timeout(bound, ask(live, &command))
        .await
        .unwrap_or(Err(GuestError::Timeout { what, bound }))
}

fn shell(template: &Template, text: &str, timeout: Option<Duration>) -> Command {
    Command {
        cmd: "/bin/bash".to_owned(),
        args: vec!["-l".to_owned(), "-c".to_owned(), text.to_owned()],
        user: Some(template.user.clone()),
        cwd: Some(template.workdir.clone()),
        timeout,
        ..Command::default()
    }
}

async fn ask(live: &LiveSandbox, question: &Command) -> Result<ExitStatus, GuestError> {
    let mut process = live.guest().start(question).await?;
    loop {
        match process.next().await {
            Ok(Some(ProcessEvent::End(exit))) => return Ok(exit),
            Ok(Some(_)) => {}
            Ok(None) => return Err(GuestError::Protocol("no exit status".to_owned())),
            // One slow answer is a no, not the end.
            Err(GuestError::DeadlineExceeded) => return Ok(ExitStatus::Signaled(9)),
            Err(error) => return Err(error),
        }
    }
}
