//! Why an execution ended, from what the host counted while it ran.

use std::time::Duration;

use atoll_engine::{Limits, Outcome, Stats, Tier};
use atoll_guest_client::ExitStatus;

use super::OutcomeKind;
use super::report::RaisedError;
use crate::outcome::explain;

/// How the events of an execution ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Ended {
    /// Code came to its end.
    Through,
    /// A command did.
    Exit(ExitStatus),
    /// Code raised an error.
    Raised(RaisedError),
    /// The kernel ended.
    KernelDied(String),
    /// It took too long.
    TimedOut(Duration),
    /// It said too much.
    TooMuchOutput(u64),
    /// Somebody asked for it.
    Cancelled,
    /// Nobody answers any more.
    Lost(String),
}

/// What the host knows of the sandbox in which it ran.
pub(super) struct Witness<'a> {
    pub(super) tier: Tier,
    pub(super) limits: &'a Limits,
    /// Counters when it began, and when it ended.
    pub(super) before: Option<Stats>,
    pub(super) after: Option<Stats>,
    /// How the sandbox ended, if it did.
    pub(super) sandbox: Option<Outcome>,
    /// The end of standard error.
    pub(super) evidence: &'a [u8],
}

/// How it ended, in one word and in others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) kind: OutcomeKind,
    pub(super) message: Option<String>,
    pub(super) state_lost: Vec<String>,
}

const VARIABLES: &[&str] = &["variables"];
const EVERYTHING: &[&str] = &["variables", "files", "processes"];

impl Witness<'_> {
    /// Counters of just this time: what was refused before is not its doing.
    fn meanwhile(&self) -> Stats {
        let Some(after) = &self.after else {
            return Stats::default();
        };
        let before = self.before.clone().unwrap_or_default();
        Stats {
            oom_kills: after.oom_kills.saturating_sub(before.oom_kills),
            pids_refused: after.pids_refused.saturating_sub(before.pids_refused),
            ..after.clone()
        }
    }

    /// The outcome of something that ended with `exit`.
    fn explained(&self, exit: ExitStatus, evidence: &[u8]) -> Outcome {
        explain(self.tier, &exit, &self.meanwhile(), self.limits, evidence)
    }

    pub(super) fn judge(&self, ended: &Ended) -> Verdict {
        let verdict = |kind, message: Option<String>, lost: &[&str]| Verdict {
            kind,
            message,
            state_lost: lost.iter().map(|&what| what.to_owned()).collect(),
        };
        let memory = Outcome::MemoryLimit {
            limit_mib: self.limits.memory_mib,
        };
        match ended {
            Ended::Through => verdict(OutcomeKind::Completed, None, &[]),
            Ended::Exit(exit) => {
                let outcome = self.explained(*exit, self.evidence);
                let kind = OutcomeKind::from(&outcome);
                let is_plain = kind == OutcomeKind::Completed;
                verdict(kind, (!is_plain).then(|| outcome.to_string()), &[])
            }
            Ended::Raised(error) => {
                let said = format!("{} {}", error.value, error.traceback);
                let outcome = self.explained(ExitStatus::Exited(1), said.as_bytes());
                match outcome {
                    Outcome::Exited { .. } => {
                        let message = format!("{}: {}", error.name, error.value);
                        verdict(OutcomeKind::Exception, Some(short(&message)), &[])
                    }
                    limit => verdict(OutcomeKind::from(&limit), Some(limit.to_string()), &[]),
                }
            }
            Ended::KernelDied(_) if self.meanwhile().oom_kills > 0 => {
                let message = format!("{memory}, and the kernel was ended for it");
                verdict(OutcomeKind::MemoryLimit, Some(message), VARIABLES)
            }
            Ended::KernelDied(message) => {
                verdict(OutcomeKind::KernelDied, Some(short(message)), VARIABLES)
            }
            Ended::TimedOut(limit) => {
                let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
                let message = Outcome::Timeout { limit_ms }.to_string();
                verdict(OutcomeKind::Timeout, Some(message), &[])
            }
            Ended::TooMuchOutput(limit) => {
                let limit_bytes = *limit;
                let message = Outcome::OutputLimit { limit_bytes }.to_string();
                verdict(OutcomeKind::OutputLimit, Some(message), &[])
            }
            Ended::Cancelled => verdict(OutcomeKind::Cancelled, None, &[]),
            Ended::Lost(detail) => match &self.sandbox {
                Some(outcome) => {
                    let message = format!("the sandbox ended: {outcome}");
                    verdict(
                        OutcomeKind::from(outcome).of_sandbox(),
                        Some(message),
                        EVERYTHING,
                    )
                }
                None if self.meanwhile().oom_kills > 0 => verdict(
                    OutcomeKind::MemoryLimit,
                    Some(memory.to_string()),
                    VARIABLES,
                ),
                None => verdict(OutcomeKind::SandboxUnavailable, Some(detail.clone()), &[]),
            },
        }
    }
}

