//! A terminal of the command's own, between it and the caller's.
//!
//! A process can have only a terminal of its own session, and the command has
//! another session than the caller. So it gets a new terminal, and bytes are
//! carried between the two, the caller's being raw meanwhile. Streams of the
//! caller that are no terminal are handed over as they are.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::OpenptFlags;
use rustix::termios::{OptionalActions, Termios};

/// After the command's end, silence that lasts this long is the end of its output.
const SILENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Both terminals, before the command runs.
pub(super) struct Relay {
    master: OwnedFd,
    slave: OwnedFd,
    before: Termios,
}

/// Bytes on their way.
pub(super) struct Relaying {
    master: OwnedFd,
    before: Termios,
    ended: Arc<AtomicBool>,
    output: JoinHandle<()>,
}

impl Relay {
    /// Makes a terminal, if the caller reads from one and is in its foreground.
    pub(super) fn open() -> io::Result<Option<Self>> {
        let stdin = rustix::stdio::stdin();
        let in_foreground = rustix::termios::tcgetpgrp(stdin)
            .is_ok_and(|group| group == rustix::process::getpgrp());
        if !in_foreground {
            return Ok(None);
        }
        let before = rustix::termios::tcgetattr(stdin)?;
        let master =
            rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        rustix::pty::unlockpt(&master)?;
        let name = rustix::pty::ptsname(&master, Vec::new())?;
        let slave = rustix::fs::open(
            name.as_c_str(),
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        rustix::termios::tcsetattr(&slave, OptionalActions::Now, &before)?;
        if let Ok(size) = rustix::termios::tcgetwinsize(stdin) {
            rustix::termios::tcsetwinsize(&master, size)?;
        }
        Ok(Some(Self {
            master,
            slave,
            before,
        }))
    }

    /// What the command gets: the new terminal wherever the caller has one.
    pub(super) fn streams(&self) -> io::Result<[OwnedFd; 3]> {
        let stream = |own: BorrowedFd<'_>| {
            if rustix::termios::isatty(own) {
                self.slave.try_clone()
            } else {
                own.try_clone_to_owned()
            }
        };
        Ok([
            self.slave.try_clone()?,
            stream(rustix::stdio::stdout())?,
            stream(rustix::stdio::stderr())?,
        ])
    }

    /// Begins to carry bytes.
    pub(super) fn start(self) -> io::Result<Relaying> {
        let stdin = rustix::stdio::stdin();
        let mut raw = self.before.clone();
        raw.make_raw();
        rustix::termios::tcsetattr(stdin, OptionalActions::Drain, &raw)?;
        let (mut typed, mut to_command) = (
            File::from(stdin.try_clone_to_owned()?),
            File::from(self.master.try_clone()?),
        );
        std::thread::Builder::new().spawn(move || {
            let mut buffer = [0_u8; 4096];
            while let Ok(length @ 1..) = typed.read(&mut buffer) {
                if to_command.write_all(&buffer[..length]).is_err() {
                    return;
                }
            }
        })?;
        let ended = Arc::new(AtomicBool::new(false));
        let (said, shown) = (self.master.try_clone()?, shown()?);
        let told = Arc::clone(&ended);
        let output = std::thread::Builder::new().spawn(move || show(said, shown, &told))?;
        Ok(Relaying {
            master: self.master,
            before: self.before,
            ended,
            output,
        })
    }
}

/// The caller's terminal, to write to.
fn shown() -> io::Result<OwnedFd> {
    let outputs = [rustix::stdio::stdout(), rustix::stdio::stderr()];
    let found = outputs
        .into_iter()
        .find(|output| rustix::termios::isatty(output));
    found
        .unwrap_or_else(rustix::stdio::stdin)
        .try_clone_to_owned()
}

/// Carries the command's output until nothing is left of it.
fn show(said: OwnedFd, shown: OwnedFd, ended: &AtomicBool) {
    let (mut said, mut shown) = (File::from(said), File::from(shown));
    let mut buffer = [0_u8; 16 * 1024];
    loop {
        let mut sources = [PollFd::from_borrowed_fd(said.as_fd(), PollFlags::IN)];
        match poll(&mut sources, Some(&SILENCE)) {
            Ok(0) if ended.load(Ordering::Relaxed) => return,
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => return,
        }
        match said.read(&mut buffer) {
            Ok(length @ 1..) if shown.write_all(&buffer[..length]).is_ok() => {}
            // A terminal whose last user is gone.
            _ => return,
        }
    }
}

impl Relaying {
    /// The command's terminal, for its size.
    pub(super) fn master(&self) -> io::Result<OwnedFd> {
        self.master.try_clone()
    }

    /// The command has ended: shows the rest and gives the caller's terminal back.
    pub(super) fn finish(self) {
        self.ended.store(true, Ordering::Relaxed);
        // One that panicked has nothing more to show.
        let _ = self.output.join();
        let _ = rustix::termios::tcsetattr(
            rustix::stdio::stdin(),
            OptionalActions::Drain,
            &self.before,
        );
    }
}
