//! Whole files, and parts of them, in and out.

use std::ops::Range;

use atoll_protocol::lane::PIECE_BYTES_MAX;
use bytes::Bytes;
use futures_util::TryStreamExt as _;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::timeout_at;
use tokio_util::io::ReaderStream;

use crate::answer::{ANSWER_BOUND, Answer};
use crate::client::{GuestClient, bad_request, full};
use crate::download::{FileReader, Length};
use crate::error::GuestError;
use crate::gateway::FILES_PATH;
use crate::lane::{self, Lane, Piece};
use crate::moment::from_now;
use crate::pool::Outgoing;
use crate::upload::{UploadBounds, watched};

/// Content type of a file whose content means nothing to us.
const FILE_TYPE: &str = "application/octet-stream";

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadOptions {
    /// Most bytes to take; [`GuestError::TooLarge`] beyond. Without it a
    /// guest can send for ever, and the caller has to stop.
    pub max_bytes: Option<u64>,
}

impl GuestClient {
    /// Writes a file as the user, with the directories above it.
    ///
    /// # Errors
    /// [`GuestError::Refused`] when the guest refuses it, [`GuestError::Source`]
    /// when `body` fails; the file may then be there in part.
    pub async fn write_file(
        &self,
        path: &str,
        user: Option<&str>,
        body: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<(), GuestError> {
        let mut body = body;
        let mut first = Piece::new();
        if !first.fill_up(&mut body).await.map_err(GuestError::Source)? {
            return if let Some(lane) = self.upload_lane(path, user).await? {
                lane.upload(first, body, self.silence()).await
            } else {
                let body = std::io::Cursor::new(first.into_bytes()).chain(body);
                self.write_in_pieces(path, user, body).await
            };
        }
        // Small enough for one question. On a connection of its own: it cannot be
        // sent again when an idle one turns out to be dead.
        let body = full(first.into_bytes());
        let target = target(FILES_PATH, path);
        let request = self.request(Method::POST, &target, user, FILE_TYPE, body)?;
        let answer = self.in_silence(self.send_alone(request)).await?;
        answer.success().await?.whole_body().await?;
        Ok(())
    }

    /// A lane for a file that is to be written; none where nobody knows lanes.
    async fn upload_lane(
        &self,
        path: &str,
        user: Option<&str>,
    ) -> Result<Option<Lane>, GuestError> {
        let Some(place) = self.lane_path() else {
            return Ok(None);
        };
        let nothing = full(Bytes::new());
        let target = target(place, path);
        let mut request = self.request(Method::POST, &target, user, FILE_TYPE, nothing)?;
        lane::ask(request.headers_mut());
        let answer = self.in_silence(self.send_alone(request)).await?;
        if lane::is_given(&answer) {
            return Lane::of(answer).await.map(Some);
        }
        if !self.is_meant(&answer) {
            return Ok(None);
        }
        answer.success().await?;
        Err(GuestError::Protocol(
            "a file was accepted before it was sent".to_owned(),
        ))
    }

    /// A large file in plain HTTP.
    async fn write_in_pieces(
        &self,
        path: &str,
        user: Option<&str>,
        body: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<(), GuestError> {
        let pieces = ReaderStream::with_capacity(body, PIECE_BYTES_MAX);
        let (body, progress) = watched(StreamBody::new(pieces.map_ok(Frame::data)));
        let body = body.boxed_unsync();
        let target = target(FILES_PATH, path);
        let request = self.request(Method::POST, &target, user, FILE_TYPE, body)?;
        let bounds = UploadBounds {
            silence: self.silence(),
            answer: Some(ANSWER_BOUND),
        };
        let answer = progress.guard(self.send_alone(request), bounds).await?;
        answer.success().await?.whole_body().await?;
        Ok(())
    }

    /// Waits for an answer no longer than the guest may be silent.
    async fn in_silence(
        &self,
        answer: impl Future<Output = Result<Answer, GuestError>>,
    ) -> Result<Answer, GuestError> {
        let bound = self.silence();
        timeout_at(from_now(bound), answer)
            .await
            .map_err(|_| GuestError::Timeout {
                what: "answer",
                bound,
            })?
    }

    /// Opens a file as the user. Reading it to its end proves that it is
    /// whole: a connection that breaks is an error, never an early end.
    ///
    /// # Errors
    /// [`GuestError::Refused`] when the guest refuses it.
    pub async fn read_file(
        &self,
        path: &str,
        user: Option<&str>,
    ) -> Result<FileReader, GuestError> {
        self.read_file_with(path, user, ReadOptions::default())
            .await
    }

    /// As [`Self::read_file`], with options.
    ///
    /// # Errors
    /// [`GuestError::Refused`] when the guest refuses it,
    /// [`GuestError::TooLarge`] when it announces more than allowed.
    pub async fn read_file_with(
        &self,
        path: &str,
        user: Option<&str>,
        ReadOptions { max_bytes }: ReadOptions,
    ) -> Result<FileReader, GuestError> {
        let length = max_bytes.map_or(Length::Any, Length::AtMost);
        let answer = match self.ask_for_lane(path, user).await? {
            Some(answer) if lane::is_given(&answer) => {
                let announced = lane::announced(&answer)?;
                length.check(announced)?;
                let lane = Lane::of(answer).await?;
                return Ok(FileReader::past_http(lane, announced, self.silence()));
            }
            Some(answer) => answer,
            None => {
                let request = self.download(FILES_PATH, path, user)?;
                self.ask(Outgoing::Repeatable(request)).await?
            }
        };
        let answer = plain_file(answer).await?;
        if answer.response.status() != StatusCode::OK {
            return Err(GuestError::Protocol(
                "a whole file was asked for and another answer came".to_owned(),
            ));
        }
        FileReader::new(answer.into_body(), length, self.silence())
    }

    /// The answer to the wish to read a file past HTTP; none that counts where
    /// nobody knows lanes.
    async fn ask_for_lane(
        &self,
        path: &str,
        user: Option<&str>,
    ) -> Result<Option<Answer>, GuestError> {
        let Some(place) = self.lane_path() else {
            return Ok(None);
        };
        let mut request = self.download(place, path, user)?;
        lane::ask(request.headers_mut());
        let answer = self.ask(Outgoing::Repeatable(request)).await?;
        let counts = lane::is_given(&answer) || self.is_meant(&answer);
        Ok(counts.then_some(answer))
    }

    /// Opens a part of a file as the user: the bytes from `range.start` up to
    /// `range.end`, or up to the end of the file where that comes first. As
    /// with whole files, reading to the end proves that nothing is missing.
    ///
    /// # Errors
    /// [`GuestError::Refused`] when the guest refuses it, with status 416 when
    /// the file has nothing there; [`GuestError::Source`] when the range is empty.
    pub async fn read_file_range(
        &self,
        path: &str,
        range: Range<u64>,
        user: Option<&str>,
    ) -> Result<FileReader, GuestError> {
        if range.is_empty() {
            return Err(bad_request("a range without bytes"));
        }
        let mut request = self.download(FILES_PATH, path, user)?;
        let value = format!("bytes={}-{}", range.start, range.end - 1);
        let value = HeaderValue::from_str(&value).map_err(bad_request)?;
        request.headers_mut().insert(header::RANGE, value);
        let answer = plain_file(self.ask(Outgoing::Repeatable(request)).await?).await?;
        let given = (answer.response.status() == StatusCode::PARTIAL_CONTENT)
            .then(|| answer.headers().get(header::CONTENT_RANGE))
            .flatten()
            .and_then(|value| length_of_range(value, &range));
        let Some(length) = given else {
            return Err(GuestError::Protocol(
                "another part of the file came than was asked for".to_owned(),
            ));
        };
        FileReader::new(answer.into_body(), Length::Exactly(length), self.silence())
    }

    fn download(
        &self,
        place: &str,
        path: &str,
        user: Option<&str>,
    ) -> Result<Request<Bytes>, GuestError> {
        let target = target(place, path);
        self.request(Method::GET, &target, user, FILE_TYPE, Bytes::new())
    }
}

/// A file, or a part of one, that comes in plain HTTP.
async fn plain_file(answer: Answer) -> Result<Answer, GuestError> {
    let answer = answer.success().await?.delimited()?;
    // Nobody asked for it, and its bytes would pass for those of the file.
    if answer.headers().contains_key(header::CONTENT_ENCODING) {
        return Err(GuestError::Protocol("a file came encoded".to_owned()));
    }
    Ok(answer)
}

/// Bytes of an answer whose `Content-Range` is what `asked` must give:
/// `bytes first-last/total`.
fn length_of_range(given: &HeaderValue, asked: &Range<u64>) -> Option<u64> {
    let (part, total) = given
        .to_str()
        .ok()?
        .strip_prefix("bytes ")?
        .split_once('/')?;
    let (first, last) = part.split_once('-')?;
    let number = |text: &str| -> Option<u64> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().ok()).flatten()
    };
    let (first, last, total) = (number(first)?, number(last)?, number(total)?);
    let end = last.checked_add(1)?;
    (first == asked.start && first < end && end == asked.end.min(total)).then(|| end - first)
}

fn target(place: &str, path: &str) -> String {
    let mut target = format!("{place}?path=");
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' | b'/' => {
                target.push(char::from(byte));
            }
            other => target.push_str(&format!("%{other:02X}")),
        }
    }
    target
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_fits_into_a_query() {
        assert_eq!(
            target(FILES_PATH, "/a b/ü&x=1+2%"),
            "/files?path=/a%20b/%C3%BC%26x%3D1%2B2%25"
        );
    }

    #[test]
    fn only_the_part_that_was_asked_for_has_a_length() {
        let length = |given| length_of_range(&HeaderValue::from_static(given), &(10..20));
        assert_eq!(length("bytes 10-19/100"), Some(10));
        assert_eq!(length("bytes 10-14/15"), Some(5));
        for wrong in [
            "bytes 10-14/100",
            "bytes 10-20/100",
            "bytes 9-19/100",
            "bytes 10-19/15",
            "bytes 10-9/10",
            "bytes 10-19/*",
            "bytes +10-19/100",
            "bytes 10-18446744073709551615/18446744073709551615",
            "bytes 10-99999999999999999999/1",
            "items 10-19/100",
            "bytes 10-19",
            "",
        ] {
            assert_eq!(length(wrong), None, "{wrong}");
        }
    }
}
