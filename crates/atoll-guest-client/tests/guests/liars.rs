//! Guests that lie about commands: whatever they send, the client ends with a typed error,
//! soon and with little memory.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use atoll_guest_client::{Command, GuestClient, GuestError, InitRequest, ProcessEvent};

use crate::support::{END, STREAM_HEAD, drips, liar, says, stalls, stream};

/// `{event: {start: {pid: 7}}}` as a frame.
const START: &[u8] = &[0, 0, 0, 0, 6, 0x0a, 4, 0x0a, 2, 0x08, 7];

/// `{event: {data: {stdout: "hi"}}}` as a frame.
const DATA: &[u8] = &[0, 0, 0, 0, 8, 0x0a, 6, 0x12, 4, 0x0a, 2, b'h', b'i'];

/// `{event: {end: {exit_code: 3, exited: true}}}` as a frame.
const END_EVENT: &[u8] = &[0, 0, 0, 0, 8, 0x0a, 6, 0x1a, 4, 0x08, 6, 0x10, 1];

async fn start(client: &GuestClient) -> GuestError {
    client
        .start(&Command {
            cmd: "x".to_owned(),
            ..Command::default()
        })
        .await
        .unwrap_err()
}

/// The first error of a command that did start.
async fn first_error(client: &GuestClient) -> GuestError {
    let mut process = client
        .start(&Command {
            cmd: "x".to_owned(),
            ..Command::default()
        })
        .await
        .unwrap();
    loop {
        match process.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the liar was believed"),
            Err(error) => {
                assert!(
                    process.next().await.unwrap().is_none(),
                    "something followed an error"
                );
                return error;
            }
        }
    }
}

#[tokio::test]
async fn nobody_there() {
    let client = GuestClient::new(
        Arc::new(|_| Err(std::io::ErrorKind::ConnectionRefused.into())),
        String::new(),
    );
    assert!(matches!(start(&client).await, GuestError::Unreachable(_)));
    let error = client
        .wait_ready(Duration::from_millis(50))
        .await
        .unwrap_err();
    assert!(matches!(error, GuestError::Unreachable(_)), "{error}");
}

#[tokio::test]
async fn garbage_instead_of_http() {
    let error = start(&says("\x00\x01\x02 what is this\r\n\r\n")).await;
    assert!(matches!(error, GuestError::Protocol(_)), "{error}");
}

#[tokio::test]
async fn an_endless_head() {
    let client = liar(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
        while stream.write_all(&[b'a'; 4096]).is_ok() {}
    });
    let error = start(&client).await;
    assert!(
        matches!(error, GuestError::TooLarge { .. } | GuestError::Protocol(_)),
        "{error}"
    );
}

#[tokio::test]
async fn too_many_headers() {
    let head = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(2000));
    let error = start(&says(head)).await;
    assert!(
        matches!(error, GuestError::TooLarge { .. } | GuestError::Protocol(_)),
        "{error}"
    );
}

#[tokio::test]
async fn a_huge_frame() {
    let error = first_error(&stream(&[START, &[0, 0x7f, 0xff, 0xff, 0xff]])).await;
    assert!(
        matches!(
            error,
            GuestError::TooLarge {
                limit: 1_048_576,
                ..
            }
        ),
        "{error}"
    );
    let error = start(&stream(&[&[0, 0xff, 0xff, 0xff, 0xff]])).await;
    assert!(matches!(error, GuestError::TooLarge { .. }), "{error}");
}

#[tokio::test]
async fn half_a_frame() {
    let error = first_error(&stream(&[START, &DATA[..7]])).await;
    assert!(matches!(error, GuestError::Protocol(_)), "{error}");
}

#[tokio::test]
async fn a_stream_without_its_last_frame() {
    let error = first_error(&stream(&[START, DATA])).await;
    assert!(matches!(error, GuestError::Protocol(_)), "{error}");
}

