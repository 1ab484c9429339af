//! Framing and error codes of the Connect protocol, as far as streams need
//! them: `flags: u8 | length: u32 big-endian | payload`.

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

/// Flag of the frame that ends a stream; its payload is [`EndOfStream`].
pub const FLAG_END_OF_STREAM: u8 = 0b10;

/// Bytes before a frame's payload.
pub const FRAME_HEADER_BYTES: usize = 5;

/// One frame of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// 0 for a message, [`FLAG_END_OF_STREAM`] for the last frame.
    pub flags: u8,
    /// What it carries.
    pub payload: Bytes,
}

/// What a peer did wrong with its frames.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It announced more than the reader takes.
    #[error("a frame of {length} bytes is longer than the {limit} bytes allowed")]
    TooLarge {
        /// Bytes announced.
        length: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// It set a flag that was not negotiated, such as compression.
    #[error("a frame has flags {0:#04x} that were not agreed on")]
    Flags(u8),
    /// It went on after the frame that ends a stream.
    #[error("something follows the last frame")]
    AfterTheEnd,
}

/// Puts `payload` into a frame.
///
/// # Errors
/// When it does not fit into one.
pub fn encode_frame(flags: u8, payload: &[u8]) -> Result<Bytes, FrameError> {
    let length = u32::try_from(payload.len()).map_err(|_| FrameError::TooLarge {
        length: payload.len(),
        limit: u32::MAX as usize,
    })?;
    let mut out = BytesMut::with_capacity(FRAME_HEADER_BYTES + payload.len());
    out.put_u8(flags);
    out.put_u32(length);
    out.put_slice(payload);
    Ok(out.freeze())
}

/// Takes frames out of a byte stream and never holds more than one frame of
/// `limit` bytes plus what was pushed last.
#[derive(Debug)]
pub struct FrameDecoder {
    buffer: BytesMut,
    limit: usize,
}

impl FrameDecoder {
    /// A decoder that refuses payloads longer than `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            limit,
        }
    }

    /// Adds bytes as they came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, `None` while it is not all there.
    ///
    /// # Errors
    /// As soon as a frame's header is wrong, before its payload is awaited.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some((&[flags, a, b, c, d], _)) = self.buffer.split_first_chunk::<FRAME_HEADER_BYTES>()
        else {
            return Ok(None);
        };
        let length = check_header([flags, a, b, c, d], self.limit)?;
        if self.buffer.len() < FRAME_HEADER_BYTES + length {
            return Ok(None);
        }
        self.buffer.advance(FRAME_HEADER_BYTES);
        Ok(Some(Frame {
            flags,
            payload: self.buffer.split_to(length).freeze(),
        }))
    }

    /// Whether no bytes are left, of an unfinished frame or of the next ones.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }
}

/// Length of the payload that a header announces.
fn check_header(
    [flags, length @ ..]: [u8; FRAME_HEADER_BYTES],
    limit: usize,
) -> Result<usize, FrameError> {
    if flags & !FLAG_END_OF_STREAM != 0 {
        return Err(FrameError::Flags(flags));
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > limit {
        return Err(FrameError::TooLarge { length, limit });
    }
    Ok(length)
}

/// Checks the headers of frames that pass by and holds nothing but a header
/// that is not all there yet.
#[derive(Debug)]
pub struct FrameScanner {
    limit: usize,
    header: [u8; FRAME_HEADER_BYTES],
    held: usize,
    /// Bytes of the current payload that are still to come.
    left: usize,
    ended: bool,
}

impl FrameScanner {
    /// A scanner that refuses payloads longer than `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            header: [0; FRAME_HEADER_BYTES],
            held: 0,
            left: 0,
            ended: false,
        }
    }

    /// Looks at the next bytes. Returns how many of them belong to payloads
    /// and whole, right headers, and what is wrong after those. A header
    /// that is not all there is held: when a later call returns more than 0,
    /// what was [`held`](Self::held) before that call comes first.
    ///
    /// Nothing may be scanned after an error.
    pub fn scan(&mut self, bytes: &[u8]) -> (usize, Result<(), FrameError>) {
        let mut passed = 0;
        loop {
            let rest = bytes.get(passed..).unwrap_or_default();
            let payload = self.left.min(rest.len());
            self.left -= payload;
            passed += payload;
            let rest = &rest[payload..];
            if rest.is_empty() {
                return (passed, Ok(()));
            }
            if self.ended {
                return (passed, Err(FrameError::AfterTheEnd));
            }
            let taken = rest.len().min(FRAME_HEADER_BYTES - self.held);
            self.header[self.held..self.held + taken].copy_from_slice(&rest[..taken]);
            self.held += taken;
            if self.held < FRAME_HEADER_BYTES {
                return (passed, Ok(()));
            }
            match check_header(self.header, self.limit) {
                Ok(length) => self.left = length,
                Err(error) => return (passed, Err(error)),
            }
            self.ended = self.header[0] & FLAG_END_OF_STREAM != 0;
            self.held = 0;
            passed += taken;
        }
    }

    /// Bytes of a header that is not all there.
    #[must_use]
    pub fn held(&self) -> &[u8] {
        &self.header[..self.held]
    }

    /// Whether what was passed ends with a whole frame, or is nothing.
    #[must_use]
    pub fn is_between_frames(&self) -> bool {
        self.left == 0
    }

    /// Whether all of the last frame was passed.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended && self.left == 0
    }
}

