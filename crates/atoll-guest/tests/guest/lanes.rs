//! Large files past HTTP, and those who misuse the way.

use std::io::{Cursor, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;

use atoll_guest_client::GuestError;
use atoll_protocol::lane::{PIECE_BYTES_MAX, VERDICT_HEAD_BYTES, Verdict};
use atoll_protocol::signature::{Operation, SignedUrl};
use tokio::io::AsyncReadExt as _;

use crate::support::raw::{TinyDisk, ask, ask_bare, connect, encode, noise};
use crate::support::{Guest, TOKEN};

const LARGE: usize = 5 * 1024 * 1024 + 3;

/// Opens a lane for `path`, past which the connection is ours.
fn open_lane(guest: &Guest, method: &str, path: &Path) -> (TcpStream, String) {
    let mut stream = connect(guest.address);
    let head = format!(
        "{method} /files?path={} HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\n\
         Upgrade: atoll-file\r\nX-Access-Token: {TOKEN}\r\n\r\n",
        encode(path.to_str().unwrap())
    );
    stream.write_all(head.as_bytes()).unwrap();
    let (mut answer, mut byte) = (Vec::new(), [0]);
    while !answer.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    (stream, String::from_utf8(answer).unwrap())
}

fn piece(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap();
    [&length.to_be_bytes()[..], bytes].concat()
}

fn read_verdict(stream: &mut TcpStream) -> Verdict {
    let mut head = [0; VERDICT_HEAD_BYTES];
    stream.read_exact(&mut head).unwrap();
    let (status, length) = Verdict::decode_head(head);
    let mut text = vec![0; usize::try_from(length).unwrap()];
    stream.read_exact(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    Verdict { status, text }
}

#[tokio::test]
async fn a_large_file_goes_in_and_comes_out_as_it_was() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place.path().join("large");
    let name = path.to_str().unwrap();
    let content = noise(LARGE);
    for length in [
        PIECE_BYTES_MAX - 1,
        PIECE_BYTES_MAX,
        PIECE_BYTES_MAX + 1,
        LARGE,
    ] {
        let content = &content[..length];
        guest
            .client
            .write_file(name, None, Cursor::new(content.to_vec()))
            .await
            .unwrap();
        assert!(std::fs::read(&path).unwrap() == content, "{length}");
        let mut read = Vec::new();
        let mut reader = guest.client.read_file(name, None).await.unwrap();
        reader.read_to_end(&mut read).await.unwrap();
        assert!(read == content, "{length}");
    }
}

#[tokio::test]
async fn pieces_of_any_size_make_one_file() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place.path().join("new/pieces");
    let (mut stream, answer) = open_lane(&guest, "POST", &path);
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    let content = noise(PIECE_BYTES_MAX);
    stream.write_all(&piece(&content[..1])).unwrap();
    stream.write_all(&piece(&content)).unwrap();
    stream.write_all(&piece(b"")).unwrap();
    assert_eq!(read_verdict(&mut stream).status, 200);
    assert!(std::fs::read(&path).unwrap() == [&content[..1], &content].concat());
}

#[tokio::test]
async fn who_may_not_ask_gets_no_lane() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place.path().join("secret");
    std::fs::write(&path, noise(LARGE)).unwrap();
    let asks = [("Connection", "upgrade"), ("Upgrade", "atoll-file")];
    for method in ["GET", "POST"] {
        let start = format!("{method} /files?path={}", path.display());
        assert_eq!(ask_bare(guest.address, &start, &asks, b"").status, 401);
    }
    assert_eq!(std::fs::metadata(&path).unwrap().len(), LARGE as u64);
}

