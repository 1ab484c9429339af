//! What happens in a directory, as it happens.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::rpc::{Frame, Stream, post, refused, short};
use crate::support::{Guest, dig};

const LOST: &str = "events were lost because more happened than was read in time; watch again \
                    and look at the directory anew";

/// A place with a directory `w` to watch and a directory `out` beside it.
fn place() -> (TempDir, String) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().canonicalize().unwrap();
    std::fs::create_dir(path.join("w")).unwrap();
    std::fs::create_dir(path.join("out")).unwrap();
    (place, path.to_str().unwrap().to_owned())
}

fn sh(at: &str, script: &str) {
    let status = Command::new("bash")
        .args(["-ec", script])
        .current_dir(at)
        .status()
        .unwrap();
    assert!(status.success(), "{script}");
}

fn flat(guest: &Guest, at: &str) -> Stream {
    guest.watching(&json!({"path": format!("{at}/w")}))
}

fn recursive(guest: &Guest, at: &str) -> Stream {
    guest.watching(&json!({"path": format!("{at}/w"), "recursive": true}))
}

/// Runs a script and returns all events up to a last one of its own.
fn events_of(stream: &mut Stream, at: &str, script: &str) -> Vec<String> {
    sh(at, script);
    std::fs::create_dir(format!("{at}/w/the-end")).unwrap();
    let mut events = stream.until_created("the-end");
    events.pop();
    std::fs::remove_dir(format!("{at}/w/the-end")).unwrap();
    assert_eq!(stream.event(), "REMOVE the-end");
    events
}

fn until(what: &str, mut happens: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !happens() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn every_change_of_a_file_is_one_event() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    let mut stream = flat(&guest, &at);
    let expect = |stream: &mut Stream, script: &str, expected: &[&str]| {
        assert_eq!(events_of(stream, &at, script), expected, "{script}");
    };
    expect(&mut stream, ": > w/f", &["CREATE f"]);
    expect(&mut stream, "echo x >> w/f", &["WRITE f"]);
    expect(&mut stream, "chmod 600 w/f", &["CHMOD f"]);
    expect(&mut stream, "cat w/f > /dev/null; ls w > /dev/null", &[]);
    expect(&mut stream, "mv w/f w/g", &["RENAME f", "CREATE g"]);
    expect(&mut stream, "mv w/g out/g", &["RENAME g"]);
    expect(&mut stream, "mv out/g w/g", &["CREATE g"]);
    expect(&mut stream, "ln w/g w/h", &["CREATE h"]);
    expect(&mut stream, "rm w/h", &["REMOVE h"]);
    expect(&mut stream, "rm w/g", &["REMOVE g"]);
    expect(&mut stream, "mkdir w/d", &["CREATE d"]);
    expect(&mut stream, "ln -s d w/l", &["CREATE l"]);
    // Not recursive: what is below is somebody else's business.
    expect(&mut stream, "echo x > w/d/f; mkdir w/d/e; rm w/d/f", &[]);
    expect(&mut stream, "chmod 700 w/d", &["CHMOD d"]);
    expect(&mut stream, "rm -r w/d w/l", &["REMOVE d", "REMOVE l"]);
}

#[tokio::test]
async fn the_end_of_a_watched_directory_is_told() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    for reach in [false, true] {
        let mut stream = guest.watching(&json!({"path": format!("{at}/w"), "recursive": reach}));
        sh(&at, "chmod 700 w");
        assert_eq!(stream.event(), "CHMOD .");
        sh(&at, "mkdir w/d; rmdir w/d; rmdir w");
        let rest: Vec<String> = (0..3).map(|_| stream.event()).collect();
        assert_eq!(rest, ["CREATE d", "REMOVE d", "REMOVE ."]);
        sh(&at, "mkdir w w/old");
        let mut stream = guest.watch(
            &json!({"path": format!("{at}/w"), "recursive": reach}),
            &[("keepalive-ping-interval", "1")],
        );
        assert_eq!(stream.next(), Frame::Data(json!({"start": {}})));
        sh(&at, "mv w moved");
        assert_eq!(stream.event(), "RENAME .");
        // Neither what has its path now nor what it is now.
        sh(
            &at,
            "mkdir w; echo x > w/f; echo x > moved/f; echo x > moved/old/f",
        );
        assert_eq!(stream.next(), Frame::Data(json!({"keepalive": {}})));
        sh(&at, "rm -r moved w/f");
    }
}

