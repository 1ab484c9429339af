//! Files in and out.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use atoll_guest_client::GuestError;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::inotify;
use tokio::io::AsyncReadExt;

use crate::support::raw::{self, get, noise, put};
use crate::support::{Guest, TOKEN, require_root};

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
    let at = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let fifo = std::process::Command::new("mkfifo")
        .arg(at("fifo"))
        .status();
    assert!(fifo.unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    for (path, what) in [
        (place.path().to_str().unwrap().to_owned(), "a directory"),
        ("/".to_owned(), "a directory"),
        (at("fifo"), "a named pipe"),
        (at("socket"), "a socket"),
        ("/dev/null".to_owned(), "a device"),
        ("/dev/full".to_owned(), "a device"),
    ] {
        let refusal = (400, format!("path '{path}' is {what}, not a regular file"));
        assert_eq!(get(&guest, &path, &[]).refusal(), refusal);
        assert_eq!(put(&guest, &path, &[], b"x").refusal(), refusal);
    }
    assert_eq!(
        get(&guest, &at("none"), &[]).refusal(),
        (404, format!("path '{}' does not exist", at("none")))
    );
    for (path, message) in [
        (
            "~other/x",
            "cannot expand user-specific home directory in '~other/x'",
        ),
        ("/a\0b", "path contains a NUL byte"),
        (
            "/etc/passwd/x",
            "cannot open '/etc/passwd/x': Not a directory (os error 20)",
        ),
    ] {
        let refusal = (400, message.to_owned());
        assert_eq!(get(&guest, path, &[]).refusal(), refusal);
        assert_eq!(put(&guest, path, &[], b"x").refusal(), refusal);
    }
    let long = format!("/tmp/{}", "x".repeat(300));
    assert_eq!(get(&guest, &long, &[]).refusal().0, 400);
    assert_eq!(put(&guest, &long, &[], b"x").refusal().0, 400);
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
async fn no_permission_stops_a_client_and_what_it_makes_is_the_users() {
    require_root();
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let place_path = place.path().to_str().unwrap();
    let secret = format!("{place_path}/secret");
    std::fs::write(&secret, "x").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let owner = |path: &str| {
        let stat = std::fs::metadata(path).unwrap();
        (stat.uid(), stat.gid(), stat.mode() & 0o7777)
    };
    // Nobody may do none of this; the client may, in nobody's name.
    let client = &guest.client;
    client.read_file(&secret, Some("nobody")).await.unwrap();
    assert_eq!(owner(&secret), (0, 0, 0o600));
    client
        .write_file(&secret, Some("nobody"), &b"y"[..])
        .await
        .unwrap();
    assert_eq!(owner(&secret), (65534, 65534, 0o600));
    let new = format!("{place_path}/a/b/new");
    client
        .write_file(&new, Some("nobody"), &b"y"[..])
        .await
        .unwrap();
    assert_eq!(owner(&new), (65534, 65534, 0o644));
    for directory in ["a", "a/b"] {
        let made = format!("{place_path}/{directory}");
        assert_eq!(owner(&made), (65534, 65534, 0o755));
    }
    // Only what is made is the user's, and the guest is root as before.
    assert_eq!(owner(place_path), (0, 0, 0o700));
    client.write_file(&new, None, &b"z"[..]).await.unwrap();
    assert_eq!(owner(&new), (0, 0, 0o644));
}

#[tokio::test]
async fn watchers_see_create_owner_and_one_write() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&watch, place.path(), inotify::WatchFlags::ALL_EVENTS).unwrap();
    let seen = || {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&watch, &mut buffer);
        let mut events = Vec::new();
        while let Ok(event) = reader.next() {
            events.push(event.events());
        }
        events
    };
    let more_within = |milliseconds: i64| {
        let bound = rustix::time::Timespec {
            tv_sec: milliseconds / 1000,
            tv_nsec: milliseconds % 1000 * 1_000_000,
        };
        let mut polled = [PollFd::new(&watch, PollFlags::IN)];
        rustix::event::poll(&mut polled, Some(&bound)).unwrap() > 0
    };
    use inotify::ReadFlags as Event;
    let path = place.path().join("x");
    let path = path.to_str().unwrap();
    // In two pieces, of which the first alone is not written.
    let mut stream = raw::connect(guest.address);
    write!(
        stream,
        "POST /files?path={path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Access-Token: {TOKEN}\r\n\
         Content-Type: application/octet-stream\r\nContent-Length: 11\r\n\r\nhello "
    )
    .unwrap();
    let mut events = Vec::new();
    while events.last() != Some(&Event::ATTRIB) {
        assert!(more_within(10_000), "{events:?}");
        events.extend(seen());
    }
    assert_eq!(events, [Event::CREATE, Event::OPEN, Event::ATTRIB]);
    assert!(!more_within(300), "{:?}", seen());
    stream.write_all(b"world").unwrap();
    assert_eq!(raw::receive(stream).status, 200);
    assert_eq!(seen(), [Event::MODIFY, Event::CLOSE_WRITE]);
    // Truncated and written: the kernel makes one event of two alike.
    assert_eq!(put(&guest, path, &[], b"other").status, 200);
    assert_eq!(
        seen(),
        [
            Event::OPEN,
            Event::ATTRIB,
            Event::MODIFY,
            Event::CLOSE_WRITE
        ]
    );
    assert_eq!(
        put(&guest, path, &[("X-Metadata-A", "b")], b"x").status,
        200
    );
    assert_eq!(
        seen(),
        [
            Event::OPEN,
            Event::ATTRIB,
            Event::MODIFY,
            Event::CLOSE_WRITE
        ]
    );
}

