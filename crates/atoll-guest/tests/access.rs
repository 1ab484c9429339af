//! Who may ask what.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "test code"
)]

#[path = "support/raw.rs"]
mod raw;
mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use atoll_guest_client::{GuestError, InitRequest};
use support::{Guest, TOKEN, bash, client, finish};

fn init(token: &str) -> InitRequest {
    InitRequest {
        access_token: Some(token.to_owned()),
        default_user: Some(support::whoami()),
        ..InitRequest::default()
    }
}

fn unauthorized<T>(result: &Result<T, GuestError>) -> bool {
    matches!(result, Err(GuestError::Unauthorized(_)))
}

#[tokio::test]
async fn before_init_only_health_answers() {
    let guest = Guest::bare();
    guest
        .client
        .wait_ready(Duration::from_secs(10))
        .await
        .unwrap();
    assert!(unauthorized(&guest.client.start(&bash("true")).await));
    assert!(unauthorized(
        &guest.client.read_file("/etc/hostname", None).await
    ));
    assert!(unauthorized(
        &guest
            .client
            .write_file("/tmp/never-written", None, &b"x"[..])
            .await
    ));
}

#[tokio::test]
async fn the_first_init_must_set_a_token_and_later_ones_must_present_it() {
    let guest = Guest::bare();
    guest
        .client
        .wait_ready(Duration::from_secs(10))
        .await
        .unwrap();
    assert!(matches!(
        guest.client.init(&InitRequest::default()).await,
        Err(GuestError::Refused { status: 400, .. })
    ));
    guest.client.init(&init(TOKEN)).await.unwrap();
    let stranger = client(guest.address, "guess");
    assert!(unauthorized(&stranger.init(&init("guess")).await));
    assert!(unauthorized(&stranger.start(&bash("true")).await));
    assert!(unauthorized(
        &stranger.read_file("/etc/hostname", None).await
    ));
    guest
        .client
        .init(&InitRequest {
            env_vars: Some([("A".to_owned(), "1".to_owned())].into()),
            ..init(TOKEN)
        })
        .await
        .unwrap();
    assert_eq!(
        finish(guest.client.start(&bash("echo $A")).await.unwrap())
            .await
            .unwrap()
            .stdout,
        "1\n"
    );
}

#[tokio::test]
async fn health_is_for_everybody_and_the_rest_for_the_token() {
    let guest = Guest::ready().await;
    let health = raw::ask_bare(guest.address, "GET /health", &[], b"");
    assert_eq!(
        health,
        raw::Answer {
            status: 204,
            headers: vec![("cache-control".to_owned(), "no-store".to_owned())],
            body: Vec::new(),
        }
    );
    let refusal = (
        401,
        "unauthorized access, please provide a valid access token or method signing if supported"
            .to_owned(),
    );
    for headers in [&[][..], &[("X-Access-Token", "guess")]] {
        for start in [
            "GET /envs",
            "GET /metrics",
            "POST /files/compose",
            "POST /init",
            "GET /nothing",
            "POST /process.Process/List",
            "POST /filesystem.Filesystem/Stat",
        ] {
            let answer = raw::ask_bare(guest.address, start, headers, b"{}");
            assert_eq!(answer.refusal(), refusal, "{start} with {headers:?}");
        }
    }
    assert_eq!(
        raw::ask(&guest, "GET /envs", &[], b"").json(),
        serde_json::json!({"SANDBOX_VARIABLE": "from-init"})
    );
}

/// What E2B's own clients send, byte for byte: JSON frames.
#[tokio::test]
async fn the_exchange_of_a_real_client_is_understood() {
    let guest = Guest::ready().await;
    let message = br#"{"process":{"cmd":"/bin/bash","args":["-l","-c","echo hi"]},"stdin":false}"#;
    let mut stream = TcpStream::connect(guest.address).unwrap();
    write!(
        stream,
        "POST /process.Process/Start HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/connect+json\r\n\
         Connect-Protocol-Version: 1\r\nConnect-Timeout-Ms: 60000\r\nX-Access-Token: {TOKEN}\r\nContent-Length: {}\r\n\r\n",
        message.len() + 5
    )
    .unwrap();
    stream
        .write_all(&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()])
        .unwrap();
    stream.write_all(message).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(
        answer.contains("content-type: application/connect+json\r\n"),
        "{answer}"
    );
    let order = [
        r#"{"event":{"start":{"pid":"#,
        r#"{"event":{"data":{"stdout":"aGkK"}}}"#,
        r#"{"event":{"end":{"exited":true,"status":"exit status 0"}}}"#,
        "\u{2}\0\0\0\u{2}{}",
    ];
    let places: Vec<_> = order
        .iter()
        .map(|part| {
            answer
                .find(part)
                .unwrap_or_else(|| panic!("{part} is missing in {answer}"))
        })
        .collect();
    assert!(places.is_sorted(), "{answer}");
}