#[tokio::test]
async fn an_upload_is_a_creation_a_change_of_owner_and_a_write() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    let mut stream = flat(&guest, &at);
    let url = format!("/files?path={at}/w/f");
    let answer = post(
        guest.address,
        &url,
        &[("content-type", "application/octet-stream")],
        b"hello",
    );
    assert_eq!(answer.status, 200);
    assert_eq!(
        events_of(&mut stream, &at, ""),
        ["CREATE f", "CHMOD f", "WRITE f"]
    );
}

#[tokio::test]
async fn a_recursive_watch_sees_what_is_below() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    sh(&at, "mkdir -p w/old/er; ln -s ../out w/link");
    let mut stream = recursive(&guest, &at);
    let expect = |stream: &mut Stream, script: &str, expected: &[&str]| {
        assert_eq!(events_of(stream, &at, script), expected, "{script}");
    };
    expect(&mut stream, ": > w/old/er/f", &["CREATE old/er/f"]);
    expect(
        &mut stream,
        "mv w/old/er/f w/f; chmod 700 w/old/er; rm w/f",
        &["RENAME old/er/f", "CREATE f", "CHMOD old/er", "REMOVE f"],
    );
    // Links are not followed.
    expect(&mut stream, "echo x > out/f; rm out/f", &[]);
    expect(&mut stream, "rm -r w/old", &["REMOVE old/er", "REMOVE old"]);
}

#[tokio::test]
async fn nothing_created_in_a_new_directory_is_missed_or_told_twice() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    let mut stream = recursive(&guest, &at);
    for round in 0..200 {
        let script =
            format!("mkdir -p w/{round}/b/c && echo x > w/{round}/b/c/f && mkdir w/{round}/d");
        let events = events_of(&mut stream, &at, &script);
        let mut created: Vec<&str> = events
            .iter()
            .filter_map(|event| event.strip_prefix("CREATE "))
            .collect();
        // Whoever is told first, each directory is told before what is in it.
        let expected = ["", "/b", "/b/c", "/b/c/f", "/d"].map(|path| format!("{round}{path}"));
        let position = |path: &String| created.iter().position(|created| created == path);
        assert!(
            position(&expected[0]) < position(&expected[1]),
            "{events:?}"
        );
        assert!(
            position(&expected[1]) < position(&expected[2]),
            "{events:?}"
        );
        assert!(
            position(&expected[2]) < position(&expected[3]),
            "{events:?}"
        );
        created.sort_unstable();
        assert_eq!(created, expected, "{events:?}");
        assert!(
            events.contains(&format!("WRITE {round}/b/c/f")),
            "{events:?}"
        );
    }
}

#[tokio::test]
async fn wide_and_deep_trees_made_at_once_are_told_completely() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    let mut stream = recursive(&guest, &at);
    let events = events_of(
        &mut stream,
        &at,
        "for i in {1..40}; do mkdir -p w/$i/{a,b,c}/{d,e}; touch w/$i/{a,b,c}/{d,e}/{f,g}; done",
    );
    let mut told: BTreeMap<&str, usize> = BTreeMap::new();
    for event in &events {
        if let Some(path) = event.strip_prefix("CREATE ") {
            *told.entry(path).or_default() += 1;
        }
    }
    let twice: Vec<_> = told.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    assert_eq!(told.len(), 40 * (1 + 3 + 6 + 12));
}

