//! Large files past HTTP, for the host: see [`atoll_protocol::lane`].
//!
//! A piece of a file that goes through HTTP passes three threads and as many
//! buffers. Here the thread that acts as the user has the connection and lets
//! the kernel move what comes and goes, almost as fast as it copies a file.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use atoll_protocol::lane::{LENGTH_HEADER, PIECE_BYTES_MAX, PIECE_HEAD_BYTES, PROTOCOL, Verdict};
use atoll_siphon::{Siphon, SiphonError};
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use bytes::{Buf, Bytes};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::sync::oneshot;

use super::read::Content;
use super::write::open_and;
use super::{FileError, Written};
use crate::access::Admission;
use crate::metadata::Metadata;
use crate::priority;
use crate::users::User;

/// How long a client that was refused may go on sending before it is cut off.
const FAREWELL_BOUND: Duration = Duration::from_secs(1);

/// How many pieces of it are read and dropped.
const FAREWELL_PIECES: usize = 64;

/// A wish to go on without HTTP.
pub(super) struct Lane(OnUpgrade);

impl Lane {
    /// The wish of this request, if it has it: of the host, which holds the
    /// token, and where there is a body. Others are answered in plain HTTP.
    pub(super) fn asked_for(request: &mut Request, admission: Admission) -> Option<Self> {
        let asked = request.headers().get(header::UPGRADE)?;
        let is_hosts = asked.as_bytes() == PROTOCOL.as_bytes() && admission == Admission::Token;
        if !is_hosts || request.method() == Method::HEAD {
            return None;
        }
        request.extensions_mut().remove::<OnUpgrade>().map(Self)
    }

    /// Opens a file in the name of `user`; what it will be comes later.
    pub(super) async fn receive(
        self,
        user: &User,
        path: &str,
        metadata: &Metadata,
    ) -> Result<Response, FileError> {
        let (sender, connected) = oneshot::channel::<Connected>();
        let written = Written::new(path.to_owned(), metadata.clone());
        open_and(user, path, metadata, move |file, path| {
            if let Ok(connected) = connected.blocking_recv() {
                connected.put_all(file, path, written);
            }
        })
        .await?;
        self.hand_over(sender);
        Ok(switching())
    }

    /// Sends the first `length` bytes of a file.
    pub(super) fn send(self, content: Content, length: u64) -> Response {
        let (sender, connected) = oneshot::channel();
        content.past_http(length, connected);
        self.hand_over(sender);
        let mut response = switching();
        response
            .headers_mut()
            .insert(LENGTH_HEADER, HeaderValue::from(length));
        response
    }

    /// Gives the connection to the thread that waits for it, once HTTP is done.
    fn hand_over(self, to: oneshot::Sender<Connected>) {
        tokio::spawn(async move {
            if let Ok(upgraded) = self.0.await
                && let Ok(connected) = Connected::new(upgraded)
            {
                // The thread may be gone, and with it the client's file.
                let _ = to.send(connected);
            }
        });
    }
}

fn switching() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(PROTOCOL));
    response
}

/// A connection that HTTP has left.
pub(super) struct Connected {
    stream: TcpStream,
    /// What came with the request.
    early: Bytes,
}

impl Connected {
    fn new(upgraded: Upgraded) -> io::Result<Self> {
        let parts = upgraded
            .downcast::<TokioIo<tokio::net::TcpStream>>()
            .map_err(|_| io::Error::other("not a connection of ours"))?;
        let stream = parts.io.into_inner().into_std()?;
        stream.set_nonblocking(false)?;
        Ok(Self {
            stream,
            early: parts.read_buf,
        })
    }

    /// Sends `head` and up to `length` bytes of `file`, by a buffer of ours:
    /// `sendfile` saves the copy here, on one core, and hands single pages to the
    /// reader on the other, who is slower then than both are with this.
    pub(super) fn copy(mut self, head: &[u8], file: File, length: u64) -> io::Result<()> {
        // Otherwise it is only slower.
        let _ = priority::give_up();
        self.stream.write_all(head)?;
        let mut rest = file.take(length);
        let mut buffer = vec![0; PIECE_BYTES_MAX];
        loop {
            match rest.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(read) => self.stream.write_all(&buffer[..read])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes what comes and says how that went, in the words of an answer.
    fn put_all(mut self, file: File, path: &str, written: Written) {
        let verdict = match self.put_pieces(file, path) {
            Ok(()) => Verdict {
                status: StatusCode::OK.as_u16(),
                text: serde_json::to_string(&[written]).unwrap_or_default(),
            },
            Err(error) => Verdict {
                status: error.status().as_u16(),
                text: error.to_string(),
            },
        };
        // A client that is gone wants no answer.
        let _ = self.say_farewell(&verdict);
    }

    fn put_pieces(&mut self, mut file: File, path: &str) -> Result<(), FileError> {
        // Otherwise it is only slower.
        let _ = priority::give_up();
        let mut siphon = Siphon::new();
        let broken = |error: io::Error| FileError::Body(error.to_string());
        loop {
            let mut head = [0; PIECE_HEAD_BYTES];
            self.read_exact(&mut head).map_err(broken)?;
            let mut left = usize::try_from(u32::from_be_bytes(head)).unwrap_or(usize::MAX);
            if left == 0 {
                // Closed here: watchers see that before the client has its answer.
                return Ok(());
            }
            if left > PIECE_BYTES_MAX {
                return Err(FileError::Body(format!("a piece of {left} bytes")));
            }
            while left > 0 {
                let moved = if self.early.is_empty() {
                    siphon.draw(&self.stream, &file, left)
                } else {
                    let early = self.early.split_to(left.min(self.early.len()));
                    let written = file.write_all(&early).map(|()| early.len());
                    written.map_err(SiphonError::File)
                };
                match moved {
                    Ok(0) => return Err(broken(io::ErrorKind::UnexpectedEof.into())),
                    Ok(moved) => left -= moved,
                    Err(SiphonError::Connection(error)) => return Err(broken(error)),
                    Err(SiphonError::File(error)) => {
                        return Err(FileError::io("write", path, error));
                    }
                }
            }
        }
    }

    /// A client that is cut off while it sends may never see why, so it is
    /// heard for a moment.
    fn say_farewell(&mut self, verdict: &Verdict) -> io::Result<()> {
        self.stream.write_all(&verdict.encode())?;
        self.stream.shutdown(Shutdown::Write)?;
        self.stream.set_read_timeout(Some(FAREWELL_BOUND))?;
        let mut dropped = vec![0; PIECE_BYTES_MAX];
        for _ in 0..FAREWELL_PIECES {
            if self.stream.read(&mut dropped)? == 0 {
                break;
            }
        }
        Ok(())
    }
}

impl Read for Connected {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.early.is_empty() {
            return self.stream.read(buffer);
        }
        let length = self.early.len().min(buffer.len());
        self.early.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}
