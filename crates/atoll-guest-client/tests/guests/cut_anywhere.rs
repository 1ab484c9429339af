//! Good answers that break off, at each of their bytes.

use std::fmt::Debug;
use std::net::TcpListener;
use std::time::Duration;

use atoll_guest_client::{
    Command, FRAME_BYTES_MAX, ForwardOptions, GuestClient, GuestError, WatchOptions, bounded_frames,
};
use atoll_protocol::envd::filesystem::EventType;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use tokio::io::AsyncReadExt;

use crate::support::{
    END, answer, file_info, list_response, send_and_close, stat_response, unary, watch_event,
    watch_start,
};

/// A server whose answer number `n` is the first `n` bytes of a good one.
fn ever_longer(good: Vec<u8>) -> GuestClient {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = crate::support::client(listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for length in 0..=good.len() {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = crate::support::read_request(&mut stream);
            send_and_close(stream, &good[..length]);
        }
    });
    client
}

/// Makes the call once per byte of `good`: each answer that ends before byte
/// `enough` is an error, and soon.
async fn cut<T: Debug>(
    name: &str,
    good: &[u8],
    enough: usize,
    call: impl AsyncFn(&GuestClient) -> Result<T, GuestError>,
) {
    let client = ever_longer(good.to_vec());
    for length in 0..=good.len() {
        let result = tokio::time::timeout(Duration::from_secs(10), call(&client))
            .await
            .unwrap_or_else(|_| panic!("{name} hangs after {length} bytes"));
        match result {
            Ok(value) => assert!(length >= enough, "{name}: {length} bytes give {value:?}"),
            Err(error) => assert!(length < enough, "{name}: {length} bytes give {error:?}"),
        }
    }
}

/// An answer in chunks, and the bytes of it that are enough to know that the
/// stream is over.
fn chunked(content_type: &str, pieces: &[Vec<u8>]) -> (Vec<u8>, usize) {
    let mut whole = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    .into_bytes();
    let mut enough = 0;
    for piece in pieces {
        whole.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        whole.extend_from_slice(piece);
        enough = whole.len();
        whole.extend_from_slice(b"\r\n");
    }
    whole.extend_from_slice(b"0\r\n\r\n");
    (whole, enough)
}

fn frames() -> Vec<Vec<u8>> {
    let event = watch_event(EventType::EVENT_TYPE_WRITE, "a", Some(file_info("a")));
    vec![watch_start(), event, END.to_vec()]
}

#[tokio::test]
async fn calls() {
    let stat = unary(&stat_response(file_info("a")));
    cut("stat", &stat, stat.len(), async |client| {
        client.stat("a", None).await
    })
    .await;
    cut("make", &stat, stat.len(), async |client| {
        client.make_dir("a", None).await
    })
    .await;
    cut("rename", &stat, stat.len(), async |client| {
        client.rename("a", "b", None).await
    })
    .await;
    let empty = crate::support::proto(b"");
    cut("remove", &empty, empty.len(), async |client| {
        client.remove("a", None).await
    })
    .await;
}

#[tokio::test]
async fn lists() {
    let message = list_response([file_info("a"), file_info("b"), file_info("c")]);
    let whole = unary(&message);
    cut("list", &whole, whole.len(), async |client| {
        client.list_dir("a", 1, None).await
    })
    .await;
    let body = buffa::Message::encode_to_vec(&message);
    let pieces: Vec<_> = body.chunks(50).map(<[u8]>::to_vec).collect();
    let (whole, _) = chunked("application/proto", &pieces);
    cut("list in chunks", &whole, whole.len(), async |client| {
        client.list_dir("a", 1, None).await
    })
    .await;
}

#[tokio::test]
async fn watches() {
    let (whole, enough) = chunked("application/connect+proto", &frames());
    cut("watch", &whole, enough, async |client| {
        let mut watch = client.watch("a", WatchOptions::default(), None).await?;
        let mut events = Vec::new();
        while let Some(event) = watch.next().await? {
            events.push(event);
        }
        Ok(events)
    })
    .await;
}

#[tokio::test]
async fn commands() {
    let frames = [
        vec![0, 0, 0, 0, 6, 0x0a, 4, 0x0a, 2, 0x08, 7],
        vec![0, 0, 0, 0, 8, 0x0a, 6, 0x1a, 4, 0x08, 6, 0x10, 1],
        END.to_vec(),
    ];
    let (whole, enough) = chunked("application/connect+proto", &frames);
    cut("start", &whole, enough, async |client| {
        let mut process = client.start(&Command::default()).await?;
        let mut events = Vec::new();
        while let Some(event) = process.next().await? {
            events.push(event);
        }
        Ok(events)
    })
    .await;
}

#[tokio::test]
async fn files() {
    let read = async |client: &GuestClient| {
        let mut file = client.read_file("a", None).await?;
        let mut bytes = Vec::new();
        match file.read_to_end(&mut bytes).await {
            Ok(_) => Ok(bytes),
            Err(error) => Err(GuestError::Source(error)),
        }
    };
    let whole = answer("200 OK", "", b"hello");
    cut("file", &whole, whole.len(), read).await;
    let (whole, _) = chunked("text/plain", &[b"hello".to_vec()]);
    cut("file in chunks", &whole, whole.len(), read).await;
    let part = answer(
        "206 Partial Content",
        "content-range: bytes 0-4/5\r\n",
        b"hello",
    );
    cut("part", &part, part.len(), async |client| {
        let mut file = client.read_file_range("a", 0..9, None).await?;
        file.read_to_end(&mut Vec::new())
            .await
            .map_err(GuestError::Source)
    })
    .await;
    let written = answer("200 OK", "content-type: application/json\r\n", b"[]");
    cut("write", &written, written.len(), async |client| {
        client.write_file("a", None, &b""[..]).await
    })
    .await;
}

#[tokio::test]
async fn forwarded_answers() {
    let request = |target: &str| {
        Request::post(target)
            .body(Full::new(Bytes::from_static(b"{}")))
            .unwrap()
    };
    let whole = answer("200 OK", "content-type: application/json\r\n", b"{\"a\":1}");
    cut("forward", &whole, whole.len(), async |client| {
        let response = client
            .forward(request("/process.Process/List"), ForwardOptions::default())
            .await?;
        Ok(response.into_body().collect().await?.to_bytes())
    })
    .await;
    let (whole, enough) = chunked("application/connect+json", &frames());
    cut("forward a stream", &whole, enough, async |client| {
        let response = client
            .forward(
                request("/filesystem.Filesystem/WatchDir"),
                ForwardOptions::default(),
            )
            .await?;
        let body = bounded_frames(response.into_body(), FRAME_BYTES_MAX);
        Ok(body.collect().await?.to_bytes())
    })
    .await;
}
