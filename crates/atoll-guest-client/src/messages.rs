//! Messages as they come off the wire: one of an answer, or one after the
//! other of a stream.

use std::time::Duration;

use atoll_protocol::connect::{EndOfStream, FLAG_END_OF_STREAM, Frame, FrameDecoder};
use buffa::{DecodeOptions, Message};
use http_body_util::BodyExt;
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, timeout_at};

use crate::answer::{Answer, AnswerBody};
use crate::error::{GuestError, harmless};
use crate::moment::after;

/// Content type of a unary call.
pub(crate) const UNARY_TYPE: &str = "application/proto";

/// Content type of a stream.
pub(crate) const STREAM_TYPE: &str = "application/connect+proto";

/// Longest frame of an answer, in bytes.
pub const FRAME_BYTES_MAX: usize = 1024 * 1024;

/// What the guest may take beyond a command's timeout to end all of it.
const TIMEOUT_GRACE: Duration = Duration::from_secs(10);

/// Most fields of a message that this version does not know. Each costs
/// twenty times its bytes.
const UNKNOWN_FIELDS_MAX: usize = 1024;

/// Most memory of what repeats in a message, in bytes. Two bytes of an empty
/// element cost a hundred.
const ELEMENT_MEMORY_MAX: usize = 4 * 1024 * 1024;

/// Reads one message; its memory is bounded, not only its bytes.
pub(crate) fn decode<M: Message>(bytes: &[u8]) -> Result<M, GuestError> {
    DecodeOptions::new()
        .with_max_message_size(FRAME_BYTES_MAX)
        .with_unknown_field_limit(UNKNOWN_FIELDS_MAX)
        .with_element_memory_limit(ELEMENT_MEMORY_MAX)
        .with_recursion_limit(8)
        .decode_from_slice(bytes)
        .map_err(|error| {
            let text = format!("a message is not understood: {error}");
            GuestError::Protocol(harmless(&text))
        })
}

/// Messages of one answer.
#[derive(Debug)]
pub(crate) struct MessageStream {
    body: AnswerBody,
    decoder: FrameDecoder,
    silence: Duration,
    /// How long the caller has waited for the frame that comes next.
    waited: Duration,
    deadline: Option<Instant>,
    /// When the caller first looked beyond the deadline: from then on the
    /// guest has a moment to end, whatever it sends meanwhile.
    late_since: Option<Instant>,
    over: bool,
}

impl MessageStream {
    /// The messages of an answer that may be silent for `silence`; beyond
    /// `deadline` it gets only a moment to end. That moment begins when the
    /// caller looks: one that comes late still gets what is on the wire.
    pub(crate) async fn open(
        answer: Answer,
        silence: Duration,
        deadline: Option<Instant>,
    ) -> Result<Self, GuestError> {
        let body = answer.success().await?.of_type(STREAM_TYPE)?.into_body();
        Ok(Self {
            body,
            decoder: FrameDecoder::new(FRAME_BYTES_MAX),
            silence,
            waited: Duration::ZERO,
            deadline,
            late_since: None,
            over: false,
        })
    }

    /// The next message; `None` after the last frame, also after an error.
    /// Safe to cancel.
    pub(crate) async fn next<M: Message>(&mut self) -> Result<Option<M>, GuestError> {
        loop {
            if self.over {
                return Ok(None);
            }
            self.check_deadline().inspect_err(|_| self.over = true)?;
            match self.decoder.next_frame() {
                Ok(Some(frame)) => {
                    self.waited = Duration::ZERO;
                    return self.read(&frame).inspect_err(|_| self.over = true);
                }
                Ok(None) => self.receive().await.inspect_err(|_| self.over = true)?,
                Err(error) => {
                    self.over = true;
                    return Err(error.into());
                }
            }
        }
    }

    fn read<M: Message>(&mut self, frame: &Frame) -> Result<Option<M>, GuestError> {
        if frame.flags & FLAG_END_OF_STREAM == 0 {
            return decode(&frame.payload).map(Some);
        }
        self.over = true;
        // What the parser says quotes the guest.
        let end: EndOfStream = serde_json::from_slice(&frame.payload)
            .map_err(|_| GuestError::Protocol("the last frame is not understood".to_owned()))?;
        if let Some(error) = end.error {
            return Err(error.into());
        }
        if self.decoder.is_empty() {
            Ok(None)
        } else {
            Err(self.broken("something follows the last frame"))
        }
    }

    /// Gives up a guest that does not come to its end. Frames do not help it:
    /// one that floods never lets the caller wait.
    fn check_deadline(&mut self) -> Result<(), GuestError> {
        let now = Instant::now();
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return Ok(());
        }
        let since = *self.late_since.get_or_insert(now);
        if now < after(since, TIMEOUT_GRACE) {
            Ok(())
        } else {
            Err(not_ended())
        }
    }

    /// Waits for more bytes.
    async fn receive(&mut self) -> Result<(), GuestError> {
        // Whoever cancels gets a turn also when bytes are always there.
        consume_budget().await;
        let start = Instant::now();
        // Whole frames count as signs of life, single bytes do not: a guest
        // that drips does not last.
        let patience = self.silence.saturating_sub(self.waited);
        let silent = after(start, patience);
        let end = self
            .late_since
            .or(self.deadline)
            .map(|since| after(since, TIMEOUT_GRACE));
        let received = {
            let _waiting = Waiting {
                start,
                deadline: self.deadline,
                waited: &mut self.waited,
                late_since: &mut self.late_since,
            };
            timeout_at(end.map_or(silent, |end| end.min(silent)), self.body.frame()).await
        };
        let received = received.map_err(|_| match end {
            Some(end) if end <= silent => not_ended(),
            Some(_) | None => GuestError::Timeout {
                what: "give a sign of life",
                bound: self.silence,
            },
        })?;
        match received {
            Some(frame) => {
                if let Ok(bytes) = frame?.into_data() {
                    self.decoder.push(&bytes);
                }
                Ok(())
            }
            None => Err(self.broken(if self.decoder.is_empty() {
                "a stream ended without its last frame"
            } else {
                "a stream ended inside a frame"
            })),
        }
    }

    /// Ends it with what the guest did wrong.
    pub(crate) fn broken(&mut self, what: &str) -> GuestError {
        self.end();
        GuestError::Protocol(what.to_owned())
    }

    /// Lets nothing follow.
    pub(crate) fn end(&mut self) {
        self.over = true;
    }
}

fn not_ended() -> GuestError {
    GuestError::Timeout {
        what: "end the command after its timeout",
        bound: TIMEOUT_GRACE,
    }
}

/// Counts the time spent waiting, also when the caller gives up.
struct Waiting<'a> {
    start: Instant,
    deadline: Option<Instant>,
    waited: &'a mut Duration,
    late_since: &'a mut Option<Instant>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        *self.waited = self
            .waited
            .saturating_add(now.saturating_duration_since(self.start));
        if let Some(deadline) = self.deadline.filter(|deadline| *deadline <= now) {
            self.late_since.get_or_insert(deadline.max(self.start));
        }
    }
}
