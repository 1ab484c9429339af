//! Large files past HTTP: see [`atoll_protocol::lane`].

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use atoll_protocol::lane::{
    LENGTH_HEADER, PIECE_BYTES_MAX, PIECE_HEAD_BYTES, PROTOCOL, TEXT_BYTES_MAX, VERDICT_HEAD_BYTES,
    Verdict,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Body;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{timeout, timeout_at};

use crate::answer::{ANSWER_BOUND, Answer};
use crate::error::{GuestError, harmless};
use crate::moment::from_now;
use crate::upload::into_io;

/// Asks for a lane.
pub(crate) fn ask(headers: &mut HeaderMap) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(PROTOCOL));
}

/// Whether the guest agreed.
pub(crate) fn is_given(answer: &Answer) -> bool {
    answer.response.status() == StatusCode::SWITCHING_PROTOCOLS
}

/// How many bytes the guest says will follow.
pub(crate) fn announced(answer: &Answer) -> Result<u64, GuestError> {
    let text = answer
        .headers()
        .get(LENGTH_HEADER)
        .and_then(|value| value.to_str().ok());
    text.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| GuestError::Protocol("a file without a length came".to_owned()))
}

/// A connection that HTTP has left.
#[derive(Debug)]
pub(crate) struct Lane {
    stream: TcpStream,
    /// What came with the answer.
    early: Bytes,
}

impl Lane {
    /// The connection of an answer that gave a lane.
    pub(crate) async fn of(mut answer: Answer) -> Result<Self, GuestError> {
        let switched = timeout(ANSWER_BOUND, hyper::upgrade::on(&mut answer.response));
        let upgraded = switched.await.map_err(|_| GuestError::Timeout {
            what: "switch protocols",
            bound: ANSWER_BOUND,
        })??;
        let parts = upgraded
            .downcast::<TokioIo<TcpStream>>()
            .map_err(|_| GuestError::Protocol("not a connection of ours".to_owned()))?;
        Ok(Self {
            stream: parts.io.into_inner(),
            early: parts.read_buf,
        })
    }

    /// The socket, and what came with the answer.
    pub(crate) fn into_parts(self) -> (TcpStream, Bytes) {
        (self.stream, self.early)
    }

    /// Sends `piece`, the first one, and then all of `body`, and hears the verdict. Each piece
    /// has to be taken within `silence`.
    pub(crate) async fn upload(
        self,
        mut piece: Piece,
        mut body: impl AsyncRead + Unpin,
        silence: Duration,
    ) -> Result<(), GuestError> {
        let (reading, mut writing) = self.stream.into_split();
        let verdict = read_verdict(io::Cursor::new(self.early).chain(reading));
        let mut verdict = Awaited::new(Box::pin(verdict), silence);
        loop {
            match verdict.beside(writing.write_all(piece.wire())).await? {
                Beside::Done(()) => {}
                Beside::Verdict(early) => return refused(&early),
                Beside::Broken => break,
            }
            if piece.is_last() {
                break;
            }
            match verdict.while_waiting(piece.fill(&mut body)).await? {
                Ok(filled) => filled.map_err(GuestError::Source)?,
                Err(early) => return refused(&early),
            }
        }
        let verdict = verdict.last().await?;
        if verdict.status == StatusCode::OK.as_u16() && piece.is_last() {
            return Ok(());
        }
        refused(&verdict)
    }

    /// Sends `first` and then all of `body`, somebody else's, and says the verdict,
    /// whatever it is.
    pub(crate) async fn upload_body<B>(
        self,
        first: Bytes,
        mut body: B,
        silence: Duration,
    ) -> Result<Verdict, GuestError>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let (reading, mut writing) = self.stream.into_split();
        let verdict = read_verdict(io::Cursor::new(self.early).chain(reading));
        let mut verdict = Awaited::new(Box::pin(verdict), silence);
        let mut bytes = first;
        let whole = loop {
            while !bytes.is_empty() {
                let piece = bytes.split_to(bytes.len().min(PIECE_BYTES_MAX));
                let length = u32::try_from(piece.len()).unwrap_or(0).to_be_bytes();
                let mut wire = bytes::Buf::chain(&length[..], piece);
                match verdict.beside(writing.write_all_buf(&mut wire)).await? {
                    Beside::Done(()) => {}
                    Beside::Verdict(early) => return early_refusal(early),
                    Beside::Broken => return early_refusal(verdict.last().await?),
                }
            }
            match verdict.while_waiting(body.frame()).await? {
                Ok(Some(Ok(frame))) => bytes = frame.into_data().unwrap_or_default(),
                Ok(Some(Err(error))) => {
                    return Err(GuestError::Source(into_io(error.into())));
                }
                Ok(None) => {
                    break verdict
                        .beside(writing.write_all(&[0; PIECE_HEAD_BYTES]))
                        .await?;
                }
                Err(early) => return early_refusal(early),
            }
        };
        match whole {
            Beside::Done(()) => verdict.last().await,
            Beside::Verdict(early) => early_refusal(early),
            Beside::Broken => early_refusal(verdict.last().await?),
        }
    }
}

/// A verdict that may come at any time.
struct Awaited<V> {
    verdict: V,
    silence: Duration,
}

