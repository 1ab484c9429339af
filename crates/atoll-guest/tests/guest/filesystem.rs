//! What paths are, directories, and their end.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags};
use serde_json::{Value, json};

use crate::support::rpc::{basic, list, post, refused};
use crate::support::{Guest, place, require_root};

/// When everything here was last changed.
const THEN: &str = "2001-02-03T04:05:06Z";

fn set_time(path: &str) {
    let then = Timespec {
        tv_sec: 981_173_106,
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: then,
        last_modification: then,
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn set_mode(path: &str, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn run(command: &[&str]) -> bool {
    Command::new(command[0])
        .args(&command[1..])
        .status()
        .unwrap()
        .success()
}

fn stat(guest: &Guest, path: &str) -> Value {
    guest.call("Stat", &json!({"path": path})).unwrap()["entry"].clone()
}

#[tokio::test]
async fn stat_tells_all_about_files_and_directories() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    let file = format!("{at}/file ü");
    std::fs::write(&file, "hello").unwrap();
    set_mode(&file, 0o4640);
    rustix::fs::chown(&file, Some(rustix::fs::Uid::from_raw(54_321)), None).unwrap();
    set_mode(&file, 0o4640);
    set_time(&file);
    let directory = format!("{at}/dir");
    std::fs::create_dir(&directory).unwrap();
    set_mode(&directory, 0o1777);
    set_time(&directory);
    assert_eq!(
        stat(&guest, &file),
        json!({
            "name": "file ü", "type": "FILE_TYPE_FILE", "path": file, "size": "5",
            "mode": 0o640, "permissions": "urw-r-----", "owner": "54321", "group": "root",
            "modifiedTime": THEN,
        })
    );
    let size = std::fs::metadata(&directory).unwrap().len().to_string();
    assert_eq!(
        stat(&guest, &format!("{at}/x/../dir/")),
        json!({
            "name": "dir", "type": "FILE_TYPE_DIRECTORY", "path": directory, "size": size,
            "mode": 0o777, "permissions": "dtrwxrwxrwx", "owner": "root", "group": "root",
            "modifiedTime": THEN,
        })
    );
    assert_eq!(stat(&guest, "/")["name"], "/");
    assert_eq!(stat(&guest, "")["path"], "/tmp");
    assert_eq!(stat(&guest, "~")["path"], "/root");
}

#[tokio::test]
async fn a_link_is_its_own_but_for_type_and_mode() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    std::fs::write(format!("{at}/file"), "hello").unwrap();
    set_mode(&format!("{at}/file"), 0o600);
    std::fs::create_dir(format!("{at}/dir")).unwrap();
    set_mode(&format!("{at}/dir"), 0o750);
    for (link, target) in [
        ("to-file", "file"),
        ("to-link", "to-file"),
        ("to-dir", "dir"),
        ("broken", "nowhere/at all"),
        ("loop", "loop"),
    ] {
        let link = format!("{at}/{link}");
        symlink(target, &link).unwrap();
        set_time(&link);
    }
    let link = |name: &str, size: usize, more: Value| {
        let mut entry = json!({
            "name": name, "path": format!("{at}/{name}"), "size": size.to_string(),
            "permissions": "Lrwxrwxrwx", "owner": "root", "group": "root",
            "modifiedTime": THEN, "isSymlink": true,
        });
        for (key, value) in more.as_object().unwrap() {
            entry[key] = value.clone();
        }
        entry
    };
    for expected in [
        link(
            "to-file",
            4,
            json!({"type": "FILE_TYPE_FILE", "mode": 0o600, "symlinkTarget": format!("{at}/file")}),
        ),
        link(
            "to-link",
            7,
            json!({"type": "FILE_TYPE_FILE", "mode": 0o600, "symlinkTarget": format!("{at}/file")}),
        ),
        link(
            "to-dir",
            3,
            json!({"type": "FILE_TYPE_DIRECTORY", "mode": 0o750, "symlinkTarget": format!("{at}/dir")}),
        ),
        link("broken", 14, json!({"symlinkTarget": "nowhere/at all"})),
        link("loop", 4, json!({"symlinkTarget": "loop"})),
    ] {
        assert_eq!(stat(&guest, expected["path"].as_str().unwrap()), expected);
    }
}

#[tokio::test]
async fn what_is_neither_file_nor_directory_has_no_type() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    let fifo = format!("{at}/fifo");
    assert!(run(&["mkfifo", "-m", "644", &fifo]));
    let socket = format!("{at}/socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    set_mode(&socket, 0o755);
    for (path, mode, permissions) in [
        (fifo.as_str(), 0o644, "prw-r--r--"),
        (socket.as_str(), 0o755, "Srwxr-xr-x"),
        ("/dev/null", 0o666, "Dcrw-rw-rw-"),
    ] {
        let entry = stat(&guest, path);
        assert_eq!(
            (&entry["type"], &entry["mode"], &entry["permissions"]),
            (&Value::Null, &json!(mode), &json!(permissions)),
            "{path}"
        );
    }
}

#[tokio::test]
async fn metadata_comes_with_files_and_directories() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    let (file, directory) = (format!("{at}/file"), format!("{at}/dir"));
    std::fs::write(&file, "").unwrap();
    std::fs::create_dir(&directory).unwrap();
    symlink(&file, format!("{at}/link")).unwrap();
    let set = |path: &str, name: &str, value: &[u8]| {
        rustix::fs::setxattr(path, name, value, XattrFlags::empty()).is_ok()
    };
    assert!(
        set(&file, "user.e2b.author", b"me"),
        "the file system of the temporary directory needs extended attributes; set TMPDIR to one that has them"
    );
    assert!(set(&file, "user.e2b.empty", b"") && set(&file, "user.other", b"x"));
    assert!(set(&directory, "user.e2b.author", b"you"));
    let entries = guest.call("ListDir", &json!({"path": at})).unwrap();
    let metadata: Vec<&Value> = entries["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| &entry["metadata"])
        .collect();
    assert_eq!(
        metadata,
        [
            &json!({"author": "you"}),
            &json!({"author": "me", "empty": ""}),
            &Value::Null
        ]
    );
    assert_eq!(&stat(&guest, &file)["metadata"], metadata[1]);
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_a_reason() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    std::fs::write(format!("{at}/file"), "").unwrap();
    symlink("loop", format!("{at}/loop")).unwrap();
    let long = "x".repeat(300);
    for method in ["Stat", "MakeDir", "ListDir", "Remove", "WatchDir"] {
        let path = |path: &str| json!({ "path": path });
        let expect = |request: &Value, code: &str, message: &str| {
            let refusal = if method == "WatchDir" {
                guest.call("CreateWatcher", request).unwrap_err()
            } else {
                guest.call(method, request).unwrap_err()
            };
            assert_eq!(refusal, refused(code, message), "{method}");
        };
        expect(
            &path("~other/x"),
            "invalid_argument",
            "cannot expand user-specific home directory in '~other/x'",
        );
        expect(
            &path("a\0b"),
            "invalid_argument",
            "path contains a NUL byte",
        );
        let refusal = guest.call_as("nobody-here", method, &path("/"));
        if method != "WatchDir" {
            assert_eq!(
                refusal.unwrap_err(),
                refused("unauthenticated", "invalid username: 'nobody-here'")
            );
        }
    }
    for (method, path, code, message) in [
        ("Stat", "none", "not_found", "file not found: {}"),
        ("Stat", "file/x", "not_found", "file not found: {}"),
        (
            "Stat",
            "loop/x",
            "invalid_argument",
            "stat '{}': Too many levels of symbolic links",
        ),
        (
            "Stat",
            &long,
            "invalid_argument",
            "stat '{}': File name too long",
        ),
        ("ListDir", "none", "not_found", "path not found: {}"),
        (
            "ListDir",
            "file",
            "invalid_argument",
            "path is not a directory: {}",
        ),
        (
            "ListDir",
            "loop",
            "invalid_argument",
            "open '{}': Too many levels of symbolic links",
        ),
        (
            "MakeDir",
            "file",
            "invalid_argument",
            "path already exists but it is not a directory: {}",
        ),
        (
            "MakeDir",
            "loop",
            "invalid_argument",
            "stat '{}': Too many levels of symbolic links",
        ),
        (
            "MakeDir",
            &long,
            "invalid_argument",
            "stat '{}': File name too long",
        ),
        (
            "MakeDir",
            "",
            "already_exists",
            "directory already exists: {}",
        ),
        (
            "Remove",
            "file/x",
            "invalid_argument",
            "remove '{}': Not a directory",
        ),
        (
            "Remove",
            &long,
            "invalid_argument",
            "remove '{}': File name too long",
        ),
        ("CreateWatcher", "none", "not_found", "path not found: {}"),
        (
            "CreateWatcher",
            "file",
            "invalid_argument",
            "path is not a directory: {}",
        ),
    ] {
        let path = format!("{at}/{path}");
        let path = path.trim_end_matches('/');
        assert_eq!(
            guest.call(method, &json!({"path": path})),
            Err(refused(code, &message.replace("{}", path))),
            "{method}"
        );
    }
    assert_eq!(
        guest.call("Remove", &json!({"path": "/tmp/.."})),
        Err(refused(
            "invalid_argument",
            "refusing to remove '/': remove what is in it by name"
        ))
    );
    assert_eq!(
        guest.call("MakeDir", &json!({"path": format!("{at}/file/a/b")})),
        Err(refused(
            "invalid_argument",
            &format!("path is not a directory: {at}/file")
        ))
    );
}

#[tokio::test]
async fn every_spelling_of_a_request_is_understood() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    std::fs::create_dir(format!("{at}/dir")).unwrap();
    // Fields that are not ours are ignored, names may have underscores.
    let request = json!({"path": at, "include_entry": true, "fromTheFuture": {"a": [1]}});
    let watcher = guest.call("CreateWatcher", &request).unwrap();
    std::fs::create_dir(format!("{at}/new")).unwrap();
    let mut events = json!({});
    while events["events"].is_null() {
        let request = json!({"watcher_id": watcher["watcherId"]});
        events = guest.call("GetWatcherEvents", &request).unwrap();
    }
    assert_eq!(events["events"][0]["entry"]["path"], format!("{at}/new"));
    // Enums may be numbers.
    let process = guest.start("sleep 600").await;
    let json_type = ("content-type", "application/json");
    let signal = json!({"process": {"pid": process.pid()}, "signal": 9}).to_string();
    let path = "/process.Process/SendSignal";
    let answer = post(guest.address, path, &[json_type], signal.as_bytes());
    assert_eq!((answer.status, &*answer.body), (200, &b"{}"[..]));
    // And the whole may be binary: field 1 is the path, the entry its name.
    let mut binary = vec![0x0a, u8::try_from(at.len() + 4).unwrap()];
    binary.extend_from_slice(format!("{at}/dir").as_bytes());
    let answer = post(
        guest.address,
        "/filesystem.Filesystem/Stat",
        &[("content-type", "application/proto")],
        &binary,
    );
    assert_eq!(answer.status, 200);
    assert_eq!(answer.body[0], 0x0a);
    assert!(
        answer
            .body
            .windows(5)
            .any(|window| window == b"\x0a\x03dir")
    );
}