#[tokio::test]
async fn directories_are_followed_when_they_move() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    sh(
        &at,
        "mkdir -p out/in/deep w/a/b; echo x > out/in/deep/f; : > out/in/empty",
    );
    let mut stream = recursive(&guest, &at);
    let expect = |stream: &mut Stream, script: &str, expected: &[&str]| {
        assert_eq!(events_of(stream, &at, script), expected, "{script}");
    };
    // Into the tree: with all that is in it.
    expect(
        &mut stream,
        "mv out/in w/in",
        &[
            "CREATE in",
            "CREATE in/deep",
            "CREATE in/empty",
            "CREATE in/deep/f",
            "WRITE in/deep/f",
        ],
    );
    expect(&mut stream, "echo x >> w/in/deep/f", &["WRITE in/deep/f"]);
    // Within it: under its new name.
    expect(
        &mut stream,
        "mv w/in w/a/b/new",
        &["RENAME in", "CREATE a/b/new"],
    );
    expect(
        &mut stream,
        ": > w/a/b/new/deep/g",
        &["CREATE a/b/new/deep/g"],
    );
    expect(&mut stream, "mv w/a w/z", &["RENAME a", "CREATE z"]);
    expect(
        &mut stream,
        "rm w/z/b/new/deep/g",
        &["REMOVE z/b/new/deep/g"],
    );
    // Out of it: not any more.
    expect(&mut stream, "mv w/z/b/new out/gone", &["RENAME z/b/new"]);
    expect(
        &mut stream,
        "echo x > out/gone/deep/h; mkdir out/gone/i",
        &[],
    );
    // And in again, under a name that was used before.
    expect(
        &mut stream,
        "rm -r out/gone/deep; mv out/gone w/in",
        &["CREATE in", "CREATE in/empty", "CREATE in/i"],
    );
    expect(&mut stream, "mkdir w/in/i/j", &["CREATE in/i/j"]);
    // One takes the place of another.
    sh(&at, "mkdir w/in/i/j/k");
    assert_eq!(stream.event(), "CREATE in/i/j/k");
    expect(
        &mut stream,
        "mkdir out/e; mv -T out/e w/z/b; touch w/z/b/x",
        &["CREATE z/b", "CREATE z/b/x", "CHMOD z/b/x"],
    );
}

#[tokio::test]
async fn directories_that_move_while_they_fill_are_told_completely() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    let mut stream = recursive(&guest, &at);
    for round in 0..100 {
        let script = format!(
            "mkdir -p w/{round}/a/b; mv w/{round} w/x{round}; mkdir w/x{round}/a/b/c; \
             mv w/x{round}/a w/y{round}; : > w/y{round}/b/c/f"
        );
        let events = events_of(&mut stream, &at, &script);
        let last = format!("CREATE y{round}/b/c/f");
        let told = events.iter().filter(|event| **event == last).count();
        assert_eq!(told, 1, "{events:?}");
    }
}

#[tokio::test]
async fn entries_come_with_what_is_still_there() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    symlink("w", format!("{at}/to-w")).unwrap();
    let path = format!("{at}/to-w");
    let mut stream = guest.watching(&json!({"path": path, "includeEntry": true}));
    let mut next = || match stream.next() {
        Frame::Data(value) => value["filesystem"].clone(),
        end @ Frame::End(_) => panic!("{end:?}"),
    };
    sh(&at, "mkdir w/d");
    let entry = guest
        .call("Stat", &json!({"path": format!("{path}/d")}))
        .unwrap();
    assert_eq!(
        next(),
        json!({"name": "d", "type": "EVENT_TYPE_CREATE", "entry": entry["entry"]})
    );
    sh(&at, "chmod 700 w/d");
    let changed = next();
    assert_eq!(
        (&changed["type"], &changed["entry"]["permissions"]),
        (&json!("EVENT_TYPE_CHMOD"), &json!("drwx------"))
    );
    sh(&at, "mv w/d w/e");
    assert_eq!(next(), json!({"name": "d", "type": "EVENT_TYPE_RENAME"}));
    assert_eq!(next()["entry"]["name"], "e");
    sh(&at, "rmdir w/e");
    assert_eq!(next(), json!({"name": "e", "type": "EVENT_TYPE_REMOVE"}));
    sh(&at, "chmod 755 w");
    assert_eq!(next()["entry"]["path"], format!("{at}/to-w"));
}

#[tokio::test]
async fn what_cannot_be_watched_is_the_last_frame() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    sh(&at, ": > file");
    for (path, code, message) in [
        (
            format!("{at}/none"),
            "not_found",
            format!("path not found: {at}/none"),
        ),
        (
            format!("{at}/file"),
            "invalid_argument",
            format!("path is not a directory: {at}/file"),
        ),
        (
            "~other".to_owned(),
            "invalid_argument",
            "cannot expand user-specific home directory in '~other'".to_owned(),
        ),
    ] {
        let mut stream = guest.watch(&json!({ "path": path }), &[]);
        assert_eq!(stream.next(), Frame::End(Some(refused(code, &message))));
    }
    let stranger = crate::support::rpc::basic("stranger");
    let mut stream = guest.watch(&json!({"path": at}), &[("authorization", &stranger)]);
    assert_eq!(
        stream.next(),
        Frame::End(Some(refused(
            "unauthenticated",
            "invalid username: 'stranger'"
        )))
    );
}

