//! Layers as sandboxes need them: exact, safe and whole. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_wrap,
    reason = "tests fail by panicking"
)]

#[expect(dead_code, reason = "archives by hand are for another test")]
mod support;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use atoll_store::{BlobError, Digest, LayerError, no_progress};
use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use support::{leftovers, open};
use tempfile::TempDir;

/// Everything that must survive, by path. Hard links show as the first path of their file.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    mode: u32,
    owner: (u32, u32),
    mtime: i64,
    device: u64,
    content: Vec<u8>,
    first_path: PathBuf,
    xattrs: Vec<(String, Vec<u8>)>,
}

fn see(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut seen = BTreeMap::new();
    let mut first_paths = BTreeMap::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(relative) = pending.pop() {
        let path = root.join(&relative);
        let data = fs::symlink_metadata(&path).unwrap();
        if data.is_dir() {
            let mut names: Vec<_> = fs::read_dir(&path)
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect();
            names.sort_unstable_by(|left, right| right.cmp(left));
            pending.extend(names.into_iter().map(|name| relative.join(name)));
        }
        let content = if data.is_file() {
            fs::read(&path).unwrap()
        } else if data.is_symlink() {
            fs::read_link(&path)
                .unwrap()
                .as_os_str()
                .as_bytes()
                .to_vec()
        } else {
            Vec::new()
        };
        let first_path = if data.is_dir() {
            relative.clone()
        } else {
            first_paths
                .entry(data.ino())
                .or_insert(relative.clone())
                .clone()
        };
        let one = Seen {
            mode: data.mode(),
            owner: (data.uid(), data.gid()),
            mtime: data.mtime(),
            device: data.rdev(),
            content,
            first_path,
            xattrs: xattrs(&path),
        };
        seen.insert(relative, one);
    }
    seen
}

