//! Files in and out.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "test code"
)]

mod support;

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use atoll_guest_client::GuestError;
use support::{Guest, is_root};
use tokio::io::AsyncReadExt;

fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[4]
        })
        .collect()
}

async fn download(guest: &Guest, path: &str) -> Result<Vec<u8>, GuestError> {
    let mut bytes = Vec::new();
    guest
        .client
        .read_file(path, None)
        .await?
        .read_to_end(&mut bytes)
        .await
        .unwrap();
    Ok(bytes)
}

fn status(error: GuestError) -> u16 {
    match error {
        GuestError::Refused { status, .. } => status,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn fifty_megabytes_go_in_and_come_out() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place.path().join("a/b/c ü&+%.bin");
    let bytes = noise(50 << 20);
    guest
        .client
        .write_file(
            path.to_str().unwrap(),
            None,
            std::io::Cursor::new(bytes.clone()),
        )
        .await
        .unwrap();
    assert!(std::fs::read(&path).unwrap() == bytes);
    assert!(download(&guest, path.to_str().unwrap()).await.unwrap() == bytes);
    let peak = guest.peak_memory_kib();
    assert!(peak < 24 * 1024, "the guest used {peak} KiB");
}

#[tokio::test]
async fn a_written_file_replaces_what_was_there() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place.path().join("file");
    std::fs::write(&path, "something longer").unwrap();
    guest
        .client
        .write_file(path.to_str().unwrap(), None, &b"short"[..])
        .await
        .unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "short");
    guest
        .client
        .write_file(path.to_str().unwrap(), None, tokio::io::empty())
        .await
        .unwrap();
    assert_eq!(download(&guest, path.to_str().unwrap()).await.unwrap(), b"");
}

#[tokio::test]
async fn procfs_is_readable_though_it_claims_to_be_empty() {
    let guest = Guest::ready().await;
    let id = download(&guest, "/proc/sys/kernel/random/boot_id")
        .await
        .unwrap();
    assert_eq!(id.len(), 37);
}

#[tokio::test]
async fn what_is_no_file_is_refused_at_once() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let place_path = place.path().to_str().unwrap();
    let fifo = place.path().join("fifo");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let fifo = fifo.to_str().unwrap();
    assert_eq!(
        status(
            download(&guest, &format!("{place_path}/none"))
                .await
                .unwrap_err()
        ),
        404
    );
    assert_eq!(status(download(&guest, place_path).await.unwrap_err()), 400);
    assert_eq!(status(download(&guest, fifo).await.unwrap_err()), 400);
    assert_eq!(
        status(download(&guest, "/dev/null").await.unwrap_err()),
        400
    );
    assert_eq!(status(download(&guest, "~other/x").await.unwrap_err()), 400);
    assert_eq!(
        status(
            guest
                .client
                .write_file(place_path, None, &b"x"[..])
                .await
                .unwrap_err()
        ),
        400
    );
    assert_eq!(
        status(
            guest
                .client
                .write_file(fifo, None, &b"x"[..])
                .await
                .unwrap_err()
        ),
        400
    );
    assert_eq!(
        status(
            guest
                .client
                .write_file("/etc/passwd/x", None, &b"x"[..])
                .await
                .unwrap_err()
        ),
        400
    );
}

#[tokio::test]
async fn a_refusal_is_told_even_while_the_client_still_sends() {
    let guest = Guest::ready().await;
    let error = guest
        .client
        .write_file("/dev/full", None, std::io::Cursor::new(noise(8 << 20)))
        .await
        .unwrap_err();
    assert_eq!(status(error), 400);
}

#[tokio::test]
async fn a_full_disk_is_told_apart() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let mount = |args: &[&str]| {
        std::process::Command::new(args[0])
            .args(&args[1..])
            .arg(place.path())
            .status()
            .is_ok_and(|status| status.success())
    };
    if !is_root() || !mount(&["mount", "-t", "tmpfs", "-o", "size=1m", "none"]) {
        eprintln!("skipped: cannot mount a small disk");
        return;
    }
    let path = place.path().join("x");
    let error = guest
        .client
        .write_file(
            path.to_str().unwrap(),
            None,
            std::io::Cursor::new(noise(8 << 20)),
        )
        .await
        .unwrap_err();
    assert!(mount(&["umount", "-l"]));
    assert_eq!(status(error), 507);
}

#[tokio::test]
async fn a_file_is_opened_with_the_rights_of_its_user() {
    if !is_root() {
        eprintln!("skipped: only root can become somebody else");
        return;
    }
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let place_path = place.path().to_str().unwrap();
    let secret = format!("{place_path}/secret");
    std::fs::write(&secret, "x").unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(
        status(
            guest
                .client
                .read_file(&secret, Some("nobody"))
                .await
                .unwrap_err()
        ),
        403
    );
    assert_eq!(
        status(
            guest
                .client
                .write_file(&secret, Some("nobody"), &b"y"[..])
                .await
                .unwrap_err()
        ),
        403
    );
    assert_eq!(
        status(
            guest
                .client
                .write_file(&format!("{place_path}/new"), Some("nobody"), &b"y"[..])
                .await
                .unwrap_err()
        ),
        403
    );

    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let new = format!("{place_path}/dir/new");
    guest
        .client
        .write_file(&new, Some("nobody"), &b"y"[..])
        .await
        .unwrap();
    let (file, directory) = (
        std::fs::metadata(&new).unwrap(),
        std::fs::metadata(format!("{place_path}/dir")).unwrap(),
    );
    assert_eq!(
        (file.uid(), file.gid(), file.mode() & 0o7777),
        (65534, 65534, 0o644)
    );
    assert_eq!(
        (directory.uid(), directory.gid(), directory.mode() & 0o7777),
        (65534, 65534, 0o755)
    );
    // The guest itself is root as before.
    assert_eq!(download(&guest, &secret).await.unwrap(), b"x");
}

#[tokio::test]
async fn an_unknown_user_is_refused() {
    let guest = Guest::ready().await;
    let error = guest
        .client
        .read_file("/etc/hostname", Some("nobody-here"))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, GuestError::Unauthorized(message) if message == "invalid username: 'nobody-here'"),
        "{error}"
    );
}

#[tokio::test]
async fn a_source_that_fails_is_the_callers_error() {
    struct Broken;
    impl tokio::io::AsyncRead for Broken {
        fn poll_read(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            _: &mut tokio::io::ReadBuf<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::task::Poll::Ready(Err(std::io::Error::other("the disk of the caller")))
        }
    }
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place.path().join("x");
    let error = guest
        .client
        .write_file(path.to_str().unwrap(), None, Broken)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, GuestError::Source(source) if source.to_string() == "the disk of the caller"),
        "{error}"
    );
}
