//! Guests that lie about files and directories.

use std::time::{Duration, SystemTime};

use atoll_guest_client::{Code, Entry, EntryKind, GuestClient, GuestError};
use atoll_protocol::envd::filesystem::{EntryInfo, MakeDirResponse, RemoveResponse};
use buffa::{EnumValue, Message};

use crate::support::{
    answer, drips, file_info, floods, list_response, proto, says, stalls, stat_response, unary,
};

/// What each call says to a guest that answers all of them in the same way.
async fn each(client: &GuestClient) -> Vec<(&'static str, GuestError)> {
    vec![
        ("stat", client.stat("x", None).await.unwrap_err()),
        ("list", client.list_dir("x", 1, None).await.unwrap_err()),
        ("make", client.make_dir("x", None).await.unwrap_err()),
        ("rename", client.rename("x", "y", None).await.unwrap_err()),
        ("remove", client.remove("x", None).await.unwrap_err()),
    ]
}

macro_rules! assert_each {
    ($client:expr, $expected:pat) => {
        for (call, error) in each(&$client).await {
            assert!(matches!(error, $expected), "{call}: {error:?}");
        }
    };
}

async fn list(body: &[u8]) -> Result<Vec<Entry>, GuestError> {
    says(proto(body)).list_dir("x", 1, Some("user")).await
}