#[tokio::test]
async fn a_signature_a_head_and_a_part_are_answered_in_plain_http() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place.path().join("large");
    std::fs::write(&path, noise(LARGE)).unwrap();
    let path = path.to_str().unwrap();
    let lane = [("Connection", "upgrade"), ("Upgrade", "atoll-file")];

    let signed = SignedUrl {
        path,
        operation: Operation::Read,
        user: "",
        expiration: None,
    };
    let signature = encode(&signed.sign(TOKEN));
    let start = format!("GET /files?path={}&signature={signature}", encode(path));
    let answer = ask_bare(guest.address, &start, &lane, b"");
    assert_eq!((answer.status, answer.body.len()), (200, LARGE));

    let start = format!("HEAD /files?path={}", encode(path));
    assert_eq!(ask(&guest, &start, &lane, b"").status, 200);
    let start = format!("GET /files?path={}", encode(path));
    let part = [lane[0], lane[1], ("Range", "bytes=0-9")];
    let answer = ask(&guest, &start, &part, b"");
    assert_eq!((answer.status, answer.body.len()), (206, 10));
}

#[tokio::test]
async fn what_cannot_be_opened_is_refused_before_the_lane() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let (_, answer) = open_lane(&guest, "POST", place.path());
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let (_, answer) = open_lane(&guest, "GET", &place.path().join("none"));
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
}

#[tokio::test]
async fn an_upload_that_breaks_off_leaves_what_came_and_no_thread() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let before = guest.threads();
    let path = place.path().join("half");
    for end in ["in a piece", "between pieces", "in a length"] {
        let (mut stream, _) = open_lane(&guest, "POST", &path);
        stream.write_all(&piece(b"whole")).unwrap();
        match end {
            "in a piece" => stream.write_all(b"\0\0\0\x09half").unwrap(),
            "between pieces" => {}
            _ => stream.write_all(b"\0\0").unwrap(),
        }
        stream.shutdown(Shutdown::Write).unwrap();
        let verdict = read_verdict(&mut stream);
        assert_eq!(verdict.status, 400, "{end}");
        assert!(verdict.text.contains("broke off"), "{verdict:?}");
        assert!(std::fs::read(&path).unwrap().starts_with(b"whole"), "{end}");
    }
    // Those who just go away.
    for _ in 0..20 {
        let (mut stream, _) = open_lane(&guest, "POST", &path);
        stream.write_all(b"\0\0\0\x09half").unwrap();
        drop(stream);
    }
    guest.wait_for_threads(before).await;
}

#[tokio::test]
async fn a_piece_that_is_too_long_is_refused_unread() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place.path().join("long");
    for length in [u32::try_from(PIECE_BYTES_MAX).unwrap() + 1, u32::MAX] {
        let (mut stream, _) = open_lane(&guest, "POST", &path);
        stream.write_all(&length.to_be_bytes()).unwrap();
        let verdict = read_verdict(&mut stream);
        assert_eq!(verdict.status, 400, "{verdict:?}");
    }
    assert!(guest.peak_memory_kib() < 64 * 1024);
}

#[tokio::test]
async fn a_full_disk_is_said_while_the_client_still_sends() {
    let guest = Guest::ready().await;
    let disk = TinyDisk::mount();
    let path = disk.path().join("too-large");
    let error = guest
        .client
        .write_file(path.to_str().unwrap(), None, tokio::io::repeat(b'x'))
        .await
        .unwrap_err();
    assert!(
        matches!(error, GuestError::Refused { status: 507, .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_file_that_shrinks_on_its_way_is_no_file() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place.path().join("shrinks");
    std::fs::File::create(&path)
        .unwrap()
        .set_len(1 << 30)
        .unwrap();
    let mut reader = guest
        .client
        .read_file(path.to_str().unwrap(), None)
        .await
        .unwrap();
    let mut some = vec![0; 1000];
    reader.read_exact(&mut some).await.unwrap();
    std::fs::File::create(&path).unwrap();
    let error = reader.read_to_end(&mut Vec::new()).await.unwrap_err();
    assert!(error.to_string().contains("less of the file"), "{error}");
}

#[tokio::test]
async fn a_client_that_takes_nothing_keeps_only_its_own_thread() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place.path().join("large");
    std::fs::File::create(&path)
        .unwrap()
        .set_len(1 << 30)
        .unwrap();
    let before = guest.threads();
    let lanes: Vec<_> = (0..20).map(|_| open_lane(&guest, "GET", &path)).collect();
    assert_eq!(
        guest.run("echo works").await,
        crate::support::Finished::ok("works\n")
    );
    drop(lanes);
    guest.wait_for_threads(before).await;
}
