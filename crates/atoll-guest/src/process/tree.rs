//! Finds and ends everything below a process, by `/proc` alone: that works
//! the same on Linux and on gVisor.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tokio::sync::oneshot;

use super::mark::Mark;

/// How long the kernel may take to end one more of the stopped processes.
const KILL_BOUND: Duration = Duration::from_secs(5);

/// How long everything is stopped before the killing begins: what forks all
/// the time may never be stopped as a whole.
const STOP_BOUND: Duration = Duration::from_millis(500);

/// The same for a session: whatever leads it was told to fork without end
/// more often than a command, and a slow look at thousands is no reason to let
/// it go on.
const SESSION_STOP_BOUND: Duration = Duration::from_secs(10);

/// Stack of the thread that looks at `/proc`.
const STACK_BYTES: usize = 256 * 1024;

/// Fields of `/proc/PID/stat` between the session and the moment of the start.
const STARTED_AFTER_SESSION: usize = 15;

/// Fields between that moment and the pages of memory.
const PAGES_AFTER_STARTED: usize = 1;

/// Wait between two looks at `/proc`.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// One process as `/proc` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    pub(super) dead: bool,
    /// When it began, in ticks since the boot.
    pub(super) started: u64,
    /// Pages of memory that it has.
    pub(super) pages: u64,
}

/// Whom a hunt is for.
#[derive(Debug, Clone, Copy)]
enum Prey {
    /// Everything below a process.
    Below(i32),
    /// Everything in a session, and whatever is below it.
    Session(i32),
    /// The same, and whoever has the mark: he may have left all of that.
    Crowd(i32, Mark),
}