#[tokio::test]
async fn new_directories_belong_to_who_asks() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    let path = format!("{at}/a/b/c");
    let made = guest
        .call_as("nobody", "MakeDir", &json!({ "path": path }))
        .unwrap();
    assert_eq!(made["entry"], stat(&guest, &path));
    for path in ["a", "a/b", "a/b/c"] {
        let made = std::fs::metadata(format!("{at}/{path}")).unwrap();
        assert_eq!(
            (made.uid(), made.gid(), made.mode()),
            (65534, 65534, 0o40755),
            "{path}"
        );
    }
    // What was there before stays whose it was.
    assert_eq!(std::fs::metadata(&at).unwrap().uid(), 0);
    let file = format!("{at}/a/file");
    std::fs::write(&file, "x").unwrap();
    let moved = format!("{at}/new/place/file");
    let request = json!({"source": file, "destination": moved});
    let entry = guest.call_as("nobody", "Move", &request).unwrap();
    assert_eq!(entry["entry"], stat(&guest, &moved));
    let above = std::fs::metadata(format!("{at}/new/place")).unwrap();
    assert_eq!((above.uid(), above.mode()), (65534, 0o40755));
    assert_eq!(std::fs::metadata(&moved).unwrap().uid(), 0);
}

#[tokio::test]
async fn a_directory_behind_a_link_exists() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    std::fs::create_dir(format!("{at}/dir")).unwrap();
    symlink("dir", format!("{at}/link")).unwrap();
    symlink("nowhere", format!("{at}/broken")).unwrap();
    let make = |path: &str| guest.call("MakeDir", &json!({"path": format!("{at}/{path}")}));
    assert_eq!(
        make("link"),
        Err(refused(
            "already_exists",
            &format!("directory already exists: {at}/link")
        ))
    );
    let in_the_way = |path: &str| {
        Err(refused(
            "invalid_argument",
            &format!("path already exists but it is not a directory: {at}/{path}"),
        ))
    };
    assert_eq!(make("broken"), in_the_way("broken"));
    assert_eq!(make("broken/x"), in_the_way("broken"));
    assert_eq!(
        make("link/new").unwrap()["entry"]["path"],
        format!("{at}/link/new")
    );
    assert!(Path::new(&format!("{at}/dir/new")).is_dir());
}

