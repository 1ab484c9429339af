//! How failures reach a person: what, why, and what to do.

use std::fmt;
use std::process::ExitCode;

/// Exit status for failures of Atoll itself, apart from those of programs in sandboxes.
pub(crate) const OWN_FAILURE: u8 = 125;

/// An error with advice.
#[derive(Debug)]
pub(crate) struct Hinted {
    what: String,
    hint: String,
}

impl Hinted {
    pub(crate) fn error(what: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
        Self {
            what: what.into(),
            hint: hint.into(),
        }
        .into()
    }
}

impl fmt::Display for Hinted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.what)
    }
}

impl std::error::Error for Hinted {}

/// Prints `failure` with its causes and its hint to standard error.
pub(crate) fn show(failure: &anyhow::Error) -> ExitCode {
    eprintln!("error: {failure:#}");
    if let Some(hint) = hint(failure) {
        eprintln!("hint: {hint}");
    }
    ExitCode::from(OWN_FAILURE)
}

/// The advice that goes with `failure`, wherever in its chain it was given.
pub(crate) fn hint(failure: &anyhow::Error) -> Option<String> {
    failure.chain().find_map(|cause| {
        if let Some(hinted) = cause.downcast_ref::<Hinted>() {
            return Some(hinted.hint.clone());
        }
        match cause.downcast_ref::<atoll_engine::CreateError>()? {
            atoll_engine::CreateError::Host { hint, .. } => hint.clone(),
            atoll_engine::CreateError::Limits(_) => {
                Some("choose a value within the range".to_owned())
            }
            atoll_engine::CreateError::Monitor(_) => {
                Some("`atoll doctor` checks what this host offers".to_owned())
            }
        }
    })
}
