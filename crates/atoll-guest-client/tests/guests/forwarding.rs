//! Requests of clients on their way to the guest, and its answers back.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use atoll_guest_client::{
    BoundedFrames, Code, FRAME_BYTES_MAX, ForwardOptions, ForwardedBody, ForwardedUser,
    GuestClient, GuestError, bounded_frames,
};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Body, Frame};

use crate::support::{END, STREAM_HEAD, answer, drips, floods, liar, read_head, says, stalls};

const WATCH: &str = "/filesystem.Filesystem/WatchDir";

/// A guest that answers one request, and the request as it arrived.
fn recording(good: Vec<u8>) -> (GuestClient, Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = crate::support::client(listener.local_addr().unwrap());
    let (seen, requests) = channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let head = read_head(&mut stream).unwrap();
        let mut body = Vec::new();
        if let Some(length) = crate::support::header(&head, "content-length") {
            body.resize(length.parse().unwrap(), 0);
            stream.read_exact(&mut body).unwrap();
        } else if crate::support::header(&head, "transfer-encoding").is_some() {
            while !body.ends_with(b"0\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                body.push(byte[0]);
            }
        }
        seen.send((head, body)).unwrap();
        stream.write_all(&good).unwrap();
    });
    (client, requests)
}

async fn get(client: &GuestClient, target: &str) -> Result<Response<ForwardedBody>, GuestError> {
    let request = Request::get(target).body(Empty::<Bytes>::new()).unwrap();
    client.forward(request, ForwardOptions::default()).await
}

async fn post(client: &GuestClient, target: &str) -> Result<Response<ForwardedBody>, GuestError> {
    let request = Request::post(target).body(Full::from("{}")).unwrap();
    client.forward(request, ForwardOptions::default()).await
}

async fn whole(response: Response<ForwardedBody>) -> Result<Bytes, GuestError> {
    Ok(response.into_body().collect().await?.to_bytes())
}

async fn framed(client: &GuestClient) -> BoundedFrames<ForwardedBody> {
    let response = post(client, WATCH).await.unwrap();
    bounded_frames(response.into_body(), FRAME_BYTES_MAX)
}