#[tokio::test]
async fn a_link_is_followed_even_to_nothing() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let at = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    symlink(at("target"), at("link")).unwrap();
    assert_eq!(
        get(&guest, &at("link"), &[]).refusal(),
        (404, format!("path '{}' does not exist", at("link")))
    );
    assert_eq!(put(&guest, &at("link"), &[], b"x").status, 200);
    assert!(std::fs::symlink_metadata(at("link")).unwrap().is_symlink());
    assert_eq!(std::fs::read_to_string(at("target")).unwrap(), "x");
    symlink(at("loop"), at("loop")).unwrap();
    assert_eq!(get(&guest, &at("loop"), &[]).refusal().0, 400);
    assert_eq!(put(&guest, &at("loop"), &[], b"x").refusal().0, 400);
    // The same file by other ways.
    for path in [
        format!("/proc/self/root{}", at("link")),
        at("nowhere/../link"),
        format!("/../..{}", at("./link")),
    ] {
        assert_eq!(get(&guest, &path, &[]).body, b"x", "{path}");
    }
}

#[tokio::test]
async fn a_path_swapped_under_us_is_one_thing_or_the_other() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let at = |name: &str| place.path().join(name);
    let (a, b) = (vec![b'a'; 100_000], vec![b'b'; 50_000]);
    std::fs::write(at("a"), &a).unwrap();
    std::fs::write(at("b"), &b).unwrap();
    let fifo = std::process::Command::new("mkfifo")
        .arg(at("fifo"))
        .status();
    assert!(fifo.unwrap().success());
    symlink(at("a"), at("link")).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let swapper = std::thread::spawn({
        let (stop, place) = (Arc::clone(&stop), place.path().to_owned());
        move || {
            for target in ["a", "b", "fifo", "none"].iter().cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                symlink(place.join(target), place.join("next")).unwrap();
                std::fs::rename(place.join("next"), place.join("link")).unwrap();
                let _ = std::fs::remove_file(place.join("none"));
                std::thread::yield_now();
            }
        }
    });
    let link = at("link");
    let link = link.to_str().unwrap();
    let (mut whole, mut refused) = (0, 0);
    // Until both were seen: what never meets a swap proves nothing.
    while whole < 50 || refused < 50 {
        let answer = get(&guest, link, &[]);
        match answer.status {
            200 => {
                assert!(answer.body == a || answer.body == b);
                whole += 1;
            }
            400 | 404 => refused += 1,
            other => panic!("{other}: {answer:?}"),
        }
    }
    let (mut written, mut refused) = (0, 0);
    while written < 50 || refused < 50 {
        match put(&guest, link, &[], b"wwwwwwwwww").status {
            200 => written += 1,
            400 | 404 => refused += 1,
            other => panic!("{other}"),
        }
    }
    stop.store(true, Ordering::Relaxed);
    swapper.join().unwrap();
    let kind = std::fs::symlink_metadata(at("fifo")).unwrap().file_type();
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(&kind));
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

