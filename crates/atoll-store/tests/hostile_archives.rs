//! Archives that want out, lie or end too early. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_wrap,
    reason = "tests fail by panicking"
)]

mod support;

use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use atoll_store::{LayerError, UnpackError, no_progress};
use support::{archive, entry, leftovers, open};
use tar::EntryType;

#[tokio::test]
async fn hostile_archives_are_refused_and_leave_nothing() {
    let home = tempfile::tempdir().unwrap();
    let layers = open(&home);
    let outside = tempfile::tempdir().unwrap();
    let link = outside.path().as_os_str().as_bytes();
    let file = EntryType::Regular;
    let pax = |key: &str, value: &[u8]| {
        let mut body = format!("{key}=").into_bytes();
        body.extend_from_slice(value);
        body.push(b'\n');
        let mut length = body.len() + 3;
        while length != format!("{length} ").len() + body.len() {
            length = format!("{length} ").len() + body.len();
        }
        entry(
            EntryType::XHeader,
            b"pax",
            &[format!("{length} ").into_bytes(), body].concat(),
        )
    };
    let map = |numbers: &[u8], data: &[u8]| {
        let mut map = numbers.to_vec();
        map.resize(512, 0);
        map.extend_from_slice(data);
        map
    };
    let sparse = |size: &[u8], data: &[u8]| {
        vec![
            pax("GNU.sparse.major", b"1"),
            pax("GNU.sparse.minor", b"0"),
            pax("GNU.sparse.realsize", size),
            entry(file, b"sparse", data),
        ]
    };
    let cases: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("climbs", vec![entry(file, b"../escape", b"x")]),
        (
            "climbs by the name of a sparse file",
            vec![
                pax("GNU.sparse.name", b"../escape"),
                entry(file, b"fine", b"x"),
            ],
        ),
        (
            "another form of sparse files",
            vec![pax("GNU.sparse.map", b"0,1"), entry(file, b"fine", b"x")],
        ),
        ("a sparse file without a map", sparse(b"10", b"x")),
        (
            "a sparse file whose map lies outside",
            sparse(b"10", &map(b"1\n8\n4\n", b"data")),
        ),
        (
            "a sparse file with less than its map says",
            sparse(b"10", &map(b"1\n0\n8\n", b"data")),
        ),
        (
            "a sparse file with more than its map says",
            sparse(b"10", &map(b"1\n0\n2\n", b"data")),
        ),
        (
            "a sparse file that no disk holds",
            sparse(b"18446744073709551615", &map(b"0\n", b"")),
        ),
        ("climbs inside", vec![entry(file, b"a/../../escape", b"x")]),
        ("absolute", vec![entry(file, b"/escape", b"x")]),
        (
            "climbs by pax",
            vec![pax("path", b"../escape"), entry(file, b"fine", b"x")],
        ),
        (
            "climbs by gnu",
            vec![
                entry(EntryType::GNULongName, b"././@LongLink", b"../escape\0"),
                entry(file, b"fine", b"x"),
            ],
        ),
        (
            "through a link",
            vec![
                entry(EntryType::Symlink, b"door", link),
                entry(file, b"door/escape", b"x"),
            ],
        ),
        (
            "through a relative link",
            vec![
                entry(EntryType::Directory, b"dir/", b""),
                entry(EntryType::Symlink, b"door", b"dir"),
                entry(file, b"door/escape", b"x"),
            ],
        ),
        (
            "directory over a link",
            vec![
                entry(EntryType::Symlink, b"door", link),
                entry(EntryType::Directory, b"door/", b""),
                entry(file, b"door/escape", b"x"),
            ],
        ),
        (
            "hard link out",
            vec![entry(EntryType::Link, b"passwd", b"/etc/passwd")],
        ),
        (
            "hard link climbs",
            vec![entry(EntryType::Link, b"passwd", b"../../../../etc/passwd")],
        ),
        (
            "hard link through a link",
            vec![
                entry(EntryType::Symlink, b"etc", b"/etc"),
                entry(EntryType::Link, b"passwd", b"etc/passwd"),
            ],
        ),
        (
            "hard link to a directory",
            vec![
                entry(EntryType::Directory, b"d", b""),
                entry(EntryType::Link, b"e", b"d"),
            ],
        ),
        ("char device", vec![entry(EntryType::Char, b"null", b"")]),
        ("block device", vec![entry(EntryType::Block, b"disk", b"")]),
        ("root is a file", vec![entry(file, b".", b"x")]),
        (
            "huge part",
            vec![pax("path", &[b'n'; 256]), entry(file, b"fine", b"x")],
        ),
        (
            "huge path",
            vec![
                pax("path", &b"abc/".repeat(1500)),
                entry(file, b"fine", b"x"),
            ],
        ),
        (
            "huge header",
            vec![entry(
                EntryType::XHeader,
                b"pax",
                &vec![b'0'; 2 * 1024 * 1024],
            )],
        ),
        (
            "zero in a name",
            vec![pax("path", b"a\0b"), entry(file, b"fine", b"x")],
        ),
        (
            "two sizes",
            vec![pax("size", b"0"), entry(file, b"fine", b"x")],
        ),
        (
            "broken record",
            vec![
                entry(EntryType::XHeader, b"pax", b"99 path=x\n"),
                entry(file, b"fine", b"x"),
            ],
        ),
        (
            "unknown kind",
            vec![entry(EntryType::new(b'Z'), b"odd", b"")],
        ),
    ];
    for (case, entries) in cases {
        let result = layers.import_tar(archive(&entries), no_progress()).await;
        assert!(
            matches!(result, Err(LayerError::Unpack(_))),
            "{case}: {result:?}"
        );
        assert_eq!(leftovers(&home), Vec::<String>::new(), "{case}");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "{case}");
    }
    assert!(!home.path().join("layers/escape").exists() && !Path::new("/escape").exists());
}