#[tokio::test]
async fn a_request_arrives_with_our_secret_and_nothing_of_the_way() {
    let (client, requests) = recording(answer(
        "200 OK",
        "content-type: application/json\r\nset-cookie: a=b\r\nserver: x\r\n",
        b"{}",
    ));
    let request = Request::post("/filesystem.Filesystem/MakeDir?a=b%2f")
        .header("x-access-token", "the client's")
        .header("host", "49983-id.example")
        .header("e2b-sandbox-id", "id")
        .header("connection", "upgrade")
        .header("cookie", "session=secret")
        .header("content-type", "application/json")
        .body(Full::from(r#"{"path":"x"}"#))
        .unwrap();
    let response = client
        .forward(request, ForwardOptions::default())
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let names: Vec<_> = response
        .headers()
        .keys()
        .map(http::HeaderName::as_str)
        .collect();
    assert_eq!(
        names,
        [
            "content-length",
            "content-type",
            "x-content-type-options",
            "content-security-policy",
            "cache-control",
        ]
    );
    assert_eq!(whole(response).await.unwrap(), "{}");
    let (head, body) = requests.recv().unwrap();
    let mut lines: Vec<_> = head.trim_end().lines().collect();
    lines[1..].sort_unstable();
    assert_eq!(
        lines,
        [
            "POST /filesystem.Filesystem/MakeDir?a=b%2f HTTP/1.1",
            "content-length: 12",
            "content-type: application/json",
            "host: guest",
            "x-access-token: token",
        ]
    );
    assert_eq!(body, br#"{"path":"x"}"#);
}

#[tokio::test]
async fn a_signed_url_gives_no_rights_beside_it() {
    let signed = "/files?path=a&username=user&signature=v1_x";
    for (user, named) in [
        // `root:secret` becomes `root:`.
        (ForwardedUser::AsNamed, Some("Basic cm9vdDo=")),
        (ForwardedUser::NotNamed, None),
        (
            ForwardedUser::Always("user".to_owned()),
            Some("Basic dXNlcjo="),
        ),
    ] {
        let (client, requests) = recording(answer("200 OK", "", b""));
        let request = Request::get(signed)
            .header("authorization", "Basic cm9vdDpzZWNyZXQ=")
            .body(Empty::<Bytes>::new())
            .unwrap();
        let options = ForwardOptions {
            user,
            ..ForwardOptions::default()
        };
        client.forward(request, options).await.unwrap();
        let (head, _) = requests.recv().unwrap();
        assert_eq!(crate::support::header(&head, "authorization"), named);
    }
}

#[tokio::test]
async fn whoever_names_two_users_is_nobody() {
    let client = liar(|_| panic!("the guest was asked"));
    let request = Request::get("/files?path=a")
        .header("authorization", "Basic dXNlcjo=")
        .header("authorization", "Basic cm9vdDo=")
        .body(Empty::<Bytes>::new())
        .unwrap();
    let error = client
        .forward(request, ForwardOptions::default())
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            GuestError::Rpc {
                code: Code::Unauthenticated,
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn nothing_but_the_routes_of_clients_is_reachable() {
    let client = liar(|_| panic!("the guest was asked"));
    for target in [
        "/init",
        "//init",
        "/%69nit",
        "/files/../init",
        "http://guest/health",
    ] {
        for method in [Method::GET, Method::POST] {
            let request = Request::builder()
                .method(method)
                .uri(target)
                .body(Empty::<Bytes>::new())
                .unwrap();
            let error = client
                .forward(request, ForwardOptions::default())
                .await
                .unwrap_err();
            assert!(matches!(error, GuestError::NotForwarded(_)), "{target}");
        }
    }
}

#[tokio::test]
async fn an_upload_of_unknown_length_streams() {
    let (client, requests) = recording(answer("200 OK", "", b"[]"));
    let pieces =
        ["hello, ", "world"].map(|piece| Ok::<_, std::io::Error>(Frame::data(Bytes::from(piece))));
    let request = Request::post("/files?path=x")
        .body(StreamBody::new(futures_util::stream::iter(pieces)))
        .unwrap();
    let response = client
        .forward(request, ForwardOptions::default())
        .await
        .unwrap();
    assert_eq!(whole(response).await.unwrap(), "[]");
    let (_, body) = requests.recv().unwrap();
    assert_eq!(body, b"7\r\nhello, \r\n5\r\nworld\r\n0\r\n\r\n");
}

#[tokio::test]
async fn an_upload_whose_sender_fails() {
    let client = stalls("");
    let pieces = futures_util::stream::iter([
        Ok(Frame::data(Bytes::from_static(b"hello"))),
        Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe)),
    ]);
    let request = Request::post("/files?path=x")
        .body(StreamBody::new(pieces))
        .unwrap();
    let error = client
        .forward(request, ForwardOptions::default())
        .await
        .unwrap_err();
    let GuestError::Source(error) = error else {
        panic!("{error:?}");
    };
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn heads_without_end_and_answers_that_are_none() {
    for client in [
        floods("HTTP/1.1 200 OK\r\n", vec![b'a'; 4096]),
        floods("HTTP/1.1 200 OK\r\n", "a: b\r\n".repeat(1000)),
        says("what is this\r\n\r\n"),
        says(format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(65))),
        says("HTTP/1.1 200 OK\r\n\r\nno length"),
        says("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"),
    ] {
        let error = get(&client, "/files?path=x").await.unwrap_err();
        assert!(
            matches!(
                error,
                GuestError::TooLarge { .. } | GuestError::Protocol(_) | GuestError::Disconnected(_)
            ),
            "{error:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_guest_has_a_moment_to_answer() {
    let before = tokio::time::Instant::now();
    for client in [
        stalls(""),
        drips("", b"HTTP/1.1 100 Continue\r\n\r\n").await,
    ] {
        for result in [
            get(&client, "/metrics").await,
            post(&client, WATCH).await,
            post(&client, "/filesystem.Filesystem/Remove").await,
        ] {
            let error = result.unwrap_err();
            assert!(matches!(error, GuestError::Timeout { .. }), "{error:?}");
        }
    }
    assert!(before.elapsed() < Duration::from_secs(6 * 31));
    // Input waits for the command that takes it.
    let client = stalls("");
    let input = post(&client, "/process.Process/SendInput");
    assert!(
        tokio::time::timeout(Duration::from_secs(3600), input)
            .await
            .is_err()
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_may_be_silent_unless_told() {
    let client = drips([STREAM_HEAD, &END[..3]].concat(), b"").await;
    let mut patient = post(&client, WATCH).await.unwrap().into_body();
    patient.frame().await.unwrap().unwrap();
    let day = Duration::from_secs(24 * 3600);
    assert!(tokio::time::timeout(day, patient.frame()).await.is_err());

    let options = ForwardOptions {
        silence: Some(Duration::from_secs(60)),
        ..ForwardOptions::default()
    };
    let request = Request::post(WATCH).body(Full::from("{}")).unwrap();
    let mut body = client.forward(request, options).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    let error = body.frame().await.unwrap().unwrap_err();
    assert!(matches!(error, GuestError::Timeout { .. }), "{error:?}");
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn good_frames_pass_untouched() {
    let frames = [&[0, 0, 0, 0, 3][..], b"abc", &[0, 0, 0, 0, 0], END].concat();
    let client = says([STREAM_HEAD, &frames].concat());
    let body = framed(&client).await;
    assert_eq!(body.collect().await.unwrap().to_bytes(), frames);
}

#[tokio::test]
async fn the_last_frame_ends_a_stream_and_its_connection() {
    let (closed, mut closings) = tokio::sync::mpsc::unbounded_channel();
    for last in [END, &[2, 0, 0, 0, 0]] {
        let frames = [&[0, 0, 0, 0, 3][..], b"abc", last].concat();
        let said = [STREAM_HEAD, &frames].concat();
        let closed = closed.clone();
        // It never closes its side.
        let client = liar(move |mut stream| {
            stream.write_all(&said).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
            closed.send(()).unwrap();
        });
        let mut body = framed(&client).await;
        let mut passed = Vec::new();
        let reading = async {
            while let Some(frame) = body.frame().await {
                passed.extend_from_slice(&frame.unwrap().into_data().unwrap());
            }
        };
        let bound = Duration::from_secs(10);
        tokio::time::timeout(bound, reading).await.unwrap();
        assert_eq!(passed, frames);
        assert!(body.has_ended() && body.is_end_stream());
        // While the body is still there: a server may keep it.
        tokio::time::timeout(bound, closings.recv()).await.unwrap();
    }
}

#[tokio::test]
async fn bad_frames_end_the_stream_where_a_last_word_fits() {
    let good = [0, 0, 0, 0, 3, b'a', b'b', b'c'];
    for (bad, between) in [
        (&[0, 0xff, 0xff, 0xff, 0xff, 1][..], true),
        (&[0, 0, 0x10, 0, 1], true),
        (&[1, 0, 0, 0, 1, b'x'], true),
        (&[0x80, 0, 0, 0, 1, b'x'], true),
        (&[0, 0, 0], true),
        (&[], true),
        (&[0, 0, 0, 0, 9, b'x'], false),
        (&[2, 0, 0, 0, 9, b'x'], false),
    ] {
        let client = says([STREAM_HEAD, &good, bad].concat());
        let mut body = framed(&client).await;
        let mut passed = Vec::new();
        let error = loop {
            match body.frame().await.unwrap() {
                Ok(frame) => passed.extend_from_slice(&frame.into_data().unwrap()),
                Err(error) => break error,
            }
        };
        assert!(
            matches!(error, GuestError::Protocol(_) | GuestError::TooLarge { .. }),
            "{error:?}"
        );
        assert_eq!(body.is_between_frames(), between, "{bad:x?}");
        if between {
            assert_eq!(passed, good);
        }
        assert!(body.frame().await.is_none());
    }
    let client = says([STREAM_HEAD, END, &good].concat());
    let mut body = framed(&client).await;
    assert_eq!(
        body.frame().await.unwrap().unwrap().into_data().unwrap(),
        END
    );
    // What follows the last frame is nobody's.
    assert!(body.frame().await.is_none());
    assert!(body.has_ended());
}
