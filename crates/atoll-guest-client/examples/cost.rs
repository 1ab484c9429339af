//! What the client itself costs: `cargo run --release -p atoll-guest-client
//! --example cost [path of atoll-guest]`.
//!
//! Commands against a real guest, when one is named, and against a fake one
//! that answers at once: what is left then is the client's own time. Files
//! against a fake guest in this process.
#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    reason = "a measurement, whose output is for people"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atoll_guest_client::{Command, GuestClient, InitRequest};
use tokio::io::AsyncReadExt;

const TOKEN: &str = "token";
const ROUNDS: usize = 500;
const FILE_BYTES: u64 = 1 << 30;

/// `{event: {start: {pid: 7}}}`, `{event: {end: {exited: true}}}` and the last
/// frame, in chunks.
const COMMAND: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/connect+proto\r\ntransfer-encoding: chunked\r\n\r\nb\r\n\0\0\0\0\x06\x0a\x04\x0a\x02\x08\x07\r\nb\r\n\0\0\0\0\x06\x0a\x04\x1a\x02\x10\x01\r\n7\r\n\x02\0\0\0\x02{}\r\n0\r\n\r\n";

/// When things happened in one round.
#[derive(Default)]
struct Marks {
    dialing: Option<Instant>,
    dialed: Option<Instant>,
    asked: Option<Instant>,
}

type Shared = Arc<Mutex<Marks>>;

fn client(address: SocketAddr, marks: &Shared) -> GuestClient {
    let marks = Arc::clone(marks);
    let dial = move |_| {
        marks.lock().unwrap().dialing = Some(Instant::now());
        let stream = TcpStream::connect(address);
        marks.lock().unwrap().dialed = Some(Instant::now());
        stream
    };
    GuestClient::new(Arc::new(dial), TOKEN.to_owned())
}

fn serve(answer: impl Fn(TcpStream, String) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            stream.set_nodelay(true).unwrap();
            let (mut head, mut piece) = (Vec::new(), [0; 4096]);
            while !head.windows(4).any(|four| four == b"\r\n\r\n") {
                let read = stream.read(&mut piece).unwrap();
                head.extend_from_slice(&piece[..read]);
            }
            answer(stream, String::from_utf8_lossy(&head).into_owned());
        }
    });
    address
}

fn median(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let middle = times[times.len() / 2].as_secs_f64() * 1e6;
    let late = times[times.len() * 95 / 100].as_secs_f64() * 1e6;
    format!("{middle:7.0} µs  (95 %: {late:.0} µs)")
}

async fn commands(name: &str, client: &GuestClient, marks: &Shared) {
    let command = Command {
        cmd: "/bin/true".to_owned(),
        ..Command::default()
    };
    let mut phases: [(&str, Vec<Duration>); 7] = [
        ("start() → dial runs", Vec::new()),
        ("dial", Vec::new()),
        ("dialed → guest has request", Vec::new()),
        ("… → start() returns", Vec::new()),
        ("start() returns → End", Vec::new()),
        ("End → None", Vec::new()),
        ("all", Vec::new()),
    ];
    for _ in 0..ROUNDS {
        *marks.lock().unwrap() = Marks::default();
        let begin = Instant::now();
        let mut process = client.start(&command).await.unwrap();
        let started = Instant::now();
        process.next().await.unwrap().unwrap();
        let ended = Instant::now();
        assert!(process.next().await.unwrap().is_none());
        let over = Instant::now();
        let marks = marks.lock().unwrap();
        let dialing = marks.dialing.unwrap();
        let dialed = marks.dialed.unwrap();
        let asked = marks.asked.unwrap_or(dialed);
        let moments = [begin, dialing, dialed, asked, started, ended, over];
        for (phase, pair) in phases.iter_mut().zip(moments.windows(2)) {
            phase.1.push(pair[1].saturating_duration_since(pair[0]));
        }
        phases[6].1.push(over - begin);
    }
    println!("{name}, {ROUNDS} rounds");
    for (phase, times) in phases {
        println!("  {phase:28} {}", median(times));
    }
}

fn rate(name: &str, begin: Instant) {
    let seconds = begin.elapsed().as_secs_f64();
    let mebibytes = FILE_BYTES as f64 / f64::from(1 << 20);
    println!("  {name:28} {:7.0} MiB/s", mebibytes / seconds);
}

async fn files() {
    let marks = Shared::default();
    let address = serve(|mut stream, head| {
        if head.starts_with("GET") {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {FILE_BYTES}\r\n\r\n");
            let _ = stream.write_all(head.as_bytes());
            let piece = vec![b'x'; 1 << 20];
            for _ in 0..FILE_BYTES >> 20 {
                if stream.write_all(&piece).is_err() {
                    return;
                }
            }
        } else {
            let (mut piece, mut end) = (vec![0; 1 << 20], Vec::new());
            while !end.ends_with(b"\r\n0\r\n\r\n") {
                let read = stream.read(&mut piece).unwrap();
                end.extend_from_slice(&piece[read.saturating_sub(7)..read]);
                end.drain(..end.len().saturating_sub(7));
            }
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]");
        }
    });
    let client = client(address, &marks);
    println!("files of {} MiB", FILE_BYTES >> 20);
    for _ in 0..3 {
        for (name, buffer) in [
            ("download, 64 KiB buffer", 64),
            ("download, 1 MiB buffer", 1024),
        ] {
            let begin = Instant::now();
            let mut file = client.read_file("x", None).await.unwrap();
            let mut piece = vec![0; buffer << 10];
            while file.read(&mut piece).await.unwrap() > 0 {}
            rate(name, begin);
        }
        let begin = Instant::now();
        let source = tokio::io::repeat(b'x').take(FILE_BYTES);
        client.write_file("x", None, source).await.unwrap();
        rate("upload", begin);
    }
}

/// A real guest, for as long as this lives.
struct Guest(std::process::Child);

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn real(path: &str) {
    let mut child = std::process::Command::new(path)
        .env("ATOLL_GUEST_LISTEN", "127.0.0.1:0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    let _guest = Guest(child);
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let marks = Shared::default();
    let client = client(line.trim().parse().unwrap(), &marks);
    client.wait_ready(Duration::from_secs(10)).await.unwrap();
    let init = InitRequest {
        access_token: Some(TOKEN.to_owned()),
        default_user: Some("root".to_owned()),
        default_workdir: Some("/tmp".to_owned()),
        ..InitRequest::default()
    };
    client.init(&init).await.unwrap();
    commands("/bin/true in a real guest", &client, &marks).await;
}

async fn fake() {
    let marks = Shared::default();
    let seen = Arc::clone(&marks);
    let address = serve(move |mut stream, _| {
        seen.lock().unwrap().asked = Some(Instant::now());
        stream.write_all(COMMAND).unwrap();
    });
    let client = client(address, &marks);
    commands("a fake guest that answers at once", &client, &marks).await;
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    if let Some(path) = std::env::args().nth(1) {
        real(&path).await;
    }
    fake().await;
    files().await;
}