/// Ends the command that `leader` is and everything below its `reaper`. Its group
/// is stopped by one call, between two of its forks: what forks without end
/// outruns whoever looks for it. Returns whether all of it is gone.
pub(crate) async fn kill_command(reaper: i32, leader: i32) -> bool {
    // Before its group: it would wait for the command that stops.
    send(reaper, Signal::STOP);
    if let Some(group) = Pid::from_raw(leader) {
        // Whoever left it is found below the reaper.
        let _ = rustix::process::kill_process_group(group, Signal::STOP);
    }
    kill_below_reaper(reaper).await
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

/// Ends everything in the session that `leader` began, also after its own end,
/// and everything below. Returns whether all of it is gone.
pub(crate) async fn kill_session(leader: i32) -> bool {
    hunt_down(Prey::Session(leader)).await
}

/// The same, and everything that has the `mark`. Whoever leaves his session is
/// reached by no signal to all, and outruns who kills one after the other: each
/// death makes room for a fork. So all are stopped before the first is killed.
pub(crate) async fn kill_crowd(leader: i32, mark: Mark) -> bool {
    hunt_down(Prey::Crowd(leader, mark)).await
}

/// How many processes are in the session that `leader` began, below it, or have
/// the `mark`. All, where that cannot be found out.
pub(crate) async fn crowd_size(leader: i32, mark: Mark) -> usize {
    on_a_thread(move || in_crowd(&entries(), leader, |entry| mark.is_on(entry.pid)).len())
        .await
        .unwrap_or(usize::MAX)
}

/// Tells everything in the session that `leader` began of `signal`.
pub(crate) async fn tell_session(leader: i32, signal: Signal) {
    let told = on_a_thread(move || {
        let entries = entries();
        let members = entries.iter().filter(|entry| entry.session == leader);
        members.for_each(|member| send(member.pid, signal));
    });
    let _ = told.await; // nobody is told where there is no thread to be had
}

/// How many processes are below `root`. All, where that cannot be found out.
pub(crate) async fn size_below(root: i32) -> usize {
    on_a_thread(move || below(&entries(), root).len())
        .await
        .unwrap_or(usize::MAX)
}

/// The process that has this number now, dead or alive.
pub(super) fn entry(pid: i32) -> Option<Entry> {
    if pid <= 0 {
        return None;
    }
    parse_stat(&fs::read(format!("/proc/{pid}/stat")).ok()?)
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
    hunt_down(Prey::Below(root)).await
}

/// Looks and kills until nothing is left, on a thread of its own: a look at
/// thousands of processes takes long enough for others to notice.
async fn hunt_down(prey: Prey) -> bool {
    let hunted = on_a_thread(move || {
        let mut hunt = Hunt::new(prey);
        loop {
            match hunt.look() {
                Some(gone) => return gone,
                None => std::thread::sleep(LOOK_AGAIN),
            }
        }
    });
    if let Some(gone) = hunted.await {
        return gone;
    }
    // Where no thread can be made there is all the more reason to kill.
    let mut hunt = Hunt::new(prey);
    loop {
        match hunt.look() {
            Some(gone) => return gone,
            None => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}

/// Does what looks at all processes beside everything else; `None` where no
/// thread can be made.
async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (answer, result) = oneshot::channel();
    std::thread::Builder::new()
        .name("tree".to_owned())
        .stack_size(STACK_BYTES)
        // Whoever asked may have gone away.
        .spawn(move || answer.send(work()).is_ok())
        .ok()?;
    result.await.ok()
}

/// The end of everything below one process, look by look.
struct Hunt {
    prey: Prey,
    /// Until when all are stopped before they are killed, so that nothing
    /// forks meanwhile.
    stop_until: Instant,
    stopped: HashSet<(i32, u64)>,
    /// Who has the mark: it is looked for once.
    marked: HashMap<(i32, u64), bool>,
    fewest: usize,
    deadline: Instant,
}

impl Hunt {
    fn new(prey: Prey) -> Self {
        let now = Instant::now();
        let stop_bound = match prey {
            Prey::Below(_) => STOP_BOUND,
            Prey::Session(_) | Prey::Crowd(..) => SESSION_STOP_BOUND,
        };
        Self {
            prey,
            stop_until: now + stop_bound,
            stopped: HashSet::new(),
            marked: HashMap::new(),
            fewest: usize::MAX,
            deadline: now + stop_bound + KILL_BOUND,
        }
    }

    /// One look at all processes; whether all are gone, when that is decided.
    fn look(&mut self) -> Option<bool> {
        let entries = entries();
        let alive = match self.prey {
            Prey::Below(root) => below(&entries, root),
            Prey::Session(leader) => in_session(&entries, leader),
            Prey::Crowd(leader, mark) => in_crowd(&entries, leader, |entry| {
                let known = self.marked.entry((entry.pid, entry.started));
                *known.or_insert_with(|| mark.is_on(entry.pid))
            }),
        };
        if alive.is_empty() {
            return Some(true);
        }
        let now = Instant::now();
        // Also when killing has begun: one that was missed goes on forking.
        if now < self.stop_until {
            let started: HashMap<i32, u64> = entries
                .iter()
                .map(|entry| (entry.pid, entry.started))
                .collect();
            let mut fresh = false;
            for pid in &alive {
                let began = started.get(pid).copied().unwrap_or_default();
                if self.stopped.insert((*pid, began)) {
                    send(*pid, Signal::STOP);
                    fresh = true;
                }
            }
            if fresh {
                return None;
            }
        }
        if alive.len() < self.fewest {
            self.fewest = alive.len();
            self.deadline = now + KILL_BOUND;
        }
        for pid in alive {
            send(pid, Signal::KILL);
        }
        (now >= self.deadline).then_some(false)
    }
}

/// Sends a signal to one process; one that is gone needs none.
pub(crate) fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Pids below `root` that are not dead, in no order.
fn below(entries: &[Entry], root: i32) -> Vec<i32> {
    let mut found = below_all(entries, vec![root]);
    found.remove(&root);
    found.into_iter().collect()
}

/// Pids below any of `parents` that are not dead, in one pass however many
/// there are: what forks without end makes thousands.
fn below_all(entries: &[Entry], mut parents: Vec<i32>) -> HashSet<i32> {
    let mut children: HashMap<i32, Vec<&Entry>> = HashMap::new();
    for entry in entries {
        children.entry(entry.parent).or_default().push(entry);
    }
    let mut found = HashSet::new();
    while let Some(parent) = parents.pop() {
        // Taken out, so that no look can go in circles.
        for entry in children.remove(&parent).unwrap_or_default() {
            parents.push(entry.pid);
            if !entry.dead {
                found.insert(entry.pid);
            }
        }
    }
    found
}

/// Pids of a session, and below it, that are not dead, in no order.
fn in_session(entries: &[Entry], leader: i32) -> Vec<i32> {
    in_crowd(entries, leader, |_| false)
}

/// The same, with everybody who `is_marked`, and whatever is below.
fn in_crowd(entries: &[Entry], leader: i32, mut is_marked: impl FnMut(&Entry) -> bool) -> Vec<i32> {
    let members: Vec<&Entry> = entries
        .iter()
        .filter(|entry| entry.session == leader || is_marked(entry))
        .collect();
    let mut found = below_all(entries, members.iter().map(|member| member.pid).collect());
    let alive = members.iter().filter(|member| !member.dead);
    found.extend(alive.map(|member| member.pid));
    found.into_iter().collect()
}

pub(super) fn entries() -> Vec<Entry> {
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

/// `pid (name) state parent group session …`, where the name may hold anything.
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
    let group = rest.next()?.parse().ok()?;
    let session = rest.next()?.parse().ok()?;
    let mut number = |after| {
        rest.nth(after)
            .and_then(|number| number.parse().ok())
            .unwrap_or_default()
    };
    Some(Entry {
        pid,
        parent,
        group,
        session,
        dead: matches!(state, "Z" | "X" | "x"),
        started: number(STARTED_AFTER_SESSION),
        pages: number(PAGES_AFTER_STARTED),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_confuse_the_reader() {
        assert_eq!(
            parse_stat(b"42 (a) R 1) S 7 41 42 0 -1 1 2 3 4 5 6 7 8 9 10 11 12 13 99 14 15"),
            Some(Entry {
                pid: 42,
                parent: 7,
                group: 41,
                session: 42,
                dead: false,
                started: 99,
                pages: 15,
            })
        );
        assert_eq!(
            parse_stat(b"43 (\xff\xfe) Z 7 0 9"),
            Some(Entry {
                pid: 43,
                parent: 7,
                group: 0,
                session: 9,
                dead: true,
                started: 0,
                pages: 0,
            })
        );
        assert_eq!(parse_stat(b"nonsense"), None);
    }

    #[test]
    fn the_tree_is_found_in_any_order_and_through_the_dead() {
        let entry = |pid, parent, dead| Entry {
            pid,
            parent,
            group: pid,
            session: if pid > 3 { 3 } else { 1 },
            dead,
            started: 0,
            pages: 0,
        };
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
        // Its leader is gone, and one of them has left it.
        let entries = [
            entry(5, 1, false),
            entry(4, 1, true),
            entry(2, 5, false),
            entry(1, 0, false),
        ];
        let mut found = in_session(&entries, 3);
        found.sort_unstable();
        assert_eq!(found, [2, 5]);
        // One that left it, and is an orphan, is found by its mark alone.
        let entries = [
            entry(5, 1, false),
            entry(2, 1, false),
            entry(3, 2, false),
            entry(1, 0, false),
        ];
        let mut found = in_crowd(&entries, 3, |entry| entry.pid == 2);
        found.sort_unstable();
        assert_eq!(found, [2, 3, 5]);
    }

    #[test]
    fn a_session_of_very_many_is_looked_at_once() {
        // With one look for each of them this would take hours.
        let entries: Vec<Entry> = (2..200_002)
            .map(|pid| Entry {
                pid,
                parent: pid - 1,
                group: 2,
                session: 2,
                dead: false,
                started: 0,
                pages: 0,
            })
            .collect();
        assert_eq!(in_session(&entries, 2).len(), entries.len());
    }
}
