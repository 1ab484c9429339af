//! Guests that lie about the bytes of files.

use std::io::Write;
use std::time::Duration;

use atoll_guest_client::{FileReader, GuestClient, GuestError, ReadOptions};
use tokio::io::AsyncReadExt;

use crate::support::{answer, drips, floods, liar, says, stalls};

async fn whole(mut file: FileReader) -> Result<Vec<u8>, GuestError> {
    let mut bytes = Vec::new();
    match file.read_to_end(&mut bytes).await {
        Ok(_) => Ok(bytes),
        Err(error) => {
            assert!(file.read_u8().await.is_err(), "something followed an error");
            Err(error.into_inner().unwrap().downcast().map(|b| *b).unwrap())
        }
    }
}

async fn read(client: &GuestClient, max_bytes: Option<u64>) -> Result<Vec<u8>, GuestError> {
    let options = ReadOptions { max_bytes };
    whole(client.read_file_with("x", None, options).await?).await
}

async fn read_range(client: &GuestClient) -> Result<Vec<u8>, GuestError> {
    whole(client.read_file_range("x", 2..6, Some("user")).await?).await
}

fn part(range: &str, body: &[u8]) -> GuestClient {
    let headers = format!("content-range: {range}\r\n");
    says(answer("206 Partial Content", &headers, body))
}

#[tokio::test]
async fn an_honest_guest_is_believed() {
    let client = says(answer("200 OK", "", b"hello"));
    assert_eq!(read(&client, None).await.unwrap(), b"hello");
    assert_eq!(read(&client, Some(5)).await.unwrap(), b"hello");
    let empty = says(answer("200 OK", "", b""));
    assert_eq!(read(&empty, Some(0)).await.unwrap(), b"");
    let chunked = says("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n0\r\n\r\n");
    assert_eq!(read(&chunked, Some(2)).await.unwrap(), b"he");
    assert_eq!(
        read_range(&part("bytes 2-5/10", b"llo,")).await.unwrap(),
        b"llo,"
    );
    assert_eq!(
        read_range(&part("bytes 2-4/5", b"llo")).await.unwrap(),
        b"llo"
    );
}

#[tokio::test]
async fn ranges_are_asked_for() {
    let (seen, heads) = std::sync::mpsc::channel();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let client = crate::support::client(listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        seen.send(crate::support::read_head(&mut stream).unwrap())
            .unwrap();
    });
    let _ = read_range(&client).await;
    let head = heads.recv().unwrap();
    assert!(head.starts_with("GET /files?path=x HTTP/1.1\r\n"), "{head}");
    assert_eq!(crate::support::header(&head, "range"), Some("bytes=2-5"));
    for empty in [3..3, std::ops::Range { start: 4, end: 3 }] {
        let error = client.read_file_range("x", empty, None).await.unwrap_err();
        assert!(matches!(error, GuestError::Source(_)), "{error:?}");
    }
}

