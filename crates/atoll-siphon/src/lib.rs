//! Bytes from a connection into a file, for the guest and for the host. The
//! kernel moves them by a pipe, which saves a copy; where it does not know how,
//! a buffer of ours does it.

pub mod nearby;

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

/// Bytes that move at once. The kernel may give less, which only costs time.
const PIPE_BYTES: usize = 1024 * 1024;

/// Bytes that are written at once, when so many come: few large writes that
/// begin where pages do, and not a torn one for every packet. A quarter of it
/// costs a fifth of the speed.
const STEP_BYTES: usize = 1024 * 1024;

/// Which side failed.
#[derive(Debug)]
pub enum SiphonError {
    /// The one that bytes come from.
    Connection(io::Error),
    /// The one that they go to.
    File(io::Error),
}

/// A way from a connection into a file.
#[derive(Debug)]
pub struct Siphon {
    /// Absent where the kernel cannot.
    pipe: Option<Pipe>,
    /// Empty as long as it is not needed.
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Pipe {
    entry: OwnedFd,
    exit: OwnedFd,
}

impl Default for Siphon {
    fn default() -> Self {
        Self::new()
    }
}

impl Siphon {
    /// A way that nothing has gone yet.
    #[must_use]
    pub fn new() -> Self {
        let pipe = pipe_with(PipeFlags::CLOEXEC).ok().map(|(exit, entry)| {
            let _ = fcntl_setpipe_size(&entry, PIPE_BYTES);
            Pipe { entry, exit }
        });
        Self {
            pipe,
            buffer: Vec::new(),
        }
    }

    /// Moves up to `wanted` bytes, some of them at once, and says how many it
    /// were: fewer than it could have been only where the connection ends or
    /// breaks, and none at its end. Waits as long as the connection does.
    ///
    /// # Errors
    /// When one of the two fails. What came by then and is not in the file is
    /// lost.
    pub fn draw(
        &mut self,
        mut from: &TcpStream,
        mut to: &File,
        wanted: usize,
    ) -> Result<usize, SiphonError> {
        let wanted = wanted.min(STEP_BYTES);
        if let Some(pipe) = &self.pipe {
            match fill(pipe, from, wanted) {
                Ok(filled) => {
                    let left = empty(pipe, to, filled)?;
                    if left > 0 {
                        // This file cannot be filled in that way, and the next time neither.
                        self.copy_out(left, to)?;
                        self.pipe = None;
                    }
                    return Ok(filled);
                }
                Err(error) if is_beyond_the_kernel(&error) => self.pipe = None,
                Err(error) => return Err(SiphonError::Connection(error)),
            }
        }
        let buffer = &mut buffer(&mut self.buffer)[..wanted];
        let mut read = 0;
        while read < wanted {
            match from.read(&mut buffer[read..]) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What came before is kept; the next time it fails again.
                Err(_) if read > 0 => break,
                Err(error) => return Err(SiphonError::Connection(error)),
            }
        }
        to.write_all(&buffer[..read]).map_err(SiphonError::File)?;
        Ok(read)
    }

    /// Takes `left` bytes out of the pipe by hand.
    fn copy_out(&mut self, left: usize, mut to: &File) -> Result<(), SiphonError> {
        let (Some(pipe), mut left) = (&self.pipe, left) else {
            return Ok(());
        };
        let buffer = buffer(&mut self.buffer);
        while left > 0 {
            let wanted = left.min(buffer.len());
            let read =
                rustix::io::retry_on_intr(|| rustix::io::read(&pipe.exit, &mut buffer[..wanted]))
                    .map_err(|error| SiphonError::File(error.into()))?;
            to.write_all(&buffer[..read]).map_err(SiphonError::File)?;
            left -= read;
        }
        Ok(())
    }
}

fn buffer(buffer: &mut Vec<u8>) -> &mut [u8] {
    if buffer.is_empty() {
        *buffer = vec![0; STEP_BYTES];
    }
    buffer
}

