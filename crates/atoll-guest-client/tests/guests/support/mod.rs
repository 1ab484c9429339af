//! Fake guests: what they send is written down byte by byte.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "test code, of which each file uses its part"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use atoll_guest_client::GuestClient;
use atoll_protocol::connect::encode_frame;
use atoll_protocol::envd::Timestamp;
use atoll_protocol::envd::filesystem::{
    EntryInfo, EventType, FileType, FilesystemEvent, ListDirResponse, StatResponse,
    WatchDirResponse,
};
use atoll_protocol::envd::filesystem_oneof::WatchDirEvent;
use buffa::Message;

pub fn client(address: SocketAddr) -> GuestClient {
    GuestClient::new(
        Arc::new(move |_| TcpStream::connect(address)),
        "token".to_owned(),
    )
}

/// A client of a server that reads a request's head and then does as `lie` says.
pub fn liar(lie: impl Fn(TcpStream) + Send + Sync + 'static) -> GuestClient {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = read_head(&mut stream);
            lie(stream);
        }
    });
    client(address)
}

/// The head of a request; `None` when the client is gone.
pub fn read_head(stream: &mut TcpStream) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if !stream.read(&mut byte).is_ok_and(|read| read == 1) {
            return None;
        }
        head.push(byte[0]);
    }
    Some(String::from_utf8(head).unwrap())
}

/// The head of a request whose body is read too, if it has a length.
pub fn read_request(stream: &mut TcpStream) -> Option<String> {
    let head = read_head(stream)?;
    let length = header(&head, "content-length").map_or(0, |length| length.parse().unwrap());
    stream.read_exact(&mut vec![0; length]).ok()?;
    Some(head)
}

/// The value of a header in a head.
pub fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (given, value) = line.split_once(": ")?;
        given.eq_ignore_ascii_case(name).then_some(value)
    })
}

/// Sends bytes, ends, and waits until the client has them.
pub fn send_and_close(mut stream: TcpStream, bytes: &[u8]) {
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let _ = stream.read_to_end(&mut Vec::new());
}

/// A server that answers with these bytes and closes.
pub fn says(answer: impl Into<Vec<u8>>) -> GuestClient {
    let answer = answer.into();
    liar(move |stream| send_and_close(stream, &answer))
}

/// A server that says something and then repeats itself for ever.
pub fn floods(first: impl Into<Vec<u8>>, again: impl Into<Vec<u8>>) -> GuestClient {
    let (first, again) = (first.into(), again.into());
    liar(move |mut stream| {
        let _ = stream.write_all(&first);
        while stream.write_all(&again).is_ok() {}
    })
}

/// A server that says something and then nothing more.
pub fn stalls(first: impl Into<Vec<u8>>) -> GuestClient {
    let first = first.into();
    liar(move |mut stream| {
        let _ = stream.write_all(&first);
        std::mem::forget(stream);
    })
}

/// A server that says something and then `drop` again and again, one each
/// second of the test's clock. It lives in the test's runtime: a clock that is
/// stopped does not run ahead of it, as it does of a thread.
pub async fn drips(first: impl Into<Vec<u8>>, drop: &'static [u8]) -> GuestClient {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let first = first.into();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let first = first.clone();
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(&first).await;
                while stream.write_all(drop).await.is_ok() {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            });
        }
    });
    client(address)
}

/// A whole answer to a unary call.
pub fn unary(message: &impl Message) -> Vec<u8> {
    proto(&message.encode_to_vec())
}

/// A whole answer to a unary call with any bytes as its message.
pub fn proto(body: &[u8]) -> Vec<u8> {
    answer("200 OK", "content-type: application/proto\r\n", body)
}

/// A whole answer.
pub fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

pub const STREAM_HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/connect+proto\r\nconnection: close\r\n\r\n";

/// The frame that ends a stream well.
pub const END: &[u8] = &[2, 0, 0, 0, 2, b'{', b'}'];

/// A server that answers with these frames and closes.
pub fn stream(frames: &[&[u8]]) -> GuestClient {
    says([&[STREAM_HEAD], frames].concat().concat())
}

pub fn file_info(name: &str) -> EntryInfo {
    EntryInfo {
        name: name.to_owned(),
        r#type: FileType::FILE_TYPE_FILE.into(),
        path: format!("/home/user/{name}"),
        size: 12,
        mode: 0o644,
        permissions: "-rw-r--r--".to_owned(),
        owner: "user".to_owned(),
        group: "user".to_owned(),
        modified_time: Timestamp {
            seconds: 1_700_000_000,
            nanos: 5,
            ..Default::default()
        }
        .into(),
        metadata: [("key".to_owned(), "value".to_owned())]
            .into_iter()
            .collect(),
        ..Default::default()
    }
}

pub fn stat_response(info: EntryInfo) -> StatResponse {
    StatResponse {
        entry: info.into(),
        ..Default::default()
    }
}

pub fn list_response(infos: impl IntoIterator<Item = EntryInfo>) -> ListDirResponse {
    ListDirResponse {
        entries: infos.into_iter().collect(),
        ..Default::default()
    }
}

/// A message of a watch as a frame.
pub fn watch_frame(event: WatchDirEvent) -> Vec<u8> {
    let message = WatchDirResponse {
        event: Some(event),
        ..Default::default()
    };
    encode_frame(0, &message.encode_to_vec()).unwrap().to_vec()
}

pub fn watch_start() -> Vec<u8> {
    watch_frame(WatchDirEvent::Start(Box::default()))
}

pub fn watch_keepalive() -> Vec<u8> {
    watch_frame(WatchDirEvent::Keepalive(Box::default()))
}

pub fn watch_event(kind: EventType, name: &str, entry: Option<EntryInfo>) -> Vec<u8> {
    watch_frame(WatchDirEvent::Filesystem(Box::new(FilesystemEvent {
        name: name.to_owned(),
        r#type: kind.into(),
        entry: entry.into(),
        ..Default::default()
    })))
}

/// Most memory of this process since the last call, in KiB.
pub fn peak_memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap();
    let peak = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    peak
}
