//! A watch as the stream of `WatchDir`: its start first, then what happens,
//! a sign of life in silence.

use std::time::Duration;

use atoll_protocol::envd::filesystem::{FilesystemEvent, WatchDirResponse, watch_dir_response};
use atoll_protocol::envd::filesystem_oneof::WatchDirEvent;
use connectrpc::ConnectError;
use futures_util::stream::unfold;
use tokio::time::{Instant, timeout_at};

use super::watch::{Watch, WatchError};

/// The messages of a watch, until the deadline if there is one. The watch
/// ends with the stream.
pub(crate) fn follow(
    watch: Watch,
    keepalive: Duration,
    deadline: Option<Instant>,
) -> impl futures_util::Stream<Item = Result<WatchDirResponse, ConnectError>> + Send + 'static {
    let start = Following {
        watch: Some(watch),
        keepalive,
        deadline,
        started: false,
    };
    unfold(start, |mut following| async move {
        let item = following.next().await?;
        if item.is_err() {
            following.watch = None;
        }
        let item = item.map(|event| WatchDirResponse {
            event: Some(event),
            ..WatchDirResponse::default()
        });
        Some((item, following))
    })
}

struct Following {
    /// None after the end.
    watch: Option<Watch>,
    keepalive: Duration,
    deadline: Option<Instant>,
    started: bool,
}

impl Following {
    async fn next(&mut self) -> Option<Result<WatchDirEvent, ConnectError>> {
        let watch = self.watch.as_mut()?;
        if !self.started {
            self.started = true;
            return Some(Ok(watch_dir_response::StartEvent::default().into()));
        }
        let silence = Instant::now() + self.keepalive;
        let until = self
            .deadline
            .map_or(silence, |deadline| deadline.min(silence));
        match timeout_at(until, watch.next()).await {
            Ok(event) => Some(said(event)),
            Err(_) if self.deadline == Some(until) => Some(Err(ConnectError::deadline_exceeded(
                "context deadline exceeded",
            ))),
            Err(_) => Some(Ok(watch_dir_response::KeepAlive::default().into())),
        }
    }
}

fn said(event: Option<Result<FilesystemEvent, WatchError>>) -> Result<WatchDirEvent, ConnectError> {
    match event {
        Some(Ok(event)) => Ok(event.into()),
        Some(Err(error)) => Err(error.into()),
        None => Err(ConnectError::internal("the watch ended without a reason")),
    }
}
