//! What a build reports while it runs.

use std::path::PathBuf;
use std::time::Duration;

use atoll_store::Digest;
use bytes::Bytes;

use super::TemplateName;

/// One thing that happened in a build. Step 0 is the source.
#[derive(Debug, Clone, PartialEq)]
pub enum BuildEvent {
    /// Another build of the same template is under way; this one waits for it.
    Waiting {
        /// The template.
        name: TemplateName,
    },
    /// The build begins.
    Started {
        /// The template.
        name: TemplateName,
        /// Steps after the source.
        steps: usize,
        /// Where everything is logged.
        log: PathBuf,
    },
    /// A step begins.
    Step {
        /// Its number.
        number: usize,
        /// What it does, in one line.
        text: String,
    },
    /// The step was done before; its layer is taken.
    Cached {
        /// Its number.
        number: usize,
    },
    /// Output of the step.
    Output {
        /// Its number.
        number: usize,
        /// Where it was written.
        stream: OutputStream,
        /// What was written.
        bytes: Bytes,
    },
    /// What the step is doing, where it says so.
    Progress {
        /// Its number.
        number: usize,
        /// In a few words.
        message: String,
    },
    /// The changes of the step are being stored.
    Storing {
        /// Its number.
        number: usize,
        /// Bytes so far.
        bytes: u64,
    },
    /// The step is done.
    Done {
        /// Its number.
        number: usize,
        /// The layer it made; `None` when it changes no file.
        layer: Option<Digest>,
        /// Size of that layer.
        bytes: u64,
        /// How long it took.
        elapsed: Duration,
    },
    /// Something the person who builds should know.
    Warning {
        /// What, and what to do about it.
        message: String,
    },
    /// The template is stored.
    Finished {
        /// The template.
        name: TemplateName,
        /// Size of all its layers.
        bytes: u64,
        /// How long the build took.
        elapsed: Duration,
    },
}

/// Where a command wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}
