//! What happens to sandboxes: page by page, and as it comes.

use std::time::Duration;

use atoll_protocol::rest::{EventPage, SandboxEvent};
use bytes::BytesMut;
use http::{HeaderMap, HeaderValue, Method, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde::Deserialize;
use tokio::time::timeout;

use crate::client::Client;
use crate::error::ClientError;
use crate::list::encoded;

/// Longest silence of a server that is there: it says that it is more often.
const SILENCE_BOUND: Duration = Duration::from_secs(60);
/// Longest entry of a stream, in bytes.
const ENTRY_BYTES_MAX: usize = 256 * 1024;

/// Which events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventOptions {
    /// Of this sandbox.
    pub sandbox: Option<String>,
    /// Of these kinds; all when empty.
    pub kinds: Vec<String>,
}

impl EventOptions {
    fn query(&self) -> String {
        let mut query = String::new();
        if let Some(sandbox) = &self.sandbox {
            query.push_str(&format!("&sandbox={}", encoded(sandbox)));
        }
        if !self.kinds.is_empty() {
            query.push_str(&format!("&kind={}", encoded(&self.kinds.join(","))));
        }
        query
    }
}

/// Events as they come. It ends when the server says so or is gone; open another
/// one then, after the last event that was read.
#[derive(Debug)]
pub struct EventStream {
    body: Incoming,
    buffer: BytesMut,
    is_over: bool,
}

/// What a stream says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventNews {
    /// Something happened.
    Event(SandboxEvent),
    /// Events up to this number are not kept any more: some may be missing.
    Gap(i64),
    /// Nothing more comes, and why.
    End(String),
}

impl Client {
    /// The newest events, the oldest of them first.
    ///
    /// # Errors
    /// When the server cannot be asked, or there is no such kind.
    pub async fn latest_events(
        &self,
        options: &EventOptions,
        limit: u32,
    ) -> Result<Vec<SandboxEvent>, ClientError> {
        let query = options.query();
        let target = format!("/events?direction=backward&limit={limit}{query}");
        let page: EventPage = self.rest().ask(Method::GET, &target).await?.json()?;
        let mut events = page.events;
        events.reverse();
        Ok(events)
    }

    /// Events after the one numbered `after`, the oldest first.
    ///
    /// # Errors
    /// When the server cannot be asked, or there is no such kind.
    pub async fn events_after(
        &self,
        after: i64,
        options: &EventOptions,
        limit: u32,
    ) -> Result<Vec<SandboxEvent>, ClientError> {
        let query = options.query();
        let target = format!("/events?after={after}&limit={limit}{query}");
        let page: EventPage = self.rest().ask(Method::GET, &target).await?.json()?;
        Ok(page.events)
    }

    /// Events as they come: after the one numbered `after`, or from now on.
    ///
    /// # Errors
    /// When the server cannot be asked, or there is no such kind.
    pub async fn follow_events(
        &self,
        after: Option<i64>,
        options: &EventOptions,
    ) -> Result<EventStream, ClientError> {
        let query = options.query();
        let target = format!("/events?{}", query.trim_start_matches('&'));
        let mut headers = HeaderMap::new();
        let stream = HeaderValue::from_static("text/event-stream");
        headers.insert(header::ACCEPT, stream);
        if let Some(after) = after {
            headers.insert("last-event-id", HeaderValue::from(after));
        }
        Ok(EventStream {
            body: self.rest().open(Method::GET, &target, headers).await?,
            buffer: BytesMut::new(),
            is_over: false,
        })
    }
}

impl EventStream {
    /// What comes next; nothing once it is over.
    ///
    /// # Errors
    /// When the connection breaks, or the server is silent or makes no sense.
    pub async fn next(&mut self) -> Result<Option<EventNews>, ClientError> {
        while !self.is_over {
            if let Some(entry) = self.entry() {
                match parse(&entry)? {
                    Some(EventNews::End(reason)) => {
                        self.is_over = true;
                        return Ok(Some(EventNews::End(reason)));
                    }
                    Some(news) => return Ok(Some(news)),
                    None => continue,
                }
            }
            if self.buffer.len() > ENTRY_BYTES_MAX {
                self.is_over = true;
                return Err(wrong("an event is too long"));
            }
            let frame = timeout(SILENCE_BOUND, self.body.frame())
                .await
                .map_err(|_| ClientError::Timeout(SILENCE_BOUND))?;
            match frame {
                None => self.is_over = true,
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
                Some(Err(error)) => {
                    self.is_over = true;
                    return Err(wrong(&format!("the stream broke: {error}")));
                }
            }
        }
        Ok(None)
    }

    /// The next whole entry: lines up to an empty one.
    fn entry(&mut self) -> Option<String> {
        let end = self.buffer.windows(2).position(|pair| pair == b"\n\n")?;
        let entry = self.buffer.split_to(end + 2);
        Some(String::from_utf8_lossy(&entry).into_owned())
    }
}

fn wrong(what: &str) -> ClientError {
    ClientError::Protocol(what.to_owned())
}

#[derive(Deserialize)]
struct Gap {
    forgotten: i64,
}

#[derive(Deserialize)]
struct End {
    reason: String,
}

/// What an entry says; nothing if it only says that the server is there.
fn parse(entry: &str) -> Result<Option<EventNews>, ClientError> {
    let (mut kind, mut data) = ("", String::new());
    for line in entry.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => kind = value,
            "data" => data.push_str(value),
            // Comments, and fields that the data has too.
            _ => {}
        }
    }
    if data.is_empty() {
        return Ok(None);
    }
    let sense = |error: serde_json::Error| ClientError::Protocol(error.to_string());
    Ok(Some(match kind {
        "gap" => EventNews::Gap(serde_json::from_str::<Gap>(&data).map_err(sense)?.forgotten),
        "end" => EventNews::End(serde_json::from_str::<End>(&data).map_err(sense)?.reason),
        _ => EventNews::Event(serde_json::from_str(&data).map_err(sense)?),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_events_gaps_ends_or_nothing() {
        assert_eq!(parse(": alive\n\n").unwrap(), None);
        let gap = parse("event: gap\ndata: {\"forgotten\":7}\n\n").unwrap();
        assert_eq!(gap, Some(EventNews::Gap(7)));
        let end = parse("event: end\ndata: {\"reason\":\"key_revoked\"}\n\n").unwrap();
        assert_eq!(end, Some(EventNews::End("key_revoked".to_owned())));
        let event = "id: 3\nevent: killed\ndata: {\"id\":3,\"timestamp\":\"t\",\"kind\":\"killed\",\"sandboxID\":\"i\",\"nodeID\":\"n\",\"detail\":{}}\n\n";
        let Some(EventNews::Event(event)) = parse(event).unwrap() else {
            panic!("no event");
        };
        assert_eq!((event.id, event.kind.as_str()), (3, "killed"));
        assert!(parse("event: gap\ndata: nonsense\n\n").is_err());
    }

    #[test]
    fn what_is_asked_for_is_encoded() {
        let options = EventOptions {
            sandbox: Some("a&b".to_owned()),
            kinds: vec!["killed".to_owned(), "expired".to_owned()],
        };
        assert_eq!(options.query(), "&sandbox=a%26b&kind=killed%2Cexpired");
    }
}
