//! The parts of a form, read without ever holding one of them.
//!
//! The parser of the form reads ahead for as long as bytes are there, and
//! gathers the head of a part however long it is. Both would let a client
//! fill our memory, so the bytes it gets are rationed.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{FromRequest, Multipart, Request};
use axum::http::{HeaderValue, header};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt};

use super::FileError;
use super::disposition;
use super::encoding::ByteStream;

/// Longest head of a part, and longest text before the first one.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// A form.
pub(super) struct Parts {
    form: Multipart,
    allowance: Arc<AtomicUsize>,
}

/// One part whose head was read.
pub(super) struct Part<'form> {
    /// What its head says.
    pub(super) said: disposition::Part,
    field: Field<'form>,
}

impl Parts {
    /// Reads the boundary from the type of the body.
    pub(super) async fn open(
        content_type: HeaderValue,
        body: ByteStream,
    ) -> Result<Self, FileError> {
        let allowance = Arc::new(AtomicUsize::new(0));
        let body = Rationed {
            bytes: body,
            allowance: Arc::clone(&allowance),
            turn: Turn::Give,
        };
        let mut request = Request::new(Body::from_stream(body));
        request
            .headers_mut()
            .insert(header::CONTENT_TYPE, content_type);
        // The limit of axum is for those who gather bodies.
        axum::extract::DefaultBodyLimit::disable().apply(&mut request);
        let form = Multipart::from_request(request, &())
            .await
            .map_err(|error| FileError::Request(error.body_text()))?;
        Ok(Self { form, allowance })
    }

    /// The next part. The one before must have been read to its end.
    pub(super) async fn next(&mut self) -> Result<Option<Part<'_>>, FileError> {
        self.allowance.store(HEAD_BYTES_MAX, Ordering::Relaxed);
        let field = self
            .form
            .next_field()
            .await
            .map_err(|error| broken(&error))?;
        self.allowance.store(usize::MAX, Ordering::Relaxed);
        let Some(field) = field else { return Ok(None) };
        let said = match field.headers().get(header::CONTENT_DISPOSITION) {
            Some(value) => std::str::from_utf8(value.as_bytes())
                .ok()
                .and_then(disposition::part)
                .ok_or_else(|| FileError::Request("the head of a part is broken".to_owned()))?,
            None => disposition::Part::default(),
        };
        Ok(Some(Part { said, field }))
    }
}

impl Part<'_> {
    /// Its bytes.
    pub(super) fn bytes(self) -> impl Stream<Item = Result<Bytes, FileError>> {
        self.field.map_err(|error| broken(&error))
    }

    /// Reads it and drops it.
    pub(super) async fn skip(self) -> Result<(), FileError> {
        let mut bytes = std::pin::pin!(self.bytes());
        while let Some(bytes) = bytes.next().await {
            bytes?;
        }
        Ok(())
    }
}

/// The innermost reason: the ones around it only say that there is one.
fn broken(error: &MultipartError) -> FileError {
    let mut reason: &dyn std::error::Error = error;
    while let Some(source) = reason.source() {
        reason = source;
    }
    FileError::Body(reason.to_string())
}

/// Bytes that come one piece at a time and only as far as allowed.
struct Rationed {
    bytes: ByteStream,
    allowance: Arc<AtomicUsize>,
    turn: Turn,
}

/// After each piece the parser must look at what it has.
#[derive(Clone, Copy)]
enum Turn {
    Give,
    Rest,
}

impl Stream for Rationed {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if matches!(self.turn, Turn::Rest) {
            self.turn = Turn::Give;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let left = self.allowance.load(Ordering::Relaxed);
        if left == 0 {
            let text = format!("the head of a part is longer than {HEAD_BYTES_MAX} bytes");
            return Poll::Ready(Some(Err(io::Error::other(text))));
        }
        let polled = self.bytes.poll_next_unpin(context);
        if let Poll::Ready(Some(Ok(bytes))) = &polled {
            self.turn = Turn::Rest;
            let left = if left == usize::MAX {
                left
            } else {
                left.saturating_sub(bytes.len())
            };
            self.allowance.store(left, Ordering::Relaxed);
        }
        polled
    }
}
/// Names and contents of all files in a form, for tests and the fuzzer.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) async fn read_form(
    content_type: HeaderValue,
    body: ByteStream,
) -> Result<Vec<(Option<String>, Vec<u8>)>, FileError> {
    let mut parts = Parts::open(content_type, body).await?;
    let mut found = Vec::new();
    while let Some(part) = parts.next().await? {
        let name = part.said.file_name.clone();
        let gather = |mut content: Vec<u8>, bytes: Bytes| async move {
            content.extend_from_slice(&bytes);
            Ok(content)
        };
        found.push((name, part.bytes().try_fold(Vec::new(), gather).await?));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn files_come_out_of_a_form_as_they_went_in(
            files in proptest::collection::vec(("[a-z/ ü.]{1,12}", proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)), 0..5),
            size in 1..200_usize,
        ) {
            const BOUNDARY: &str = "----boundary-0123456789abcdef";
            let mut body = Vec::new();
            for (name, content) in &files {
                body.extend(format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n").bytes());
                body.extend(content);
                body.extend(b"\r\n");
            }
            body.extend(format!("--{BOUNDARY}--\r\n").bytes());
            let pieces: Vec<_> = body.chunks(size).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
            let content_type = HeaderValue::from_str(&format!("multipart/form-data; boundary={BOUNDARY}")).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let read = runtime.block_on(read_form(content_type, Box::pin(futures_util::stream::iter(pieces))));
            let expected: Vec<_> = files.into_iter().map(|(name, content)| (Some(name), content)).collect();
            proptest::prop_assert_eq!(read.map_err(|error| error.to_string()), Ok(expected));
        }
    }
}