#[tokio::test]
async fn a_move_replaces_files_and_says_why_it_cannot() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    for directory in ["from", "full/sub", "empty"] {
        std::fs::create_dir_all(format!("{at}/{directory}")).unwrap();
    }
    std::fs::write(format!("{at}/one"), "1").unwrap();
    std::fs::write(format!("{at}/two"), "2").unwrap();
    symlink("two", format!("{at}/link")).unwrap();
    let go = |source: &str, destination: &str| {
        guest.call(
            "Move",
            &json!({"source": format!("{at}/{source}"), "destination": format!("{at}/{destination}")}),
        )
    };
    assert!(go("one", "two").is_ok());
    assert_eq!(std::fs::read_to_string(format!("{at}/two")).unwrap(), "1");
    // The link moves, not what it leads to; it leads nowhere from there.
    let entry = go("link", "a/link").unwrap()["entry"].clone();
    assert_eq!(
        (&entry["symlinkTarget"], &entry["type"]),
        (&json!("two"), &Value::Null)
    );
    assert!(go("from", "empty").is_ok());
    std::fs::create_dir(format!("{at}/from")).unwrap();
    for (source, destination, code, message) in [
        (
            "none",
            "b/c",
            "not_found",
            "source file not found: {at}/none",
        ),
        (
            "from",
            "from/x",
            "invalid_argument",
            "cannot move '{at}/from' into itself",
        ),
        (
            "from",
            "full",
            "failed_precondition",
            "destination is a directory that is not empty: {at}/full; remove it first",
        ),
        (
            "two",
            "from",
            "invalid_argument",
            "move '{at}/two' to '{at}/from': Is a directory",
        ),
        (
            "from",
            "two",
            "invalid_argument",
            "move '{at}/from' to '{at}/two': Not a directory",
        ),
        (
            "from",
            "two/x",
            "invalid_argument",
            "path is not a directory: {at}/two",
        ),
    ] {
        assert_eq!(
            go(source, destination),
            Err(refused(code, &message.replace("{at}", &at)))
        );
    }
    assert!(!Path::new(&format!("{at}/b")).exists());
}

