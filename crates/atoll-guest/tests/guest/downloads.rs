//! How files come out: headers, ranges, conditions, codings.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use crate::support::Guest;
use crate::support::raw::{self, Answer, ask, get, gunzip, noise};

const THEN: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";

/// Writes a file that was last changed [`THEN`].
fn place_file(directory: &Path, name: &str, bytes: &[u8]) -> String {
    let path = directory.join(name);
    std::fs::write(&path, bytes).unwrap();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(UNIX_EPOCH + Duration::from_millis(784_111_777_900))
        .unwrap();
    path.to_str().unwrap().to_owned()
}

fn headers(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

#[tokio::test]
async fn a_file_is_described() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place_file(place.path(), "a b.txt", b"0123456789");
    let expected = Answer {
        status: 200,
        headers: headers(&[
            ("accept-ranges", "bytes"),
            ("content-disposition", "inline; filename=\"a b.txt\""),
            ("content-length", "10"),
            ("content-type", "text/plain; charset=utf-8"),
            ("last-modified", THEN),
            ("vary", "Accept-Encoding"),
        ]),
        body: b"0123456789".to_vec(),
    };
    assert_eq!(get(&guest, &path, &[]), expected);
    let head = ask(
        &guest,
        &format!("HEAD /files?path={}", raw::encode(&path)),
        &[],
        b"",
    );
    let body = Vec::new();
    assert_eq!(head, Answer { body, ..expected });

    let empty = place_file(place.path(), "empty", b"");
    assert_eq!(
        get(&guest, &empty, &[("Range", "bytes=0-")]),
        Answer {
            status: 200,
            headers: headers(&[
                ("accept-ranges", "bytes"),
                ("content-disposition", "inline; filename=empty"),
                ("content-length", "0"),
                ("content-type", "application/octet-stream"),
                ("last-modified", THEN),
                ("vary", "Accept-Encoding"),
            ]),
            body: Vec::new(),
        }
    );
}

#[tokio::test]
async fn ranges_of_a_small_and_of_a_large_file() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let bytes = noise(300_000);
    for (name, bytes) in [("small", &bytes[..10]), ("large", &bytes[..])] {
        let path = place_file(place.path(), name, bytes);
        let last = bytes.len() - 1;
        let mut table = vec![
            ("bytes=0-0".to_owned(), 0..=0),
            ("bytes=2-5".to_owned(), 2..=5),
            ("bytes=-3".to_owned(), last - 2..=last),
            ("bytes=4-".to_owned(), 4..=last),
            ("bytes=-999999999".to_owned(), 0..=last),
            (format!("bytes={last}-"), last..=last),
        ];
        if name == "large" {
            // Around where the first piece of the file ends.
            table.push(("bytes=65530-65545".to_owned(), 65530..=65545));
            table.push(("bytes=65535-65535".to_owned(), 65535..=65535));
            table.push(("bytes=65536-65536".to_owned(), 65536..=65536));
            table.push(("bytes=200000-".to_owned(), 200_000..=last));
        }
        for (range, expected) in table {
            let answer = get(&guest, &path, &[("Range", &range)]);
            let length = expected.clone().count().to_string();
            let content_range = format!(
                "bytes {}-{}/{}",
                expected.start(),
                expected.end(),
                bytes.len()
            );
            assert_eq!(answer.status, 206, "{range}");
            assert_eq!(answer.header("content-range"), Some(&*content_range));
            assert_eq!(answer.header("content-length"), Some(&*length));
            assert!(answer.body == bytes[expected], "{range} of {name}");
        }
        for range in ["bytes=300000-", "bytes=-0"] {
            let answer = get(&guest, &path, &[("Range", range)]);
            let unsatisfied = format!("bytes */{}", bytes.len());
            assert_eq!(answer.header("content-range"), Some(&*unsatisfied));
            let text = format!("the file has {} bytes", bytes.len());
            assert_eq!(answer.refusal(), (416, text), "{range}");
        }
        for range in ["bytes=0-1,3-4", "lines=1-2", "bytes=5-3", "x"] {
            let answer = get(&guest, &path, &[("Range", range)]);
            assert_eq!(answer.status, 200, "{range}");
            assert!(answer.body == bytes, "{range}");
        }
    }
}

#[tokio::test]
async fn conditions_are_weighed() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place_file(place.path(), "x", b"0123456789");
    let range = ("Range", "bytes=1-2");
    for (asked, status, body) in [
        (vec![("If-Modified-Since", BEFORE)], 200, "0123456789"),
        (vec![("If-Unmodified-Since", THEN)], 200, "0123456789"),
        (vec![range, ("If-Range", THEN)], 206, "12"),
        (vec![range, ("If-Range", BEFORE)], 200, "0123456789"),
        (vec![range, ("If-Range", "\"tag\"")], 200, "0123456789"),
    ] {
        let answer = get(&guest, &path, &asked);
        assert_eq!(
            (answer.status, answer.body),
            (status, body.into()),
            "{asked:?}"
        );
    }
    assert_eq!(
        get(&guest, &path, &[("If-Modified-Since", THEN)]),
        Answer {
            status: 304,
            headers: headers(&[("last-modified", THEN), ("vary", "Accept-Encoding")]),
            body: Vec::new(),
        }
    );
    assert_eq!(
        get(&guest, &path, &[("If-Unmodified-Since", BEFORE)]).refusal(),
        (412, format!("path '{path}' changed since"))
    );
}

