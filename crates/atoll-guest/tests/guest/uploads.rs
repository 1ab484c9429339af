//! How files come in: forms, gzip, metadata, and what is refused.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::raw::{Answer, TinyDisk, ask, connect, encode, gzip, noise, put, receive};
use crate::support::{Guest, TOKEN};

const FORM: (&str, &str) = ("Content-Type", "multipart/form-data; boundary=XX");

fn part(file_name: &str, bytes: &[u8]) -> Vec<u8> {
    let head = format!(
        "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{file_name}\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    );
    [head.as_bytes(), bytes, b"\r\n"].concat()
}

fn form(parts: &[Vec<u8>]) -> Vec<u8> {
    [&parts.concat()[..], b"--XX--\r\n"].concat()
}

fn send_form(guest: &Guest, body: &[u8]) -> Answer {
    ask(guest, "POST /files", &[FORM], body)
}

fn entry(path: &Path) -> serde_json::Value {
    json!({"name": path.file_name().unwrap().to_str().unwrap(), "path": path, "type": "file"})
}

#[tokio::test]
async fn a_form_carries_several_files() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let (first, second) = (place.path().join("x/1 \"ü\\"), place.path().join("x/2"));
    let escaped = format!("{}/x/1 \\\"ü\\\\", place.path().display());
    // What looks like the boundary, almost.
    let tricky = b"\r\n--X\r\n--XY\r\r\n-\r\n--X".repeat(10_000);
    let other =
        b"--XX\r\nContent-Disposition: form-data; name=\"other\"\r\n\r\nignored\r\n".to_vec();
    let body = form(&[
        part(&escaped, &tricky),
        other,
        part(second.to_str().unwrap(), b""),
    ]);
    let answer = send_form(&guest, &body);
    assert_eq!(
        (answer.status, answer.json()),
        (200, json!([entry(&first), entry(&second)]))
    );
    assert!(std::fs::read(&first).unwrap() == tricky);
    assert_eq!(std::fs::read(&second).unwrap(), b"");

    // A path in the query wins over the name in the form; gzip around a form.
    let named = place.path().join("named");
    let start = format!("POST /files?path={}", encode(named.to_str().unwrap()));
    let body = gzip(&form(&[part("ignored", b"zipped")])).await;
    let answer = ask(&guest, &start, &[FORM, ("Content-Encoding", "gzip")], &body);
    assert_eq!(answer.json(), json!([entry(&named)]));
    assert_eq!(std::fs::read(&named).unwrap(), b"zipped");

    let answer = send_form(&guest, b"--XX--\r\n");
    assert_eq!((answer.status, answer.json()), (200, json!([])));
}

#[tokio::test]
async fn a_form_may_come_byte_by_byte() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place.path().join("slow");
    let body = form(&[part(path.to_str().unwrap(), b"a\r\n--X\r\nb")]);
    let mut stream = connect(guest.address);
    stream.set_nodelay(true).unwrap();
    write!(
        stream,
        "POST /files HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Access-Token: {TOKEN}\r\n\
         Content-Type: multipart/form-data; boundary=\"XX\"\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .unwrap();
    for byte in &body {
        stream.write_all(&[*byte]).unwrap();
    }
    assert_eq!(receive(stream).json(), json!([entry(&path)]));
    assert_eq!(std::fs::read(&path).unwrap(), b"a\r\n--X\r\nb");
}

#[tokio::test]
async fn broken_forms_are_refused() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let at = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let raw_part = |disposition: &str| {
        format!("--XX\r\nContent-Disposition: {disposition}\r\n\r\nx\r\n--XX--\r\n").into_bytes()
    };
    let whole = form(&[part(&at("kept"), b"first"), part(&at("cut"), b"second")]);
    for (what, body) in [
        ("no body", Vec::new()),
        ("no boundary in the body", b"hello".to_vec()),
        ("breaks off in a part", whole[..whole.len() - 12].to_vec()),
        ("breaks off in a head", whole[..whole.len() - 60].to_vec()),
        ("no last boundary", part(&at("last"), b"x")),
        ("no name", raw_part("form-data; name=\"file\"")),
        (
            "an empty name",
            raw_part("form-data; name=\"file\"; filename=\"\""),
        ),
        ("an open quote", raw_part("form-data; name=\"file")),
        (
            "a zero",
            raw_part("form-data; name=\"file\"; filename=\"/tmp/a\0b\""),
        ),
        (
            "a hidden zero",
            raw_part("form-data; name=\"file\"; filename*=utf-8''/tmp/a%00b"),
        ),
        (
            "not UTF-8",
            [
                &raw_part("form-data; name=\"file\"; filename=\"/tmp/")[..60],
                b"\xff\"\r\n\r\nx\r\n--XX--\r\n",
            ]
            .concat(),
        ),
        (
            "somebody's home",
            raw_part("form-data; name=\"file\"; filename=\"~root/x\""),
        ),
        (
            "twice the same",
            form(&[part(&at("twice"), b"1"), part(&at("twice"), b"2")]),
        ),
        (
            "twice the same, spelled otherwise",
            form(&[part(&at("a/../b"), b"1"), part(&at("./b"), b"2")]),
        ),
        (
            "a directory",
            form(&[part(place.path().to_str().unwrap(), b"1")]),
        ),
    ] {
        let (status, message) = send_form(&guest, &body).refusal();
        assert_eq!(status, 400, "{what}: {message}");
    }
    assert_eq!(std::fs::read_to_string(at("kept")).unwrap(), "first");
    assert_eq!(std::fs::read_to_string(at("twice")).unwrap(), "1");
    assert_eq!(std::fs::read_to_string(at("b")).unwrap(), "1");

    for content_type in [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/mixed; boundary=XX",
        "text/plain",
        "",
    ] {
        let answer = ask(
            &guest,
            "POST /files",
            &[("Content-Type", content_type)],
            &whole,
        );
        assert_eq!(answer.refusal().0, 400, "{content_type}");
    }
}

