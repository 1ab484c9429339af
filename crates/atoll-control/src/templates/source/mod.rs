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
    #[error("{what}\nhint: {hint}")]
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