#[tokio::test]
async fn a_silent_watch_says_that_it_lives_and_ends_at_its_deadline() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    let begin = Instant::now();
    let mut stream = guest.watch(
        &json!({"path": format!("{at}/w")}),
        &[
            ("keepalive-ping-interval", "1"),
            ("connect-timeout-ms", "2500"),
        ],
    );
    assert_eq!(stream.next(), Frame::Data(json!({"start": {}})));
    assert!(begin.elapsed() < Duration::from_millis(900));
    assert_eq!(stream.next(), Frame::Data(json!({"keepalive": {}})));
    assert!(begin.elapsed() >= Duration::from_secs(1));
    sh(&at, "mkdir w/d");
    assert_eq!(stream.event(), "CREATE d");
    assert_eq!(stream.next(), Frame::Data(json!({"keepalive": {}})));
    assert_eq!(
        stream.next(),
        Frame::End(Some(refused(
            "deadline_exceeded",
            "context deadline exceeded"
        )))
    );
    assert!(begin.elapsed() >= Duration::from_millis(2500));
}

#[tokio::test]
async fn a_watch_ends_with_its_client() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    let streams: Vec<Stream> = (0..20).map(|_| recursive(&guest, &at)).collect();
    assert_eq!(guest.inotify_instances(), 20);
    drop(streams);
    until("the instances are freed", || guest.inotify_instances() == 0);
    // Also in the midst of events that nobody reads.
    let stream = flat(&guest, &at);
    sh(&at, "for i in {1..20000}; do : > w/$i; done");
    drop(stream);
    until("the instance is freed", || guest.inotify_instances() == 0);
}

#[tokio::test]
async fn watchers_tell_when_asked() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    let request = json!({"path": format!("{at}/w"), "recursive": true});
    let id = guest.call("CreateWatcher", &request).unwrap()["watcherId"].clone();
    let get = || guest.call("GetWatcherEvents", &json!({"watcherId": id}));
    assert_eq!(get(), Ok(json!({})));
    sh(&at, "mkdir w/d; : > w/d/f");
    let mut events: Vec<Value> = Vec::new();
    until("both events are told", || {
        let answer = get().unwrap();
        events.extend(answer["events"].as_array().cloned().unwrap_or_default());
        events.len() >= 2
    });
    assert_eq!(
        events,
        [
            json!({"name": "d", "type": "EVENT_TYPE_CREATE"}),
            json!({"name": "d/f", "type": "EVENT_TYPE_CREATE"})
        ]
    );
    assert_eq!(get(), Ok(json!({})));
    let remove = || guest.call("RemoveWatcher", &json!({"watcherId": id}));
    assert_eq!(remove(), Ok(json!({})));
    let message = format!("watcher with id {} not found", id.as_str().unwrap());
    assert_eq!(get(), Err(refused("not_found", &message)));
    assert_eq!(remove(), Err(refused("not_found", &message)));
    until("the instance is freed", || guest.inotify_instances() == 0);
}

#[tokio::test]
async fn watchers_are_not_without_number() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    // The kernel counts by user, and other tests are root.
    let create = || guest.call_as("games", "CreateWatcher", &json!({ "path": at }));
    let mut ids = Vec::new();
    let refusal = loop {
        match create() {
            Ok(answer) => ids.push(answer["watcherId"].clone()),
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refusal.code, "resource_exhausted");
    let kernel = "too many watches of this user; end other watches or raise \
                  `fs.inotify.max_user_instances`";
    let ours = "there are 256 watchers already; remove some first";
    assert_eq!(refusal.message, if ids.len() < 256 { kernel } else { ours });
    assert!(ids.len() > 50, "{}", ids.len());
    guest
        .call("RemoveWatcher", &json!({"watcherId": ids[0]}))
        .unwrap();
    until("there is room again", || create().is_ok());
}