#[tokio::test]
async fn full_read_only_and_other_disks_are_told_apart() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    require_root();
    assert!(run(&[
        "mount",
        "-t",
        "tmpfs",
        "-o",
        "nr_inodes=3",
        "none",
        &at
    ]));
    let make = |path: &str| guest.call("MakeDir", &json!({"path": format!("{at}/{path}")}));
    let (first, full) = (make("a"), make("b/c"));
    let outside = tempfile::tempdir().unwrap();
    let outside = outside.path().to_str().unwrap();
    let crossing = guest.call(
        "Move",
        &json!({"source": format!("{at}/a"), "destination": format!("{outside}/a")}),
    );
    let remounted = run(&["mount", "-o", "remount,ro", &at]);
    let remove = |path: &str| guest.call("Remove", &json!({"path": format!("{at}/{path}")}));
    let (read_only, busy, removed) = (make("x"), remove(""), remove("a"));
    assert!(run(&["umount", "-l", &at]) && remounted);
    assert!(first.is_ok());
    assert_eq!(
        full,
        Err(refused(
            "resource_exhausted",
            &format!("mkdir '{at}/b/c': No space left on device")
        ))
    );
    assert_eq!(
        crossing,
        Err(refused(
            "failed_precondition",
            &format!(
                "cannot move '{at}/a' to '{outside}/a': they are on different file systems; \
                 copy it with a command (`cp -a`) and remove the source"
            )
        ))
    );
    let denied = |operation: &str, path: &str| {
        Err(refused(
            "permission_denied",
            &format!("{operation} '{path}': Read-only file system"),
        ))
    };
    assert_eq!(read_only, denied("mkdir", &format!("{at}/x")));
    assert_eq!(removed, denied("remove", &format!("{at}/a")));
    assert_eq!(
        busy,
        Err(refused(
            "failed_precondition",
            &format!("remove '{at}': Device or resource busy")
        ))
    );
}