#[tokio::test]
async fn a_file_that_breaks_off_is_never_whole() {
    for head in ["content-length: 1000", "transfer-encoding: chunked"] {
        let client = says(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n5\r\nhello"));
        let error = read(&client, None).await.unwrap_err();
        assert!(
            matches!(error, GuestError::Disconnected(_) | GuestError::Protocol(_)),
            "{head}: {error:?}"
        );
    }
    let error = read(&says("HTTP/1.1 200 OK\r\n\r\nhello"), None).await;
    assert!(matches!(error, Err(GuestError::Protocol(_))), "{error:?}");
}

#[tokio::test]
async fn more_than_the_caller_wants() {
    let announced = says(answer("200 OK", "", b"hello"));
    let endless = floods(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        format!("1000\r\n{}\r\n", "a".repeat(4096)),
    );
    let huge = floods(
        "HTTP/1.1 200 OK\r\ncontent-length: 1152921504606846976\r\n\r\n",
        "a",
    );
    for (client, limit) in [(&announced, 4), (&endless, 1_000_000), (&huge, 9)] {
        let error = read(client, Some(limit)).await.unwrap_err();
        let GuestError::TooLarge { limit: given, .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!(given as u64, limit);
    }
}

#[tokio::test]
async fn lengths_that_contradict_each_other() {
    for head in [
        "content-length: 5\r\ncontent-length: 6",
        "content-length: 5, 6",
        "content-length: -1",
        "content-length: five",
        "content-length: 99999999999999999999999",
        "transfer-encoding: gzip",
        "content-length: 5\r\ntransfer-encoding: gzip",
        "transfer-encoding: chunked, identity",
    ] {
        let client = says(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\nhello"));
        assert!(read(&client, None).await.is_err(), "{head}");
    }
}

#[tokio::test]
async fn parts_that_were_not_asked_for() {
    for (range, body) in [
        ("bytes 0-3/10", &b"hell"[..]),
        ("bytes 2-4/10", b"llo"),
        ("bytes 2-9/10", b"llo, you"),
        ("bytes 2-5/3", b"llo,"),
        ("bytes 5-2/10", b"llo,"),
        ("bytes */10", b"llo,"),
        ("lines 2-5/10", b"llo,"),
        ("bytes 2-5/10", b"llo"),
        ("bytes 2-5/10", b"llo,!"),
        ("bytes 2-5/10", b""),
    ] {
        let error = read_range(&part(range, body)).await.unwrap_err();
        assert!(
            matches!(error, GuestError::Protocol(_)),
            "{range}: {error:?}"
        );
    }
    for (status, headers) in [
        ("200 OK", ""),
        ("200 OK", "content-range: bytes 2-5/10\r\n"),
        ("206 Partial Content", ""),
        (
            "206 Partial Content",
            "content-type: multipart/byteranges; boundary=x\r\n",
        ),
    ] {
        let error = read_range(&says(answer(status, headers, b"llo,"))).await;
        assert!(matches!(error, Err(GuestError::Protocol(_))), "{error:?}");
    }
    let error = read(&part("bytes 0-3/10", b"hell"), None).await;
    assert!(matches!(error, Err(GuestError::Protocol(_))), "{error:?}");
    let none = says(answer("416 Range Not Satisfiable", "", b""));
    let error = read_range(&none).await.unwrap_err();
    assert!(matches!(error, GuestError::Refused { status: 416, .. }));
}

#[tokio::test]
async fn a_part_of_another_length_than_its_chunks() {
    let head = "HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 2-5/10\r\ntransfer-encoding: chunked\r\n\r\n";
    for chunks in ["3\r\nllo\r\n0\r\n\r\n", "5\r\nllo,!\r\n0\r\n\r\n"] {
        let error = read_range(&says(format!("{head}{chunks}"))).await;
        assert!(matches!(error, Err(GuestError::Protocol(_))), "{error:?}");
    }
}

#[tokio::test]
async fn bytes_that_nobody_asked_to_encode() {
    let client = says(answer("200 OK", "content-encoding: gzip\r\n", b"hello"));
    let error = read(&client, None).await;
    assert!(matches!(error, Err(GuestError::Protocol(_))), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn silence_and_drips() {
    let error = read(&stalls(""), None).await;
    assert!(
        matches!(error, Err(GuestError::Timeout { .. })),
        "{error:?}"
    );
    let error = read(&drips("HTTP/1.1 200 OK\r\n", b"a: b\r\n").await, None).await;
    assert!(error.is_err());
    let half = drips("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello", b"").await;
    for error in [read(&half, None).await, read(&half, Some(9)).await] {
        assert!(
            matches!(error, Err(GuestError::Timeout { .. })),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn an_upload_that_nobody_takes() {
    let client = liar(std::mem::forget).with_silence_bound(Duration::from_millis(200));
    let endless = tokio::io::repeat(b'x');
    let error = client.write_file("x", None, endless).await.unwrap_err();
    assert!(matches!(error, GuestError::Timeout { .. }), "{error:?}");
    let short = client.write_file("x", None, &b"x"[..]).await.unwrap_err();
    assert!(matches!(short, GuestError::Timeout { .. }), "{short:?}");
}

#[tokio::test]
async fn an_upload_that_is_refused_before_its_end() {
    let no = answer(
        "507 Insufficient Storage",
        "connection: close\r\n",
        br#"{"code":507,"message":"full"}"#,
    );
    let client = liar(move |mut stream| {
        let _ = stream.write_all(&no);
        std::mem::forget(stream);
    });
    let endless = tokio::io::repeat(b'x');
    let error = client.write_file("x", None, endless).await.unwrap_err();
    assert!(
        matches!(error, GuestError::Refused { status: 507, .. }),
        "{error:?}"
    );
}