#[tokio::test]
async fn an_honest_guest_is_believed() {
    let entry = says(unary(&stat_response(file_info("a.txt"))))
        .stat("a.txt", Some("user"))
        .await
        .unwrap();
    let modified = SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 5);
    let expected = Entry {
        name: "a.txt".to_owned().into(),
        kind: EntryKind::File,
        path: "/home/user/a.txt".to_owned().into(),
        size: 12,
        mode: 0o644,
        permissions: "-rw-r--r--".to_owned().into(),
        owner: "user".to_owned().into(),
        group: "user".to_owned().into(),
        modified: Some(modified),
        symlink_target: None,
        metadata: [("key".to_owned().into(), "value".to_owned().into())].into(),
        is_symlink: false,
    };
    assert_eq!(entry, expected);

    let two = list_response([file_info("a.txt"), file_info("b")]);
    let names: Vec<_> = list(&two.encode_to_vec())
        .await
        .unwrap()
        .into_iter()
        .map(|entry| entry.file_name().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["a.txt", "b"]);
    assert_eq!(list(b"").await.unwrap(), []);

    let moved = says(unary(&stat_response(file_info("b"))));
    assert_eq!(
        moved.rename("a", "b", None).await.unwrap().file_name(),
        Ok("b")
    );
    says(unary(&RemoveResponse::default()))
        .remove("a", None)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_directory_is_made_once() {
    let made = MakeDirResponse {
        entry: file_info("d").into(),
        ..Default::default()
    };
    assert!(says(unary(&made)).make_dir("d", None).await.unwrap());
    let exists = answer(
        "409 Conflict",
        "content-type: application/json\r\n",
        br#"{"code":"already_exists","message":"there"}"#,
    );
    assert!(!says(exists.clone()).make_dir("d", None).await.unwrap());
    let error = says(exists).stat("d", None).await.unwrap_err();
    assert!(
        matches!(
            error,
            GuestError::Rpc {
                code: Code::AlreadyExists,
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn another_type_another_encoding_another_status() {
    let good = stat_response(file_info("a")).encode_to_vec();
    for headers in [
        "",
        "content-type: application/json\r\n",
        "content-type: text/html\r\n",
        "content-type: application/connect+proto\r\n",
        "content-type: application/proto\r\ncontent-encoding: gzip\r\n",
    ] {
        assert_each!(
            says(answer("200 OK", headers, &good)),
            GuestError::Protocol(_)
        );
    }
    assert_each!(
        says(answer(
            "302 Found",
            "location: /init\r\nconnection: close\r\n",
            b""
        )),
        GuestError::Refused { status: 302, .. }
    );
    assert_each!(
        says("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"),
        GuestError::Protocol(_) | GuestError::Disconnected(_) | GuestError::Refused { .. }
    );
}

#[tokio::test]
async fn an_answer_that_does_not_say_where_it_ends() {
    let good = stat_response(file_info("a")).encode_to_vec();
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/proto\r\n\r\n";
    assert_each!(says([&head[..], &good].concat()), GuestError::Protocol(_));
}

#[tokio::test]
async fn messages_that_are_none() {
    for body in [
        &[0xff, 0xff, 0xff][..],
        // An entry of a gigabyte, an entry of -1 bytes.
        &[0x0a, 0x80, 0x80, 0x80, 0x80, 0x04],
        &[
            0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
        ],
        // A name that is no text.
        &[0x0a, 4, 0x0a, 2, 0xc3, 0x28],
        // A size where a name should be.
        &[0x0a, 2, 0x08, 1],
        // An entry that is a number.
        &[0x08, 1],
        // A group that never ends.
        &[0x0a, 1, 0x5b],
    ] {
        let client = says(proto(body));
        for error in [
            client.stat("x", None).await.unwrap_err(),
            client.list_dir("x", 1, None).await.unwrap_err(),
        ] {
            assert!(
                matches!(error, GuestError::Protocol(_) | GuestError::TooLarge { .. }),
                "{body:x?}: {error:?}"
            );
        }
    }
    assert!(matches!(
        says(proto(b"")).stat("x", None).await,
        Err(GuestError::Protocol(_))
    ));
    assert!(matches!(
        says(proto(b"")).make_dir("x", None).await,
        Err(GuestError::Protocol(_))
    ));
}

#[tokio::test]
async fn entries_that_cannot_be() {
    for info in [
        EntryInfo {
            size: -1,
            ..file_info("a")
        },
        EntryInfo {
            mode: u32::MAX,
            ..file_info("a")
        },
    ] {
        let one = list_response([info.clone()]).encode_to_vec();
        assert!(matches!(list(&one).await, Err(GuestError::Protocol(_))));
        let error = says(unary(&stat_response(info))).stat("a", None).await;
        assert!(matches!(error, Err(GuestError::Protocol(_))));
    }
    // What a version to come may know.
    let strange = EntryInfo {
        r#type: EnumValue::Unknown(77),
        ..file_info("a")
    };
    let entry = says(unary(&stat_response(strange))).stat("a", None).await;
    assert_eq!(entry.unwrap().kind, EntryKind::Other);
}

#[tokio::test]
async fn names_in_lists_that_lead_elsewhere() {
    for name in ["..", ".", "", "/", "a/b", "../../etc/passwd", "/etc", "a\0"] {
        let bytes = list_response([file_info("ok"), file_info(name)]).encode_to_vec();
        let error = list(&bytes).await.unwrap_err();
        assert!(matches!(error, GuestError::Protocol(_)), "{name:?}");
        // Alone it may be that of `/`: plain data, but no file name.
        let entry = says(unary(&stat_response(file_info(name))))
            .stat("x", None)
            .await
            .unwrap();
        assert_eq!(entry.name.as_given(), name);
        assert!(entry.file_name().is_err(), "{name:?}");
    }
    // A file that is renamed meanwhile is honestly seen twice.
    let twice = list_response([file_info("a"), file_info("a")]);
    assert_eq!(list(&twice.encode_to_vec()).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_message_that_nobody_reads_is_bounded() {
    let huge = "x".repeat(300 * 1024);
    let answer = unary(&stat_response(file_info(&huge)));
    let error = says(answer).stat("x", None).await.unwrap_err();
    assert!(
        matches!(error, GuestError::TooLarge { limit: 262_144, .. }),
        "{error:?}"
    );
    let list_of_one = list_response([file_info(&huge)]).encode_to_vec();
    let error = list(&list_of_one).await.unwrap_err();
    assert!(
        matches!(error, GuestError::TooLarge { limit: 262_144, .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn floods_before_and_inside_an_answer() {
    assert_each!(
        floods("HTTP/1.1 200 OK\r\n", vec![b'a'; 4096]),
        GuestError::TooLarge { .. } | GuestError::Protocol(_)
    );
    assert_each!(
        floods("HTTP/1.1 200 OK\r\n", "a: b\r\n".repeat(1000)),
        GuestError::TooLarge { .. } | GuestError::Protocol(_)
    );
    assert_each!(
        floods(
            "HTTP/1.1 200 OK\r\ncontent-type: application/proto\r\ntransfer-encoding: chunked\r\n\r\n",
            format!("1000\r\n{}\r\n", "a".repeat(4096)),
        ),
        GuestError::TooLarge { .. } | GuestError::Protocol(_)
    );
}

#[tokio::test(start_paused = true)]
async fn no_answer_and_half_an_answer() {
    let good = unary(&stat_response(file_info("a")));
    assert_each!(stalls(""), GuestError::Timeout { .. });
    assert_each!(stalls(&good[..30]), GuestError::Timeout { .. });
    assert_each!(stalls(&good[..good.len() - 1]), GuestError::Timeout { .. });
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_drips() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/proto\r\n";
    let with_length = format!("{head}content-length: 200000\r\n\r\n\x0a\x7f");
    let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n");
    for client in [
        drips("", b"HTTP/1.1 ").await,
        drips(head, b"a: b\r\n").await,
        drips("", b"HTTP/1.1 100 Continue\r\n\r\n").await,
        drips(with_length, b"\x0a").await,
        drips(chunked, b"2\r\n\x0a\x00\r\n").await,
    ] {
        let before = tokio::time::Instant::now();
        for (call, error) in each(&client).await {
            assert!(
                matches!(error, GuestError::Timeout { .. } | GuestError::Protocol(_)),
                "{call}: {error:?}"
            );
        }
        assert!(before.elapsed() < Duration::from_secs(5 * 61));
    }
}
