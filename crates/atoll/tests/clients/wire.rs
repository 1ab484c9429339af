//! Just enough of HTTP/1.1 and of Connect's frames to read what a guest sends,
//! without a library that could be as wrong as the one it uses itself.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use crate::harness::BOUND;

/// A connection, and what was received and not yet used.
pub(crate) struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
    body: Body,
    /// Bytes of the body without their chunks.
    content: Vec<u8>,
}

/// How much of a body is still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    None,
    Bytes(usize),
    Chunked,
}

/// Status line and headers, names in lower case.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
}

/// One frame of a stream.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) flags: u8,
    pub(crate) payload: Vec<u8>,
}

impl Head {
    pub(crate) fn header(&self, wanted: &str) -> Option<&str> {
        let mut named = self.headers.iter().filter(|(name, _)| name == wanted);
        named.next().map(|(_, value)| value.as_str())
    }
}

impl Connection {
    /// Opens a connection and sends a request.
    pub(crate) fn send(address: SocketAddr, request: &[u8]) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(*BOUND)).unwrap();
        stream.write_all(request).unwrap();
        Self {
            stream,
            received: Vec::new(),
            body: Body::None,
            content: Vec::new(),
        }
    }

    /// Reads up to the empty line.
    pub(crate) fn head(&mut self) -> Head {
        let status = self.line();
        let number = status
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3));
        let number = number.unwrap_or_else(|| panic!("no status line: {status:?}"));
        let mut head = Head {
            status: number.parse().unwrap(),
            headers: Vec::new(),
        };
        loop {
            let line = self.line();
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').expect("a header has a colon");
            let header = (name.to_ascii_lowercase(), value.trim().to_owned());
            head.headers.push(header);
        }
        self.body = match (
            head.header("transfer-encoding"),
            head.header("content-length"),
        ) {
            (Some("chunked"), None) => Body::Chunked,
            (None, Some(length)) => Body::Bytes(length.parse().unwrap()),
            (None, None) => Body::None,
            other => panic!("a body has one length: {other:?}"),
        };
        head
    }

    /// The next frame of the body, unless it has ended.
    pub(crate) fn frame(&mut self) -> Option<Frame> {
        while self.content.len() < 5 {
            if !self.more() {
                assert!(self.content.is_empty(), "a frame broke off");
                return None;
            }
        }
        let length = u32::from_be_bytes(self.content[1..5].try_into().unwrap());
        let end = 5 + usize::try_from(length).unwrap();
        while self.content.len() < end {
            assert!(self.more(), "a frame broke off");
        }
        let frame: Vec<u8> = self.content.drain(..end).collect();
        Some(Frame {
            flags: frame[0],
            payload: frame[5..].to_vec(),
        })
    }

    /// The rest of the body.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        while self.more() {}
        std::mem::take(&mut self.content)
    }

    /// Reads more of the body; whether there was more.
    fn more(&mut self) -> bool {
        let length = match self.body {
            Body::None | Body::Bytes(0) => return false,
            Body::Bytes(length) => length,
            Body::Chunked => usize::from_str_radix(&self.line(), 16).unwrap(),
        };
        while self.received.len() < length {
            self.receive();
        }
        self.content.extend(self.received.drain(..length));
        match self.body {
            Body::Chunked => {
                assert_eq!(self.line(), "", "what ends a chunk");
                if length == 0 {
                    self.body = Body::None;
                }
                length > 0
            }
            Body::None | Body::Bytes(_) => {
                self.body = Body::None;
                true
            }
        }
    }

    fn line(&mut self) -> String {
        loop {
            let end = self.received.windows(2).position(|two| two == b"\r\n");
            if let Some(end) = end {
                let line: Vec<u8> = self.received.drain(..end + 2).collect();
                return String::from_utf8(line[..end].to_vec()).unwrap();
            }
            self.receive();
        }
    }

    fn receive(&mut self) {
        let mut buffer = [0; 16 * 1024];
        let length = self.stream.read(&mut buffer).unwrap();
        let so_far = String::from_utf8_lossy(&self.received);
        assert!(length > 0, "the connection was closed after {so_far:?}");
        self.received.extend_from_slice(&buffer[..length]);
    }
}