#[tokio::test]
async fn gzip_is_for_those_who_ask_for_it() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let bytes = noise(200_000);
    let path = place_file(place.path(), "x.tar", &bytes);
    let answer = get(&guest, &path, &[("Accept-Encoding", "gzip")]);
    assert_eq!(
        (answer.status, answer.headers),
        (
            200,
            headers(&[
                ("content-disposition", "inline; filename=x.tar"),
                ("content-encoding", "gzip"),
                ("content-type", "application/x-tar"),
                ("last-modified", THEN),
                ("vary", "Accept-Encoding"),
            ])
        )
    );
    assert!(gunzip(&answer.body).await == bytes);

    let forced = [
        ("Accept-Encoding", "gzip, identity;q=0"),
        ("Range", "bytes=0-1"),
    ];
    assert!(gunzip(&get(&guest, &path, &forced).body).await == bytes);
    let ranged = [("Accept-Encoding", "gzip"), ("Range", "bytes=0-1")];
    let answer = get(&guest, &path, &ranged);
    assert_eq!((answer.status, &answer.body[..]), (206, &bytes[..2]));
    let plain = get(&guest, &path, &[("Accept-Encoding", "gzip, deflate")]);
    assert_eq!(plain.header("content-encoding"), None);
    assert!(plain.body == bytes);
    for refused in ["identity;q=0", "*;q=0", "br, identity;q=0"] {
        let answer = get(&guest, &path, &[("Accept-Encoding", refused)]);
        assert_eq!(answer.header("vary"), Some("Accept-Encoding"));
        assert_eq!(
            answer.refusal(),
            (
                406,
                "no acceptable encoding, supported are `identity` and `gzip`".to_owned()
            ),
            "{refused}"
        );
    }
}

#[tokio::test]
async fn files_of_the_kernel_lie_about_their_length() {
    let guest = Guest::ready().await;
    for path in [
        "/proc/sys/kernel/random/boot_id",
        "/proc/kallsyms",
        "/sys/devices/system/cpu/possible",
    ] {
        let Ok(expected) = std::fs::read(path) else {
            continue;
        };
        assert_ne!(
            std::fs::metadata(path).unwrap().size(),
            expected.len() as u64
        );
        let answer = get(&guest, path, &[]);
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.body == expected, "{path}");
        let is_short = expected.len() < 65_536;
        assert_eq!(answer.header("content-length").is_some(), is_short);
        let ranged = get(&guest, path, &[("Range", "bytes=1-2")]);
        assert_eq!(ranged.status, if is_short { 206 } else { 200 }, "{path}");
    }
}

#[tokio::test]
async fn a_time_that_http_cannot_write_is_left_out() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place_file(place.path(), "old", b"x");
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(UNIX_EPOCH - Duration::from_secs(1_000_000))
        .unwrap();
    let answer = get(&guest, &path, &[("If-Modified-Since", THEN)]);
    assert_eq!((answer.status, answer.header("last-modified")), (200, None));
    assert_eq!(get(&guest, &path, &[]).body, b"x");
}

#[tokio::test]
async fn a_large_file_is_compressed_in_flat_memory() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place.path().join("sparse");
    File::create(&path).unwrap().set_len(64 << 20).unwrap();
    let answer = get(
        &guest,
        path.to_str().unwrap(),
        &[("Accept-Encoding", "gzip")],
    );
    assert!(answer.body.len() < 1 << 20, "{}", answer.body.len());
    let plain = gunzip(&answer.body).await;
    assert_eq!(plain.len(), 64 << 20);
    assert!(plain.iter().all(|byte| *byte == 0));
    let peak = guest.peak_memory_kib();
    assert!(peak < 24 * 1024, "the guest used {peak} KiB");
}

#[tokio::test]
#[ignore = "long: a gigabyte in and out"]
async fn a_gigabyte_goes_in_and_comes_out_in_flat_memory() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let (source, copy) = (place.path().join("source"), place.path().join("copy"));
    File::create(&source).unwrap().set_len(1 << 30).unwrap();
    let mut reader = guest
        .client
        .read_file(source.to_str().unwrap(), None)
        .await
        .unwrap();
    let got = tokio::io::copy(&mut reader, &mut tokio::io::sink())
        .await
        .unwrap();
    assert_eq!(got, 1 << 30);
    let body = tokio::fs::File::open(&source).await.unwrap();
    guest
        .client
        .write_file(copy.to_str().unwrap(), None, body)
        .await
        .unwrap();
    assert_eq!(std::fs::metadata(&copy).unwrap().len(), 1 << 30);
    let peak = guest.peak_memory_kib();
    assert!(peak < 24 * 1024, "the guest used {peak} KiB");
}