/// The beginning of what a guest says.
fn short(text: &str) -> String {
    text.chars().take(1000).collect()
}

impl OutcomeKind {
    /// What the end of a whole sandbox means for what ran in it.
    fn of_sandbox(self) -> Self {
        match self {
            Self::MemoryLimit | Self::PidsLimit | Self::DiskFull => self,
            Self::Completed
            | Self::NonzeroExit
            | Self::Signaled
            | Self::Exception
            | Self::Timeout
            | Self::OpenFilesLimit
            | Self::OutputLimit
            | Self::KernelDied
            | Self::SandboxUnavailable
            | Self::InvalidRequest
            | Self::Cancelled
            | Self::ServerStopped => Self::SandboxUnavailable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(
        ended: &Ended,
        oom: (u64, u64),
        sandbox: Option<Outcome>,
    ) -> (OutcomeKind, Vec<String>) {
        let counted = |oom_kills| {
            Some(Stats {
                oom_kills,
                inodes_free: 1,
                ..Stats::default()
            })
        };
        let witness = Witness {
            tier: Tier::Container,
            limits: &Limits::default(),
            before: counted(oom.0),
            after: counted(oom.1),
            sandbox,
            evidence: b"",
        };
        let verdict = witness.judge(ended);
        (verdict.kind, verdict.state_lost)
    }

    #[test]
    fn limits_are_named_only_by_what_happened_meanwhile() {
        let failed = Ended::Exit(ExitStatus::Exited(1));
        assert_eq!(judged(&failed, (3, 3), None).0, OutcomeKind::NonzeroExit);
        assert_eq!(judged(&failed, (3, 4), None).0, OutcomeKind::MemoryLimit);
        let fine = Ended::Exit(ExitStatus::Exited(0));
        assert_eq!(judged(&fine, (0, 1), None).0, OutcomeKind::Completed);
    }

    #[test]
    fn what_was_lost_is_said() {
        let died = Ended::KernelDied("gone".to_owned());
        assert_eq!(
            judged(&died, (0, 0), None),
            (OutcomeKind::KernelDied, vec!["variables".to_owned()])
        );
        assert_eq!(judged(&died, (0, 1), None).0, OutcomeKind::MemoryLimit);
        let lost = Ended::Lost("broke off".to_owned());
        let (kind, what) = judged(&lost, (0, 0), Some(Outcome::Killed));
        assert_eq!((kind, what.len()), (OutcomeKind::SandboxUnavailable, 3));
        assert_eq!(
            judged(&lost, (0, 0), None),
            (OutcomeKind::SandboxUnavailable, vec![])
        );
    }

    #[test]
    fn an_exception_that_a_limit_explains_has_its_name() {
        let raised = |value: &str| {
            Ended::Raised(RaisedError {
                name: "OSError".to_owned(),
                value: value.to_owned(),
                traceback: String::new(),
            })
        };
        let plain = judged(&raised("no"), (0, 0), None);
        assert_eq!(plain, (OutcomeKind::Exception, vec![]));
        let files = judged(&raised("[Errno 24] Too many open files"), (0, 0), None);
        assert_eq!(files.0, OutcomeKind::OpenFilesLimit);
    }
}
