//! Large files through a server that may know nothing of lanes, may have lost
//! the wish for one on the way to it, or lies.

use std::io::{Cursor, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use atoll_guest_client::{ByteStream, Gateway, GuestClient, GuestError, GuestStream, Lanes};
use http::{HeaderMap, HeaderValue};
use tokio::io::AsyncReadExt as _;

use crate::support::{read_head, send_and_close};

const LARGE: usize = 1024 * 1024;

/// What a server says to the wish for a lane.
const UNKNOWN: &str = "HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}";
const LOST: &str =
    "HTTP/1.1 426 Upgrade Required\r\natoll-lane: known\r\ncontent-length: 2\r\n\r\n{}";
const REFUSED: &str = "HTTP/1.1 404 Not Found\r\natoll-lane: known\r\ncontent-length: 17\r\n\r\n{\"message\":\"no\"} ";

/// How a client is connected to it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Through {
    Socket,
    SomethingElse,
}

/// A server that answers wishes for lanes so, and the plain ones as it has to.
struct Server {
    client: GuestClient,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(to_lanes: &'static str, through: Through) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                answer(stream, to_lanes, &heard);
            }
        });
        let gateway = Gateway {
            connect: Arc::new(move || {
                Box::pin(async move {
                    let stream = tokio::net::TcpStream::connect(address).await?;
                    Ok(match through {
                        Through::Socket => GuestStream::Socket(stream),
                        Through::SomethingElse => {
                            GuestStream::Other(Box::new(stream) as Box<dyn ByteStream>)
                        }
                    })
                })
            }),
            host: HeaderValue::from_static("server"),
            headers: HeaderMap::new(),
        };
        Self {
            client: GuestClient::through(gateway, "token".to_owned()),
            asked,
        }
    }

    async fn write(&self) -> Result<(), GuestError> {
        let source = Cursor::new(vec![7; LARGE]);
        self.client.write_file("x", None, source).await
    }

    async fn read(&self) -> Result<Vec<u8>, GuestError> {
        let mut reader = self.client.read_file("x", None).await?;
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).await.unwrap();
        Ok(bytes)
    }

    /// What it was asked since the last time.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

fn answer(mut stream: TcpStream, to_lanes: &str, heard: &Mutex<Vec<String>>) {
    let Some(head) = read_head(&mut stream) else {
        return;
    };
    let line = head.lines().next().unwrap();
    let asked = line.split('?').next().unwrap().to_owned();
    let (is_lane, is_upload) = (asked.ends_with("/files/lane"), asked.starts_with("POST"));
    heard.lock().unwrap().push(asked);
    if is_lane {
        let upgrade = "\r\nupgrade: atoll-file\r\n";
        assert!(
            head.contains(upgrade) && !head.contains("chunked"),
            "{head}"
        );
        return send_and_close(stream, to_lanes.as_bytes());
    }
    if is_upload {
        assert!(
            head.contains("\r\ntransfer-encoding: chunked\r\n"),
            "{head}"
        );
        let (mut body, mut piece) = (Vec::new(), vec![0; LARGE]);
        while !body.ends_with(b"\r\n0\r\n\r\n") {
            let read = stream.read(&mut piece).unwrap();
            assert_ne!(read, 0);
            body.extend_from_slice(&piece[..read]);
        }
        assert!(body.len() > LARGE);
    }
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]");
}

#[tokio::test]
async fn a_server_without_lanes_is_asked_once_and_served_in_plain_http() {
    for answer in [UNKNOWN, LOST] {
        let server = Server::start(answer, Through::Socket);
        server.write().await.unwrap();
        assert_eq!(server.asked(), ["POST /files/lane", "POST /files"]);
        server.write().await.unwrap();
        assert_eq!(server.asked(), ["POST /files"]);
        assert_eq!(server.read().await.unwrap(), b"[]");
        assert_eq!(server.asked(), ["GET /files"]);
    }
    let server = Server::start(UNKNOWN, Through::Socket);
    assert_eq!(server.read().await.unwrap(), b"[]");
    assert_eq!(server.asked(), ["GET /files/lane", "GET /files"]);
}

#[tokio::test]
async fn trouble_on_the_way_is_not_taken_for_a_server_without_lanes() {
    let trouble = "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n";
    let server = Server::start(trouble, Through::Socket);
    for _ in 0..2 {
        assert_eq!(server.read().await.unwrap(), b"[]");
        assert_eq!(server.asked(), ["GET /files/lane", "GET /files"]);
    }
}

#[tokio::test]
async fn a_refusal_of_who_knows_lanes_is_final() {
    let server = Server::start(REFUSED, Through::Socket);
    for error in [
        server.write().await.unwrap_err(),
        server.read().await.unwrap_err(),
    ] {
        match error {
            GuestError::Refused {
                status: 404,
                message,
            } => assert_eq!(message, "no"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(server.asked(), ["POST /files/lane", "GET /files/lane"]);
    // Nothing was sent yet.
    let accepted = "HTTP/1.1 200 OK\r\natoll-lane: known\r\ncontent-length: 2\r\n\r\n[]";
    let server = Server::start(accepted, Through::Socket);
    let error = server.write().await.unwrap_err();
    assert!(matches!(error, GuestError::Protocol(_)), "{error:?}");
    assert_eq!(server.read().await.unwrap(), b"[]");
}

#[tokio::test]
async fn who_wants_no_lanes_asks_for_none() {
    let mut server = Server::start(UNKNOWN, Through::Socket);
    server.client = server.client.with_lanes(Lanes::Never);
    server.write().await.unwrap();
    server.read().await.unwrap();
    assert_eq!(server.asked(), ["POST /files", "GET /files"]);
}

#[tokio::test]
async fn a_lane_where_none_can_be_is_an_error() {
    let given = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
        upgrade: atoll-file\r\natoll-length: 2\r\n\r\n[]";
    let server = Server::start(given, Through::SomethingElse);
    for error in [
        server.write().await.unwrap_err(),
        server.read().await.unwrap_err(),
    ] {
        assert!(matches!(error, GuestError::Protocol(_)), "{error:?}");
    }
    let control = Server::start(given, Through::Socket);
    assert_eq!(control.read().await.unwrap(), b"[]");
}
