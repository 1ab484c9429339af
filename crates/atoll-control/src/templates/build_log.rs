//! The log file of a build and the last lines of the step that failed.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::TemplateName;

/// Lines kept for the message of a failure.
const LAST_LINES: usize = 20;
/// Bytes kept of one line.
const LINE_BYTES: usize = 400;
/// Bytes of a log; a step that writes more is not cut short, only its log is.
const LOG_BYTES: u64 = 64 * 1024 * 1024;

/// `<home>/build-logs/<name>-<milliseconds>.log`.
#[derive(Debug)]
pub(crate) struct BuildLog {
    path: PathBuf,
    file: File,
    bytes: u64,
    last: LastLines,
}

impl BuildLog {
    pub(crate) fn create(home: &Path, name: &TemplateName) -> io::Result<Self> {
        let directory = home.join("build-logs");
        fs::create_dir_all(&directory)?;
        let path = directory.join(format!("{name}-{}.log", now_ms()));
        let file = File::options().create(true).append(true).open(&path)?;
        Ok(Self {
            path,
            file,
            bytes: 0,
            last: LastLines::default(),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Begins the part of a step.
    pub(crate) fn begin(&mut self, number: usize, text: &str) {
        self.last = LastLines::default();
        self.write(format!("\n==> step {number}: {text}\n").as_bytes());
    }

    /// Output of the step that is under way.
    pub(crate) fn output(&mut self, bytes: &[u8]) {
        self.last.push(bytes);
        self.write(bytes);
    }

    /// A line of our own.
    pub(crate) fn note(&mut self, text: &str) {
        self.write(format!("--- {text}\n").as_bytes());
    }

    /// The end of what the step wrote.
    pub(crate) fn last_lines(&self) -> Vec<String> {
        self.last.lines()
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.bytes > LOG_BYTES {
            return;
        }
        self.bytes += bytes.len() as u64;
        let end: &[u8] = if self.bytes > LOG_BYTES {
            b"\n--- the log ends here: it has 64 MiB\n"
        } else {
            b""
        };
        // A full disk fails the build where it matters; the log is not that place.
        let _ = self
            .file
            .write_all(bytes)
            .and_then(|()| self.file.write_all(end));
    }
}

#[derive(Debug, Default)]
struct LastLines {
    lines: VecDeque<String>,
    open: Vec<u8>,
}

impl LastLines {
    fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                // Progress bars end their lines with a return.
                b'\n' | b'\r' => self.close(),
                byte if self.open.len() < LINE_BYTES => self.open.push(*byte),
                _ => {}
            }
        }
    }

    fn close(&mut self) {
        let line = String::from_utf8_lossy(&self.open).trim_end().to_owned();
        self.open.clear();
        if line.is_empty() {
            return;
        }
        if self.lines.len() == LAST_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    fn lines(&self) -> Vec<String> {
        let open = String::from_utf8_lossy(&self.open).trim_end().to_owned();
        self.lines
            .iter()
            .cloned()
            .chain((!open.is_empty()).then_some(open))
            .collect()
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let elapsed = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_lines_and_writes_everything() {
        let home = tempfile::tempdir().unwrap();
        let mut log = BuildLog::create(home.path(), &"x".parse().unwrap()).unwrap();
        log.begin(1, "run something");
        for number in 0..50 {
            log.output(format!("line {number}\r\n").as_bytes());
        }
        log.output(b"no end");
        let lines = log.last_lines();
        assert_eq!(
            (lines.len(), lines[0].as_str(), lines[20].as_str()),
            (21, "line 30", "no end")
        );
        let text = fs::read_to_string(log.path()).unwrap();
        assert!(
            text.starts_with("\n==> step 1: run something\nline 0\r\n") && text.ends_with("no end")
        );
    }
}
