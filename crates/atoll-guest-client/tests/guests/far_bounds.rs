//! Bounds that reach beyond the end of the clock: callers say "for ever" so.

use std::time::Duration;

use atoll_guest_client::{
    Command, ExitStatus, ForwardOptions, GuestClient, ProcessEvent, WatchOptions,
};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty, Full};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::support::{END, STREAM_HEAD, answer, drips, says, stream, watch_start};

const FOR_EVER: Duration = Duration::MAX;

/// `{event: {start: {pid: 7}}}` as a frame.
const START: &[u8] = &[0, 0, 0, 0, 6, 0x0a, 4, 0x0a, 2, 0x08, 7];

/// `{event: {end: {exit_code: 3, exited: true}}}` as a frame.
const END_EVENT: &[u8] = &[0, 0, 0, 0, 8, 0x0a, 6, 0x1a, 4, 0x08, 6, 0x10, 1];

fn patient(client: GuestClient) -> GuestClient {
    client.with_silence_bound(FOR_EVER)
}

/// An hour in which nothing happens.
async fn an_hour_of<T>(waiting: impl Future<Output = T>) {
    let hour = Duration::from_secs(3600);
    assert!(timeout(hour, waiting).await.is_err(), "it did not last");
}

#[tokio::test]
async fn commands_may_take_for_ever() {
    let command = Command {
        cmd: "x".to_owned(),
        timeout: Some(FOR_EVER),
        ..Command::default()
    };
    let client = patient(stream(&[START, END_EVENT, END]));
    let mut process = client.start(&command).await.unwrap();
    assert_eq!(
        process.next().await.unwrap(),
        Some(ProcessEvent::End(ExitStatus::Exited(3)))
    );
    assert_eq!(process.next().await.unwrap(), None);
}

#[tokio::test]
async fn files_may_take_for_ever() {
    let client = patient(says(answer("200 OK", "", b"hello")));
    let mut file = client.read_file("x", None).await.unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "hello");
    client.write_file("x", None, &b"hello"[..]).await.unwrap();
}

#[tokio::test]
async fn a_guest_may_come_up_at_any_time() {
    let client = says("HTTP/1.1 204 No Content\r\n\r\n");
    client.wait_ready(FOR_EVER).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn silence_may_last_for_ever() {
    let first = [STREAM_HEAD, &watch_start()].concat();
    let client = patient(drips(first, b"").await);
    let options = WatchOptions::default();
    let mut watch = client.watch("x", options, None).await.unwrap();
    an_hour_of(watch.next()).await;

    let options = ForwardOptions {
        silence: Some(FOR_EVER),
        ..ForwardOptions::default()
    };
    let request = Request::post("/filesystem.Filesystem/WatchDir")
        .body(Full::from("{}"))
        .unwrap();
    let mut body = client
        .forward(request, options.clone())
        .await
        .unwrap()
        .into_body();
    body.frame().await.unwrap().unwrap();
    an_hour_of(body.frame()).await;

    let half = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello";
    let client = patient(drips(half, b"").await);
    let mut file = client.read_file("x", None).await.unwrap();
    an_hour_of(file.read_to_end(&mut Vec::new())).await;

    let request = Request::get("/files?path=x")
        .body(Empty::<Bytes>::new())
        .unwrap();
    let response = client.forward(request, options.clone()).await.unwrap();
    an_hour_of(response.into_body().collect()).await;

    let client = patient(drips("", b"").await);
    an_hour_of(client.write_file("x", None, tokio::io::repeat(b'x'))).await;
    let input = Request::post("/process.Process/SendInput")
        .body(Full::from("{}"))
        .unwrap();
    an_hour_of(client.forward(input, options)).await;
}
