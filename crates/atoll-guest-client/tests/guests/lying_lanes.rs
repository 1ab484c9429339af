//! What a guest can do wrong with large files, which go past HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use atoll_guest_client::{GuestClient, GuestError, ReadOptions, SaveError};
use atoll_protocol::lane::{TEXT_BYTES_MAX, Verdict};
use tokio::io::AsyncReadExt;

use crate::support::{answer, floods, liar, says, stalls};

const LANE: &str =
    "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: atoll-file\r\n";

/// Long enough that it does not fit into one question.
const LARGE: usize = 1024 * 1024;

fn file(length: &str, bytes: &[u8]) -> Vec<u8> {
    [
        LANE.as_bytes(),
        b"atoll-length: ",
        length.as_bytes(),
        b"\r\n\r\n",
        bytes,
    ]
    .concat()
}

async fn read(client: &GuestClient, max_bytes: Option<u64>) -> Result<Vec<u8>, GuestError> {
    let mut reader = client
        .read_file_with("x", None, ReadOptions { max_bytes })
        .await?;
    let mut bytes = Vec::new();
    match reader.read_to_end(&mut bytes).await {
        Ok(_) => Ok(bytes),
        Err(error) => Err(*error.into_inner().unwrap().downcast().unwrap()),
    }
}

/// More than any socket keeps for a guest that does not read.
const NEVER_SENT: u64 = 256 * 1024 * 1024;

async fn write(client: &GuestClient) -> GuestError {
    write_bytes(client, NEVER_SENT).await
}

async fn write_bytes(client: &GuestClient, count: u64) -> GuestError {
    let body = tokio::io::repeat(b'x').take(count);
    client.write_file("x", None, body).await.unwrap_err()
}

/// A guest that gives a lane and then does as `lie` says.
fn lane(lie: impl Fn(TcpStream) + Send + Sync + 'static) -> GuestClient {
    liar(move |mut stream| {
        stream.write_all(format!("{LANE}\r\n").as_bytes()).unwrap();
        lie(stream);
    })
}

fn verdict(status: u16, text: &str) -> Vec<u8> {
    let text = text.to_owned();
    Verdict { status, text }.encode()
}

#[tokio::test]
async fn a_file_in_one_packet_with_its_answer() {
    let client = says(file("5", b"hello"));
    assert_eq!(read(&client, None).await.unwrap(), b"hello");
    // What follows it is nobody's.
    let client = says(file("5", b"hello, and more"));
    assert_eq!(read(&client, Some(5)).await.unwrap(), b"hello");
}

#[tokio::test]
async fn a_file_that_breaks_off_is_no_file() {
    for bytes in [&b""[..], b"hell"] {
        let error = read(&says(file("5", bytes)), None).await.unwrap_err();
        assert!(matches!(error, GuestError::Protocol(_)), "{error:?}");
    }
}

#[tokio::test]
async fn a_file_without_an_honest_length() {
    let none = format!("{LANE}\r\nhello").into_bytes();
    for answer in [
        none,
        file("", b""),
        file("-1", b""),
        file("+5", b"hello"),
        file("five", b"hello"),
        file("99999999999999999999999", b"hello"),
    ] {
        let error = read(&says(answer), None).await.unwrap_err();
        assert!(matches!(error, GuestError::Protocol(_)), "{error:?}");
    }
}

