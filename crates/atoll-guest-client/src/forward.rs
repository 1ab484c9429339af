//! Somebody else's request to the guest, and its answer back, as streams.
//! What may pass is listed, in both directions: [`crate::passage`].

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use atoll_protocol::ACCESS_TOKEN_HEADER;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use crate::answer::{ANSWER_BOUND, Answer, AnswerBody};
use crate::client::{GuestClient, bad_request};
use crate::error::GuestError;
use crate::forward_download::{WholeFile, is_download};
use crate::forward_upload::is_one_file;
use crate::gateway::FILES_PATH;
use crate::moment::from_now;
use crate::passage::{Route, Service, answer_headers, request_headers};
use crate::pool::Outgoing;
use crate::upload::{UploadBounds, watched};
use crate::user::ForwardedUser;

/// Longest body of a request that is kept so that it can be sent twice.
const REPEATABLE_BYTES_MAX: u64 = 64 * 1024;

/// How a request is passed on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ForwardOptions {
    /// What of the guest it is for.
    pub service: Service,
    /// How long the answer's body may be silent; without it, for as long as
    /// whoever reads it waits. Streams need one only as long as the
    /// keep-alive that their client asked for.
    pub silence: Option<Duration>,
    /// Whose rights it has. A request that a signed URL allows must be passed
    /// on as [`ForwardedUser::NotNamed`].
    pub user: ForwardedUser,
}

impl GuestClient {
    /// Passes a request on with our secret, and the answer back.
    ///
    /// Only the routes that clients of a sandbox use are reachable, by their
    /// exact names; `/init` is not among them. Of the headers, those that
    /// mean something to these routes pass; the rest, such as the client's
    /// own token, does not. Bodies pass piece by piece. The guest has 30 s to
    /// answer once it has the whole request, except where the answer waits
    /// for a command.
    ///
    /// Frames of a stream pass unchecked: see [`crate::bounded_frames`].
    ///
    /// # Errors
    /// [`GuestError::NotForwarded`] when the request is none of those,
    /// `Rpc { code: Unauthenticated }` when its `Authorization` header is
    /// broken, [`GuestError::Source`] when its body fails, and as for other
    /// calls.
    pub async fn forward<B>(
        &self,
        request: Request<B>,
        options: ForwardOptions,
    ) -> Result<Response<ForwardedBody>, GuestError>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let (parts, body) = request.into_parts();
        let route = options.service.route(&parts.method, &parts.uri)?;
        if let Route::Lane(_) = route {
            return Err(GuestError::NotForwarded("a lane is no answer"));
        }
        let is_one_file = is_one_file(&parts, route);
        let head = self.passed_head(parts, route, &options.user)?;
        if is_one_file && self.lane_path() == Some(FILES_PATH) {
            return self.forward_upload(head, body, options.silence).await;
        }
        if is_download(&head, route) && body.is_end_stream() && self.lane_path() == Some(FILES_PATH)
        {
            return self.forward_download(head, &options).await;
        }
        let answer = if route.is_long() {
            let (body, progress) = watched(body);
            let sent = self.send_alone(head.map(|()| body.boxed_unsync()));
            progress.guard(sent, self.bounds(route)).await?
        } else if route.repeatable() && fits(&body) {
            let body = collect(body).await?;
            self.ask(Outgoing::Repeatable(head.map(|()| body))).await?
        } else {
            let (body, progress) = watched(body);
            let sent = self.send(Outgoing::Once(head.map(|()| body.boxed_unsync())));
            progress.guard(sent, self.bounds(route)).await?
        };
        pass_back(answer, route, options.silence)
    }

    /// The head of a client's request as the guest gets it.
    pub(crate) fn passed_head(
        &self,
        given: Parts,
        route: Route,
        user: &ForwardedUser,
    ) -> Result<Request<()>, GuestError> {
        let mut head = Request::new(());
        *head.method_mut() = given.method;
        // Without scheme and authority: [`Route::of`] refused those.
        *head.uri_mut() = given.uri;
        *head.headers_mut() = request_headers(&given.headers, route)?;
        head.headers_mut()
            .insert(ACCESS_TOKEN_HEADER, self.token()?);
        head.headers_mut()
            .insert(header::HOST, HeaderValue::from_static("guest"));
        if let Some(user) = user.authorization(&given.headers)? {
            head.headers_mut().insert(header::AUTHORIZATION, user);
        }
        Ok(head)
    }

    fn bounds(&self, route: Route) -> UploadBounds {
        UploadBounds {
            silence: self.silence(),
            answer: (!route.waits_for_a_command()).then_some(ANSWER_BOUND),
        }
    }
}