fn xattrs(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut list = vec![0_u8; 65536];
    let length = rustix::fs::llistxattr(path, &mut list[..]).unwrap();
    let names = list[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty());
    let mut found: Vec<_> = names
        .map(|name| {
            let name = String::from_utf8(name.to_vec()).unwrap();
            let mut value = vec![0_u8; 65536];
            let length = rustix::fs::lgetxattr(path, &name, &mut value[..]).unwrap();
            value.truncate(length);
            (name, value)
        })
        .collect();
    found.sort();
    found
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

/// A tree with every kind of thing an overlay's upper directory can hold.
fn full_tree() -> TempDir {
    let tree = tempfile::tempdir().unwrap();
    let root = tree.path();
    fs::create_dir_all(root.join("usr/bin")).unwrap();
    fs::write(root.join("usr/bin/tool"), b"#!/bin/sh\n").unwrap();
    chown(root.join("usr/bin/tool"), Some(0), Some(42)).unwrap();
    fs::set_permissions(
        root.join("usr/bin/tool"),
        fs::Permissions::from_mode(0o4755),
    )
    .unwrap();
    fs::hard_link(root.join("usr/bin/tool"), root.join("usr/bin/again")).unwrap();
    fs::write(root.join("usr/bin/ping"), b"ping").unwrap();
    // A capability whose bits hold a line end, which naive PAX readers split at.
    let capability = [
        1, 0, 0, 2, 10, 32, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0,
    ];
    set_xattr(
        &root.join("usr/bin/ping"),
        "security.capability",
        &capability,
    );
    symlink("../bin/tool", root.join("usr/link")).unwrap();
    lchown(root.join("usr/link"), Some(1000), Some(1000)).unwrap();
    symlink("x".repeat(300), root.join("usr/long-link")).unwrap();
    fs::hard_link(root.join("usr/link"), root.join("usr/same-link")).unwrap();
    fs::create_dir(root.join("opaque")).unwrap();
    set_xattr(&root.join("opaque"), "trusted.overlay.opaque", b"y");
    set_xattr(
        &root.join("opaque"),
        "trusted.overlay.redirect",
        b"/usr/was here",
    );
    rustix::fs::mknodat(
        CWD,
        root.join("gone"),
        FileType::CharacterDevice,
        Mode::empty(),
        0,
    )
    .unwrap();
    rustix::fs::mknodat(
        CWD,
        root.join("pipe"),
        FileType::Fifo,
        Mode::from_raw_mode(0o620),
        0,
    )
    .unwrap();
    let deep = root.join(["d".repeat(200), "e".repeat(200)].join("/"));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("f".repeat(255)), b"deep").unwrap();
    set_xattr(&deep.join("f".repeat(255)), "user.note", b"one\ntwo=3\0");
    let mut sparse = vec![0_u8; 3 * 1024 * 1024];
    sparse[1024 * 1024 + 7] = 9;
    fs::write(root.join("sparse"), &sparse).unwrap();
    chown(root.join("sparse"), Some(65_535), Some(65_534)).unwrap();
    fs::create_dir(root.join("tmp")).unwrap();
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
    fs::write(
        root.join(std::ffi::OsStr::from_bytes(b"not-utf8-\xff")),
        b"",
    )
    .unwrap();
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
    for (number, path) in see(root).keys().enumerate() {
        let time = Timespec {
            tv_sec: 1_600_000_000 + number as i64,
            tv_nsec: 0,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        rustix::fs::utimensat(
            CWD,
            root.join(path),
            &times,
            rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
        )
        .unwrap();
    }
    tree
}

#[tokio::test]
async fn a_tree_survives_import_and_the_way_through_its_blob() {
    let home = tempfile::tempdir().unwrap();
    let layers = open(&home);
    let tree = full_tree();
    let before = see(tree.path());
    let reported = Arc::new(AtomicU64::new(0));
    let report = Arc::clone(&reported);
    let info = layers
        .import_tree(
            tree.path(),
            Arc::new(move |bytes| report.store(bytes, Ordering::Relaxed)),
        )
        .await
        .unwrap();
    assert_eq!(see(&layers.path(&info.digest)), before);
    assert_eq!(
        (info.files, info.bytes),
        (before.len() as u64, reported.load(Ordering::Relaxed))
    );
    assert_eq!(layers.info(&info.digest).unwrap(), Some(info.clone()));
    assert_eq!(layers.list().unwrap(), vec![info.digest.clone()]);
    assert_eq!(
        fs::metadata(home.path().join("layers")).unwrap().mode() & 0o777,
        0o700
    );

    // The same tree again is the same layer and nothing new.
    let names = leftovers(&home);
    assert_eq!(
        layers
            .import_tree(tree.path(), no_progress())
            .await
            .unwrap(),
        info
    );
    assert_eq!(leftovers(&home), names);

    // A lost directory comes back from the blob.
    fs::remove_dir_all(layers.path(&info.digest)).unwrap();
    assert_eq!(
        layers.ensure(&info.digest, no_progress()).await.unwrap(),
        layers.path(&info.digest)
    );
    assert_eq!(see(&layers.path(&info.digest)), before);

    layers.remove(&info.digest).await.unwrap();
    assert_eq!(leftovers(&home), Vec::<String>::new());
    assert!(matches!(
        layers.ensure(&info.digest, no_progress()).await,
        Err(LayerError::Missing(_))
    ));
}

#[tokio::test]
async fn gnu_tar_agrees_about_the_archive() {
    let home = tempfile::tempdir().unwrap();
    let layers = open(&home);
    let tree = full_tree();
    let first = layers
        .import_tree(tree.path(), no_progress())
        .await
        .unwrap();
    let output = std::process::Command::new("tar")
        .args([
            "--format=pax",
            "--xattrs",
            "--xattrs-include=*",
            "--numeric-owner",
            "-C",
        ])
        .arg(tree.path())
        .args(["-cf", "-", "."])
        .output()
        .unwrap();
    assert!(output.status.success());
    let second = layers
        .import_tar(io::Cursor::new(output.stdout), no_progress())
        .await
        .unwrap();
    let (left, right) = (
        see(&layers.path(&first.digest)),
        see(&layers.path(&second.digest)),
    );
    // Which path of a hard link is the first depends on the order of the archive.
    assert_eq!(
        left.keys().collect::<Vec<_>>(),
        right.keys().collect::<Vec<_>>()
    );
    for (path, seen) in &left {
        assert_eq!(seen, &right[path], "{}", path.display());
    }
}

#[tokio::test]
async fn damage_is_noticed_before_anything_is_mounted() {
    let home = tempfile::tempdir().unwrap();
    let layers = open(&home);
    let info = layers
        .import_tree(full_tree().path(), no_progress())
        .await
        .unwrap();
    let other = tempfile::tempdir().unwrap();
    let other = layers
        .import_tree(other.path(), no_progress())
        .await
        .unwrap();
    let blob = |digest: &Digest| home.path().join("blobs/sha256").join(digest.hex());
    fs::remove_dir_all(layers.path(&info.digest)).unwrap();

    let good = fs::read(blob(&info.blob)).unwrap();
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    fs::write(blob(&info.blob), bad).unwrap();
    let result = layers.ensure(&info.digest, no_progress()).await;
    assert!(
        matches!(
            result,
            Err(LayerError::Blob(BlobError::Damaged { .. }) | LayerError::Unpack(_))
        ),
        "{result:?}"
    );
    assert!(!layers.path(&info.digest).exists());

    // A record that points to a sound blob of another layer.
    fs::write(blob(&info.blob), good).unwrap();
    let record = home
        .path()
        .join("layers")
        .join(format!("{}.json", info.digest.file_name()));
    let text = fs::read_to_string(&record)
        .unwrap()
        .replace(info.blob.hex(), other.blob.hex());
    fs::write(&record, text).unwrap();
    let result = layers.ensure(&info.digest, no_progress()).await;
    assert!(
        matches!(result, Err(LayerError::Mismatch { .. })),
        "{result:?}"
    );
    assert!(!layers.path(&info.digest).exists());
}

#[tokio::test]
async fn what_killed_imports_left_is_swept_and_live_ones_are_not() {
    let home = tempfile::tempdir().unwrap();
    let layers = open(&home);
    fs::create_dir_all(home.path().join("layers/.incoming-dead/usr")).unwrap();
    let live = home.path().join("layers/.incoming-live");
    fs::create_dir(&live).unwrap();
    let lock = File::open(&live).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert_eq!(layers.sweep().unwrap(), 1);
    assert_eq!(leftovers(&home), vec!["layers/.incoming-live".to_owned()]);
}

#[tokio::test]
async fn a_socket_is_left_out_and_a_device_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let layers = open(&home);
    let tree = tempfile::tempdir().unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(tree.path().join("socket")).unwrap();
    let info = layers
        .import_tree(tree.path(), no_progress())
        .await
        .unwrap();
    assert_eq!(info.files, 1);
    rustix::fs::mknodat(
        CWD,
        tree.path().join("null"),
        FileType::CharacterDevice,
        Mode::empty(),
        rustix::fs::makedev(1, 3),
    )
    .unwrap();
    let result = layers.import_tree(tree.path(), no_progress()).await;
    assert!(matches!(result, Err(LayerError::Archive(_))), "{result:?}");
    assert_eq!(layers.list().unwrap(), vec![info.digest]);
}
