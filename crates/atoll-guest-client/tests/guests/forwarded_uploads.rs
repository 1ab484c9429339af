//! A client's upload of one file: past HTTP when it is large, and whatever the
//! guest makes of it, the client gets an answer or an error.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use atoll_guest_client::{ForwardOptions, GuestClient, GuestError};
use atoll_protocol::lane::{PIECE_BYTES_MAX, Verdict};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Body, Frame};

use crate::support::{answer, header, liar, read_request, says, send_and_close};

const LARGE: usize = 3 * PIECE_BYTES_MAX + 1;
const LANE: &str =
    "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: atoll-file\r\n\r\n";
const WRITTEN: &str = r#"[{"name":"x","path":"/x","type":"file"}]"#;

fn upload<B>(headers: &[(&str, &str)], body: B) -> Request<B> {
    let mut request = Request::post("/files?path=x");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body).unwrap()
}

const BYTES: [(&str, &str); 1] = [("content-type", "application/octet-stream")];

fn content(length: usize) -> Bytes {
    (0..length).map(|at| at.to_le_bytes()[1]).collect()
}

/// A body whose length nobody knows, in frames of any size; an error instead
/// of its end when it breaks.
fn streamed(
    bytes: &Bytes,
    breaks: Option<io::Error>,
) -> impl Body<Data = Bytes, Error = io::Error> + Unpin + use<> {
    let sizes = [1, 70_000, 0, PIECE_BYTES_MAX + 5, 3];
    let (mut rest, mut frames) = (bytes.clone(), Vec::new());
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        frames.push(Ok(Frame::data(rest.split_to(rest.len().min(*size)))));
    }
    frames.extend(breaks.map(Err));
    StreamBody::new(futures_util::stream::iter(frames))
}

async fn forward<B>(
    client: &GuestClient,
    request: Request<B>,
) -> Result<(Response<()>, String), GuestError>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let response = client.forward(request, ForwardOptions::default()).await?;
    let (head, body) = response.into_parts();
    let body = body.collect().await?.to_bytes();
    let text = String::from_utf8(body.to_vec()).unwrap();
    Ok((Response::from_parts(head, ()), text))
}

/// All pieces up to the empty one.
fn read_pieces(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let mut head = [0; 4];
        stream.read_exact(&mut head).unwrap();
        let length = usize::try_from(u32::from_be_bytes(head)).unwrap();
        assert!(length <= PIECE_BYTES_MAX, "{length}");
        if length == 0 {
            return all;
        }
        let mut piece = vec![0; length];
        stream.read_exact(&mut piece).unwrap();
        all.extend(piece);
    }
}

fn verdict(status: u16, text: &str) -> Vec<u8> {
    let text = text.to_owned();
    Verdict { status, text }.encode()
}

/// A guest that takes a file of `LARGE` bytes past HTTP and says this.
fn takes(said: Vec<u8>) -> GuestClient {
    liar(move |mut stream| {
        stream.write_all(LANE.as_bytes()).unwrap();
        assert!(read_pieces(&mut stream) == content(LARGE));
        send_and_close(stream, &said);
    })
}

#[tokio::test]
async fn a_large_file_goes_past_http_and_is_answered_as_ever() {
    let client = takes(verdict(200, WRITTEN));
    let (whole, unknown) = (Full::new(content(LARGE)), streamed(&content(LARGE), None));
    for (head, text) in [
        forward(&client, upload(&BYTES, whole)).await.unwrap(),
        forward(&client, upload(&BYTES, unknown)).await.unwrap(),
    ] {
        assert_eq!((head.status().as_u16(), text.as_str()), (200, WRITTEN));
        let header = |name| head.headers().get(name).unwrap().to_str().unwrap();
        assert_eq!(header("content-type"), "application/json");
        assert_eq!(header("content-length"), WRITTEN.len().to_string());
        assert_eq!(header("x-content-type-options"), "nosniff");
    }
}