/// What came of a step of an upload.
enum Beside<T> {
    Done(T),
    /// Before its end only a refusal makes sense.
    Verdict(Verdict),
    /// The connection takes no more. The guest may have said why.
    Broken,
}

impl<V: Future<Output = Result<Verdict, GuestError>> + Unpin> Awaited<V> {
    fn new(verdict: V, silence: Duration) -> Self {
        Self { verdict, silence }
    }

    /// Something that the guest has to take in time.
    async fn beside<T>(
        &mut self,
        step: impl Future<Output = io::Result<T>>,
    ) -> Result<Beside<T>, GuestError> {
        let bound = self.silence;
        tokio::select! {
            biased;
            early = &mut self.verdict => early.map(Beside::Verdict),
            done = timeout_at(from_now(bound), step) => match done {
                Ok(Ok(done)) => Ok(Beside::Done(done)),
                Ok(Err(_)) => Ok(Beside::Broken),
                Err(_) => Err(GuestError::Timeout {
                    what: "take the upload",
                    bound,
                }),
            },
        }
    }

    /// Something that the guest does not keep waiting; or its verdict.
    async fn while_waiting<T>(
        &mut self,
        step: impl Future<Output = T>,
    ) -> Result<Result<T, Verdict>, GuestError> {
        tokio::select! {
            biased;
            early = &mut self.verdict => early.map(Err),
            done = step => Ok(Ok(done)),
        }
    }

    /// The verdict, for which there is nothing more to do.
    async fn last(&mut self) -> Result<Verdict, GuestError> {
        let bound = self.silence;
        timeout_at(from_now(bound), &mut self.verdict)
            .await
            .map_err(|_| GuestError::Timeout {
                what: "answer",
                bound,
            })?
    }
}

/// What a verdict other than success means.
fn refused(verdict: &Verdict) -> Result<(), GuestError> {
    if is_success(verdict) {
        return Err(accepted_early());
    }
    Err(GuestError::Refused {
        status: verdict.status,
        message: harmless(&verdict.text),
    })
}

/// A verdict that came before the end of its upload.
fn early_refusal(verdict: Verdict) -> Result<Verdict, GuestError> {
    if is_success(&verdict) {
        return Err(accepted_early());
    }
    Ok(verdict)
}

fn is_success(verdict: &Verdict) -> bool {
    StatusCode::from_u16(verdict.status).is_ok_and(|status| status.is_success())
}

fn accepted_early() -> GuestError {
    GuestError::Protocol("an upload was accepted before its end".to_owned())
}

async fn read_verdict(mut from: impl AsyncRead + Unpin) -> Result<Verdict, GuestError> {
    let broken = |error: io::Error| GuestError::Disconnected(error.to_string());
    let mut head = [0; VERDICT_HEAD_BYTES];
    from.read_exact(&mut head).await.map_err(broken)?;
    let (status, length) = Verdict::decode_head(head);
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > TEXT_BYTES_MAX {
        return Err(GuestError::TooLarge {
            what: "a verdict",
            limit: TEXT_BYTES_MAX,
        });
    }
    let mut text = vec![0; length];
    from.read_exact(&mut text).await.map_err(broken)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok(Verdict { status, text })
}

impl AsyncRead for Lane {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        if self.early.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, out);
        }
        let length = self.early.len().min(out.remaining());
        out.put_slice(&self.early.split_to(length));
        std::task::Poll::Ready(Ok(()))
    }
}

/// One piece of an upload, with its length in front: a single write sends both.
pub(crate) struct Piece {
    buffer: Vec<u8>,
    length: usize,
}

impl Piece {
    /// An empty one.
    pub(crate) fn new() -> Self {
        Self {
            buffer: vec![0; PIECE_HEAD_BYTES + PIECE_BYTES_MAX],
            length: 0,
        }
    }

    /// Takes what `source` has, as much as fits; nothing at its end.
    pub(crate) async fn fill(&mut self, source: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
        self.length = source.read(&mut self.buffer[PIECE_HEAD_BYTES..]).await?;
        self.number();
        Ok(())
    }

    /// As [`Self::fill`], until it is full or the source has ended, which it tells.
    pub(crate) async fn fill_up(
        &mut self,
        source: &mut (impl AsyncRead + Unpin),
    ) -> io::Result<bool> {
        while self.length < PIECE_BYTES_MAX {
            let free = &mut self.buffer[PIECE_HEAD_BYTES + self.length..];
            match source.read(free).await? {
                0 => return Ok(true),
                read => self.length += read,
            }
        }
        self.number();
        Ok(false)
    }

    fn number(&mut self) {
        let length = u32::try_from(self.length).unwrap_or(0);
        self.buffer[..PIECE_HEAD_BYTES].copy_from_slice(&length.to_be_bytes());
    }

    /// Whether it says that nothing follows.
    fn is_last(&self) -> bool {
        self.length == 0
    }

    fn wire(&self) -> &[u8] {
        &self.buffer[..PIECE_HEAD_BYTES + self.length]
    }

    /// Its bytes alone.
    pub(crate) fn into_bytes(self) -> Bytes {
        let mut bytes = Bytes::from(self.buffer);
        bytes.truncate(PIECE_HEAD_BYTES + self.length);
        bytes.split_off(PIECE_HEAD_BYTES)
    }
}