#[tokio::test]
async fn a_broken_chunk() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/connect+proto\r\ntransfer-encoding: chunked\r\n\r\n";
    let error = first_error(&says([&head[..], b"b\r\n", START, b"\r\nzzz\r\n"].concat())).await;
    assert!(
        matches!(error, GuestError::Protocol(_) | GuestError::Disconnected(_)),
        "{error}"
    );
}

#[tokio::test]
async fn garbage_inside_frames() {
    let error = first_error(&stream(&[START, &[0, 0, 0, 0, 3, 0xff, 0xff, 0xff]])).await;
    assert!(matches!(error, GuestError::Protocol(_)), "{error}");
    let error = first_error(&stream(&[START, &[2, 0, 0, 0, 3, b'{', b'{', b'{']])).await;
    assert!(matches!(error, GuestError::Protocol(_)), "{error}");
}

#[tokio::test]
async fn compressed_frames_that_nobody_asked_for() {
    let error = first_error(&stream(&[START, &[1, 0, 0, 0, 0]])).await;
    assert!(matches!(error, GuestError::Protocol(_)), "{error}");
}

#[tokio::test]
async fn events_out_of_order() {
    assert!(matches!(
        start(&stream(&[DATA])).await,
        GuestError::Protocol(_)
    ));
    assert!(matches!(
        start(&stream(&[&[2, 0, 0, 0, 2, b'{', b'}']])).await,
        GuestError::Protocol(_)
    ));
    assert!(matches!(
        first_error(&stream(&[START, START])).await,
        GuestError::Protocol(_)
    ));
}

#[tokio::test]
async fn a_start_without_pid_and_an_end_without_status() {
    assert!(matches!(
        start(&stream(&[&[0, 0, 0, 0, 4, 0x0a, 2, 0x0a, 0]])).await,
        GuestError::Protocol(_)
    ));
    assert!(matches!(
        first_error(&stream(&[START, &[0, 0, 0, 0, 4, 0x0a, 2, 0x1a, 0]])).await,
        GuestError::Protocol(_)
    ));
}

#[tokio::test]
async fn another_content_type() {
    let error = start(&says(
        "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 0\r\n\r\n",
    ))
    .await;
    assert!(matches!(error, GuestError::Protocol(_)), "{error}");
}

#[tokio::test]
async fn an_error_with_a_huge_body() {
    let client = liar(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 500 Oops\r\ncontent-length: 999999999999\r\n\r\n");
        while stream.write_all(&[b'a'; 65536]).is_ok() {}
    });
    assert!(matches!(start(&client).await, GuestError::TooLarge { .. }));
}

