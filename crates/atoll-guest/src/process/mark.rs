//! A mark that processes hand down: through forks and programs, to whoever
//! left the session, and to orphans. It is a limit that no kernel of Linux has
//! looked at since 2.4, that of locks on files.
//!
//! It is put on by the process itself, so it only ever says whom to end together
//! with whoever put it on. gVisor keeps no such limit: there nobody has a mark.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// Where marks begin: no limit that somebody would choose.
const FIRST: u64 = 1 << 40;

/// How `/proc/PID/limits` calls the limit.
const LINE: &[u8] = b"Max file locks ";

static NEXT: AtomicU64 = AtomicU64::new(FIRST);

/// A mark, never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Mark(u64);

impl Mark {
    /// One that nobody has.
    pub(crate) fn new() -> Self {
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether a process has it.
    pub(super) fn is_on(self, pid: i32) -> bool {
        fs::read(format!("/proc/{pid}/limits")).is_ok_and(|limits| parse(&limits) == Some(self))
    }
}

fn parse(limits: &[u8]) -> Option<Mark> {
    let mut lines = limits.split(|byte| *byte == b'\n');
    let rest = lines.find_map(|line| line.strip_prefix(LINE))?;
    let soft = std::str::from_utf8(rest).ok()?.split_whitespace().next()?;
    soft.parse().ok().map(Mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_and_nothing_else_is_one() {
        let limits = b"Limit  Soft Limit  Hard Limit  Units\n\
            Max cpu time              7                    unlimited            seconds\n\
            Max file locks            1099511627777        1099511627777        locks\n";
        assert_eq!(parse(limits), Some(Mark(FIRST + 1)));
        assert_eq!(
            parse(b"Max file locks            unlimited            unlimited            locks\n"),
            None
        );
        assert_eq!(parse(b""), None);
        assert_ne!(Mark::new(), Mark::new());
        assert!(!Mark::new().is_on(1));
    }
}