#[tokio::test]
async fn endless_heads_are_not_gathered() {
    let guest = Guest::ready().await;
    let filler = vec![b'a'; 12 << 20];
    for start in [
        &b""[..],
        b"--XX\r\nContent-Disposition: ",
        b"--XX\r\nContent-Disposition: form-data; name=\"other\"\r\n\r\nx\r\n--XX\r\nX: ",
    ] {
        let (status, message) = send_form(&guest, &[start, &filler].concat()).refusal();
        assert_eq!(status, 400, "{message}");
        assert!(
            message.contains("the head of a part is longer than"),
            "{message}"
        );
    }
    let peak = guest.peak_memory_kib();
    assert!(peak < 24 * 1024, "the guest used {peak} KiB");
}

#[tokio::test]
async fn what_is_no_upload_is_refused() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place.path().join("x");
    let path = path.to_str().unwrap();
    let octets = [("Content-Type", "application/octet-stream")];
    assert_eq!(
        ask(&guest, "POST /files", &octets, b"x").refusal(),
        (400, "the query parameter `path` is required".to_owned())
    );
    assert_eq!(
        put(&guest, path, &[("Content-Encoding", "br")], b"x").refusal(),
        (
            400,
            "unsupported content encoding `br`, supported are `identity` and `gzip`".to_owned()
        )
    );
    let whole = gzip(b"hello").await;
    for (what, body) in [
        ("nothing", Vec::new()),
        ("no gzip", b"hello, hello, hello".to_vec()),
        ("cut", whole[..whole.len() - 6].to_vec()),
        ("cut in its head", whole[..5].to_vec()),
        ("garbage behind", [&whole[..], b"garbage"].concat()),
        (
            "a wrong sum",
            [&whole[..whole.len() - 8], b"\0\0\0\0\x05\0\0\0"].concat(),
        ),
    ] {
        let (status, message) = put(&guest, path, &[("Content-Encoding", "gzip")], &body).refusal();
        assert_eq!(status, 400, "{what}: {message}");
        assert!(message.starts_with("the upload broke off: "), "{message}");
    }
}

#[tokio::test]
async fn a_body_may_be_chunked_and_compressed() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place.path().join("x");
    let bytes = noise(300_000);
    let compressed = [gzip(&bytes[..100_000]).await, gzip(&bytes[100_000..]).await].concat();
    let mut chunked = Vec::new();
    for chunk in compressed.chunks(7_777) {
        write!(chunked, "{:x}\r\n", chunk.len()).unwrap();
        chunked.extend_from_slice(chunk);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    let headers = [
        ("Content-Encoding", "gzip"),
        ("Transfer-Encoding", "chunked"),
    ];
    let answer = put(&guest, path.to_str().unwrap(), &headers, &chunked);
    assert_eq!(answer.json(), json!([entry(&path)]));
    assert!(std::fs::read(&path).unwrap() == bytes);
}

#[tokio::test]
async fn a_bomb_is_written_in_flat_memory() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place.path().join("bomb");
    let path = path.to_str().unwrap();
    let zeros = vec![0; 200 << 20];
    let gzipped = ("Content-Encoding", "gzip");
    let answer = put(&guest, path, &[gzipped], &gzip(&zeros).await);
    assert_eq!(answer.status, 200);
    assert_eq!(std::fs::metadata(path).unwrap().len(), 200 << 20);
    let body = gzip(&form(&[part(path, &zeros)])).await;
    let answer = ask(&guest, "POST /files", &[FORM, gzipped], &body);
    assert_eq!(answer.status, 200);
    assert_eq!(std::fs::metadata(path).unwrap().len(), 200 << 20);
    // As the head of a part it is worth no more.
    let body = gzip(&[b"--XX\r\nX: ", &zeros[..]].concat()).await;
    let answer = ask(&guest, "POST /files", &[FORM, gzipped], &body);
    assert_eq!(answer.refusal().0, 400);
    let peak = guest.peak_memory_kib();
    assert!(peak < 24 * 1024, "the guest used {peak} KiB");
}

