//! Guests that lie about what happens in a directory.

use std::time::Duration;

use atoll_guest_client::{
    GuestClient, GuestError, Watch, WatchEvent, WatchEventKind, WatchOptions,
};
use atoll_protocol::envd::filesystem::{EntryInfo, EventType};

use crate::support::{
    END, STREAM_HEAD, answer, drips, file_info, liar, says, stalls, stream, watch_event,
    watch_keepalive, watch_start,
};

async fn watch(client: &GuestClient) -> Result<Watch, GuestError> {
    let options = WatchOptions {
        recursive: true,
        include_entry: true,
        ..WatchOptions::default()
    };
    client.watch("x", options, Some("user")).await
}

/// The first error of a watch that was set.
async fn first_error(client: &GuestClient) -> GuestError {
    let mut watch = watch(client).await.unwrap();
    loop {
        match watch.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the liar was believed"),
            Err(error) => {
                assert!(watch.next().await.unwrap().is_none());
                return error;
            }
        }
    }
}

fn created() -> Vec<u8> {
    watch_event(EventType::EVENT_TYPE_CREATE, "a", None)
}

#[tokio::test]
async fn an_honest_guest_is_believed() {
    let frames = [
        watch_start(),
        watch_event(
            EventType::EVENT_TYPE_CREATE,
            "nested/a",
            Some(file_info("a")),
        ),
        watch_keepalive(),
        watch_event(EventType::EVENT_TYPE_REMOVE, "a", None),
        END.to_vec(),
    ];
    let client = says([STREAM_HEAD, &frames.concat()].concat());
    let mut watch = watch(&client).await.unwrap();
    let first = watch.next().await.unwrap().unwrap();
    assert_eq!(first.entry.unwrap().file_name(), Ok("a"));
    assert_eq!(first.name.as_given(), "nested/a");
    assert_eq!(first.kind, WatchEventKind::Create);
    let expected = WatchEvent {
        kind: WatchEventKind::Remove,
        name: "a".to_owned().into(),
        entry: None,
    };
    assert_eq!(watch.next().await.unwrap(), Some(expected));
    assert_eq!(watch.next().await.unwrap(), None);
    assert_eq!(watch.next().await.unwrap(), None);
}

#[tokio::test]
async fn the_guest_is_asked_for_signs_of_life() {
    let (seen, heads) = std::sync::mpsc::channel();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let client = crate::support::client(listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        seen.send(crate::support::read_request(&mut stream).unwrap())
            .unwrap();
        crate::support::send_and_close(stream, &[STREAM_HEAD, &watch_start()].concat());
    });
    let client = client.with_silence_bound(Duration::from_secs(30));
    watch(&client).await.unwrap();
    let head = heads.recv().unwrap();
    assert_eq!(
        crate::support::header(&head, "keepalive-ping-interval"),
        Some("10")
    );
    assert_eq!(
        crate::support::header(&head, "authorization"),
        Some("Basic dXNlcjo=")
    );
}

#[tokio::test]
async fn a_watch_that_does_not_start() {
    for frames in [
        &[][..],
        &[END],
        &[&created()],
        &[&watch_keepalive()],
        &[&[0, 0, 0, 0, 0]],
        &[&[0, 0xff, 0xff, 0xff, 0xff]],
        &[&[1, 0, 0, 0, 0]],
        &[&[0, 0, 0, 0, 3, 0xff, 0xff, 0xff]],
    ] {
        let error = watch(&stream(frames)).await.unwrap_err();
        assert!(
            matches!(error, GuestError::Protocol(_) | GuestError::TooLarge { .. }),
            "{error:?}"
        );
    }
    let other = answer("200 OK", "content-type: application/proto\r\n", b"");
    let error = watch(&says(other)).await.unwrap_err();
    assert!(matches!(error, GuestError::Protocol(_)), "{error:?}");
}

#[tokio::test]
async fn a_guest_that_says_no() {
    let no: &[u8] = br#"{"error":{"code":"not_found","message":"\u001b]0;gone"}}"#;
    let length = u8::try_from(no.len()).unwrap();
    let frame = [&[2, 0, 0, 0, length][..], no].concat();
    let error = watch(&stream(&[&frame])).await.unwrap_err();
    assert_eq!(error.to_string(), "not_found: \u{fffd}]0;gone");
}

#[tokio::test]
async fn events_that_cannot_be() {
    let start = watch_start();
    for frame in [
        watch_start(),
        watch_event(EventType::EVENT_TYPE_UNSPECIFIED, "a", None),
        watch_event(
            EventType::EVENT_TYPE_WRITE,
            "a",
            Some(EntryInfo {
                size: -5,
                ..file_info("a")
            }),
        ),
        // A name that is no text.
        vec![0, 0, 0, 0, 6, 0x12, 4, 0x0a, 2, 0xc3, 0x28],
        vec![0, 0x7f, 0xff, 0xff, 0xff],
        vec![0, 0, 0, 0, 9, 1],
        vec![0, 0, 0],
        vec![2, 0, 0, 0, 1, b'{'],
        [END, &created()].concat(),
        Vec::new(),
    ] {
        let error = first_error(&stream(&[&start, &created(), &frame])).await;
        assert!(
            matches!(error, GuestError::Protocol(_) | GuestError::TooLarge { .. }),
            "{frame:x?}: {error:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn silence_and_drips() {
    for client in [
        stalls(""),
        stalls(STREAM_HEAD),
        stalls([STREAM_HEAD, &[0, 0, 0]].concat()),
        drips([STREAM_HEAD, &[0, 0, 1, 0, 0]].concat(), b"\x0a").await,
    ] {
        let error = watch(&client).await.unwrap_err();
        assert!(matches!(error, GuestError::Timeout { .. }), "{error:?}");
    }
    let started = [STREAM_HEAD, &watch_start()].concat();
    let half = [&started[..], &[0, 0, 1, 0, 0]].concat();
    for client in [
        drips(started, b"").await,
        drips(half.clone(), b"").await,
        drips(half, b"\x0a").await,
    ] {
        let before = tokio::time::Instant::now();
        let error = first_error(&client).await;
        assert!(matches!(error, GuestError::Timeout { .. }), "{error:?}");
        assert!(before.elapsed() < Duration::from_secs(100));
    }
}

#[tokio::test(start_paused = true)]
async fn signs_of_life_keep_a_watch() {
    let frame: &'static [u8] = watch_keepalive().leak();
    let client = drips([STREAM_HEAD, &watch_start()].concat(), frame).await;
    let mut watch = watch(&client).await.unwrap();
    let hour = tokio::time::timeout(Duration::from_secs(3600), watch.next()).await;
    assert!(hour.is_err(), "{hour:?}");
}

#[tokio::test]
async fn a_flood_of_events_is_read_at_the_callers_pace() {
    let start = [STREAM_HEAD, &watch_start()].concat();
    let many = created().repeat(1000);
    let client = liar(move |mut stream| {
        use std::io::Write;
        let _ = stream.write_all(&start);
        while stream.write_all(&many).is_ok() {}
    });
    let mut watch = watch(&client).await.unwrap();
    for _ in 0..100_000 {
        assert!(watch.next().await.unwrap().is_some());
    }
}