/// Payload of the last frame of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndOfStream {
    /// Why it ended, unless all went well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RpcError>,
}

/// An error as it travels: body of a failed unary call, or inside [`EndOfStream`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RpcError {
    /// What kind.
    pub code: Code,
    /// What happened.
    #[serde(default)]
    pub message: String,
}

/// Kinds of errors. A name that this version does not know is read as
/// [`Code::Unknown`], as the Connect specification wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(
    missing_docs,
    reason = "the Connect specification defines them by name"
)]
pub enum Code {
    Canceled,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
    #[serde(other)]
    Unknown,
}

impl Code {
    /// Its name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Canceled => "canceled",
            Self::Unknown => "unknown",
            Self::InvalidArgument => "invalid_argument",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::PermissionDenied => "permission_denied",
            Self::ResourceExhausted => "resource_exhausted",
            Self::FailedPrecondition => "failed_precondition",
            Self::Aborted => "aborted",
            Self::OutOfRange => "out_of_range",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
            Self::DataLoss => "data_loss",
            Self::Unauthenticated => "unauthenticated",
        }
    }

    /// HTTP status of a failed unary call.
    #[must_use]
    pub fn http_status(self) -> u16 {
        match self {
            Self::Canceled => 499,
            Self::InvalidArgument | Self::FailedPrecondition | Self::OutOfRange => 400,
            Self::DeadlineExceeded => 504,
            Self::NotFound => 404,
            Self::AlreadyExists | Self::Aborted => 409,
            Self::PermissionDenied => 403,
            Self::ResourceExhausted => 429,
            Self::Unimplemented => 501,
            Self::Unknown | Self::Internal | Self::DataLoss => 500,
            Self::Unavailable => 503,
            Self::Unauthenticated => 401,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_cut() {
        let mut wire = encode_frame(0, b"hello").unwrap().to_vec();
        wire.extend_from_slice(&encode_frame(0, b"").unwrap());
        wire.extend_from_slice(&encode_frame(FLAG_END_OF_STREAM, b"{}").unwrap());
        let expected = vec![
            Frame {
                flags: 0,
                payload: Bytes::from_static(b"hello"),
            },
            Frame {
                flags: 0,
                payload: Bytes::new(),
            },
            Frame {
                flags: FLAG_END_OF_STREAM,
                payload: Bytes::from_static(b"{}"),
            },
        ];
        for piece in 1..=wire.len() {
            let mut decoder = FrameDecoder::new(16);
            let mut frames = Vec::new();
            for part in wire.chunks(piece) {
                decoder.push(part);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    frames.push(frame);
                }
            }
            assert_eq!(frames, expected, "cut into pieces of {piece}");
            assert!(decoder.is_empty());
        }
    }

    #[test]
    fn half_a_frame_is_no_frame_and_is_noticed() {
        let mut decoder = FrameDecoder::new(16);
        decoder.push(&[0, 0, 0, 0, 4, b'a']);
        assert_eq!(decoder.next_frame(), Ok(None));
        assert!(!decoder.is_empty());
    }

    #[test]
    fn a_huge_frame_is_refused_by_its_header_alone() {
        let mut decoder = FrameDecoder::new(1024);
        decoder.push(&[0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(
            decoder.next_frame(),
            Err(FrameError::TooLarge {
                length: u32::MAX as usize,
                limit: 1024
            })
        );
    }

    #[test]
    fn compression_that_nobody_asked_for_is_refused() {
        let mut decoder = FrameDecoder::new(1024);
        decoder.push(&[1, 0, 0, 0, 0]);
        assert_eq!(decoder.next_frame(), Err(FrameError::Flags(1)));
    }

    #[test]
    fn errors_travel_by_name() {
        let end: EndOfStream = serde_json::from_str(
            r#"{"error":{"code":"deadline_exceeded","message":"context deadline exceeded"}}"#,
        )
        .unwrap();
        assert_eq!(
            end.error,
            Some(RpcError {
                code: Code::DeadlineExceeded,
                message: "context deadline exceeded".to_owned()
            })
        );
        assert_eq!(
            serde_json::to_string(&EndOfStream::default()).unwrap(),
            "{}"
        );
        assert_eq!(
            serde_json::to_string(&Code::NotFound).unwrap(),
            format!("\"{}\"", Code::NotFound)
        );
    }

    #[test]
    fn names_that_nobody_knows_are_unknown() {
        for name in ["unknown", "", "not found", "\\u001b[2J"] {
            let code: Code = serde_json::from_str(&format!("\"{name}\"")).unwrap();
            assert_eq!(code, Code::Unknown, "{name}");
        }
        assert_eq!(
            serde_json::to_string(&Code::Unknown).unwrap(),
            "\"unknown\""
        );
        // Errors of plain routes have a number there and are none of ours.
        assert!(serde_json::from_str::<RpcError>(r#"{"code":404,"message":""}"#).is_err());
    }
}
