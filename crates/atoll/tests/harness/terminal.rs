//! A person at a terminal.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::command::Stream;
use super::{BOUND, TestHome, eventually, tier};

/// A terminal with a command on it, as a person would have it.
pub struct Terminal {
    pub screen: Stream,
    keyboard: File,
    /// Kept open, so that the terminal outlives the command.
    pub line: OwnedFd,
    pub child: Child,
    seen: usize,
}

impl Terminal {
    /// Starts `atoll` with these words on a terminal of its own.
    pub fn open(home: &TestHome, words: &[&str]) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let line = rustix::fs::open(name.as_c_str(), flags, Mode::empty()).unwrap();
        tcsetwinsize(&line, size(30, 100)).unwrap();
        let end = || Stdio::from(line.try_clone().unwrap());
        // `setsid --ctty` gives it a session whose terminal this is.
        let child = Command::new("setsid")
            .args(["--ctty", super::binary().to_str().unwrap()])
            .args(words)
            .current_dir(home.work())
            .env("ATOLL_HOME", home.path())
            .env("ATOLL_ISOLATION", tier().to_string())
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let keyboard = File::from(master);
        Self {
            screen: Stream::read(keyboard.try_clone().unwrap()),
            keyboard,
            line,
            child,
            seen: 0,
        }
    }

    /// Waits for `text` after everything that was waited for before.
    pub fn wait_for(&mut self, text: &str) {
        let from = self.seen;
        let place = |bytes: &[u8]| {
            let fresh = String::from_utf8_lossy(bytes).get(from..)?.find(text)?;
            Some(from + fresh + text.len())
        };
        let all = self.screen.wait(*BOUND, |bytes| place(bytes).is_some());
        let all =
            all.unwrap_or_else(|()| panic!("no {text:?} on the screen: {:?}", self.screen.text()));
        self.seen = place(all.as_bytes()).unwrap();
    }

    /// Types, as a person would.
    pub fn type_text(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    /// Waits for the end of the command.
    pub fn exit_status(mut self) -> Option<i32> {
        eventually("the end of the command", || self.child.try_wait().unwrap()).code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// So many rows and columns.
pub fn size(rows: u16, columns: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}