#[tokio::test]
async fn removal_takes_links_and_not_what_they_lead_to() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    std::fs::create_dir_all(format!("{at}/victim/sub")).unwrap();
    std::fs::write(format!("{at}/victim/sub/file"), "x").unwrap();
    for path in ["tree/a/b/c", "tree/d"] {
        std::fs::create_dir_all(format!("{at}/{path}")).unwrap();
    }
    for path in ["tree/f", "tree/a/f", "tree/a/b/c/f", "file"] {
        std::fs::write(format!("{at}/{path}"), "x").unwrap();
    }
    symlink("../../victim", format!("{at}/tree/a/link")).unwrap();
    symlink("victim", format!("{at}/link")).unwrap();
    for path in ["file", "link", "tree", "tree", "none/at/all"] {
        let request = json!({"path": format!("{at}/{path}")});
        assert_eq!(guest.call("Remove", &request), Ok(json!({})), "{path}");
    }
    assert_eq!(
        list(&guest, &at, 9),
        ["victim", "victim/sub", "victim/sub/file"].map(|path| format!("{at}/{path}"))
    );
}

#[tokio::test]
async fn a_listing_has_each_directory_before_what_is_in_it() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    for path in ["dir/b/deep/er", "dir/a", "dir/a.b", "elsewhere/x"] {
        std::fs::create_dir_all(format!("{at}/{path}")).unwrap();
    }
    for path in ["dir/a/1", "dir/B", "dir/b/deep/f", "dir/c"] {
        std::fs::write(format!("{at}/{path}"), "").unwrap();
    }
    symlink("../elsewhere", format!("{at}/dir/link")).unwrap();
    symlink("nowhere", format!("{at}/dir/broken")).unwrap();
    symlink("dir", format!("{at}/to-dir")).unwrap();
    let below = |top: &str, names: &[&str]| -> Vec<String> {
        names
            .iter()
            .map(|name| format!("{at}/{top}/{name}"))
            .collect()
    };
    let one = ["B", "a", "a.b", "b", "broken", "c", "link"];
    assert_eq!(list(&guest, &format!("{at}/dir"), 0), below("dir", &one));
    assert_eq!(list(&guest, &format!("{at}/dir"), 1), below("dir", &one));
    let two = ["B", "a", "a/1", "a.b", "b", "b/deep", "broken", "c", "link"];
    assert_eq!(list(&guest, &format!("{at}/dir"), 2), below("dir", &two));
    let all = [
        "B",
        "a",
        "a/1",
        "a.b",
        "b",
        "b/deep",
        "b/deep/er",
        "b/deep/f",
        "broken",
        "c",
        "link",
    ];
    for depth in [4, u32::MAX] {
        assert_eq!(
            list(&guest, &format!("{at}/to-dir"), depth),
            below("to-dir", &all)
        );
    }
    assert_eq!(list(&guest, &format!("{at}/dir/a.b"), 1), [""; 0]);
    // Every entry is what `Stat` says.
    let entries = guest
        .call("ListDir", &json!({"path": format!("{at}/dir"), "depth": 9}))
        .unwrap();
    for entry in entries["entries"].as_array().unwrap() {
        assert_eq!(entry, &stat(&guest, entry["path"].as_str().unwrap()));
    }
    assert!(list(&guest, "/", 1).contains(&"/tmp".to_owned()));
}

#[tokio::test]
async fn names_that_are_no_text_are_told_as_well_as_can_be() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    let odd = Path::new(&at).join(OsStr::from_bytes(b"odd\xff"));
    std::fs::create_dir(&odd).unwrap();
    std::fs::write(odd.join("line\nbreak"), "").unwrap();
    assert_eq!(
        list(&guest, &at, 2),
        [
            format!("{at}/odd\u{fffd}"),
            format!("{at}/odd\u{fffd}/line\nbreak")
        ]
    );
    assert_eq!(guest.call("Remove", &json!({ "path": at })), Ok(json!({})));
    assert!(!odd.exists());
    std::fs::create_dir(&at).unwrap();
}

#[tokio::test]
async fn the_user_of_a_request_decides_where_home_is() {
    let guest = Guest::ready().await;
    assert_eq!(stat(&guest, "~")["path"], "/root");
    let home = guest.call_as("nobody", "Stat", &json!({"path": "~"}));
    // Whether or not it exists, it is not root's.
    match home {
        Ok(answer) => assert_ne!(answer["entry"]["path"], "/root"),
        Err(refusal) => assert_eq!(refusal.message, "file not found: /nonexistent"),
    }
    assert_eq!(basic("user"), "Basic dXNlcjo=");
}

#[tokio::test]
async fn a_time_that_no_message_can_carry_is_left_out() {
    let guest = Guest::ready().await;
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = shared.path().join("far");
    std::fs::write(&path, "").unwrap();
    let far = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1 << 45);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(far).unwrap();
    let listed = guest
        .call("ListDir", &json!({"path": shared.path()}))
        .unwrap();
    assert_eq!(listed["entries"][0]["name"], "far");
    assert_eq!(listed["entries"][0].get("modifiedTime"), None);
}
