//! Bodies of answers, whoever made them.

use std::error::Error;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Body;

/// What can go wrong with a body that is on its way.
pub(crate) type BodyError = Box<dyn Error + Send + Sync>;

/// The body of an answer.
pub(crate) type AnswerBody = UnsyncBoxBody<Bytes, BodyError>;

/// The connection has to break, so that nobody takes what came so far for all
/// there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection is broken off: {0}")]
pub(crate) struct Broken(pub(crate) &'static str);

/// A body that is all there.
pub(crate) fn whole(bytes: impl Into<Bytes>) -> AnswerBody {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A body that comes piece by piece.
pub(crate) fn streamed<B>(body: B) -> AnswerBody
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    body.map_err(Into::into).boxed_unsync()
}