#[tokio::test]
async fn what_is_small_or_more_than_a_file_stays_in_http() {
    let (told, heads) = std::sync::mpsc::channel();
    let client = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let _ = told.send(read_request(&mut stream));
                send_and_close(stream, &answer("200 OK", "", b"[]"));
            }
        });
        crate::support::client(address)
    };
    let small = || Full::new(content(1000));
    let large = || Full::new(content(LARGE));
    let gzip = [BYTES[0], ("content-encoding", "gzip")];
    let metadata = [BYTES[0], ("x-metadata-a", "b")];
    let form = [("content-type", "multipart/form-data; boundary=x")];
    for request in [
        upload(&BYTES, small()),
        upload(&gzip, large()),
        upload(&metadata, large()),
        upload(&form, large()),
        upload(&[], large()),
    ] {
        let length = request.body().size_hint().exact().unwrap().to_string();
        forward(&client, request).await.unwrap();
        let head = heads.recv().unwrap().unwrap();
        assert_eq!(header(&head, "upgrade"), None, "{head}");
        assert_eq!(header(&head, "content-length"), Some(length.as_str()));
    }
    let unknown = upload(&BYTES, streamed(&content(1000), None));
    forward(&client, unknown).await.unwrap();
    let head = heads.recv().unwrap().unwrap();
    assert_eq!(header(&head, "upgrade"), None, "{head}");
}

#[tokio::test]
async fn a_refusal_is_an_answer_whenever_it_comes() {
    let large = || upload(&BYTES, Full::new(content(LARGE)));
    let refused = r#"{"code":507,"message":"full"}"#;
    let early = liar(|mut stream| {
        stream.write_all(LANE.as_bytes()).unwrap();
        stream.read_exact(&mut [0; 100]).unwrap();
        send_and_close(stream, &verdict(507, "full"));
    });
    let plain = says(answer("507 Full", "", refused.as_bytes()));
    for client in [takes(verdict(507, "full")), early, plain] {
        let (head, text) = forward(&client, large()).await.unwrap();
        assert_eq!((head.status().as_u16(), text.as_str()), (507, refused));
    }
    let (_, text) = forward(&takes(verdict(400, "a\u{1b}[2Jb")), large())
        .await
        .unwrap();
    assert!(!text.contains("\\u001b") && text.contains("2Jb"), "{text}");
}

#[tokio::test]
async fn a_guest_that_lies_about_an_upload_is_an_error() {
    let large = || upload(&BYTES, Full::new(content(LARGE)));
    for status in [0, 100, 101, 204, 302, 999] {
        let error = forward(&takes(verdict(status, "")), large())
            .await
            .unwrap_err();
        assert!(
            matches!(error, GuestError::Protocol(_)),
            "{status}: {error:?}"
        );
    }
    let accepts = liar(|mut stream| {
        stream.write_all(LANE.as_bytes()).unwrap();
        stream.write_all(&verdict(200, WRITTEN)).unwrap();
        std::mem::forget(stream);
    });
    // More than any socket keeps for a guest that does not read.
    let endless =
        futures_util::stream::repeat_with(|| Ok::<_, io::Error>(Frame::data(content(LARGE))));
    let endless = StreamBody::new(Box::pin(endless));
    let error = forward(&accepts, upload(&BYTES, endless))
        .await
        .unwrap_err();
    assert!(matches!(error, GuestError::Protocol(_)), "{error:?}");
    let plainly = says(answer("200 OK", "", b"[]"));
    let error = forward(&plainly, large()).await.unwrap_err();
    assert!(matches!(error, GuestError::Protocol(_)), "{error:?}");
    let silent = liar(|mut stream| stream.write_all(LANE.as_bytes()).unwrap());
    let error = forward(&silent, large()).await.unwrap_err();
    assert!(matches!(error, GuestError::Disconnected(_)), "{error:?}");
}

#[tokio::test]
async fn an_upload_that_breaks_is_its_senders_and_not_a_file() {
    let (told, hears) = std::sync::mpsc::channel();
    let client = liar(move |mut stream| {
        stream.write_all(LANE.as_bytes()).unwrap();
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        let _ = told.send(all.ends_with(&[0; 4]));
    });
    let broken = streamed(
        &Bytes::from(vec![7; LARGE]),
        Some(io::ErrorKind::BrokenPipe.into()),
    );
    let error = forward(&client, upload(&BYTES, broken)).await.unwrap_err();
    assert!(matches!(error, GuestError::Source(_)), "{error:?}");
    assert!(
        !hears.recv().unwrap(),
        "the guest was told that it is whole"
    );
}