/// Takes `wanted` bytes, or fewer where the connection ends or breaks, or the
/// pipe is full: small packets take as much room in it as large ones.
fn fill(pipe: &Pipe, from: &TcpStream, wanted: usize) -> io::Result<usize> {
    // Never waits for room in the pipe. Linux waits for the connection all the
    // same; gVisor does not, and would wait without a bound if it were asked to.
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    let mut filled = 0;
    while filled < wanted {
        let left = wanted - filled;
        let began = Instant::now();
        match splice(from, None, &pipe.entry, None, left, flags) {
            Ok(0) => break,
            Ok(moved) => filled += moved,
            Err(Errno::INTR) => {}
            // What came before is kept; the next time it fails again.
            Err(_) if filled > 0 => break,
            Err(Errno::AGAIN) if !has_waited(from, began) => wait(from)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(filled)
}

/// Whether as much time went by since `began` as the connection waits at most.
fn has_waited(from: &TcpStream, began: Instant) -> bool {
    let bound = from.read_timeout().ok().flatten();
    bound.is_some_and(|bound| began.elapsed() >= bound)
}

/// Waits for bytes or the end, as long as the connection does, and takes nothing.
fn wait(from: &TcpStream) -> io::Result<()> {
    match from.peek(&mut [0]) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        Err(error) => Err(error),
    }
}

/// Gives what is in the pipe to the file; how many bytes of it the kernel
/// could not.
fn empty(pipe: &Pipe, to: &File, filled: usize) -> Result<usize, SiphonError> {
    let mut left = filled;
    while left > 0 {
        let moved = rustix::io::retry_on_intr(|| {
            splice(&pipe.exit, None, to, None, left, SpliceFlags::MOVE)
        });
        match moved.map_err(io::Error::from) {
            Ok(0) => return Err(SiphonError::File(io::ErrorKind::WriteZero.into())),
            Ok(moved) => left -= moved,
            Err(error) if is_beyond_the_kernel(&error) => return Ok(left),
            Err(error) => return Err(SiphonError::File(error)),
        }
    }
    Ok(0)
}

/// It has no way for these two, or may not say so otherwise.
fn is_beyond_the_kernel(error: &io::Error) -> bool {
    let signs = [Errno::INVAL, Errno::NOSYS, Errno::PERM, Errno::OPNOTSUPP];
    error
        .raw_os_error()
        .is_some_and(|number| signs.map(Errno::raw_os_error).contains(&number))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]

    use std::fs::OpenOptions;
    use std::io::Seek as _;
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    fn content() -> Vec<u8> {
        (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect()
    }

    /// What arrives of the content in a file that is opened so.
    fn drawn(mut siphon: Siphon, options: &mut OpenOptions) -> (Vec<u8>, Siphon) {
        let (mut sender, from) = pair();
        let sending = std::thread::spawn(move || sender.write_all(&content()).unwrap());
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        let file = options.create(true).open(&path).unwrap();
        while siphon.draw(&from, &file, 300_000).unwrap() > 0 {}
        sending.join().unwrap();
        (std::fs::read(&path).unwrap(), siphon)
    }

    #[test]
    fn everything_arrives_in_every_way() {
        let (read, siphon) = drawn(Siphon::new(), OpenOptions::new().write(true));
        assert!(read == content());
        assert!(siphon.pipe.is_some() && siphon.buffer.is_empty());
        // The kernel refuses to fill a file that is appended to: what is in
        // the pipe by then must not be lost.
        let (read, siphon) = drawn(Siphon::new(), OpenOptions::new().append(true));
        assert!(read == content());
        assert!(siphon.pipe.is_none());
        let without = Siphon {
            pipe: None,
            buffer: Vec::new(),
        };
        let (read, _) = drawn(without, OpenOptions::new().write(true));
        assert!(read == content());
    }

    #[test]
    fn no_more_than_wanted_is_taken() {
        let (mut sender, from) = pair();
        sender.write_all(b"ours and theirs").unwrap();
        let file = tempfile::tempfile().unwrap();
        assert_eq!(Siphon::new().draw(&from, &file, 4).unwrap(), 4);
        let mut rest = [0; 11];
        (&from).read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b" and theirs");
    }

    #[test]
    fn who_waits_gets_what_comes_later() {
        let (mut sender, from) = pair();
        let (waits, waiting) = std::sync::mpsc::channel();
        let sending = std::thread::spawn(move || {
            waiting.recv().unwrap();
            sender.write_all(b"late").unwrap();
        });
        let mut file = tempfile::tempfile().unwrap();
        waits.send(()).unwrap();
        assert_eq!(Siphon::new().draw(&from, &file, 4).unwrap(), 4);
        sending.join().unwrap();
        file.rewind().unwrap();
        let mut read = String::new();
        file.read_to_string(&mut read).unwrap();
        assert_eq!(read, "late");
    }

    #[test]
    fn bytes_are_waited_for_where_the_kernel_does_not_and_none_is_taken() {
        let (mut sender, from) = pair();
        let sending = std::thread::spawn(move || {
            sender.write_all(b"late").unwrap();
            sender
        });
        wait(&from).unwrap();
        let sender = sending.join().unwrap();
        let file = tempfile::tempfile().unwrap();
        assert_eq!(Siphon::new().draw(&from, &file, 4).unwrap(), 4);
        drop(sender);
        wait(&from).unwrap(); // the end is something to be seen too
        assert_eq!(Siphon::new().draw(&from, &file, 4).unwrap(), 0);
    }

    #[test]
    fn a_connection_that_is_silent_for_too_long_is_an_error() {
        let (_sender, from) = pair();
        let bound = Duration::from_millis(50);
        from.set_read_timeout(Some(bound)).unwrap();
        let file = tempfile::tempfile().unwrap();
        let late = [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut];
        let error = Siphon::new().draw(&from, &file, 4).unwrap_err();
        let SiphonError::Connection(error) = error else {
            unreachable!("{error:?}");
        };
        assert!(late.contains(&error.kind()), "{error:?}");
        let error = wait(&from).unwrap_err();
        assert!(late.contains(&error.kind()), "{error:?}");
    }

    #[test]
    fn a_full_disk_is_the_files_fault() {
        let (mut sender, from) = pair();
        sender.write_all(b"no room").unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full");
        let error = Siphon::new().draw(&from, &full.unwrap(), 7).unwrap_err();
        let SiphonError::File(error) = error else {
            unreachable!("{error:?}");
        };
        assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    }
}
