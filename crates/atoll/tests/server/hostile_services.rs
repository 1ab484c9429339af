//! Services that lie, and clients that try to say two things at once.

use serde_json::Value;

use crate::ports::{get, host};
use crate::served::{Served, start_program};
use crate::services::{ECHO, LIAR, on_port};
use crate::wire::{End, Wire, request};

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_lies_gets_no_further() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    start_program(&reached.sandbox, &on_port(LIAR, 8000)).await;
    for path in [
        "/garbage",
        "/http09",
        "/nothing",
        "/long-header",
        "/many-headers",
        "/folded",
        "/space",
        "/two-lengths",
        "/unasked",
        "/endless",
    ] {
        let answer = get(&served, &reached, path).await;
        assert_eq!(answer.status(), 502, "{path}: {}", answer.text());
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert!(
            message.starts_with("The service on port 8000 "),
            "{path}: {message}"
        );
        assert_eq!(
            get(&served, &reached, "/good").await.text(),
            "good",
            "after {path}"
        );
    }
    // What breaks off breaks off.
    for path in ["/short", "/bad-chunk", "/cut-chunk"] {
        let mut wire = Wire::open(served.address).await;
        let host = host(&reached, 8000);
        wire.send(request("GET", path, &[("host", &host)], b""))
            .await;
        let head = wire.head().await;
        assert_eq!(head.status, 200);
        let end = loop {
            match wire.piece().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("{path} looks whole"),
                Err(end) => break end,
            }
        };
        assert_eq!(end, End::Reset, "{path}");
    }
    // What has an honest reading has that one.
    for (path, expected) in [
        ("/informed", "ok"),
        ("/until-the-end", "all of it"),
        ("/both", "abc"),
    ] {
        let answer = get(&served, &reached, path).await;
        assert_eq!(
            (answer.status(), answer.text().as_str()),
            (200, expected),
            "{path}"
        );
    }
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_too_many_poisons_nobody() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    start_program(&reached.sandbox, &on_port(LIAR, 8000)).await;
    for _ in 0..20 {
        assert_eq!(get(&served, &reached, "/two-answers").await.text(), "ok");
        assert_eq!(get(&served, &reached, "/good").await.text(), "good");
    }
    served.end([reached]).await;
}

/// All requests that the service saw, without those that ask for them.
async fn all_seen(served: &Served, reached: &crate::served::Reached) -> Vec<String> {
    let count = get(served, reached, "/count").await.json();
    let all = count["all"].as_array().unwrap().iter();
    all.map(|text| Value::as_str(text).unwrap().to_owned())
        .filter(|text| !text.contains("/count"))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_smuggled_in() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    start_program(&reached.sandbox, &on_port(ECHO, 8000)).await;
    let host = host(&reached, 8000);
    let hidden = format!("GET /smuggled HTTP/1.1\r\nhost: {host}\r\n\r\n");
    let length = hidden.len();
    // Whatever is wrong with the head is refused before the service sees it.
    for lines in [
        "content-length: 5\r\ncontent-length: 6".to_owned(),
        "content-length: 5, 6".to_owned(),
        "content-length: +5".to_owned(),
        "content-length: -1".to_owned(),
        "content-length: 0x5".to_owned(),
        "content-length: 5 5".to_owned(),
        "content-length: 99999999999999999999999".to_owned(),
        "content-length : 5".to_owned(),
        "transfer-encoding: identity".to_owned(),
        "transfer-encoding: gzip, chunked".to_owned(),
        "transfer-encoding: chunked, identity".to_owned(),
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked".to_owned(),
        "transfer-encoding: xchunked".to_owned(),
        "transfer-encoding : chunked".to_owned(),
        "transfer-encoding:\x0bchunked".to_owned(),
        " transfer-encoding: chunked".to_owned(),
        "x: y\r\n folded: z".to_owned(),
        "x: y\r\n\ttransfer-encoding: chunked".to_owned(),
        "x\0y: z".to_owned(),
        "x: a\0b".to_owned(),
        "x".to_owned(),
        ": y".to_owned(),
        format!("host: {host}"),
        "host: localhost".to_owned(),
    ] {
        let raw = format!("POST /refused HTTP/1.1\r\nhost: {host}\r\n{lines}\r\n\r\nhello{hidden}");
        let mut wire = Wire::open(served.address).await;
        wire.send(raw).await;
        let answer = wire.answer().await;
        assert_eq!(answer.status(), 400, "{lines:?}: {}", answer.text());
    }
    assert_eq!(all_seen(&served, &reached).await, [""; 0]);

    // A length beside chunks: the chunks count, and the connection ends there.
    for lines in [
        format!(
            "content-length: {}\r\ntransfer-encoding: chunked",
            length + 5
        ),
        format!(
            "transfer-encoding: chunked\r\ncontent-length: {}",
            length + 5
        ),
    ] {
        let raw =
            format!("POST /both HTTP/1.1\r\nhost: {host}\r\n{lines}\r\n\r\n0\r\n\r\n{hidden}");
        let mut wire = Wire::open(served.address).await;
        wire.send(raw).await;
        let answer = wire.answer().await;
        assert_eq!(answer.json()["body"], "");
        let headers = answer.json()["headers"].to_string();
        assert!(!headers.contains("content-length"), "{headers}");
        assert_eq!(wire.all().await, b"");
    }
    assert_eq!(all_seen(&served, &reached).await, ["POST /both"; 2]);

    // Chunks that can be read in two ways: the service never sees a whole request.
    for body in [
        "5\r\nhello\r\nzz\r\n",
        "5\nhello\n0\n\n",
        "-1\r\nhello\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "5\r\nhelloXX0\r\n\r\n",
        "fffffffffffffffff\r\nhello",
        "5 5\r\nhello\r\n0\r\n\r\n",
    ] {
        let raw = format!(
            "POST /chunks HTTP/1.1\r\nhost: {host}\r\ntransfer-encoding: chunked\r\n\r\n{body}{hidden}"
        );
        let mut wire = Wire::open(served.address).await;
        wire.send(raw).await;
        let said = String::from_utf8_lossy(&wire.all().await).into_owned();
        assert!(!said.contains("HTTP/1.1 200"), "{body:?}: {said}");
    }
    assert_eq!(all_seen(&served, &reached).await, ["POST /both"; 2]);

    // The control: two requests in a row are two requests.
    let two = format!(
        "POST /one HTTP/1.1\r\nhost: {host}\r\ncontent-length: 5\r\n\r\nhelloGET /two HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
    );
    let mut wire = Wire::open(served.address).await;
    wire.send(two).await;
    assert_eq!(wire.answer().await.json()["body"], "hello");
    assert_eq!(wire.answer().await.json()["path"], "/two");
    assert_eq!(
        all_seen(&served, &reached).await,
        ["POST /both", "POST /both", "POST /one", "GET /two"]
    );
    served.end([reached]).await;
}
