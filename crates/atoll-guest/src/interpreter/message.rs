//! Jupyter's messages: how requests are signed and written, and what an
//! answer says as far as anybody here cares.

use std::borrow::Cow;
use std::collections::BTreeMap;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::Sha256;

use super::zmtp::Frame;

/// Between who a message is for and the message.
const DELIMITER: &[u8] = b"<IDS|MSG>";

/// Frames before the delimiter, at most: a topic or identities.
const PREFIX_FRAMES_MAX: usize = 4;

/// Where a line that was cut says what it is about.
const CUT_HEAD_BYTES: usize = 256;

/// Version of the protocol that requests speak.
const VERSION: &str = "5.3";

/// What signs the messages of one kernel.
#[derive(Clone)]
pub(super) struct Signer {
    mac: Hmac<Sha256>,
    session: String,
}

/// Head of a request.
#[derive(Serialize)]
struct Header<'a> {
    msg_id: &'a str,
    session: &'a str,
    username: &'a str,
    date: &'a str,
    msg_type: &'a str,
    version: &'a str,
}

/// Content of `execute_request`.
#[derive(Debug, Serialize)]
pub(super) struct ExecuteRequest<'a> {
    pub(super) code: &'a str,
    pub(super) silent: bool,
    pub(super) store_history: bool,
    pub(super) user_expressions: BTreeMap<String, String>,
    pub(super) allow_stdin: bool,
    pub(super) stop_on_error: bool,
}

impl<'a> ExecuteRequest<'a> {
    /// Code of the user.
    pub(super) fn of_user(code: &'a str) -> Self {
        Self {
            code,
            silent: false,
            store_history: true,
            user_expressions: BTreeMap::new(),
            allow_stdin: false,
            stop_on_error: true,
        }
    }

    /// Code of ours, of which nobody sees anything.
    pub(super) fn silent(code: &'a str) -> Self {
        Self {
            silent: true,
            store_history: false,
            stop_on_error: false,
            ..Self::of_user(code)
        }
    }
}

impl ExecuteRequest<'static> {
    /// Python of ours that goes all the way of the user's, and leaves nothing.
    pub(super) fn proof() -> Self {
        Self {
            silent: false,
            ..Self::silent("get_ipython().display_formatter.format(0) and None")
        }
    }
}

impl Signer {
    pub(super) fn new(key: &str, session: String) -> Option<Self> {
        let mac = Hmac::new_from_slice(key.as_bytes()).ok()?;
        Some(Self { mac, session })
    }

    /// The frames of a request.
    pub(super) fn request(
        &self,
        id: &str,
        msg_type: &str,
        content: &impl Serialize,
        date: &str,
    ) -> Result<[Vec<u8>; 6], serde_json::Error> {
        let header = serde_json::to_vec(&Header {
            msg_id: id,
            session: &self.session,
            username: "atoll",
            date,
            msg_type,
            version: VERSION,
        })?;
        let content = serde_json::to_vec(content)?;
        let empty = b"{}".to_vec();
        let mut mac = self.mac.clone();
        for part in [&header, &empty, &empty, &content] {
            mac.update(part);
        }
        let mut signature = String::with_capacity(64);
        for byte in mac.finalize().into_bytes() {
            let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or('0');
            signature.extend([digit(byte >> 4), digit(byte & 15)]);
        }
        Ok([
            DELIMITER.to_vec(),
            signature.into_bytes(),
            header,
            empty.clone(),
            empty,
            content,
        ])
    }
}

/// A message of a kernel.
///
/// Its signature is not looked at: the user's code runs where the key is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    /// The request that it belongs to.
    pub(super) parent: String,
    /// JSON, cut where it was longer than anybody keeps.
    pub(super) content: Vec<u8>,
    /// How much longer.
    pub(super) dropped: u64,
}

/// Kinds of messages that mean something here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    ExecuteInput,
    ExecuteReply,
    ExecuteResult,
    DisplayData,
    Stream,
    Error,
    Status,
    KernelInfoReply,
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct KindOf {
    msg_type: Kind,
}

#[derive(Deserialize)]
struct ParentOf<'a> {
    #[serde(borrow, default)]
    msg_id: Cow<'a, str>,
}

impl Message {
    /// The message that these frames are, if they are one.
    pub(super) fn parse(frames: Vec<Frame>) -> Option<Self> {
        let delimiter = frames
            .iter()
            .take(PREFIX_FRAMES_MAX)
            .position(|frame| frame.bytes == DELIMITER)?;
        let mut rest = frames.into_iter().skip(delimiter + 2);
        let (header, parent, _metadata, content) =
            (rest.next()?, rest.next()?, rest.next()?, rest.next()?);
        let kind: KindOf = serde_json::from_slice(&header.bytes).ok()?;
        let parent: ParentOf<'_> = serde_json::from_slice(&parent.bytes).ok()?;
        Some(Self {
            kind: kind.msg_type,
            parent: parent.msg_id.into_owned(),
            content: content.bytes,
            dropped: content.dropped,
        })
    }