fn fits(body: &impl Body) -> bool {
    body.size_hint()
        .exact()
        .is_some_and(|length| length <= REPEATABLE_BYTES_MAX)
}

/// A short body as a whole. Its sender has as long as a guest would have.
async fn collect<B>(body: B) -> Result<Bytes, GuestError>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let whole = http_body_util::Limited::new(
        body,
        usize::try_from(REPEATABLE_BYTES_MAX).unwrap_or(usize::MAX),
    );
    match timeout(ANSWER_BOUND, whole.collect()).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) => Err(bad_request(error)),
        Err(late) => Err(GuestError::Source(late.into())),
    }
}

pub(crate) fn pass_back(
    answer: Answer,
    route: Route,
    silence: Option<Duration>,
) -> Result<Response<ForwardedBody>, GuestError> {
    let status = answer.response.status();
    if status.is_informational() {
        return Err(GuestError::Protocol(format!(
            "a request was answered with {status}"
        )));
    }
    let answer = if route.is_stream() {
        answer
    } else {
        answer.delimited()?
    };
    let headers = answer_headers(answer.headers(), route);
    let body = Content::Coming(answer.into_body());
    let mut response = Response::new(ForwardedBody::new(body, silence));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}

/// The body of an answer on its way back. Dropping it early closes its
/// connection.
pub struct ForwardedBody {
    /// Absent after an error.
    body: Option<Content>,
    alarm: Option<Alarm>,
}

/// What a body is made of.
enum Content {
    Coming(AnswerBody),
    /// A file past HTTP.
    File(Box<WholeFile>),
    /// All of it, which is short.
    There(Full<Bytes>),
}

struct Alarm {
    silence: Duration,
    sleep: Pin<Box<Sleep>>,
    waiting: bool,
}

impl fmt::Debug for ForwardedBody {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ForwardedBody")
    }
}

impl ForwardedBody {
    fn new(body: Content, silence: Option<Duration>) -> Self {
        Self {
            body: Some(body),
            alarm: silence.map(|silence| Alarm {
                silence,
                sleep: Box::pin(sleep_until(Instant::now())),
                waiting: false,
            }),
        }
    }

    /// A file that comes past HTTP.
    pub(crate) fn file(file: WholeFile, silence: Option<Duration>) -> Self {
        Self::new(Content::File(Box::new(file)), silence)
    }

    /// One that is all there.
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self {
            body: Some(Content::There(Full::new(bytes))),
            alarm: None,
        }
    }

    fn poll_data(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, GuestError>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        loop {
            let polled = match body {
                Content::Coming(body) => Pin::new(body).poll_frame(context),
                Content::File(file) => file
                    .poll_bytes(context)
                    .map(|polled| polled.map(|bytes| bytes.map(Frame::data))),
                Content::There(bytes) => Pin::new(bytes)
                    .poll_frame(context)
                    .map_err(|never| match never {}),
            };
            match polled {
                // Trailers say nothing that a client needs.
                Poll::Ready(Some(Ok(frame))) if !frame.is_data() => {}
                Poll::Ready(polled) => {
                    if let Some(alarm) = &mut self.alarm {
                        alarm.waiting = false;
                    }
                    return Poll::Ready(polled);
                }
                Poll::Pending => break,
            }
        }
        match &mut self.alarm {
            Some(alarm) => alarm.poll(context).map(|late| Some(Err(late))),
            None => Poll::Pending,
        }
    }
}

impl Alarm {
    /// Counts while somebody waits, not while the reader is busy.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<GuestError> {
        if !self.waiting {
            self.sleep.as_mut().reset(from_now(self.silence));
            self.waiting = true;
        }
        self.sleep
            .as_mut()
            .poll(context)
            .map(|()| GuestError::Timeout {
                what: "send more of its answer",
                bound: self.silence,
            })
    }
}

impl Body for ForwardedBody {
    type Data = Bytes;
    type Error = GuestError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, GuestError>>> {
        let polled = self.poll_data(context);
        if let Poll::Ready(None | Some(Err(_))) = polled {
            self.body = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Some(Content::Coming(body)) => body.is_end_stream(),
            Some(Content::File(file)) => file.left() == 0,
            Some(Content::There(bytes)) => bytes.is_end_stream(),
            None => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(Content::Coming(body)) => body.size_hint(),
            Some(Content::File(file)) => SizeHint::with_exact(file.left()),
            Some(Content::There(bytes)) => bytes.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}