#[tokio::test]
async fn lost_events_are_told_after_those_that_are_not() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    let request = json!({"path": format!("{at}/w")});
    let id = guest.call("CreateWatcher", &request).unwrap()["watcherId"].clone();
    let get = || guest.call("GetWatcherEvents", &json!({"watcherId": id}));
    let mut stream = flat(&guest, &at);
    // More than the kernel and we keep together. The sockets of the stream
    // keep even more, so its end is not reached by this.
    for index in 0..45_000 {
        std::fs::File::create(format!("{at}/w/{index}")).unwrap();
    }
    let mut told = 0;
    let end = loop {
        match get() {
            Ok(answer) => {
                for event in answer["events"].as_array().unwrap_or(&Vec::new()) {
                    assert_eq!(short(event), format!("CREATE {told}"));
                    told += 1;
                }
            }
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(end, refused("data_loss", LOST));
    assert!((16_384..45_000).contains(&told), "{told}");
    assert_eq!(get().unwrap_err().code, "not_found");
    // The stream was not read, either: it has all or says that it has not.
    for index in 0..45_000 {
        match stream.next() {
            Frame::Data(value) => {
                assert_eq!(short(&value["filesystem"]), format!("CREATE {index}"));
            }
            Frame::End(end) => {
                assert_eq!(end, Some(refused("data_loss", LOST)));
                break;
            }
        }
    }
}

#[tokio::test]
#[ignore = "long: a million events"]
async fn a_million_events_take_little_memory_and_none_is_lost() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    let mut stream = flat(&guest, &at);
    // Two files in turn: the kernel joins events that are the same.
    let names = ["one", "two"].map(|name| format!("{at}/w/{name}"));
    let files = names
        .each_ref()
        .map(|name| std::fs::File::create(name).unwrap());
    assert_eq!(
        [stream.event(), stream.event()],
        ["CREATE one", "CREATE two"]
    );
    for _ in 0..100 {
        for _ in 0..5000 {
            for file in &files {
                std::os::unix::fs::FileExt::write_at(file, b"x", 0).unwrap();
            }
        }
        for _ in 0..5000 {
            assert_eq!([stream.event(), stream.event()], ["WRITE one", "WRITE two"]);
        }
    }
    let peak = guest.peak_memory_kib();
    assert!(peak < 32 * 1024, "the guest used {peak} KiB");
}

#[tokio::test]
#[ignore = "long: four million events that nobody reads"]
async fn a_stream_that_nobody_reads_is_bounded_and_says_what_it_lost() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    let mut stream = flat(&guest, &at);
    let names = ["one", "two"].map(|name| format!("{at}/w/{name}"));
    let files = names
        .each_ref()
        .map(|name| std::fs::File::create(name).unwrap());
    for _ in 0..2_000_000 {
        for file in &files {
            std::os::unix::fs::FileExt::write_at(file, b"x", 0).unwrap();
        }
    }
    let mut told = 0_u32;
    let end = loop {
        match stream.next() {
            Frame::Data(_) => told += 1,
            Frame::End(end) => break end,
        }
    };
    assert_eq!(end, Some(refused("data_loss", LOST)));
    assert!(told > 16_384, "{told}");
    let peak = guest.peak_memory_kib();
    assert!(peak < 32 * 1024, "the guest used {peak} KiB");
}

#[tokio::test]
async fn links_swapped_in_meanwhile_are_not_watched() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    sh(&at, "mkdir -p out/victim/sub; : > out/victim/precious");
    let mut stream = recursive(&guest, &at);
    let (one, other) = (format!("{at}/w/a"), format!("{at}/w/b"));
    std::fs::create_dir(&one).unwrap();
    symlink("../out/victim", &other).unwrap();
    let end = Instant::now() + Duration::from_secs(2);
    let mut swaps = 0_u32;
    while Instant::now() < end {
        for _ in 0..100 {
            rustix::fs::renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
            let _ = std::fs::create_dir(format!("{one}/sub"));
            let _ = std::fs::remove_dir(format!("{other}/sub"));
            swaps += 1;
        }
        std::fs::create_dir(format!("{at}/w/mark")).unwrap();
        for event in stream.until_created("mark") {
            assert!(!event.contains("precious"), "{event}");
        }
        std::fs::remove_dir(format!("{at}/w/mark")).unwrap();
    }
    assert!(swaps > 0);
    assert!(Path::new(&format!("{at}/out/victim/precious")).exists());
    // And it still works.
    events_of(&mut stream, &at, "rm -r w/a w/b");
    assert_eq!(
        events_of(&mut stream, &at, "mkdir w/c; : > out/victim/f"),
        ["CREATE c"]
    );
}

#[tokio::test]
async fn a_tree_deeper_than_paths_can_say_is_refused() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    dig(&format!("{at}/w"), &"d".repeat(100), 50);
    let mut stream = guest.watch(&json!({"path": format!("{at}/w"), "recursive": true}), &[]);
    match stream.next() {
        Frame::End(Some(refusal)) => {
            assert_eq!(refusal.code, "invalid_argument");
            assert!(refusal.message.ends_with(": File name too long"));
        }
        other => panic!("{other:?}"),
    }
    guest
        .call("Remove", &json!({"path": format!("{at}/w")}))
        .unwrap();
}
