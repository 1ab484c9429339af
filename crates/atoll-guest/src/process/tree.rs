//! Finds and ends everything below a process, by `/proc` alone: that works
//! the same on Linux and on gVisor.

use std::collections::HashSet;
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::time::{Instant, sleep};

/// How long the kernel may take to end one more of the stopped processes.
const KILL_BOUND: Duration = Duration::from_secs(5);

/// Wait between two looks at `/proc`.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// One process as `/proc` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    pid: i32,
    parent: i32,
    dead: bool,
}

/// Ends everything below `reaper` but not the reaper, which stays stopped
/// meanwhile: it could otherwise end and let its orphans escape.
/// Returns whether all of it is gone.
pub(crate) async fn kill_below_reaper(reaper: i32) -> bool {
    send(reaper, Signal::STOP);
    let gone = kill_below(reaper).await;
    send(reaper, Signal::CONT);
    gone
}

/// Ends everything this process started, directly or not.
pub(crate) async fn kill_descendants_of_self() -> bool {
    kill_below(rustix::process::getpid().as_raw_nonzero().get()).await
}

/// Ends `pid` and everything below it.
pub(crate) async fn kill_from(pid: i32) -> bool {
    send(pid, Signal::STOP);
    let gone = kill_below(pid).await;
    send(pid, Signal::KILL);
    gone
}

async fn kill_below(root: i32) -> bool {
    let deadline = Instant::now() + KILL_BOUND;
    // First everything is stopped, so that nothing forks while it is killed.
    let mut stopped = HashSet::new();
    loop {
        let mut fresh = false;
        for pid in alive_below(root) {
            if stopped.insert(pid) {
                send(pid, Signal::STOP);
                fresh = true;
            }
        }
        if !fresh || Instant::now() >= deadline {
            break;
        }
    }
    let (mut fewest, mut deadline) = (usize::MAX, deadline);
    loop {
        let alive = alive_below(root);
        if alive.is_empty() {
            return true;
        }
        if alive.len() < fewest {
            fewest = alive.len();
            deadline = Instant::now() + KILL_BOUND;
        }
        for pid in alive {
            send(pid, Signal::KILL);
        }
        if Instant::now() >= deadline {
            return false;
        }
        sleep(LOOK_AGAIN).await;
    }
}

/// Sends a signal to one process; one that is gone needs none.
pub(crate) fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

fn alive_below(root: i32) -> Vec<i32> {
    below(&entries(), root)
}

/// Pids below `root` that are not dead, in no order.
fn below(entries: &[Entry], root: i32) -> Vec<i32> {
    let mut found = HashSet::from([root]);
    loop {
        let before = found.len();
        found.extend(
            entries
                .iter()
                .filter(|entry| found.contains(&entry.parent))
                .map(|entry| entry.pid)
                .collect::<Vec<_>>(),
        );
        if found.len() == before {
            break;
        }
    }
    entries
        .iter()
        .filter(|entry| entry.pid != root && !entry.dead && found.contains(&entry.pid))
        .map(|entry| entry.pid)
        .collect()
}

fn entries() -> Vec<Entry> {
    let Ok(directory) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    directory
        .filter_map(Result::ok)
        .filter(|entry| {
            entry
                .file_name()
                .as_encoded_bytes()
                .first()
                .is_some_and(u8::is_ascii_digit)
        })
        // A process may end between the listing and the read.
        .filter_map(|entry| fs::read(entry.path().join("stat")).ok())
        .filter_map(|stat| parse_stat(&stat))
        .collect()
}

/// `pid (name) state parent …`, where the name may hold anything.
fn parse_stat(stat: &[u8]) -> Option<Entry> {
    let open = stat.iter().position(|byte| *byte == b'(')?;
    let close = stat.iter().rposition(|byte| *byte == b')')?;
    let pid = std::str::from_utf8(stat.get(..open)?)
        .ok()?
        .trim()
        .parse()
        .ok()?;
    let mut rest = std::str::from_utf8(stat.get(close + 1..)?)
        .ok()?
        .split_ascii_whitespace();
    let state = rest.next()?;
    let parent = rest.next()?.parse().ok()?;
    Some(Entry {
        pid,
        parent,
        dead: matches!(state, "Z" | "X" | "x"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_confuse_the_reader() {
        assert_eq!(
            parse_stat(b"42 (a) R 1) S 7 42 42 0"),
            Some(Entry {
                pid: 42,
                parent: 7,
                dead: false
            })
        );
        assert_eq!(
            parse_stat(b"43 (\xff\xfe) Z 7 0"),
            Some(Entry {
                pid: 43,
                parent: 7,
                dead: true
            })
        );
        assert_eq!(parse_stat(b"nonsense"), None);
    }

    #[test]
    fn the_tree_is_found_in_any_order_and_through_the_dead() {
        let entry = |pid, parent, dead| Entry { pid, parent, dead };
        let entries = [
            entry(5, 4, false),
            entry(4, 3, true),
            entry(3, 2, false),
            entry(2, 1, false),
            entry(9, 1, false),
        ];
        let mut found = below(&entries, 2);
        found.sort_unstable();
        assert_eq!(found, [3, 5]);
        assert_eq!(below(&entries, 9), Vec::<i32>::new());
    }
}
