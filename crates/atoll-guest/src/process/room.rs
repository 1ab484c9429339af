//! Who is ended when memory has run out: the biggest process, as a kernel would choose, or a
//! whole group that has become a crowd. Of those the biggest is nothing, and while one is ended
//! the others take its place.

use std::collections::HashMap;

use rustix::process::{Pid, Signal};

use super::tree::{self, Entry};

/// Processes of a group beyond which it is a crowd.
const CROWD_MIN: usize = 64;

/// Whom to end.
#[derive(Debug, PartialEq, Eq)]
enum Victim {
    Process(i32),
    Group(i32),
}

/// Ends whoever has most of the memory, PID 1 and what is in its group aside.
pub(crate) fn make() {
    match victim(&tree::entries()) {
        Some(Victim::Process(pid)) => tree::send(pid, Signal::KILL),
        Some(Victim::Group(group)) => {
            if let Some(group) = Pid::from_raw(group) {
                // Who is gone already needs none.
                let _ = rustix::process::kill_process_group(group, Signal::KILL);
            }
        }
        None => {}
    }
}

fn victim(entries: &[Entry]) -> Option<Victim> {
    let of_init = entries.iter().find(|entry| entry.pid == 1);
    let of_init = of_init.map_or(1, |init| init.group);
    let mut groups: HashMap<i32, (usize, u64)> = HashMap::new();
    for entry in entries.iter().filter(|entry| entry.group != of_init) {
        let (members, pages) = groups.entry(entry.group).or_default();
        *members += 1;
        *pages += entry.pages;
    }
    let others = entries.iter().filter(|entry| entry.pid != 1);
    let biggest = others.max_by_key(|entry| (entry.pages, entry.pid))?;
    let crowds = groups
        .into_iter()
        .filter(|(_, (members, _))| *members >= CROWD_MIN);
    let crowd = crowds.max_by_key(|(group, (_, pages))| (*pages, *group));
    // What they share counts for each of them, so a crowd has to have far more.
    Some(match crowd {
        Some((group, (_, pages))) if pages / 4 > biggest.pages => Victim::Group(group),
        _ => Victim::Process(biggest.pid),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(pid: i32, group: i32, pages: u64) -> Entry {
        Entry {
            pid,
            parent: 1,
            group,
            session: group,
            dead: false,
            started: 0,
            pages,
        }
    }

    #[test]
    fn the_biggest_process_is_ended_and_a_crowd_as_a_whole() {
        let init = entry(1, 1, 100_000);
        assert_eq!(victim(&[init]), None);
        let few = [init, entry(7, 7, 10), entry(8, 7, 30), entry(9, 9, 20)];
        assert_eq!(victim(&few), Some(Victim::Process(8)));

        let crowd = (100..200).map(|pid| entry(pid, 100, 10));
        let mut all: Vec<Entry> = few.into_iter().chain(crowd).collect();
        assert_eq!(victim(&all), Some(Victim::Group(100)));
        // Not for somebody who has more than a crowd.
        all.push(entry(300, 300, 500));
        assert_eq!(victim(&all), Some(Victim::Process(300)));
        // Helpers of PID 1 are no crowd, however many they are.
        let helpers: Vec<Entry> = (100..200).map(|pid| entry(pid, 1, 10)).collect();
        let all: Vec<Entry> = [init, entry(7, 7, 11)].into_iter().chain(helpers).collect();
        assert_eq!(victim(&all), Some(Victim::Process(7)));
    }
}