fn compose(guest: &Guest, source: &str, destination: &str) -> raw::Answer {
    let body = serde_json::json!({"source_paths": [source], "destination": destination});
    raw::ask(
        guest,
        "POST /files/compose",
        &[("Content-Type", "application/json")],
        body.to_string().as_bytes(),
    )
}

#[tokio::test]
async fn a_sandbox_full_of_processes_refuses_files_and_lives_on() {
    require_root();
    // The limit of processes does not count for root. One is the guest.
    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups prlimit";
    let nobody: Vec<&str> = nobody.split(' ').collect();
    let guest = Guest::ready_under(&[&nobody[..], &["--nproc=1:"]].concat(), "nobody").await;
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let file = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let (there, new) = (file("there"), file("new"));
    std::fs::write(&there, noise(1 << 20)).unwrap();
    let refusal = |path: &str| {
        let reason = "Resource temporarily unavailable (os error 11)";
        let text = format!(
            "cannot start a thread for '{path}': {reason}; end some of the sandbox's processes and try again"
        );
        (503, text)
    };
    for _ in 0..20 {
        assert_eq!(get(&guest, &there, &[]).refusal(), refusal(&there));
        assert_eq!(put(&guest, &new, &[], b"x").refusal(), refusal(&new));
        assert_eq!(compose(&guest, &there, &new).refusal(), refusal(&new));
    }
    assert!(!place.path().join("new").exists());

    let pid = guest.pid().to_string();
    let freed = std::process::Command::new(nobody[0])
        .args(&nobody[1..])
        .args(["--pid", &pid, "--nproc=1000:"])
        .status()
        .unwrap();
    assert!(freed.success());
    assert_eq!(put(&guest, &new, &[], b"x").status, 200);
    assert!(get(&guest, &there, &[]).body == noise(1 << 20));
}

#[tokio::test]
async fn a_transfer_has_one_thread_which_ends_with_it() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place.path().join("large");
    let name = path.to_str().unwrap().to_owned();
    let bytes = noise(32 << 20);
    assert_eq!(put(&guest, &name, &[], &bytes).status, 200);
    guest.wait_for_threads(1).await;
    assert!(get(&guest, &name, &[]).body == bytes);
    guest.wait_for_threads(1).await;
    for headers in [
        &[("If-None-Match", "*")][..],
        &[("Range", "bytes=5-9")],
        &[("Range", "bytes=99999999-")],
    ] {
        get(&guest, &name, headers);
        guest.wait_for_threads(1).await;
    }

    // A client that stops reading, and leaves.
    let head =
        format!("GET /files?path={name} HTTP/1.1\r\nHost: x\r\nX-Access-Token: {TOKEN}\r\n\r\n");
    let mut stream = raw::connect(guest.address);
    stream.write_all(head.as_bytes()).unwrap();
    std::io::Read::read_exact(&mut stream, &mut [0; 1000]).unwrap();
    guest.wait_for_threads(2).await;
    drop(stream);
    guest.wait_for_threads(1).await;

    // A client that stops writing, and leaves.
    let head = format!(
        "POST /files?path={name} HTTP/1.1\r\nHost: x\r\nX-Access-Token: {TOKEN}\r\n\
         Content-Type: application/octet-stream\r\nContent-Length: 1000000\r\n\r\n"
    );
    let mut stream = raw::connect(guest.address);
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&bytes[..200_000]).unwrap();
    guest.wait_for_threads(2).await;
    drop(stream);
    guest.wait_for_threads(1).await;
    assert!(bytes.starts_with(&std::fs::read(&path).unwrap()));
}