#[tokio::test]
async fn a_later_entry_replaces_a_link_instead_of_following_it() {
    let home = tempfile::tempdir().unwrap();
    let layers = open(&home);
    let outside = tempfile::NamedTempFile::new().unwrap();
    let link = outside.path().as_os_str().as_bytes();
    let entries = [
        entry(EntryType::Symlink, b"file", link),
        entry(EntryType::Regular, b"file", b"new"),
    ];
    let info = layers
        .import_tar(archive(&entries), no_progress())
        .await
        .unwrap();
    assert_eq!(
        fs::read(layers.path(&info.digest).join("file")).unwrap(),
        b"new"
    );
    assert_eq!(fs::read(outside.path()).unwrap(), b"");
}

#[tokio::test]
async fn directories_the_archive_forgot_are_made() {
    let home = tempfile::tempdir().unwrap();
    let layers = open(&home);
    let info = layers
        .import_tar(
            archive(&[entry(EntryType::Regular, b"a/b/c", b"x")]),
            no_progress(),
        )
        .await
        .unwrap();
    assert_eq!(
        fs::read(layers.path(&info.digest).join("a/b/c")).unwrap(),
        b"x"
    );
    assert_eq!(
        fs::metadata(layers.path(&info.digest)).unwrap().mode() & 0o777,
        0o755
    );
}

/// Gives some bytes and then fails or ends.
struct Cut {
    bytes: io::Cursor<Vec<u8>>,
    error: Option<io::Error>,
}

impl Read for Cut {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.bytes.read(buffer)? {
            0 => self.error.take().map_or(Ok(0), Err),
            length => Ok(length),
        }
    }
}

#[tokio::test]
async fn an_interrupted_import_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let layers = open(&home);
    let whole = archive(&[
        entry(EntryType::Regular, b"a", &[1; 2000]),
        entry(EntryType::Regular, b"b", b"b"),
    ])
    .into_inner();
    // In a header, in data, after an entry, before the end marker is whole.
    for length in [100, 1000, 512 + 2048, whole.len() - 1024, whole.len() - 512] {
        for error in [None, Some(io::Error::other("the pipe broke"))] {
            let failing = error.is_some();
            let cut = Cut {
                bytes: io::Cursor::new(whole[..length].to_vec()),
                error,
            };
            let result = layers.import_tar(cut, no_progress()).await;
            let expected = if failing {
                "the pipe broke"
            } else {
                "the archive is cut off"
            };
            match result {
                Err(LayerError::Source(error)) => assert_eq!(error.to_string(), expected),
                Err(LayerError::Unpack(UnpackError::Archive(_) | UnpackError::Malformed(_)))
                    if !failing => {}
                other => panic!("{length}: {other:?}"),
            }
            assert_eq!(leftovers(&home), Vec::<String>::new(), "{length}");
        }
    }
}
