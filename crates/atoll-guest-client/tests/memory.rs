//! What a lying guest costs in memory. One test, since memory is counted for
//! the whole process.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "test code"
)]

#[path = "guests/support/mod.rs"]
mod support;

use atoll_guest_client::{
    FRAME_BYTES_MAX, ForwardOptions, GuestClient, GuestError, ReadOptions, WatchOptions,
    bounded_frames,
};
use atoll_protocol::envd::filesystem::{EntryInfo, EventType};
use buffa::Message;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use support::{
    STREAM_HEAD, file_info, floods, list_response, peak_memory_kib, watch_event, watch_start,
};
use tokio::io::AsyncReadExt;

const MIB: u64 = 1024;

/// An endless answer of chunks.
fn endless(content_type: &str, piece: &[u8]) -> GuestClient {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
    floods(head, chunk)
}

/// Memory that `work` needs at most, in KiB.
async fn growth(work: impl Future<Output = ()>) -> u64 {
    peak_memory_kib();
    let before = peak_memory_kib();
    work.await;
    peak_memory_kib().saturating_sub(before)
}

async fn refused_list(piece: &[u8]) -> u64 {
    let client = endless("application/proto", piece);
    growth(async move {
        let error = client.list_dir("x", 1, None).await.unwrap_err();
        assert!(
            matches!(
                error,
                GuestError::TooLarge { .. } | GuestError::Timeout { .. }
            ),
            "{error:?}"
        );
    })
    .await
}

#[tokio::test]
async fn lies_cost_little_memory() {
    // What costs most comes last: memory that was used once hides later use.

    // A message full of what this version does not know.
    let unknown = [0x0a, 0x80, 0x80, 0x08]
        .into_iter()
        .chain([0xf8, 0x7f, 0].into_iter().cycle().take(131_072))
        .collect::<Vec<u8>>();
    let client = support::says(support::proto(&unknown));
    let unknown = growth(async move {
        assert!(client.stat("x", None).await.is_err());
    })
    .await;
    assert!(unknown < 8 * MIB, "{unknown}");

    // Ten million events, one at a time.
    let start = [STREAM_HEAD, &watch_start()].concat();
    let event = watch_event(EventType::EVENT_TYPE_WRITE, "a", None);
    let client = floods(start, event.repeat(10_000));
    let events = growth(async move {
        let options = WatchOptions::default();
        let mut watch = client.watch("x", options, None).await.unwrap();
        let many = if cfg!(debug_assertions) {
            1_000_000
        } else {
            10_000_000
        };
        for _ in 0..many {
            watch.next().await.unwrap().unwrap();
        }
    })
    .await;
    assert!(events < 8 * MIB, "{events}");

    // Files and forwarded answers of hundreds of mebibytes.
    let client = endless("text/plain", &[b'x'; 65_536]);
    let download = growth(async move {
        let options = ReadOptions {
            max_bytes: Some(256 << 20),
        };
        let mut file = client.read_file_with("x", None, options).await.unwrap();
        let mut buffer = vec![0; 65_536];
        while file.read(&mut buffer).await.is_ok() {}
    })
    .await;
    assert!(download < 8 * MIB, "{download}");

    let frame = [&[0, 0, 1, 0, 0][..], &[b'x'; 65_536]].concat();
    let client = endless("application/connect+json", &frame);
    let forwarded = growth(async move {
        let request = Request::get("/files?path=x").body(Empty::<Bytes>::new());
        let response = client
            .forward(request.unwrap(), ForwardOptions::default())
            .await
            .unwrap();
        let mut body = bounded_frames(response.into_body(), FRAME_BYTES_MAX);
        let mut passed = 0;
        while passed < 256 << 20 {
            passed += body
                .frame()
                .await
                .unwrap()
                .unwrap()
                .into_data()
                .unwrap()
                .len();
        }
    })
    .await;
    assert!(forwarded < 8 * MIB, "{forwarded}");
    let name = |name: &str| EntryInfo {
        name: name.to_owned(),
        ..Default::default()
    };
    // Five bytes on the wire, hundreds in memory.
    let tiny = list_response(vec![name("a"); 5000]).encode_to_vec();
    let tiny = refused_list(&tiny).await;
    let honest = list_response(vec![file_info("a.txt"); 500]).encode_to_vec();
    let honest = refused_list(&honest).await;
    // A vector that grows is there twice for a moment.
    assert!(tiny < 450 * MIB && honest < 450 * MIB, "{tiny} {honest}");
    println!(
        "KiB: list of tiny entries {tiny}, honest list {honest}, unknown fields {unknown}, \
         events {events}, download {download}, forwarded {forwarded}"
    );
}
