//! Points at which a crash test can end the process with SIGKILL.
//!
//! Compiled in only with the feature `enabled`. A point is chosen by
//! `ATOLL_FAILPOINT=<name>:<before|after>`. With `ATOLL_FAILPOINT_SCOPE=family`
//! a monitor takes its client along, so that nobody is left who could clean
//! up. `ATOLL_FAILPOINT_LOG` names a file to which every point reached is
//! appended.
//!
//! `ATOLL_FAILPOINT=<wall>:missing` leaves a wall out ([`is_missing`]), so that a
//! test can show that an attack on it is noticed.

/// Side of the call at which a point lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Nothing is made yet.
    Before,
    /// It is made, and nothing is written about it yet.
    After,
}

impl Moment {
    /// Both sides.
    pub const ALL: [Self; 2] = [Self::Before, Self::After];

    /// Its name in `ATOLL_FAILPOINT`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
        }
    }
}

/// Whether a test wants to see what happens without the wall `name`.
#[must_use]
#[cfg(not(feature = "enabled"))]
pub fn is_missing(_name: &str) -> bool {
    false
}

/// Whether a test wants to see what happens without the wall `name`.
#[must_use]
#[cfg(feature = "enabled")]
pub fn is_missing(name: &str) -> bool {
    std::env::var("ATOLL_FAILPOINT").is_ok_and(|point| point == format!("{name}:missing"))
}

/// Passes the point `name`, or dies there.
#[cfg(not(feature = "enabled"))]
pub fn reach(_name: &str, _moment: Moment) {}

/// Passes the point `name`, or dies there.
#[cfg(feature = "enabled")]
pub fn reach(name: &str, moment: Moment) {
    use std::io::Write as _;

    use rustix::process::{Signal, getpid, getppid, kill_process};

    let point = format!("{name}:{}", moment.name());
    if let Some(log) = std::env::var_os("ATOLL_FAILPOINT_LOG")
        && let Ok(mut file) = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
    {
        // A lost line makes the test that reads the log fail; nothing to do here.
        let _ = writeln!(file, "{point}");
    }
    if std::env::var("ATOLL_FAILPOINT").as_deref() != Ok(point.as_str()) {
        return;
    }
    let is_monitor = std::env::args_os()
        .nth(1)
        .is_some_and(|argument| argument == "monitor");
    let with_family = std::env::var("ATOLL_FAILPOINT_SCOPE").as_deref() == Ok("family");
    if is_monitor
        && with_family
        && let Some(client) = getppid()
    {
        let _ = kill_process(client, Signal::KILL);
    }
    let _ = kill_process(getpid(), Signal::KILL);
}
