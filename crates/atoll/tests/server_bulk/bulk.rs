//! A gigabyte through both planes, both ways: all of it arrives, and the
//! server needs no more memory for it.

use std::fs;

use atoll_protocol::lane::PIECE_BYTES_MAX;

use crate::served::{Reached, Served, start_program};
use crate::services::on_port;
use crate::wire::{Wire, request};

const BYTES: u64 = 1 << 30;
const PIECE: usize = 1 << 20;

/// SHA-256 of all pieces, one after the other.
const DIGEST: &str = "34c6f3d58e2a2bae173e8c259439ad362d71b8cfe9adfa0c90e8e21cb77a2793";

/// What this process, which is the server, may grow by.
const GROWTH_MAX_KIB: u64 = 48 * 1024;

/// Memory of this process, in KiB.
fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.unwrap().split_whitespace().nth(1).unwrap();
    number.parse().unwrap()
}

/// Takes a gigabyte and says its digest; gives one whose digest it says.
const BULK: &str = r#"
import hashlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_POST(self):
        digest, left = hashlib.sha256(), int(self.headers['content-length'])
        while left:
            piece = self.rfile.read(min(left, 1 << 20))
            digest.update(piece)
            left -= len(piece)
        text = digest.hexdigest().encode()
        self.send_response(200)
        self.send_header('content-length', str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def do_GET(self):
        self.send_response(200)
        self.send_header('content-length', str(1 << 30))
        self.end_headers()
        for number in range(1024):
            self.wfile.write(bytes([number % 256]) * (1 << 20))
    def log_message(self, *_):
        pass
server = ThreadingHTTPServer(('127.0.0.1', PORT), Handler)
print('listening')
server.serve_forever()
"#;

/// The piece of that number, which programs inside make as well.
fn piece(number: u64) -> Vec<u8> {
    vec![number.to_le_bytes()[0]; PIECE]
}

/// Sends all of it; the answer and the most memory seen meanwhile.
async fn upload(
    served: &Served,
    target: &str,
    headers: &[(&str, &str)],
) -> (crate::wire::Answer, u64) {
    let length = BYTES.to_string();
    let mut all = headers.to_vec();
    all.push(("content-length", &length));
    let mut wire = Wire::open(served.address).await;
    wire.send(request("POST", target, &all, b"")).await;
    let mut most = 0;
    for number in 0..BYTES / PIECE as u64 {
        wire.send(piece(number)).await;
        most = most.max(resident_kib());
    }
    (wire.answer().await, most)
}

/// Reads all of it, and looks at every byte; the most memory seen meanwhile.
async fn download(served: &Served, target: &str, headers: &[(&str, &str)]) -> u64 {
    let mut wire = Wire::open(served.address).await;
    wire.send(request("GET", target, headers, b"")).await;
    assert_eq!(wire.head().await.status, 200);
    let (mut read, mut most) = (0_usize, 0);
    while let Some(got) = wire.piece().await.unwrap() {
        let mut got = got.as_slice();
        while !got.is_empty() {
            let (number, from) = (read / PIECE, read % PIECE);
            let length = got.len().min(PIECE - from);
            assert!(got[..length] == piece(number as u64)[from..from + length]);
            read += length;
            got = &got[length..];
        }
        most = most.max(resident_kib());
    }
    assert_eq!(read as u64, BYTES);
    most
}

fn by_header<'h>(reached: &'h Reached, port: &'h str) -> Vec<(&'h str, &'h str)> {
    vec![
        ("e2b-sandbox-id", reached.id()),
        ("e2b-sandbox-port", port),
        ("x-access-token", reached.token.as_str()),
        ("content-type", "application/octet-stream"),
    ]
}

/// The digest of a file, as a program inside sees it.
async fn digest_of(reached: &Reached, path: &str) -> String {
    let command = atoll_guest_client::Command {
        cmd: "/usr/bin/sha256sum".to_owned(),
        args: vec![path.to_owned()],
        ..atoll_guest_client::Command::default()
    };
    let mut process = reached.sandbox.live.guest().start(&command).await.unwrap();
    let mut said = Vec::new();
    while let Some(event) = process.next().await.unwrap() {
        if let atoll_guest_client::ProcessEvent::Stdout(bytes) = event {
            said.extend(bytes);
        }
    }
    let said = String::from_utf8(said).unwrap();
    said.split_whitespace()
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// The same past HTTP: a gigabyte in, and out again.
async fn by_lane(served: &Served, reached: &Reached) -> u64 {
    let mut headers = by_header(reached, "49983");
    headers.extend([("connection", "upgrade"), ("upgrade", "atoll-file")]);
    let target = "/files/lane?path=lane";
    let mut most = 0;
    let mut wire = Wire::open(served.address).await;
    wire.send(request("POST", target, &headers, b"")).await;
    assert_eq!(wire.head().await.status, 101);
    let part_bytes = PIECE_BYTES_MAX.to_be_bytes();
    for number in 0..BYTES / PIECE as u64 {
        for part in piece(number).chunks(PIECE_BYTES_MAX) {
            wire.send(&part_bytes[part_bytes.len() - 4..]).await;
            wire.send(part).await;
        }
        most = most.max(resident_kib());
    }
    wire.send([0; 4]).await;
    assert_eq!(wire.exactly(2).await.unwrap(), 200_u16.to_be_bytes());

    let mut wire = Wire::open(served.address).await;
    wire.send(request("GET", target, &headers, b"")).await;
    let head = wire.head().await;
    assert_eq!(
        head.header("atoll-length"),
        Some(BYTES.to_string().as_str())
    );
    for number in 0..BYTES / PIECE as u64 {
        assert!(wire.exactly(PIECE).await.unwrap() == piece(number));
        most = most.max(resident_kib());
    }
    most
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: six gigabytes"]
async fn a_gigabyte_passes_in_flat_memory() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    start_program(&reached.sandbox, &on_port(BULK, 8000)).await;
    let before = resident_kib();
    let grown = |most: u64| most.saturating_sub(before);

    let port = by_header(&reached, "8000");
    let (answer, most) = upload(&served, "/", &port).await;
    assert_eq!(answer.text(), DIGEST);
    assert!(grown(most) < GROWTH_MAX_KIB, "{} KiB", grown(most));
    let most = download(&served, "/", &port).await;
    assert!(grown(most) < GROWTH_MAX_KIB, "{} KiB", grown(most));

    let guest = by_header(&reached, "49983");
    let (answer, most) = upload(&served, "/files?path=big", &guest).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert!(grown(most) < GROWTH_MAX_KIB, "{} KiB", grown(most));
    let most = download(&served, "/files?path=big", &guest).await;
    assert!(grown(most) < GROWTH_MAX_KIB, "{} KiB", grown(most));
    let removed = reached.sandbox.live.guest().remove("big", None).await;
    removed.unwrap();

    let most = by_lane(&served, &reached).await;
    assert!(grown(most) < GROWTH_MAX_KIB, "{} KiB", grown(most));
    let summed = digest_of(&reached, "lane").await;
    assert_eq!(summed, DIGEST);
    served.end([reached]).await;
}
