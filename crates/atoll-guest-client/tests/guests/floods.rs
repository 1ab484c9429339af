//! Guests that never stop: they do not outlive a command's timeout.

use std::time::Duration;

use atoll_guest_client::{
    CodeEvent, CodeToRun, Command, ExitStatus, GuestClient, GuestError, Narrow, Process,
    ProcessEvent,
};
use tokio::time::{Instant, advance, sleep};

use crate::support::{END, STREAM_HEAD, answer, drips, says};

/// `{event: {start: {pid: 7}}}` as a frame.
const START: &[u8] = &[0, 0, 0, 0, 6, 0x0a, 4, 0x0a, 2, 0x08, 7];

/// `{event: {data: {stdout: "hi"}}}` as a frame.
const DATA: &[u8] = &[0, 0, 0, 0, 8, 0x0a, 6, 0x12, 4, 0x0a, 2, b'h', b'i'];

/// `{event: {keepalive: {}}}` as a frame.
const KEEPALIVE: &[u8] = &[0, 0, 0, 0, 4, 0x0a, 2, 0x22, 0];

/// `{event: {end: {exit_code: 3, exited: true}}}` as a frame.
const END_EVENT: &[u8] = &[0, 0, 0, 0, 8, 0x0a, 6, 0x1a, 4, 0x08, 6, 0x10, 1];

async fn start(client: &GuestClient, timeout: Option<Duration>) -> Process {
    let command = Command {
        cmd: "x".to_owned(),
        timeout,
        ..Command::default()
    };
    client.start(&command).await.unwrap()
}

fn assert_not_ended(error: &GuestError) {
    assert!(
        matches!(error, GuestError::Timeout { what, .. } if what.contains("its timeout")),
        "{error:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn signs_of_life_do_not_stretch_a_timeout() {
    for again in [DATA, KEEPALIVE] {
        let client = drips([STREAM_HEAD, START].concat(), again).await;
        let before = Instant::now();
        let mut process = start(&client, Some(Duration::from_secs(30))).await;
        let error = loop {
            match process.next().await {
                Ok(event) => assert!(event.is_some()),
                Err(error) => break error,
            }
        };
        assert_not_ended(&error);
        let lasted = before.elapsed().as_secs();
        assert!((40..=41).contains(&lasted), "{lasted} s");
        assert_eq!(process.next().await.unwrap(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_never_waits_is_not_held() {
    // All that it reads is there already, so no wait of it ever ends late.
    let client = drips([STREAM_HEAD, START, &DATA.repeat(1000)].concat(), b"").await;
    let mut process = start(&client, Some(Duration::from_secs(30))).await;
    let mut seen = 0;
    let error = loop {
        match process.next().await {
            Ok(event) => assert!(event.is_some()),
            Err(error) => break error,
        }
        seen += 1;
        advance(Duration::from_secs(1)).await;
    };
    assert_not_ended(&error);
    assert!((39..=42).contains(&seen), "{seen} events");
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_comes_late_gets_what_is_there() {
    let frames = [STREAM_HEAD, START, DATA, END_EVENT, END].concat();
    let client = drips(frames, b"").await;
    let mut process = start(&client, Some(Duration::from_secs(1))).await;
    sleep(Duration::from_secs(3600)).await;
    let mut events = Vec::new();
    while let Some(event) = process.next().await.unwrap() {
        events.push(event);
    }
    assert_eq!(
        events,
        [
            ProcessEvent::Stdout("hi".into()),
            ProcessEvent::End(ExitStatus::Exited(3)),
        ]
    );
}

const NARROW: Narrow = Narrow {
    line_bytes: 64 * 1024,
    list_bytes: 64 * 1024,
};

#[tokio::test]
async fn results_beyond_narrow_bounds_are_left_out_and_the_rest_is_heard() {
    let long = format!(
        r#"{{"type":"result","text":"{}"}}"#,
        "x".repeat(1024 * 1024)
    );
    let many = format!(r#"{{"type":"result","data":[{}1]}}"#, "1,".repeat(20_000));
    let said = r#"{"type":"stdout","text":"a"}"#;
    let end = r#"{"type":"end_of_execution"}"#;
    let body = [long.as_str(), said, &many, end, ""].join("\n");
    let client = says(answer("200 OK", "", body.as_bytes())).with_bounds(NARROW);
    let mut run = client.run_code(&CodeToRun::default()).await.unwrap();
    let text = "a".to_owned();
    let heard = [run.next().await.unwrap(), run.next().await.unwrap()];
    let expected = [CodeEvent::Stdout { text }, CodeEvent::EndOfExecution];
    assert_eq!(heard, expected.map(Some));
    assert_eq!(run.left_out(), 2);
}

#[tokio::test]
async fn an_error_beyond_narrow_bounds_is_not_taken_for_a_success() {
    let long = format!(r#"{{"type":"error","name":"{}"}}"#, "x".repeat(1024 * 1024));
    let body = [long.as_str(), r#"{"type":"end_of_execution"}"#, ""].join("\n");
    let client = says(answer("200 OK", "", body.as_bytes())).with_bounds(NARROW);
    let mut run = client.run_code(&CodeToRun::default()).await.unwrap();
    let error = run.next().await.unwrap_err();
    assert!(matches!(error, GuestError::TooLarge { .. }), "{error:?}");
}