#[tokio::test]
async fn a_file_that_is_larger_than_wanted_is_refused_at_once() {
    let client = floods(file("18446744073709551615", b""), vec![b'x'; 4096]);
    let error = read(&client, Some(1000)).await.unwrap_err();
    assert!(
        matches!(error, GuestError::TooLarge { limit: 1000, .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_file_that_stops_coming() {
    let client = stalls(file("9", b"hello")).with_silence_bound(Duration::from_millis(200));
    let error = read(&client, None).await.unwrap_err();
    assert!(matches!(error, GuestError::Timeout { .. }), "{error:?}");
}

#[tokio::test]
async fn a_lane_that_nobody_asked_for() {
    let client = says(file("5", b"hello"));
    let error = client.read_file_range("x", 0..5, None).await.unwrap_err();
    assert!(
        matches!(
            error,
            GuestError::Refused { status: 101, .. } | GuestError::Protocol(_)
        ),
        "{error:?}"
    );
    let error = client.write_file("x", None, &b"x"[..]).await.unwrap_err();
    assert!(
        matches!(
            error,
            GuestError::Refused { status: 101, .. } | GuestError::Protocol(_)
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn an_upload_that_is_refused_on_the_way() {
    let client = lane(|mut stream| {
        let mut some = [0; 100];
        stream.read_exact(&mut some).unwrap();
        stream.write_all(&verdict(507, "full\u{1b}[2J")).unwrap();
        std::mem::forget(stream);
    });
    match write(&client).await {
        GuestError::Refused {
            status: 507,
            message,
        } => assert!(message.starts_with("full") && !message.contains('\u{1b}')),
        other => panic!("{other:?}"),
    }
    // Also when the guest then closes before it has read everything.
    let client = lane(|mut stream| {
        stream.write_all(&verdict(507, "full")).unwrap();
    });
    let error = write(&client).await;
    assert!(
        matches!(
            error,
            GuestError::Refused { status: 507, .. } | GuestError::Disconnected(_)
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn an_upload_that_is_accepted_before_its_end() {
    let client = lane(|mut stream| {
        stream.write_all(&verdict(200, "")).unwrap();
        std::mem::forget(stream);
    });
    let error = write(&client).await;
    assert!(matches!(error, GuestError::Protocol(_)), "{error:?}");
    // The same without a lane.
    let error = write(&says(answer("200 OK", "", b"[]"))).await;
    assert!(matches!(error, GuestError::Protocol(_)), "{error:?}");
}

#[tokio::test]
async fn a_verdict_of_any_length() {
    let mut long = verdict(507, "");
    long[2..].copy_from_slice(&u32::MAX.to_be_bytes());
    let client = lane(move |mut stream| {
        stream.write_all(&long).unwrap();
        let _ = stream.write_all(&vec![b'x'; 2 * TEXT_BYTES_MAX]);
        std::mem::forget(stream);
    });
    let error = write(&client).await;
    assert!(
        matches!(
            error,
            GuestError::TooLarge {
                limit: TEXT_BYTES_MAX,
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn an_upload_that_nobody_takes_or_answers() {
    let bound = Duration::from_millis(200);
    let error = write(&lane(std::mem::forget).with_silence_bound(bound)).await;
    assert!(matches!(error, GuestError::Timeout { .. }), "{error:?}");
    let takes_all = lane(|mut stream| {
        let mut bytes = vec![0; LARGE];
        let _ = stream.read_exact(&mut bytes);
        std::mem::forget(stream);
    });
    let error = write_bytes(&takes_all.with_silence_bound(bound), LARGE as u64).await;
    assert!(matches!(error, GuestError::Timeout { .. }), "{error:?}");
    let error = write(&lane(drop)).await;
    assert!(matches!(error, GuestError::Disconnected(_)), "{error:?}");
}

/// What a file comes to that is saved.
async fn save(client: &GuestClient, to: std::fs::File) -> Result<u64, SaveError> {
    let reader = client.read_file("x", None).await?;
    reader.save_to(to).await
}

#[tokio::test]
async fn a_file_is_saved_as_it_came_or_not_at_all() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("saved");
    let fresh = || std::fs::File::create(&path).unwrap();
    for (bytes, more) in [(b"hello".to_vec(), ""), (vec![7; LARGE], "and more")] {
        let sent = [&bytes[..], more.as_bytes()].concat();
        let client = says(file(&bytes.len().to_string(), &sent));
        assert_eq!(save(&client, fresh()).await.unwrap(), bytes.len() as u64);
        assert!(std::fs::read(&path).unwrap() == bytes);
    }
    // In plain HTTP too, as a guest may answer.
    let client = says(answer("200 OK", "", b"hello"));
    assert_eq!(save(&client, fresh()).await.unwrap(), 5);
    assert_eq!(std::fs::read(&path).unwrap(), b"hello");

    for bytes in [&b""[..], b"hell"] {
        let error = save(&says(file("5", bytes)), fresh()).await.unwrap_err();
        let is_cut = matches!(error, SaveError::Guest(GuestError::Protocol(_)));
        assert!(is_cut, "{error:?}");
    }
    let bound = Duration::from_millis(200);
    let client = stalls(file("9", b"hello")).with_silence_bound(bound);
    let error = save(&client, fresh()).await.unwrap_err();
    let is_late = matches!(error, SaveError::Guest(GuestError::Timeout { .. }));
    assert!(is_late, "{error:?}");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
    let client = floods(file("18446744073709551615", b""), vec![b'x'; 4096]);
    let error = save(&client, full.unwrap()).await.unwrap_err();
    assert!(matches!(error, SaveError::File(_)), "{error:?}");
}

#[tokio::test]
async fn a_file_that_nobody_waits_for_is_not_saved_on() {
    let (told, hears) = std::sync::mpsc::channel();
    let client = liar(move |mut stream| {
        let _ = stream.write_all(&file("18446744073709551615", b"begun"));
        // Its end is the client's.
        let ended = stream.read(&mut [0]);
        let _ = told.send(ended.is_ok());
    });
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("saved");
    let saving = save(&client, std::fs::File::create(&path).unwrap());
    let mut saving = Box::pin(saving);
    while std::fs::read(&path).unwrap() != b"begun" {
        let _ = tokio::time::timeout(Duration::from_millis(1), &mut saving).await;
    }
    drop(saving);
    let ended = tokio::task::spawn_blocking(move || hears.recv_timeout(Duration::from_secs(60)));
    ended.await.unwrap().unwrap();
}
