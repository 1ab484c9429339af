//! ZeroMQ's wire protocol (ZMTP 3.0, without security), as far as a client of
//! a Jupyter kernel needs it: the greeting, one `READY`, messages of frames.
//!
//! Code of the user runs in the process at the other end, so nothing it says
//! is believed: a length is a promise and no reason to reserve memory, and
//! what goes beyond a bound is read and counted, but not kept.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::timeout;

/// How long the other end may take to greet.
const GREETING_BOUND: Duration = Duration::from_secs(5);

/// Signature, version 3.0, mechanism `NULL`, not a server, filler.
const GREETING_BYTES: usize = 64;
const GREETING_VERSION: usize = 10;
const GREETING_MECHANISM: std::ops::Range<usize> = 12..32;

/// Bits of a frame's first byte.
const FLAG_MORE: u8 = 0b001;
const FLAG_LONG: u8 = 0b010;
const FLAG_COMMAND: u8 = 0b100;

/// Longest frame whose length fits into one byte.
const SHORT_BYTES_MAX: usize = 255;

/// Most that is kept of one message, over all of its frames.
pub(super) const MESSAGE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Most frames of one message that are kept.
const FRAMES_MAX: usize = 32;

/// What is read at once.
const CHUNK_BYTES: usize = 32 * 1024;

/// Longest command that is looked at.
const COMMAND_BYTES_MAX: usize = 4096;

/// Bytes to somebody, and from somebody.
pub(super) type Reading = Box<dyn AsyncRead + Send + Unpin>;
pub(super) type Writing = Box<dyn AsyncWrite + Send + Unpin>;

/// What kind of socket we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Asks and is answered.
    Dealer,
    /// Hears everything.
    Subscriber,
}

/// A frame, as far as it was kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Frame {
    pub(super) bytes: Vec<u8>,
    /// Bytes beyond the bound.
    pub(super) dropped: u64,
}

/// The half of a connection that hears.
pub(super) struct Receiver(BufReader<Reading>);

/// The half that speaks.
pub(super) struct Sender(Writing);

/// Greets whoever is at the other end.
pub(super) async fn open(
    reading: Reading,
    writing: Writing,
    role: Role,
) -> io::Result<(Receiver, Sender)> {
    let mut receiver = Receiver(BufReader::with_capacity(CHUNK_BYTES, reading));
    let mut sender = Sender(writing);
    timeout(GREETING_BOUND, greet(&mut receiver, &mut sender, role))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    Ok((receiver, sender))
}

async fn greet(receiver: &mut Receiver, sender: &mut Sender, role: Role) -> io::Result<()> {
    let mut ours = [0; GREETING_BYTES];
    ours[0] = 0xff;
    ours[9] = 0x7f;
    ours[GREETING_VERSION] = 3;
    ours[GREETING_MECHANISM][..4].copy_from_slice(b"NULL");
    sender.0.write_all(&ours).await?;
    sender.0.flush().await?;

    let mut theirs = [0; GREETING_BYTES];
    receiver.0.read_exact(&mut theirs).await?;
    let mut mechanism = [0; 20];
    mechanism[..4].copy_from_slice(b"NULL");
    if theirs[0] != 0xff || theirs[GREETING_VERSION] < 3 || theirs[GREETING_MECHANISM] != mechanism
    {
        return Err(invalid("it does not speak ZMTP 3 without security"));
    }
    sender.frame(FLAG_COMMAND, &ready(role)).await?;
    sender.0.flush().await?;

    let (flags, length) = receiver.header().await?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if flags & FLAG_COMMAND == 0 || length > COMMAND_BYTES_MAX {
        return Err(invalid("it does not say READY"));
    }
    let mut command = vec![0; length];
    receiver.0.read_exact(&mut command).await?;
    if !command.starts_with(b"\x05READY") {
        return Err(invalid("it does not say READY"));
    }
    if role == Role::Subscriber {
        // To everything: the empty prefix.
        sender.send(&[b"\x01"]).await?;
    }
    Ok(())
}

fn ready(role: Role) -> Vec<u8> {
    let kind: &[u8] = match role {
        Role::Dealer => b"DEALER",
        Role::Subscriber => b"SUB",
    };
    let mut command = b"\x05READY".to_vec();
    for (name, value) in [(b"Socket-Type".as_slice(), kind), (b"Identity", b"")] {
        // Both lengths are of the constants above.
        command.push(u8::try_from(name.len()).unwrap_or(0));
        command.extend_from_slice(name);
        command.extend_from_slice(&u32::try_from(value.len()).unwrap_or(0).to_be_bytes());
        command.extend_from_slice(value);
    }
    command
}

impl Sender {
    /// Sends one message.
    pub(super) async fn send(&mut self, frames: &[&[u8]]) -> io::Result<()> {
        for (index, frame) in frames.iter().enumerate() {
            let more = if index + 1 < frames.len() {
                FLAG_MORE
            } else {
                0
            };
            self.frame(more, frame).await?;
        }
        self.0.flush().await
    }

    async fn frame(&mut self, flags: u8, bytes: &[u8]) -> io::Result<()> {
        let mut header = Vec::with_capacity(9);
        match u8::try_from(bytes.len()) {
            Ok(length) if bytes.len() <= SHORT_BYTES_MAX => {
                header.extend_from_slice(&[flags, length]);
            }
            Ok(_) | Err(_) => {
                header.push(flags | FLAG_LONG);
                header.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
            }
        }
        self.0.write_all(&header).await?;
        self.0.write_all(bytes).await
    }
}

