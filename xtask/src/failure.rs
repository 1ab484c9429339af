//! What went wrong, and what the reader can do about it.

use std::fmt;

/// An error for a person: one sentence, the chain of causes, and a hint.
#[derive(Debug)]
pub(crate) struct Failure {
    what: String,
    hint: Option<String>,
}

pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            hint: None,
        }
    }

    /// Adds what to do about it. The hint closest to the cause wins.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint.get_or_insert_with(|| hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "error: {}", self.what)?;
        if let Some(hint) = &self.hint {
            write!(formatter, "\nhint: {hint}")?;
        }
        Ok(())
    }
}

/// Says what was being done when an error of any kind came up.
pub(crate) trait Context<T> {
    fn context(self, doing: impl FnOnce() -> String) -> Outcome<T>;
}

impl<T> Context<T> for Result<T, std::io::Error> {
    fn context(self, doing: impl FnOnce() -> String) -> Outcome<T> {
        self.map_err(|error| Failure::new(format!("{}: {error}", doing())))
    }
}

impl<T> Context<T> for Outcome<T> {
    fn context(self, doing: impl FnOnce() -> String) -> Outcome<T> {
        self.map_err(|failure| Failure {
            what: format!("{}: {}", doing(), failure.what),
            hint: failure.hint,
        })
    }
}
