//! Requests as bytes, for what no client of ours would ever send.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "test code, of which each file uses its part"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use async_compression::tokio::bufread::{GzipDecoder, GzipEncoder};
use tokio::io::AsyncReadExt;

use crate::support::{Guest, TOKEN, require_root};

/// An answer, its headers in order of their names and without those that
/// every answer has.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The answer as status and message, when it is an error of the usual form.
    pub fn refusal(&self) -> (u16, String) {
        let json = self.json();
        let message = json["message"].as_str().unwrap().to_owned();
        assert_eq!(
            json,
            serde_json::json!({"code": self.status, "message": message})
        );
        (self.status, message)
    }
}

/// Sends a request with the token.
pub fn ask(guest: &Guest, start: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut with_token = vec![("X-Access-Token", TOKEN)];
    with_token.extend_from_slice(headers);
    ask_bare(guest.address, start, &with_token, body)
}

/// Sends a request with these headers only.
pub fn ask_bare(address: SocketAddr, start: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut head = format!("{start} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !headers.iter().any(|(name, _)| *name == "Transfer-Encoding") {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    let mut stream = connect(address);
    stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
    // A refused body may break off, which is for the answer to tell.
    let _ = stream.write_all(body);
    receive(stream)
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream
}

/// Reads an answer until the connection ends.
pub fn receive(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let mut piece = [0; 64 * 1024];
    // What came before a reset is the answer.
    loop {
        match stream.read(&mut piece) {
            Ok(got @ 1..) => bytes.extend_from_slice(&piece[..got]),
            // A read with a bound is not taken up again by the kernel.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> Answer {
    let end = bytes
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .unwrap_or_else(|| panic!("no head in {:?}", String::from_utf8_lossy(bytes)));
    let head = std::str::from_utf8(&bytes[..end]).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap()["HTTP/1.1 ".len()..][..3]
        .parse()
        .unwrap();
    let mut headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    headers.sort();
    let body = &bytes[end + 4..];
    let is_chunked = headers
        .iter()
        .any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    headers
        .retain(|(name, _)| !["date", "connection", "transfer-encoding"].contains(&name.as_str()));
    Answer {
        status,
        headers,
        body: if is_chunked {
            unchunk(body)
        } else {
            body.to_vec()
        },
    }
}

fn unchunk(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    loop {
        let end = body
            .windows(2)
            .position(|window| window == b"\r\n")
            .expect("a chunk ends early");
        let length = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        if length == 0 {
            return whole;
        }
        whole.extend_from_slice(&body[end + 2..][..length]);
        body = &body[end + 2 + length + 2..];
    }
}

/// A query value.
pub fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}

/// Uploads a file as it is.
pub fn put(guest: &Guest, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut all = vec![("Content-Type", "application/octet-stream")];
    all.extend_from_slice(headers);
    ask(
        guest,
        &format!("POST /files?path={}", encode(path)),
        &all,
        body,
    )
}

/// Downloads a file.
pub fn get(guest: &Guest, path: &str, headers: &[(&str, &str)]) -> Answer {
    ask(
        guest,
        &format!("GET /files?path={}", encode(path)),
        headers,
        b"",
    )
}

pub async fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut compressed = Vec::new();
    GzipEncoder::new(bytes)
        .read_to_end(&mut compressed)
        .await
        .unwrap();
    compressed
}

pub async fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    GzipDecoder::new(bytes)
        .read_to_end(&mut plain)
        .await
        .unwrap();
    plain
}

/// Bytes that look random.
pub fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[4]
        })
        .collect()
}

/// A disk of a megabyte that is gone with the test, however it ends.
pub struct TinyDisk(tempfile::TempDir);

impl TinyDisk {
    pub fn mount() -> Self {
        require_root();
        let place = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "none"])
            .arg(place.path())
            .status()
            .is_ok_and(|status| status.success());
        assert!(mounted, "cannot mount a small disk");
        Self(place)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
