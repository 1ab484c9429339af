//! What can go wrong between host and guest.

use std::error::Error;
use std::io;
use std::time::Duration;

use atoll_protocol::connect::{Code, FrameError, RpcError};

use crate::connection::{HEAD_BYTES_MAX, HEADERS_MAX};

/// Longest text taken over from a guest, in characters.
const MESSAGE_CHARS_MAX: usize = 1024;

/// Why a call to a guest failed.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The guest cannot be dialed.
    #[error("the guest cannot be reached: {0}")]
    Unreachable(#[source] io::Error),
    /// The guest did not do its part in time.
    #[error("the guest did not {what} within {bound:?}")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// For how long.
        bound: Duration,
    },
    /// The guest does not accept our token.
    #[error("the guest refused the access token: {0}")]
    Unauthorized(String),
    /// The guest understood and said no.
    #[error("{code}: {message}")]
    Rpc {
        /// What kind of no.
        code: Code,
        /// In the guest's words.
        message: String,
    },
    /// The guest refused a file or its settings.
    #[error("{message} (status {status})")]
    Refused {
        /// HTTP status: 404 missing, 400 no regular file, 403 not allowed, 507 disk full.
        status: u16,
        /// In the guest's words.
        message: String,
    },
    /// The guest broke the protocol.
    #[error("the guest broke the protocol: {0}")]
    Protocol(String),
    /// The guest sent more at once than we take.
    #[error("the guest sent {what} of more than {limit} bytes")]
    TooLarge {
        /// What was too large.
        what: &'static str,
        /// Bytes allowed.
        limit: usize,
    },
    /// The command ran longer than its timeout and was ended with everything it started.
    #[error("the command reached its timeout")]
    DeadlineExceeded,
    /// The connection broke: the sandbox is gone, or its guest is.
    #[error("the connection to the guest broke: {0}")]
    Disconnected(String),
    /// The caller asked for something that a guest must never be asked.
    #[error("the request does not go to the guest: {0}")]
    NotForwarded(&'static str),
    /// The caller's own source of bytes failed.
    #[error("cannot read what is to be sent: {0}")]
    Source(#[source] io::Error),
}

impl From<FrameError> for GuestError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::TooLarge { limit, .. } => Self::TooLarge {
                what: "a frame",
                limit,
            },
            FrameError::Flags(_) | FrameError::AfterTheEnd => Self::Protocol(error.to_string()),
        }
    }
}

impl From<RpcError> for GuestError {
    fn from(RpcError { code, message }: RpcError) -> Self {
        match code {
            Code::DeadlineExceeded => Self::DeadlineExceeded,
            code => Self::Rpc {
                code,
                message: harmless(&message),
            },
        }
    }
}

impl From<hyper::Error> for GuestError {
    fn from(error: hyper::Error) -> Self {
        let text = harmless(&describe(&error));
        if error.is_parse_too_large() {
            // One error for all of them, whose text blames the first.
            Self::Protocol(format!(
                "a response head has more than {HEAD_BYTES_MAX} bytes or {HEADERS_MAX} headers, \
                 or announces a body of more bytes than can be counted"
            ))
        } else if error.is_parse() {
            Self::Protocol(text)
        } else {
            Self::Disconnected(text)
        }
    }
}

/// An error with its causes, each once.
fn describe(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

/// A guest's text that cannot move a terminal's cursor or fill a log.
pub(crate) fn harmless(text: &str) -> String {
    text.chars()
        .take(MESSAGE_CHARS_MAX)
        .map(harmless_char)
        .collect()
}

/// The character, or a stand-in for one that does something to a terminal or
/// turns the text around it so that people read something else.
#[must_use]
pub fn harmless_char(char: char) -> char {
    let turns = matches!(
        char,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    if turns || char.is_control() {
        '\u{fffd}'
    } else {
        char
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_words_are_short_and_harmless() {
        assert_eq!(harmless("a\x1b[2Jb\nc"), "a\u{fffd}[2Jb\u{fffd}c");
        assert_eq!(harmless("txt\u{202e}exe.ü"), "txt\u{fffd}exe.ü");
        assert_eq!(harmless(&"x".repeat(5000)).len(), MESSAGE_CHARS_MAX);
    }
}