impl Receiver {
    /// The next message; an error when the connection ends. Not to be given
    /// up half-way: what follows would be read from its middle.
    pub(super) async fn receive(&mut self) -> io::Result<Vec<Frame>> {
        let mut frames = Vec::new();
        let mut room = MESSAGE_BYTES_MAX;
        loop {
            let (flags, length) = self.header().await?;
            if flags & FLAG_COMMAND != 0 {
                self.skip(length).await?;
                continue;
            }
            let frame = self.body(length, room).await?;
            room -= frame.bytes.len();
            if frames.len() < FRAMES_MAX {
                frames.push(frame);
            }
            if flags & FLAG_MORE == 0 {
                return Ok(frames);
            }
        }
    }

    async fn header(&mut self) -> io::Result<(u8, u64)> {
        let flags = self.0.read_u8().await?;
        let length = if flags & FLAG_LONG == 0 {
            u64::from(self.0.read_u8().await?)
        } else {
            self.0.read_u64().await?
        };
        Ok((flags, length))
    }

    async fn body(&mut self, length: u64, room: usize) -> io::Result<Frame> {
        let kept = usize::try_from(length).unwrap_or(usize::MAX).min(room);
        let mut bytes = Vec::with_capacity(kept.min(CHUNK_BYTES));
        while bytes.len() < kept {
            let chunk = (kept - bytes.len()).min(CHUNK_BYTES);
            let before = bytes.len();
            bytes.resize(before + chunk, 0);
            self.0.read_exact(&mut bytes[before..]).await?;
        }
        let dropped = length - kept as u64;
        self.skip(dropped).await?;
        Ok(Frame { bytes, dropped })
    }

    async fn skip(&mut self, length: u64) -> io::Result<()> {
        let mut rest = (&mut self.0).take(length);
        let skipped = tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
        if skipped == length {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn heard(bytes: &[u8]) -> io::Result<Vec<Frame>> {
        let bytes = bytes.to_vec();
        Receiver(BufReader::new(Box::new(io::Cursor::new(bytes))))
            .receive()
            .await
    }

    fn frame(bytes: &[u8]) -> Frame {
        Frame {
            bytes: bytes.to_vec(),
            dropped: 0,
        }
    }

    #[tokio::test]
    async fn short_and_long_frames_make_one_message() {
        let wire = [
            b"\x01\x02ab".as_slice(),
            b"\x04\x05PINGx", // a command in between is not part of it
            b"\x02\x00\x00\x00\x00\x00\x00\x00\x03cde",
        ]
        .concat();
        assert_eq!(heard(&wire).await.unwrap(), [frame(b"ab"), frame(b"cde")]);
    }

    #[tokio::test]
    async fn a_promised_length_reserves_nothing() {
        let wire = b"\x02\x7f\xff\xff\xff\xff\xff\xff\xffabc";
        let error = heard(wire).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn what_goes_beyond_the_bound_is_counted() {
        let length = MESSAGE_BYTES_MAX as u64 + 5;
        let mut wire = b"\x03".to_vec();
        wire.extend_from_slice(&length.to_be_bytes());
        wire.resize(wire.len() + MESSAGE_BYTES_MAX + 5, b'x');
        wire.extend_from_slice(b"\x00\x02ab");
        let frames = heard(&wire).await.unwrap();
        assert_eq!(frames[0].bytes.len(), MESSAGE_BYTES_MAX);
        assert_eq!(frames[0].dropped, 5);
        assert_eq!((frames[1].bytes.len(), frames[1].dropped), (0, 2));
    }

    #[tokio::test]
    async fn only_so_many_frames_are_kept() {
        let mut wire = b"\x01\x01x".repeat(100_000);
        wire.extend_from_slice(b"\x00\x00");
        assert_eq!(heard(&wire).await.unwrap().len(), FRAMES_MAX);
    }

    #[tokio::test]
    async fn liars_are_not_greeted() {
        let good = {
            let mut greeting = [0; GREETING_BYTES];
            (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
            greeting[12..16].copy_from_slice(b"NULL");
            greeting.to_vec()
        };
        let changed = |at: usize, to: u8| {
            let mut greeting = good.clone();
            greeting[at] = to;
            greeting
        };
        let with = |rest: &[u8]| [good.as_slice(), rest].concat();
        for (wire, is_taken) in [
            (with(b"\x04\x06\x05READY"), true),
            (with(b"\x04\x06\x05ERROR"), false),
            (with(b"\x00\x06\x05READY"), false),
            (
                with(b"\x06\x7f\xff\xff\xff\xff\xff\xff\xff\x05READY"),
                false,
            ),
            (with(b""), false),
            (changed(0, 1), false),
            (changed(10, 2), false),
            (changed(12, b'P'), false),
            (changed(31, b'x'), false),
        ] {
            let opened = open(
                Box::new(io::Cursor::new(wire.clone())),
                Box::new(tokio::io::sink()),
                Role::Subscriber,
            )
            .await;
            assert_eq!(opened.is_ok(), is_taken, "{wire:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_makes_it_panic(wire in proptest::collection::vec(0_u8.., 0..400)) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _ = runtime.block_on(heard(&wire));
        }
    }
}
