//! A lane of the guest for somebody else's large file: see
//! [`atoll_protocol::lane`]. Who asked for it may only have what it carries.

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, Uri};
use tokio::net::TcpStream;

use crate::client::{GuestClient, bad_request, full, in_time};
use crate::error::GuestError;
use crate::forward::{ForwardOptions, ForwardedBody, pass_back};
use crate::gateway::FILES_PATH;
use crate::lane::{self, Lane};
use crate::passage::{Direction, Route};
use crate::pool::Outgoing;

/// What the guest answered to the wish for a lane.
#[derive(Debug)]
pub enum ForwardedLane {
    /// There it is.
    Open(OpenLane),
    /// A refusal, or a file that is not worth a lane.
    Plain(Response<ForwardedBody>),
}

/// A connection to the guest that HTTP has left. Nothing that comes over it
/// is checked yet.
#[derive(Debug)]
pub struct OpenLane {
    /// The connection.
    pub stream: TcpStream,
    /// What came with the answer: the first bytes of the lane.
    pub early: Bytes,
    /// How many bytes the guest says will come, when it is to send a file.
    pub length: Option<u64>,
}

impl GuestClient {
    /// Asks for a lane in the name of a client, whose request has no body.
    ///
    /// # Errors
    /// As for [`Self::forward`], and [`GuestError::Protocol`] when the guest
    /// gives a lane for a file of which it does not say how long it is.
    pub async fn forward_lane(
        &self,
        head: Parts,
        options: ForwardOptions,
    ) -> Result<ForwardedLane, GuestError> {
        let route = options.service.route(&head.method, &head.uri)?;
        let Route::Lane(direction) = route else {
            return Err(GuestError::NotForwarded("it asks for no lane"));
        };
        let mut head = self.passed_head(head, route, &options.user)?;
        *head.uri_mut() = of_the_guest(head.uri())?;
        lane::ask(head.headers_mut());
        let answer = match direction {
            Direction::Down => {
                let request = head.map(|()| Bytes::new());
                self.ask(Outgoing::Repeatable(request)).await?
            }
            Direction::Up => {
                let request: Request<_> = head.map(|()| full(Bytes::new()));
                in_time(self.send_alone(request)).await?
            }
        };
        if !lane::is_given(&answer) {
            let route = match direction {
                Direction::Down => Route::Download,
                Direction::Up => Route::Write,
            };
            return pass_back(answer, route, options.silence).map(ForwardedLane::Plain);
        }
        let length = match direction {
            Direction::Down => Some(lane::announced(&answer)?),
            Direction::Up => None,
        };
        let (stream, early) = Lane::of(answer).await?.into_parts();
        Ok(ForwardedLane::Open(OpenLane {
            stream,
            early,
            length,
        }))
    }
}

/// The same question at the guest, which gives lanes where its files are.
fn of_the_guest(asked: &Uri) -> Result<Uri, GuestError> {
    let query = asked.query().unwrap_or_default();
    format!("{FILES_PATH}?{query}").parse().map_err(bad_request)
}
