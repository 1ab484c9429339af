//! One place through which everything a build says goes: to the log and to the caller.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::build_log::BuildLog;
use super::builder::Events;
use super::source::SourceEvent;
use super::{BuildEvent, OutputStream};

/// Shortest time between two reports of a number that only grows.
const QUIET: Duration = Duration::from_millis(200);

pub(crate) struct Reporter<'build> {
    log: BuildLog,
    events: Events<'build>,
    number: usize,
    last_count: Option<Instant>,
}

impl<'build> Reporter<'build> {
    pub(crate) fn new(log: BuildLog, events: Events<'build>) -> Self {
        Self {
            log,
            events,
            number: 0,
            last_count: None,
        }
    }

    pub(crate) fn log_path(&self) -> &Path {
        self.log.path()
    }

    pub(crate) fn last_lines(&self) -> Vec<String> {
        self.log.last_lines()
    }

    pub(crate) fn event(&mut self, event: BuildEvent) {
        (self.events)(event);
    }

    /// A step begins.
    pub(crate) fn begin(&mut self, number: usize, text: &str) {
        self.number = number;
        self.last_count = None;
        self.log.begin(number, text);
        self.event(BuildEvent::Step {
            number,
            text: text.to_owned(),
        });
    }

    /// The step that is under way was done before.
    pub(crate) fn cached(&mut self) {
        self.log.note("taken from the cache");
        self.event(BuildEvent::Cached {
            number: self.number,
        });
    }

    /// Output of the step that is under way.
    pub(crate) fn output(&mut self, stream: OutputStream, bytes: Bytes) {
        self.log.output(&bytes);
        self.event(BuildEvent::Output {
            number: self.number,
            stream,
            bytes,
        });
    }

    /// Bytes of its layer that are stored.
    pub(crate) fn stored(&mut self, bytes: u64) {
        if self.last_count.is_none_or(|last| last.elapsed() >= QUIET) {
            self.last_count = Some(Instant::now());
            self.event(BuildEvent::Storing {
                number: self.number,
                bytes,
            });
        }
    }

    pub(crate) fn warn(&mut self, message: String) {
        self.log.note(&message);
        self.event(BuildEvent::Warning { message });
    }

    /// Something a source says.
    pub(crate) fn source(&mut self, event: SourceEvent) {
        match event {
            SourceEvent::Line(line) => {
                self.log.output(line.as_bytes());
                self.log.output(b"\n");
                let message = line.trim_start_matches("I: ").trim().to_owned();
                self.event(BuildEvent::Progress {
                    number: self.number,
                    message,
                });
            }
            SourceEvent::Stored(bytes) => self.stored(bytes),
            SourceEvent::Warning(message) => self.warn(message),
        }
    }
}
