//! First layers: where the files of a template come from.

pub(super) mod apt;
pub(super) mod debian;
pub(super) mod host;
mod packages;
pub(super) mod trust;

use std::io;
use std::path::PathBuf;

use atoll_store::LayerError;

/// Why a source could not be turned into a layer.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The host lacks something.
    #[error("{what}")]
    Host {
        /// What is missing.
        what: String,
        /// What to do about it.
        hint: String,
    },
    /// A file of the host cannot be read or written.
    #[error("cannot use {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A program could not be started.
    #[error("cannot run `{program}`")]
    Program {
        /// The program.
        program: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A program failed.
    #[error("`{program}` failed ({status}):\n{}", lines.join("\n"))]
    Failed {
        /// The program.
        program: &'static str,
        /// How it ended.
        status: String,
        /// Last lines of what it said.
        lines: Vec<String>,
    },
    /// The files could not be stored.
    #[error("cannot store the first layer")]
    Layer(#[from] LayerError),
}

/// What apt says of a mirror that it cannot reach.
const OUT_OF_REACH: [&str; 6] = [
    "Could not resolve",
    "Temporary failure resolving",
    "Could not connect",
    "Unable to connect",
    "Cannot initiate the connection",
    "Failed to fetch",
];
/// What helps then.
const OFFLINE: &str = "is the mirror in /etc/apt within reach? `atoll template build base --offline` makes `base` of packages of this host instead; a spec file does so with `from = \"host\"`";

impl SourceError {
    /// What can be done about it.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Host { hint, .. } => Some(hint),
            // Without a line it was given up because it took too long.
            Self::Failed { lines, .. }
                if lines.is_empty()
                    || lines
                        .iter()
                        .any(|line| OUT_OF_REACH.iter().any(|words| line.contains(words))) =>
            {
                Some(OFFLINE)
            }
            Self::Failed { .. } | Self::File { .. } | Self::Program { .. } | Self::Layer(_) => None,
        }
    }
}

/// What a source says while it works.
#[derive(Debug)]
pub(super) enum SourceEvent {
    /// A line of output.
    Line(String),
    /// Bytes stored so far.
    Stored(u64),
    /// Something the person who builds should know.
    Warning(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_reach_a_mirror_is_led_to_the_way_without_one() {
        let failed = |lines: &[&str]| SourceError::Failed {
            program: "mmdebstrap",
            status: "exit status: 25".to_owned(),
            lines: lines.iter().map(|line| (*line).to_owned()).collect(),
        };
        let unreachable = [
            "Err:1 http://deb.example/debian bookworm InRelease",
            "  Temporary failure resolving 'deb.example'",
            "E: apt-get update failed",
        ];
        for lines in [&unreachable[..], &[]] {
            let error = failed(lines);
            let hint = error.hint().unwrap();
            assert!(hint.contains("--offline") && hint.contains("from = \"host\""));
            assert!(!error.to_string().contains("hint"), "{error}");
        }
        let other = ["E: Unable to locate package no-such-package"];
        assert_eq!(failed(&other).hint(), None);
    }
}