#[tokio::test]
async fn words_that_move_the_cursor() {
    let body = r#"{"code":"not_found","message":"\u001b[2J gone"}"#;
    let head = format!(
        "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let error = start(&says(format!("{head}{body}"))).await;
    assert_eq!(error.to_string(), "not_found: \u{fffd}[2J gone");
}

/// The frame that ends a stream with this.
fn last(payload: &str) -> Vec<u8> {
    atoll_protocol::connect::encode_frame(2, payload.as_bytes())
        .unwrap()
        .to_vec()
}

#[tokio::test]
async fn words_where_none_belong_are_not_repeated() {
    let long = "x".repeat(1_000_000);
    for word in ["\\u001b[2J", &long] {
        let code = format!(r#"{{"code":"{word}","message":"no"}}"#);
        let error = first_error(&stream(&[START, &last(&format!(r#"{{"error":{code}}}"#))])).await;
        assert_eq!(error.to_string(), "unknown: no");
        for payload in [
            format!(r#"{{"error":"{word}"}}"#),
            format!(r#"{{"error":{{"code":{{"{word}":1}}}}}}"#),
            format!(r#""{word}""#),
        ] {
            let error = first_error(&stream(&[START, &last(&payload)])).await;
            assert_eq!(
                error.to_string(),
                "the guest broke the protocol: the last frame is not understood"
            );
        }
    }
    let body = br#"{"code":"\u001b[2J","message":"no"}"#;
    let error = start(&says(crate::support::answer("404 Not Found", "", body))).await;
    assert_eq!(error.to_string(), "unknown: no");
}

#[tokio::test]
async fn a_length_that_no_body_has() {
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 18446744073709551615\r\n\r\n";
    let error = start(&says(head)).await;
    assert!(
        matches!(&error, GuestError::Protocol(text) if text.contains("announces a body")),
        "{error}"
    );
}

#[tokio::test]
async fn a_connection_that_closes_without_a_word() {
    assert!(matches!(
        start(&liar(drop)).await,
        GuestError::Disconnected(_)
    ));
}

#[tokio::test(start_paused = true)]
async fn no_answer_at_all() {
    let client = liar(std::mem::forget);
    assert!(matches!(start(&client).await, GuestError::Timeout { .. }));
    assert!(matches!(
        client.init(&InitRequest::default()).await,
        Err(GuestError::Timeout { .. })
    ));
    assert!(matches!(
        client.wait_ready(Duration::from_secs(1)).await,
        Err(GuestError::Timeout { .. })
    ));
    assert!(matches!(
        client.write_file("x", None, &b"x"[..]).await,
        Err(GuestError::Timeout { .. })
    ));
}

#[tokio::test]
async fn silence_after_the_start() {
    let client = stalls([STREAM_HEAD, START].concat());
    let error = first_error(&client.with_silence_bound(Duration::from_millis(100))).await;
    assert!(matches!(error, GuestError::Timeout { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_drips() {
    // A frame of a mebibyte, a byte a second: each is a byte, none is a sign of life.
    let first = [STREAM_HEAD, START, &[0, 0, 0x10, 0, 0]].concat();
    let client = drips(first, b"x").await;
    let before = tokio::time::Instant::now();
    let error = first_error(&client).await;
    assert!(matches!(error, GuestError::Timeout { .. }), "{error}");
    assert!(before.elapsed() < Duration::from_secs(100));
}

#[tokio::test(start_paused = true)]
async fn silence_counts_for_a_caller_that_looks_often() {
    let client = drips([STREAM_HEAD, START].concat(), b"").await;
    let command = Command {
        cmd: "x".to_owned(),
        ..Command::default()
    };
    let mut process = client.start(&command).await.unwrap();
    for _ in 0..100 {
        if let Ok(event) = tokio::time::timeout(Duration::from_secs(1), process.next()).await {
            assert!(matches!(event, Err(GuestError::Timeout { .. })));
            return;
        }
    }
    panic!("the silence had no end");
}

#[tokio::test]
async fn events_after_the_end() {
    for after in [START, DATA, END_EVENT] {
        let error = first_error(&stream(&[START, END_EVENT, after, END])).await;
        assert!(matches!(error, GuestError::Protocol(_)), "{error}");
    }
    let error = first_error(&stream(&[START, END_EVENT, END, DATA])).await;
    assert!(matches!(error, GuestError::Protocol(_)), "{error}");
}

#[tokio::test]
async fn an_honest_guest_is_believed() {
    let client = stream(&[
        START,
        DATA,
        &[0, 0, 0, 0, 4, 0x0a, 2, 0x22, 0],
        END_EVENT,
        END,
    ]);
    let mut process = client
        .start(&Command {
            cmd: "x".to_owned(),
            ..Command::default()
        })
        .await
        .unwrap();
    assert_eq!(process.pid(), 7);
    let mut events = Vec::new();
    while let Some(event) = process.next().await.unwrap() {
        events.push(event);
    }
    let expected = [
        ProcessEvent::Stdout("hi".into()),
        ProcessEvent::End(atoll_guest_client::ExitStatus::Exited(3)),
    ];
    assert_eq!(events, expected);
}
