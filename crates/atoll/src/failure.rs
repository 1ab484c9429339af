//! How failures reach a person: what, why, and what to do.

use std::fmt;
use std::io;
use std::process::ExitCode;

use atoll_client::ClientError;
use atoll_control::identity::IdentityError;
use atoll_control::templates::{BuildError, SpecError};
use atoll_engine::CreateError;
use atoll_guest_client::GuestError;
use atoll_server::tls::TlsError;
use atoll_store::db::{DatabaseError, OwnerError};
use rustix::io::Errno;

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
    failure.chain().find_map(given).or_else(|| {
        failure
            .chain()
            .find_map(|cause| by_host(cause.downcast_ref()?))
            .map(str::to_owned)
    })
}

/// Advice that comes with an error.
fn given(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(hinted) = cause.downcast_ref::<Hinted>() {
        return Some(hinted.hint.clone());
    }
    if cause.is::<SpecError>() {
        return Some("correct the spec file and build again".to_owned());
    }
    if let Some(error) = cause.downcast_ref::<BuildError>() {
        return by_build(error);
    }
    if let Some(GuestError::Refused { status, .. }) = cause.downcast_ref() {
        return by_guest(*status).map(str::to_owned);
    }
    if let Some(error) = cause.downcast_ref::<ClientError>() {
        return error.hint().map(str::to_owned);
    }
    if let Some(error) = cause.downcast_ref::<IdentityError>() {
        return error.hint().map(str::to_owned);
    }
    if let Some(error) = cause.downcast_ref::<TlsError>() {
        return error.hint().map(str::to_owned);
    }
    if let Some(error) = cause.downcast_ref::<DatabaseError>() {
        return error.hint().map(str::to_owned);
    }
    if let Some(error) = cause.downcast_ref::<OwnerError>() {
        return error.hint().map(str::to_owned);
    }
    match cause.downcast_ref::<CreateError>()? {
        CreateError::Host {
            hint: Some(hint), ..
        } => Some(hint.clone()),
        CreateError::Refused { hint, .. } => Some(hint.clone()),
        CreateError::Limits(_) => Some("choose a value within the range".to_owned()),
        CreateError::Network(_) => Some("docs/network.md says what can be opened".to_owned()),
        CreateError::Host { hint: None, .. } | CreateError::Monitor(_) => {
            Some("`atoll doctor` checks what this host offers".to_owned())
        }
    }
}

fn by_build(error: &BuildError) -> Option<String> {
    let hint = match error {
        BuildError::NoParent(_) => "`atoll template list` shows the templates of this home",
        BuildError::NeedsNetwork(_) => "build it without --offline",
        BuildError::Spec(_) => "correct the spec file and build again",
        BuildError::Source(error) => error.hint()?,
        BuildError::Context { .. } => "copy steps take files from the directory of the spec only",
        BuildError::Step { .. } => "correct the step and build again; those before it are kept",
        _ => return None,
    };
    Some(hint.to_owned())
}

/// Advice for what the guest refused, by the status of its answer.
fn by_guest(status: u16) -> Option<&'static str> {
    Some(match status {
        400 | 404 => "check the path inside the sandbox",
        403 => "choose a place that the user of the template may write to, such as its home",
        507 => "allow more with --disk",
        _ => return None,
    })
}

/// Advice for what the host itself refused.
fn by_host(error: &io::Error) -> Option<&'static str> {
    Some(match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => "check the path",
        _ if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => "check the path",
        io::ErrorKind::PermissionDenied => "check who may read and write there",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space (`atoll gc` helps), or set ATOLL_HOME to a place with more"
        }
        _ => return None,
    })
}
