//! A client of the guest's RPC as E2B's are: JSON over HTTP/1.1, by hand, so
//! that what goes over the wire is what the test says.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{Guest, TOKEN};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// Code and message of a refusal.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    pub code: String,
    pub message: String,
}

pub fn refused(code: &str, message: &str) -> Refused {
    Refused {
        code: code.to_owned(),
        message: message.to_owned(),
    }
}

impl Refused {
    fn parse(error: &Value) -> Self {
        refused(
            error["code"].as_str().unwrap(),
            error["message"].as_str().unwrap_or_default(),
        )
    }
}

/// Status and body of an answer.
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Guest {
    /// A call of `filesystem.Filesystem` as the default user.
    pub fn call(&self, method: &str, request: &Value) -> Result<Value, Refused> {
        self.call_with(method, request, &[])
    }

    /// The same as somebody else.
    pub fn call_as(&self, user: &str, method: &str, request: &Value) -> Result<Value, Refused> {
        self.call_with(method, request, &[("authorization", &basic(user))])
    }

    fn call_with(
        &self,
        method: &str,
        request: &Value,
        headers: &[(&str, &str)],
    ) -> Result<Value, Refused> {
        let path = format!("/filesystem.Filesystem/{method}");
        let mut all = vec![
            ("content-type", "application/json"),
            ("connect-protocol-version", "1"),
        ];
        all.extend_from_slice(headers);
        let answer = post(self.address, &path, &all, request.to_string().as_bytes());
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        if answer.status == 200 {
            Ok(body)
        } else {
            Err(Refused::parse(&body))
        }
    }

    /// `WatchDir`, with further headers.
    pub fn watch(&self, request: &Value, headers: &[(&str, &str)]) -> Stream {
        let json = request.to_string();
        let mut body = vec![0];
        body.extend_from_slice(&u32::try_from(json.len()).unwrap().to_be_bytes());
        body.extend_from_slice(json.as_bytes());
        let mut all = vec![
            ("content-type", "application/connect+json"),
            ("connect-protocol-version", "1"),
        ];
        all.extend_from_slice(headers);
        let stream = send(self.address, "/filesystem.Filesystem/WatchDir", &all, &body);
        let mut body = Body::after_head(stream);
        assert_eq!(body.status, 200);
        assert!(body.left.is_none(), "a stream must be chunked");
        body.left = Some(0);
        Stream { body }
    }

    /// `WatchDir` of a directory that is there, after its start.
    pub fn watching(&self, request: &Value) -> Stream {
        let mut stream = self.watch(request, &[]);
        assert_eq!(stream.next(), Frame::Data(serde_json::json!({"start": {}})));
        stream
    }
}

pub fn basic(user: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:")))
}

/// Posts something and reads the whole answer.
pub fn post(address: SocketAddr, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut answer = Body::after_head(send(address, path, headers, body));
    let mut bytes = Vec::new();
    match answer.left {
        Some(length) => {
            bytes.resize(length, 0);
            answer.reader.read_exact(&mut bytes).unwrap();
        }
        None => {
            answer.left = Some(0);
            while let Some(mut chunk) = answer.chunk() {
                bytes.append(&mut chunk);
            }
        }
    }
    Answer {
        status: answer.status,
        body: bytes,
    }
}

fn send(address: SocketAddr, path: &str, headers: &[(&str, &str)], body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut head = format!(
        "POST {path} HTTP/1.1\r\nhost: guest\r\nx-access-token: {TOKEN}\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    stream
}

/// The body of an answer.
struct Body {
    reader: BufReader<TcpStream>,
    status: u16,
    /// Bytes left of the body, or of the current chunk. None: chunks follow.
    left: Option<usize>,
}

impl Body {
    fn after_head(stream: TcpStream) -> Self {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        let mut left = None;
        loop {
            line.clear();
            reader.read_line(&mut line).unwrap();
            let header = line.trim_end().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(length) = header.strip_prefix("content-length:") {
                left = Some(length.trim().parse().unwrap());
            }
        }
        Self {
            reader,
            status,
            left,
        }
    }

    /// The next chunk of a chunked body.
    fn chunk(&mut self) -> Option<Vec<u8>> {
        let mut first = [0];
        if !self.fill(&mut first) {
            return None;
        }
        let mut chunk = vec![0; 1 + self.left.unwrap()];
        chunk[0] = first[0];
        self.fill(&mut chunk[1..]).then_some(chunk)
    }

    /// Fills the buffer from a chunked body, or finds its end.
    fn fill(&mut self, mut buffer: &mut [u8]) -> bool {
        while !buffer.is_empty() {
            let mut left = self.left.unwrap();
            if left == 0 {
                let mut line = String::new();
                self.reader.read_line(&mut line).unwrap();
                if line.trim().is_empty() {
                    // The end of the chunk before.
                    line.clear();
                    self.reader.read_line(&mut line).unwrap();
                }
                left = usize::from_str_radix(line.trim(), 16).unwrap();
                self.left = Some(left);
                if left == 0 {
                    return false;
                }
            }
            let length = left.min(buffer.len());
            let (now, later) = buffer.split_at_mut(length);
            self.reader.read_exact(now).unwrap();
            self.left = Some(left - length);
            buffer = later;
        }
        true
    }
}

/// A frame of a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame {
    Data(Value),
    /// The last one, with the error if there was one.
    End(Option<Refused>),
}

/// An open stream; closed when dropped.
pub struct Stream {
    body: Body,
}

impl Stream {
    pub fn next(&mut self) -> Frame {
        let mut head = [0; 5];
        assert!(self.body.fill(&mut head), "the stream has no last frame");
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let mut json = vec![0; length as usize];
        assert!(self.body.fill(&mut json));
        let value: Value = serde_json::from_slice(&json).unwrap();
        match head[0] {
            0 => Frame::Data(value),
            2 => Frame::End(value.get("error").map(Refused::parse)),
            flags => panic!("flags {flags}"),
        }
    }

    /// The next event, short: `CREATE a/b`.
    pub fn event(&mut self) -> String {
        match self.next() {
            Frame::Data(value) => short(&value["filesystem"]),
            end @ Frame::End(_) => panic!("{end:?}"),
        }
    }

    /// All events until one of `name` is created, which is the last.
    pub fn until_created(&mut self, name: &str) -> Vec<String> {
        let last = format!("CREATE {name}");
        let mut events = Vec::new();
        loop {
            events.push(self.event());
            if events.last() == Some(&last) {
                return events;
            }
        }
    }
}

/// An event, short: `CREATE a/b`.
pub fn short(event: &Value) -> String {
    let kind = event["type"].as_str().unwrap_or_else(|| panic!("{event}"));
    format!(
        "{} {}",
        kind.strip_prefix("EVENT_TYPE_").unwrap(),
        event["name"].as_str().unwrap()
    )
}

/// Paths of what `ListDir` tells.
pub fn list(guest: &Guest, path: &str, depth: u32) -> Vec<String> {
    let answer = guest
        .call("ListDir", &json!({"path": path, "depth": depth}))
        .unwrap();
    paths(&answer["entries"])
}

pub fn paths(entries: &Value) -> Vec<String> {
    let entries = entries.as_array().map_or(&[][..], Vec::as_slice);
    entries
        .iter()
        .map(|entry| entry["path"].as_str().unwrap().to_owned())
        .collect()
}
