//! Just enough of HTTP/1.1 to send anything at all and to read what comes back.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::harness::BOUND;

pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A connection, and what was received and not yet used.
pub struct Wire {
    stream: Box<dyn Stream>,
    received: Vec<u8>,
    body: Body,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    None,
    Bytes(u64),
    Chunked,
    UntilTheEnd,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// In order.
    Closed,
    /// Broken off.
    Reset,
}

/// Status line and headers, names in lower case.
#[derive(Debug, Clone)]
pub struct Head {
    pub status: u16,
    pub headers: Vec<(String, String)>,
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Answer {
    pub head: Head,
    pub body: Vec<u8>,
}

impl Head {
    pub fn header(&self, wanted: &str) -> Option<&str> {
        let mut named = self.headers.iter().filter(|(name, _)| name == wanted);
        let value = named.next().map(|(_, value)| value.as_str());
        assert!(named.next().is_none(), "{wanted} is there twice: {self:?}");
        value
    }
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub fn status(&self) -> u16 {
        self.head.status
    }
}

/// A request with a length, if it has a body.
pub fn request(method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{method} {target} HTTP/1.1\r\n");
    if !headers
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("host"))
    {
        text.push_str("host: 127.0.0.1\r\n");
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        text.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    text.push_str("\r\n");
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// A frame of a Connect stream.
pub fn frame(payload: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(payload.as_bytes());
    bytes
}

async fn bounded<T>(work: impl Future<Output = T>) -> T {
    let bound: Duration = *BOUND;
    timeout(bound, work).await.expect("it takes too long")
}

impl Wire {
    pub async fn open(address: SocketAddr) -> Self {
        let stream = bounded(TcpStream::connect(address)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self::over(stream)
    }

    pub fn over(stream: impl Stream + 'static) -> Self {
        Self {
            stream: Box::new(stream),
            received: Vec::new(),
            body: Body::None,
        }
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        bounded(self.stream.write_all(bytes.as_ref()))
            .await
            .unwrap();
    }

    /// Sends as far as the other side takes it.
    pub async fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        bounded(self.stream.write_all(bytes.as_ref())).await
    }

    pub async fn shutdown(&mut self) {
        bounded(self.stream.shutdown()).await.unwrap();
    }

    /// Reads one whole answer.
    pub async fn answer(&mut self) -> Answer {
        let head = self.head().await;
        let body = self.rest().await;
        Answer { head, body }
    }

    /// Reads up to the empty line.
    pub async fn head(&mut self) -> Head {
        let status = self.line().await;
        let number = status
            .strip_prefix("HTTP/1.1 ")
            .or_else(|| status.strip_prefix("HTTP/1.0 "))
            .and_then(|rest| rest.get(..3));
        let number = number.unwrap_or_else(|| panic!("no status line: {status:?}"));
        let mut head = Head {
            status: number.parse().unwrap(),
            headers: Vec::new(),
        };
        loop {
            let line = self.line().await;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').expect("a header has a colon");
            let header = (name.to_ascii_lowercase(), value.trim().to_owned());
            head.headers.push(header);
        }
        let is_empty = matches!(head.status, 101 | 204 | 304);
        self.body = match (
            head.header("transfer-encoding"),
            head.header("content-length"),
        ) {
            (None, None) if is_empty => Body::None,
            (Some("chunked"), None) => Body::Chunked,
            (None, Some(_)) if is_empty => Body::None,
            (None, Some(length)) => Body::Bytes(length.parse().unwrap()),
            (None, None) => Body::UntilTheEnd,
            other => panic!("a body has one length: {other:?}"),
        };
        head
    }

    /// An answer to HEAD has no body, whatever it says.
    pub fn without_body(&mut self) {
        self.body = Body::None;
    }

    /// The rest of the body.
    pub async fn rest(&mut self) -> Vec<u8> {
        let mut whole = Vec::new();
        while let Some(piece) = self.piece().await.expect("the body is whole") {
            whole.extend(piece);
        }
        whole
    }

    /// The next piece of the body; `None` at its end.
    pub async fn piece(&mut self) -> Result<Option<Vec<u8>>, End> {
        match self.body {
            Body::None | Body::Bytes(0) => Ok(None),
            Body::Bytes(left) => {
                if self.received.is_empty() {
                    self.receive().await?;
                }
                let length = self
                    .received
                    .len()
                    .min(usize::try_from(left).unwrap_or(usize::MAX));
                self.body = Body::Bytes(left - length as u64);
                Ok(Some(self.received.drain(..length).collect()))
            }
            Body::Chunked => {
                let size = self.try_line().await?;
                let size = usize::from_str_radix(&size, 16).unwrap();
                while self.received.len() < size + 2 {
                    self.receive().await?;
                }
                let piece: Vec<u8> = self.received.drain(..size).collect();
                assert_eq!(self.try_line().await?, "", "what ends a chunk");
                if size == 0 {
                    self.body = Body::None;
                    return Ok(None);
                }
                Ok(Some(piece))
            }
            Body::UntilTheEnd => {
                if self.received.is_empty() {
                    match self.receive().await {
                        Ok(()) => {}
                        Err(End::Closed) => return Ok(None),
                        Err(End::Reset) => return Err(End::Reset),
                    }
                }
                Ok(Some(std::mem::take(&mut self.received)))
            }
        }
    }

    /// What comes on a connection that is no HTTP any more.
    pub async fn exactly(&mut self, length: usize) -> Result<Vec<u8>, End> {
        while self.received.len() < length {
            self.receive().await?;
        }
        Ok(self.received.drain(..length).collect())
    }

    /// Reads until the other side ends it, and says how.
    pub async fn end(&mut self) -> End {
        loop {
            if let Err(end) = self.receive().await {
                return end;
            }
        }
    }

    /// Reads all that comes until the end.
    pub async fn all(&mut self) -> Vec<u8> {
        self.end().await;
        std::mem::take(&mut self.received)
    }

    async fn line(&mut self) -> String {
        let line = self.try_line().await;
        line.unwrap_or_else(|end| {
            let so_far = String::from_utf8_lossy(&self.received);
            panic!("{end:?} after {so_far:?}")
        })
    }

    async fn try_line(&mut self) -> Result<String, End> {
        loop {
            let end = self.received.windows(2).position(|two| two == b"\r\n");
            if let Some(end) = end {
                let line: Vec<u8> = self.received.drain(..end + 2).collect();
                return Ok(String::from_utf8(line[..end].to_vec()).unwrap());
            }
            self.receive().await?;
        }
    }

    async fn receive(&mut self) -> Result<(), End> {
        let mut buffer = vec![0; 64 * 1024];
        match bounded(self.stream.read(&mut buffer)).await {
            Ok(0) => Err(End::Closed),
            Ok(length) => {
                self.received.extend_from_slice(&buffer[..length]);
                Ok(())
            }
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(End::Closed),
            Err(_) => Err(End::Reset),
        }
    }
}
