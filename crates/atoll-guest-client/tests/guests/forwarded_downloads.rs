//! A client's download of one file: past HTTP when the guest gives a lane for it, and whatever
//! the guest makes of it, the client gets all of the file or an error.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::Duration;

use atoll_guest_client::{ForwardOptions, GuestClient, GuestError};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty};

use crate::support::{answer, client, header, liar, read_head, says, send_and_close, stalls};

const LARGE: usize = 3 * 1024 * 1024 + 7;

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| at.to_le_bytes()[1]).collect()
}

/// What opens a lane for a file of `length` bytes, with further headers.
fn lane(length: &str, headers: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: atoll-file\r\n\
         atoll-length: {length}\r\n{headers}\r\n"
    )
    .into_bytes()
}

fn lane_and(length: usize, headers: &str, bytes: &[u8]) -> Vec<u8> {
    [&lane(&length.to_string(), headers)[..], bytes].concat()
}

async fn forward(client: &GuestClient) -> Result<(Response<()>, Bytes), GuestError> {
    forward_with(client, ForwardOptions::default()).await
}

async fn forward_with(
    client: &GuestClient,
    options: ForwardOptions,
) -> Result<(Response<()>, Bytes), GuestError> {
    let request = Request::get("/files?path=x");
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    let response = client.forward(request, options).await?;
    let (head, body) = response.into_parts();
    Ok((
        Response::from_parts(head, ()),
        body.collect().await?.to_bytes(),
    ))
}

#[tokio::test]
async fn a_large_file_comes_past_http_and_is_answered_as_ever() {
    let described = "content-type: text/plain\r\nlast-modified: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
        accept-ranges: bytes\r\n";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = client(listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let head = read_head(&mut stream).unwrap();
        stream
            .write_all(&lane(&LARGE.to_string(), described))
            .unwrap();
        // Byte by byte at first, and at the end: nothing may wait for more than there is.
        let whole = content(LARGE);
        let (first, rest) = whole.split_at(9);
        for byte in first {
            stream.write_all(&[*byte]).unwrap();
        }
        send_and_close(stream, rest);
        head
    });
    let (head, bytes) = forward(&client).await.unwrap();
    assert!(bytes == content(LARGE));
    let asked = serving.join().unwrap();
    assert_eq!(header(&asked, "upgrade"), Some("atoll-file"));
    assert_eq!(head.status().as_u16(), 200);
    let given = |name| head.headers().get(name).unwrap().to_str().unwrap();
    assert_eq!(given("content-length"), LARGE.to_string());
    assert_eq!(given("content-type"), "text/plain");
    assert_eq!(given("last-modified"), "Thu, 01 Jan 1970 00:00:00 GMT");
    assert_eq!(given("accept-ranges"), "bytes");
    assert_eq!(given("x-content-type-options"), "nosniff");
    assert!(head.headers().get("upgrade").is_none());
    assert!(head.headers().get("atoll-length").is_none());
}

#[tokio::test]
async fn what_needs_no_lane_passes_as_it_is() {
    for status in [
        "200 OK",
        "206 Partial Content",
        "304 Not Modified",
        "404 Not Found",
    ] {
        let body: &[u8] = if status.starts_with("304") {
            b""
        } else {
            b"small"
        };
        let client = says(answer(status, "content-type: text/plain\r\n", body));
        let (head, bytes) = forward(&client).await.unwrap();
        assert!(status.starts_with(head.status().as_str()), "{status}");
        assert_eq!(bytes, body);
    }
}

#[tokio::test]
async fn of_a_file_comes_what_was_announced_or_an_error() {
    // More than that is nobody's.
    let client = says(lane_and(5, "", b"wholeand more"));
    assert_eq!(forward(&client).await.unwrap().1, "whole");
    let client = says(lane_and(0, "", b"nothing"));
    assert_eq!(forward(&client).await.unwrap().1, "");
    for (announced, came) in [(5, &b"half"[..]), (usize::MAX, b"little"), (LARGE, b"")] {
        let client = says(lane_and(announced, "", came));
        let error = forward(&client).await.unwrap_err();
        assert!(
            matches!(error, GuestError::Protocol(_) | GuestError::Disconnected(_)),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_lane_without_a_length_is_none() {
    for length in ["", "-1", "1e3", "18446744073709551616", "7, 7"] {
        let client = says([&lane(length, "")[..], b"bytes"].concat());
        let error = forward(&client).await.unwrap_err();
        assert!(
            matches!(error, GuestError::Protocol(_)),
            "{length}: {error:?}"
        );
    }
}

#[tokio::test]
async fn what_the_guest_says_of_a_lane_changes_nothing_about_its_bytes() {
    let lies = "content-length: 2\r\ncontent-encoding: gzip\r\ncontent-range: bytes 0-1/9\r\n\
        set-cookie: a=b\r\nlocation: /elsewhere\r\n";
    let client = says(lane_and(5, lies, b"whole"));
    let (head, bytes) = forward(&client).await.unwrap();
    assert_eq!(bytes, "whole");
    assert_eq!(head.headers().get("content-length").unwrap(), "5");
    for name in [
        "content-encoding",
        "content-range",
        "set-cookie",
        "location",
    ] {
        assert!(head.headers().get(name).is_none(), "{name}");
    }
}

#[tokio::test]
async fn a_guest_that_stops_in_the_middle_is_not_waited_for_for_ever() {
    let client = stalls(lane_and(LARGE, "", b"a little"));
    let options = ForwardOptions {
        silence: Some(Duration::from_millis(200)),
        ..ForwardOptions::default()
    };
    let error = forward_with(&client, options).await.unwrap_err();
    assert!(matches!(error, GuestError::Timeout { .. }), "{error:?}");
}

#[tokio::test]
async fn whoever_hears_no_more_lets_the_guest_go() {
    let (told, heard) = std::sync::mpsc::channel();
    let client = liar(move |mut stream| {
        stream.write_all(&lane_and(LARGE, "", b"a little")).unwrap();
        let _ = told.send(stream.read(&mut [0]).unwrap_or(0));
    });
    let request = Request::get("/files?path=x");
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    let response = client.forward(request, ForwardOptions::default()).await;
    drop(response.unwrap());
    let end = tokio::task::spawn_blocking(move || heard.recv_timeout(Duration::from_secs(20)));
    assert_eq!(end.await.unwrap(), Ok(0));
}
