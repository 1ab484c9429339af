//! Large files between host and guest.
//!
//! HTTP carries the question and the refusal; the bytes of a large file go
//! past it, on the same connection, after a `101 Switching Protocols`:
//!
//! ```text
//! POST /files, Upgrade: atoll-file  ──▶
//!                                   ◀── 101, once the file is open
//! pieces: length (u32), bytes       ──▶
//! a piece of length 0               ──▶
//!                                   ◀── verdict: status (u16), length (u32), text
//!
//! GET /files, Upgrade: atoll-file   ──▶
//!                                   ◀── 101, Atoll-Length: n, and n bytes
//! ```
//!
//! Numbers are in network order. A verdict may come before the last piece.
//! Atoll's own: E2B's clients never ask for it, and a guest may answer a
//! `GET` in plain HTTP as well.
//!
//! Through a server the same goes over [`PATH`] instead of `/files`. A name of
//! its own: somebody in between who takes the `Upgrade` out of a request would
//! make an upload of nothing of it, which a server would write. There it is
//! answered with `426`, and a server that knows nothing of lanes with `404`.
//! Whatever else a server answers there bears [`KNOWN_HEADER`] and counts.

/// What a client asks to go on with.
pub const PROTOCOL: &str = "atoll-file";

/// Where a server opens lanes to the guests behind it.
pub const PATH: &str = "/files/lane";

/// Header of a server's answers at [`PATH`]: whatever they say, it knows lanes.
pub const KNOWN_HEADER: &str = "atoll-lane";

/// Header of the answer to a `GET`: how many bytes follow.
pub const LENGTH_HEADER: &str = "atoll-length";

/// Most bytes of one piece. Either side needs this much memory for a file.
pub const PIECE_BYTES_MAX: usize = 512 * 1024;

/// Bytes that say how long a piece is.
pub const PIECE_HEAD_BYTES: usize = 4;

/// Longest text of a verdict.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;

/// Bytes of a verdict before its text.
pub const VERDICT_HEAD_BYTES: usize = 6;

/// What the guest says of an upload: a status as in HTTP, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// 200 when the file is written.
    pub status: u16,
    /// What the answer in plain HTTP would say: which file it is, or why it is
    /// not written. Cut when it is too long, as only a refusal can be that
    /// matters to somebody.
    pub text: String,
}

impl Verdict {
    /// As it goes over the wire; a text that is too long is cut.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut end = self.text.len().min(TEXT_BYTES_MAX);
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let text = &self.text.as_bytes()[..end];
        let length = u32::try_from(text.len()).unwrap_or(0);
        let mut bytes = Vec::with_capacity(VERDICT_HEAD_BYTES + text.len());
        bytes.extend_from_slice(&self.status.to_be_bytes());
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(text);
        bytes
    }

    /// Status of a verdict and the length of its text, which may be anything.
    #[must_use]
    pub fn decode_head(head: [u8; VERDICT_HEAD_BYTES]) -> (u16, u32) {
        let [high, low, length @ ..] = head;
        (u16::from_be_bytes([high, low]), u32::from_be_bytes(length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_says_its_status_and_the_length_of_its_text() {
        let bytes = Verdict {
            status: 507,
            text: "full".to_owned(),
        }
        .encode();
        assert_eq!(bytes, b"\x01\xfb\0\0\0\x04full");
        let head = bytes[..VERDICT_HEAD_BYTES].try_into().unwrap();
        assert_eq!(Verdict::decode_head(head), (507, 4));
    }

    #[test]
    fn a_text_that_is_too_long_is_cut_between_characters() {
        let text = "ü".repeat(TEXT_BYTES_MAX);
        let bytes = Verdict { status: 400, text }.encode();
        let text = std::str::from_utf8(&bytes[VERDICT_HEAD_BYTES..]).unwrap();
        assert_eq!(text.len(), TEXT_BYTES_MAX);
    }
}