    /// One line of the plain runner, which says the same without ZeroMQ.
    pub(super) fn parse_line(line: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Line<'a> {
            msg_type: Kind,
            parent: String,
            #[serde(borrow)]
            content: &'a RawValue,
        }
        let line: Line<'_> = serde_json::from_slice(line).ok()?;
        Some(Self {
            kind: line.msg_type,
            parent: line.parent,
            content: line.content.get().as_bytes().to_vec(),
            dropped: 0,
        })
    }

    /// The same of a line that was longer than anybody keeps: what it was about.
    pub(super) fn parse_cut_line(line: &[u8], dropped: u64) -> Option<Self> {
        let head = String::from_utf8_lossy(line.get(..CUT_HEAD_BYTES)?);
        let kind = format!("\"{}\"", field(&head, "msg_type")?);
        Some(Self {
            kind: serde_json::from_str(&kind).ok()?,
            parent: field(&head, "parent")?.to_owned(),
            content: Vec::new(),
            dropped: dropped.saturating_add(line.len() as u64),
        })
    }
}

/// The text after `"name": "` of a line that was cut, up to the next quote.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let start = line.find(&format!("\"{name}\": \""))? + name.len() + 5;
    line.get(start..)?.split('"').next()
}

/// Content of `execute_input` and of the reply.
#[derive(Debug, Deserialize)]
pub(super) struct Counted {
    #[serde(default)]
    pub(super) execution_count: Option<u64>,
}

/// Content of `execute_reply`.
#[derive(Debug, Deserialize)]
pub(super) struct Reply<'a> {
    #[serde(borrow, default)]
    pub(super) status: Cow<'a, str>,
}

/// Content of `status`.
#[derive(Debug, Deserialize)]
pub(super) struct Status<'a> {
    #[serde(borrow)]
    pub(super) execution_state: Cow<'a, str>,
}

/// Content of `stream`; the text as it came, for half of a surrogate pair
/// is a text to Python and to clients, but not to Rust.
#[derive(Debug, Deserialize)]
pub(super) struct Output<'a> {
    #[serde(borrow)]
    pub(super) name: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) text: &'a RawValue,
}

/// Content of `execute_result` and `display_data`.
#[derive(Debug, Deserialize)]
pub(super) struct Bundle<'a> {
    #[serde(borrow)]
    pub(super) data: BTreeMap<Cow<'a, str>, &'a RawValue>,
}

/// Content of `error`.
#[derive(Debug, Deserialize)]
pub(super) struct Raised<'a> {
    #[serde(borrow)]
    pub(super) ename: &'a RawValue,
    #[serde(borrow)]
    pub(super) evalue: &'a RawValue,
    #[serde(borrow, default)]
    pub(super) traceback: Vec<&'a RawValue>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(bytes: &[u8]) -> Frame {
        Frame {
            bytes: bytes.to_vec(),
            dropped: 0,
        }
    }

    #[test]
    fn requests_are_signed_as_kernels_check_it() {
        let signer = Signer::new("key", "s".to_owned()).unwrap();
        let [delimiter, signature, header, parent, metadata, content] = signer
            .request("id", "execute_request", &ExecuteRequest::of_user("1"), "d")
            .unwrap();
        assert_eq!(delimiter, DELIMITER);
        assert_eq!(
            (parent.as_slice(), metadata.as_slice()),
            (&b"{}"[..], &b"{}"[..])
        );
        // hmac.new(b"key", header + b"{}{}" + content, "sha256").hexdigest()
        let expected = "63aedfebb5bdd88f484d6687619655579c5974e522bb13dbe718e47b638ca2b6";
        assert_eq!(String::from_utf8(signature).unwrap(), expected);
        assert_eq!(
            String::from_utf8(header).unwrap(),
            r#"{"msg_id":"id","session":"s","username":"atoll","date":"d","msg_type":"execute_request","version":"5.3"}"#
        );
        assert_eq!(
            String::from_utf8(content).unwrap(),
            r#"{"code":"1","silent":false,"store_history":true,"user_expressions":{},"allow_stdin":false,"stop_on_error":true}"#
        );
    }

    #[test]
    fn answers_are_read_with_and_without_a_topic() {
        let body = [
            frame(b"sig"),
            frame(br#"{"msg_type":"stream","x":1}"#),
            frame(br#"{"msg_id":"p"}"#),
            frame(b"{}"),
            frame(b"content"),
            frame(b"a buffer"),
        ];
        let expected = Message {
            kind: Kind::Stream,
            parent: "p".to_owned(),
            content: b"content".to_vec(),
            dropped: 0,
        };
        for prefix in [vec![], vec![frame(b"topic")]] {
            let frames = [prefix, vec![frame(DELIMITER)], body.to_vec()].concat();
            assert_eq!(Message::parse(frames), Some(expected.clone()));
        }
    }

    #[test]
    fn what_is_no_message_is_none() {
        let whole = [
            frame(DELIMITER),
            frame(b""),
            frame(br#"{"msg_type":"status"}"#),
            frame(b"{}"),
            frame(b"{}"),
            frame(b"{}"),
        ];
        assert!(Message::parse(whole.to_vec()).is_some());
        for length in 0..whole.len() {
            assert_eq!(Message::parse(whole[..length].to_vec()), None);
        }
        for (at, with) in [
            (0, "x"),
            (2, "[]"),
            (2, "{}"),
            (2, r#"{"msg_type":1}"#),
            (3, "1"),
        ] {
            let mut broken = whole.to_vec();
            broken[at] = frame(with.as_bytes());
            assert_eq!(Message::parse(broken), None, "{at} {with}");
        }
    }
}
