//! How the end of a command is spelled: clients match these texts exactly.
//! The names of signals are those of Go's `syscall` package on Linux.

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// By itself, with this status.
    Exited(i32),
    /// By this signal.
    Signaled(i32),
}

const CORE_DUMPED: &str = " (core dumped)";

const SIGNAL_NAMES: &[(i32, &str)] = &[
    (1, "hangup"),
    (2, "interrupt"),
    (3, "quit"),
    (4, "illegal instruction"),
    (5, "trace/breakpoint trap"),
    (6, "aborted"),
    (7, "bus error"),
    (8, "floating point exception"),
    (9, "killed"),
    (10, "user defined signal 1"),
    (11, "segmentation fault"),
    (12, "user defined signal 2"),
    (13, "broken pipe"),
    (14, "alarm clock"),
    (15, "terminated"),
    (16, "stack fault"),
    (17, "child exited"),
    (18, "continued"),
    (19, "stopped (signal)"),
    (20, "stopped"),
    (21, "stopped (tty input)"),
    (22, "stopped (tty output)"),
    (23, "urgent I/O condition"),
    (24, "CPU time limit exceeded"),
    (25, "file size limit exceeded"),
    (26, "virtual timer expired"),
    (27, "profiling timer expired"),
    (28, "window changed"),
    (29, "I/O possible"),
    (30, "power failure"),
    (31, "bad system call"),
];

impl ExitStatus {
    /// `exit_code` of an `EndEvent`.
    #[must_use]
    pub fn code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Signaled(_) => -1,
        }
    }

    /// `status` of an `EndEvent`.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Self::Exited(code) => format!("exit status {code}"),
            Self::Signaled(signal) => SIGNAL_NAMES
                .iter()
                .find(|(number, _)| *number == signal)
                .map_or_else(
                    || format!("signal: signal {signal}"),
                    |(_, name)| format!("signal: {name}"),
                ),
        }
    }

    /// Reads the fields of an `EndEvent`; `None` when they make no sense.
    #[must_use]
    pub fn parse(code: i32, exited: bool, text: &str) -> Option<Self> {
        if exited {
            return Some(Self::Exited(code));
        }
        let name = text.strip_prefix("signal: ")?;
        let name = name.strip_suffix(CORE_DUMPED).unwrap_or(name);
        let number = SIGNAL_NAMES
            .iter()
            .find(|(_, known)| *known == name)
            .map(|(number, _)| *number)
            .or_else(|| name.strip_prefix("signal ")?.parse().ok())?;
        (1..=64).contains(&number).then_some(Self::Signaled(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_can_be_read_back() {
        for status in (0..=255)
            .map(ExitStatus::Exited)
            .chain((1..=64).map(ExitStatus::Signaled))
        {
            let exited = matches!(status, ExitStatus::Exited(_));
            assert_eq!(
                ExitStatus::parse(status.code(), exited, &status.text()),
                Some(status)
            );
        }
    }

    #[test]
    fn texts_are_those_that_clients_match() {
        assert_eq!(ExitStatus::Exited(3).text(), "exit status 3");
        assert_eq!(ExitStatus::Signaled(9).text(), "signal: killed");
        assert_eq!(
            ExitStatus::parse(-1, false, "signal: segmentation fault (core dumped)"),
            Some(ExitStatus::Signaled(11))
        );
    }

    #[test]
    fn nonsense_is_no_status() {
        assert_eq!(ExitStatus::parse(-1, false, ""), None);
        assert_eq!(ExitStatus::parse(-1, false, "signal: signal 4000"), None);
    }
}