#[tokio::test]
async fn metadata_is_kept_as_a_whole() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place.path().join("x");
    let path_text = path.to_str().unwrap();
    let attributes = || {
        let mut list = vec![0; 4096];
        let length = rustix::fs::listxattr(&path, &mut list[..]).unwrap();
        let mut found: Vec<(String, String)> = list[..length]
            .split(|byte| *byte == 0)
            .filter(|name| name.starts_with(b"user."))
            .map(|name| {
                let name = String::from_utf8(name.to_vec()).unwrap();
                let mut value = vec![0; 4096];
                let length = rustix::fs::getxattr(&path, &name, &mut value[..]).unwrap();
                value.truncate(length);
                (name, String::from_utf8(value).unwrap())
            })
            .collect();
        found.sort();
        found
    };
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let with_metadata = |metadata: serde_json::Value| {
        let mut entry = entry(&path);
        entry["metadata"] = metadata;
        json!([entry])
    };

    let first = [("X-Metadata-Author", "a b"), ("x-metadata-KEY", "1")];
    let answer = put(&guest, path_text, &first, b"1");
    assert_eq!(
        answer.json(),
        with_metadata(json!({"author": "a b", "key": "1"}))
    );
    assert_eq!(
        attributes(),
        [pair("user.e2b.author", "a b"), pair("user.e2b.key", "1")]
    );
    rustix::fs::setxattr(&path, "user.other", b"o", rustix::fs::XattrFlags::empty()).unwrap();

    let answer = put(&guest, path_text, &[("X-Metadata-Key", "2")], b"2");
    assert_eq!(answer.json(), with_metadata(json!({"key": "2"})));
    let kept = [pair("user.e2b.key", "2"), pair("user.other", "o")];
    assert_eq!(attributes(), kept);

    // What cannot be kept leaves the file as it was.
    let (long_key, long_value) = (format!("X-Metadata-{}", "k".repeat(247)), "v".repeat(4096));
    for refused in [
        (&*long_key, "v"),
        ("X-Metadata-A", &*long_value),
        ("X-Metadata-A", "caf\u{e9}"),
        ("X-Metadata-A", "a\tb"),
    ] {
        assert_eq!(put(&guest, path_text, &[refused], b"3").refusal().0, 400);
    }
    assert_eq!(
        (std::fs::read(&path).unwrap(), attributes()),
        (b"2".into(), kept.into())
    );

    let answer = put(&guest, path_text, &[], b"4");
    assert_eq!(answer.json(), json!([entry(&path)]));
    assert_eq!(attributes(), [pair("user.other", "o")]);
}

#[tokio::test]
async fn a_full_disk_is_told_apart() {
    let guest = Guest::ready().await;
    let disk = TinyDisk::mount();
    let path = disk.file("x");
    let path = path.to_str().unwrap();
    let text = format!("not enough disk space available for '{path}'");
    let bytes = noise(8 << 20);
    assert_eq!(
        put(&guest, path, &[], &bytes).refusal(),
        (507, text.clone())
    );
    let answer = send_form(&guest, &form(&[part(path, &bytes)]));
    assert_eq!(answer.refusal(), (507, text));
}

#[tokio::test]
async fn nobody_is_read_for_ever() {
    let guest = Guest::ready().await;
    let mut stream = connect(guest.address);
    let mut sender = stream.try_clone().unwrap();
    write!(
        stream,
        "POST /files?path=/dev/null HTTP/1.1\r\nHost: x\r\nX-Access-Token: {TOKEN}\r\n\
         Content-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    .unwrap();
    let started = Instant::now();
    let endless = std::thread::spawn(move || {
        let chunk = [b"10000\r\n", &[b'x'; 0x10000][..], b"\r\n"].concat();
        let mut sent = 0;
        while sender.write_all(&chunk).is_ok() {
            sent += 0x10000;
        }
        sent
    });
    let answer = receive(stream);
    assert_eq!(
        answer.refusal(),
        (
            400,
            "path '/dev/null' is a device, not a regular file".to_owned()
        )
    );
    let sent = endless.join().unwrap();
    assert!(sent > 16 << 20, "only {sent} bytes were taken");
    assert!(started.elapsed() < Duration::from_secs(30));

    // One that sends nothing more is not waited for either.
    let mut stream = connect(guest.address);
    write!(
        stream,
        "POST /files?path=/dev/null HTTP/1.1\r\nHost: x\r\nX-Access-Token: {TOKEN}\r\n\
         Content-Type: application/octet-stream\r\nContent-Length: 10\r\n\r\n"
    )
    .unwrap();
    assert_eq!(receive(stream).status, 400);
}

#[tokio::test]
async fn who_asks_before_sending_is_refused_before_sending() {
    let guest = Guest::ready().await;
    let mut stream = connect(guest.address);
    write!(
        stream,
        "POST /files?path=/dev/null HTTP/1.1\r\nHost: x\r\nX-Access-Token: {TOKEN}\r\n\
         Expect: 100-continue\r\nContent-Type: application/octet-stream\r\nContent-Length: 10\r\n\r\n"
    )
    .unwrap();
    assert_eq!(receive(stream).status, 400);
}
