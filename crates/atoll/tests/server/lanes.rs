//! Large files that pass the server by: whole, only for those who may, and no
//! longer than they may.

use std::io::Cursor;
use std::time::{Duration, Instant};

use atoll_guest_client::{Gateway, GuestClient, GuestStream, Lanes};
use atoll_protocol::lane::{PIECE_BYTES_MAX, VERDICT_HEAD_BYTES, Verdict};
use atoll_protocol::signature::{Operation, SignedUrl};
use atoll_server::Bounds;
use http::{HeaderMap, HeaderValue};
use tokio::io::AsyncReadExt as _;

use crate::calls::{call, start};
use crate::harness::BOUND;
use crate::served::{Reached, Served, Setup};
use crate::streams::guests_connections;
use crate::wire::{End, Head, Wire, request};

const LARGE: usize = 5 * 1024 * 1024 + 3;
const UPGRADE: [(&str, &str); 2] = [("connection", "upgrade"), ("upgrade", "atoll-file")];

fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[1]
    };
    (0..length).map(|_| next()).collect()
}

fn ask(reached: &Reached, method: &str, path: &str) -> Vec<u8> {
    let target = format!("/files/lane?path={path}");
    call(reached, method, &target, &UPGRADE, b"")
}

/// A lane that was given.
async fn open(served: &Served, reached: &Reached, method: &str, path: &str) -> (Wire, Head) {
    let mut wire = Wire::open(served.address).await;
    wire.send(ask(reached, method, path)).await;
    let head = wire.head().await;
    assert_eq!(head.status, 101, "{head:?}");
    (wire, head)
}

fn piece(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap();
    [&length.to_be_bytes()[..], bytes].concat()
}

async fn verdict(wire: &mut Wire) -> (u16, String) {
    let head = wire.exactly(VERDICT_HEAD_BYTES).await.unwrap();
    let (status, length) = Verdict::decode_head(head.try_into().unwrap());
    let text = wire.exactly(usize::try_from(length).unwrap()).await;
    (status, String::from_utf8(text.unwrap()).unwrap())
}

/// A sparse file of a terabyte, which nobody reads to its end.
async fn make_zeros(served: &Served, reached: &Reached) {
    let made = start(reached, "truncate -s 1T /home/user/zeros");
    assert_eq!(served.ask(made).await.status(), 200);
}

/// How a lane ends that has to, before much more has come over it.
async fn ended(wire: &mut Wire) -> End {
    for _ in 0..64 * 1024 {
        if let Err(end) = wire.exactly(64 * 1024).await {
            return end;
        }
    }
    panic!("gigabytes came, and no end");
}

async fn exists(reached: &Reached, path: &str) -> bool {
    reached.sandbox.live.guest().stat(path, None).await.is_ok()
}

/// The client of a sandbox as the SDK makes it.
fn client(served: &Served, reached: &Reached) -> GuestClient {
    let address = served.address;
    let mut headers = HeaderMap::new();
    headers.insert(
        "e2b-sandbox-id",
        HeaderValue::from_str(reached.id()).unwrap(),
    );
    headers.insert("e2b-sandbox-port", HeaderValue::from_static("49983"));
    let gateway = Gateway {
        connect: std::sync::Arc::new(move || {
            Box::pin(async move {
                let stream = tokio::net::TcpStream::connect(address).await?;
                Ok(GuestStream::Socket(stream))
            })
        }),
        host: HeaderValue::from_static("localhost"),
        headers,
    };
    GuestClient::through(gateway, reached.token.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn large_files_arrive_as_they_were_both_ways() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    let content = noise(LARGE);
    let (mut wire, head) = open(&served, &reached, "POST", "new/large").await;
    assert_eq!(head.header("upgrade"), Some("atoll-file"));
    for bytes in content.chunks(PIECE_BYTES_MAX) {
        wire.send(piece(bytes)).await;
    }
    wire.send(piece(b"")).await;
    let (status, text) = verdict(&mut wire).await;
    assert_eq!(status, 200, "{text}");
    assert_eq!(
        text,
        r#"[{"name":"large","path":"/home/user/new/large","type":"file"}]"#
    );
    assert_eq!(wire.end().await, End::Closed);

    let (mut wire, head) = open(&served, &reached, "GET", "new/large").await;
    assert_eq!(
        head.header("atoll-length"),
        Some(LARGE.to_string().as_str())
    );
    assert!(wire.exactly(LARGE).await.unwrap() == content);
    assert_eq!(wire.end().await, End::Closed);
    let plain = served
        .ask(call(&reached, "GET", "/files?path=new/large", &[], b""))
        .await;
    assert!(plain.body == content);

    // What follows a request at once is part of it.
    let early = [ask(&reached, "POST", "early"), piece(b"early"), piece(b"")].concat();
    let mut wire = Wire::open(served.address).await;
    wire.send(early).await;
    assert_eq!(wire.head().await.status, 101);
    assert_eq!(verdict(&mut wire).await.0, 200);
    let read = served
        .ask(call(&reached, "GET", "/files?path=early", &[], b""))
        .await;
    assert_eq!(read.text(), "early");
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_client_moves_files_with_lanes_and_without() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    let content = noise(LARGE);
    let place = tempfile::tempdir().unwrap();
    let saved = place.path().join("saved");
    for lanes in [Lanes::WherePossible, Lanes::Never] {
        let guest = client(&served, &reached).with_lanes(lanes);
        let source = Cursor::new(content.clone());
        guest.write_file("large", None, source).await.unwrap();
        let mut read = Vec::new();
        let mut reader = guest.read_file("large", None).await.unwrap();
        reader.read_to_end(&mut read).await.unwrap();
        assert!(read == content, "{lanes:?}");
        let reader = guest.read_file("large", None).await.unwrap();
        let file = std::fs::File::create(&saved).unwrap();
        assert_eq!(reader.save_to(file).await.unwrap(), LARGE as u64);
        assert!(std::fs::read(&saved).unwrap() == content, "{lanes:?}");
        // Small ones, and those that are not there.
        guest
            .write_file("small", None, &b"small"[..])
            .await
            .unwrap();
        let mut read = Vec::new();
        let mut reader = guest.read_file("small", None).await.unwrap();
        reader.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, b"small");
        let error = guest.read_file("none", None).await.unwrap_err();
        assert!(error.to_string().contains("does not exist"), "{error}");
        let source = Cursor::new(content.clone());
        let error = guest.write_file("/", None, source).await.unwrap_err();
        assert!(error.to_string().contains("directory"), "{error}");
        guest.remove("large", None).await.unwrap();
    }
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_ask_gets_no_lane() {
    let served = Served::new().await;
    let (owner, stranger) = (served.caller("default").await, served.caller("other").await);
    let reached = served.sandbox_of(&owner, Default::default()).await;
    let foreign = served.sandbox_of(&stranger, Default::default()).await;
    make_zeros(&served, &reached).await;
    let url = |path: &str, operation| {
        let signed = SignedUrl {
            path,
            operation,
            user: "",
            expiration: None,
        };
        let signature = signed.sign(&reached.token);
        let signature = signature.replace('+', "%2B").replace('/', "%2F");
        format!("/files/lane?path={path}&signature={signature}")
    };
    let cases = [
        ("GET", "zeros".to_owned(), Operation::Read),
        ("POST", "made".to_owned(), Operation::Write),
    ];
    for (method, path, operation) in cases {
        let target = format!("/files/lane?path={path}");
        let signed = url(&path, operation);
        let tokens: [(&str, &[&str]); 5] = [
            (&target, &[]),
            (&target, &[""]),
            (&target, &[foreign.token.as_str()]),
            (&target, &[reached.token.as_str(), foreign.token.as_str()]),
            (&signed, &[]),
        ];
        for (target, tokens) in tokens {
            let mut headers = vec![
                ("e2b-sandbox-id", reached.id()),
                ("e2b-sandbox-port", "49983"),
            ];
            headers.extend(UPGRADE);
            headers.extend(tokens.iter().map(|token| ("x-access-token", *token)));
            let answer = served.ask(request(method, target, &headers, b"")).await;
            assert_eq!(
                answer.status(),
                401,
                "{target} {tokens:?}: {}",
                answer.text()
            );
        }
        // Signed or not, a lane has to be told where it leads.
        let headers = [UPGRADE[0], UPGRADE[1], ("x-access-token", &reached.token)];
        let answer = served.ask(request(method, &target, &headers, b"")).await;
        assert_ne!(answer.status(), 101);
    }
    assert!(!exists(&reached, "made").await);
    let (_control, _) = open(&served, &reached, "GET", "zeros").await;
    let (_control, _) = open(&served, &reached, "POST", "made").await;
    assert!(exists(&reached, "made").await);
    served.end([reached, foreign]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_lost_its_upgrade_writes_nothing() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    let keep = "precious";
    let headers = [("content-type", "application/octet-stream")];
    let written = call(
        &reached,
        "POST",
        "/files?path=kept",
        &headers,
        keep.as_bytes(),
    );
    assert_eq!(served.ask(written).await.status(), 200);
    let both = ("upgrade", "atoll-file, websocket");
    for (headers, body) in [
        (&[][..], &b""[..]),
        (&[UPGRADE[0]], b""),
        (&[UPGRADE[1]], b""),
        (&[UPGRADE[0], ("upgrade", "websocket")], b""),
        (&[UPGRADE[0], ("upgrade", "h2c")], b""),
        (&[UPGRADE[0], both], b""),
        (&[UPGRADE[0], UPGRADE[1], UPGRADE[1]], b""),
        (&UPGRADE, b"a body before the lane"),
    ] {
        for method in ["POST", "GET"] {
            let target = "/files/lane?path=kept";
            let answer = served
                .ask(call(&reached, method, target, headers, body))
                .await;
            assert_eq!(answer.status(), 426, "{method} {headers:?}");
            assert_eq!(answer.head.header("upgrade"), Some("atoll-file"));
            assert_eq!(answer.head.header("atoll-lane"), Some("known"));
            assert!(answer.text().contains("hint:"), "{}", answer.text());
        }
    }
    let old = ask(&reached, "POST", "kept");
    let old = String::from_utf8(old)
        .unwrap()
        .replace("HTTP/1.1", "HTTP/1.0");
    assert_eq!(served.ask(old).await.status(), 426);
    let read = served
        .ask(call(&reached, "GET", "/files?path=kept", &[], b""))
        .await;
    assert_eq!(read.text(), keep);
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lanes_break_when_the_key_does_and_when_the_sandbox_ends() {
    let served = Served::new().await;
    let (first, second) = (
        served.caller("default").await,
        served.caller("default").await,
    );
    let reached = served.sandbox_of(&first, Default::default()).await;
    make_zeros(&served, &reached).await;
    let token = served.access.grant(&second, &reached.sandbox.id).await;
    let others = Reached {
        sandbox: std::sync::Arc::clone(&reached.sandbox),
        token: token.unwrap().reveal().to_owned(),
    };
    let begin = async |reached: &Reached, path: &str| {
        let (mut down, _) = open(&served, reached, "GET", "zeros").await;
        down.exactly(1000).await.unwrap();
        let (mut up, _) = open(&served, reached, "POST", path).await;
        up.send(piece(b"begun")).await;
        (down, up)
    };
    let (mut down, mut up) = begin(&reached, "first").await;
    let (mut others_down, mut others_up) = begin(&others, "second").await;
    served.identity.keys.revoke(second.key).await.unwrap();
    served.access.revoke(second.key);
    assert_eq!(ended(&mut others_down).await, End::Reset);
    assert_eq!(others_up.end().await, End::Reset);
    let denied = served.ask(ask(&others, "GET", "zeros")).await;
    assert_eq!(denied.status(), 401);

    // Those of the other key go on, until the sandbox ends.
    down.exactly(50 << 20).await.unwrap();
    up.send(piece(b", and goes on")).await;
    let begun = Instant::now();
    loop {
        let read = served
            .ask(call(&reached, "GET", "/files?path=first", &[], b""))
            .await;
        if read.text() == "begun, and goes on" {
            break;
        }
        assert!(begun.elapsed() < *BOUND, "{}", read.text());
    }
    served.kill(&reached).await;
    assert_eq!(ended(&mut down).await, End::Reset);
    assert_eq!(up.end().await, End::Reset);
    assert_eq!(
        served.ask(ask(&reached, "GET", "zeros")).await.status(),
        502
    );
    served.end([reached, others]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_speaks_out_of_turn_or_talks_nonsense_ends_its_own_lane() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    make_zeros(&served, &reached).await;
    let (mut down, _) = open(&served, &reached, "GET", "zeros").await;
    down.send(b"GET / HTTP/1.1\r\n\r\n").await;
    assert_eq!(ended(&mut down).await, End::Reset);
    let (mut down, _) = open(&served, &reached, "GET", "zeros").await;
    down.shutdown().await;
    assert_eq!(ended(&mut down).await, End::Reset);

    for nonsense in [&b"\xff\xff\xff\xffgarbage"[..], b"GET / HTTP/1.1\r\n\r\n"] {
        let (mut up, _) = open(&served, &reached, "POST", "nonsense").await;
        up.send(nonsense).await;
        let (status, text) = verdict(&mut up).await;
        assert_eq!(status, 400, "{text}");
        assert_eq!(up.end().await, End::Closed);
    }
    // Half an upload is told that it is one, and what came of it is there.
    let (mut half, _) = open(&served, &reached, "POST", "half").await;
    half.send(b"\0\0\0\x09half").await;
    half.shutdown().await;
    let (status, text) = verdict(&mut half).await;
    assert!(status == 400 && text.contains("broke off"), "{text}");
    assert_eq!(half.end().await, End::Closed);

    let mut wires = Vec::new();
    for number in 0..20 {
        wires.push(open(&served, &reached, "GET", "zeros").await.0);
        let (mut up, _) = open(&served, &reached, "POST", &format!("left{number}")).await;
        up.send(b"\0\0\0\x09half").await;
        wires.push(up);
    }
    let connected = guests_connections(&reached).await;
    assert!(connected >= 40, "{connected}");
    drop(wires);
    let begun = Instant::now();
    while guests_connections(&reached).await > 10 {
        assert!(begun.elapsed() < *BOUND, "connections stay");
    }
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_gets_no_lane_is_said_in_plain_http() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    for (method, path, status) in [
        ("GET", "none", 404),
        ("GET", "/etc", 400),
        ("POST", "/etc", 400),
        ("POST", "", 400),
        ("POST", "a&path=b", 400),
        ("POST", "a%00b", 400),
        ("POST", "/proc/self/root/proc/1/none", 404),
        ("GET", "/dev/zero", 400),
        ("GET", "zeros&username=nobody-at-all", 401),
        ("GET", "/etc/hostname", 200),
    ] {
        let answer = served.ask(ask(&reached, method, path)).await;
        assert_eq!(
            answer.status(),
            status,
            "{method} {path}: {}",
            answer.text()
        );
        assert_eq!(answer.head.header("atoll-lane"), Some("known"), "{path}");
    }
    // The user is the one that is named, and paths are this sandbox's.
    let (mut wire, _) = open(&served, &reached, "POST", "../../tmp/x&username=root").await;
    wire.send([piece(b"theirs"), piece(b"")].concat()).await;
    assert_eq!(verdict(&mut wire).await.0, 200);
    let stat = reached.sandbox.live.guest().stat("/tmp/x", None).await;
    assert_eq!(stat.unwrap().owner.to_string(), "root");
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lanes_are_counted_and_end_with_the_server() {
    let bounds = Bounds {
        requests_per_sandbox: 3,
        grace: Duration::from_millis(200),
        ..Bounds::default()
    };
    let mut served = Served::with(Setup {
        bounds,
        ..Setup::default()
    })
    .await;
    let reached = served.sandbox().await;
    make_zeros(&served, &reached).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(open(&served, &reached, "GET", "zeros").await.0);
    }
    let answer = served.ask(ask(&reached, "GET", "/etc/hostname")).await;
    assert_eq!(answer.status(), 429, "{}", answer.text());
    let mut moving = held.remove(0);
    drop(held);
    let begun = Instant::now();
    while served
        .ask(ask(&reached, "GET", "/etc/hostname"))
        .await
        .status()
        != 200
    {
        assert!(begun.elapsed() < *BOUND, "places are not given back");
    }
    let moving = tokio::spawn(async move { ended(&mut moving).await });
    served.stop().await;
    assert_eq!(moving.await.unwrap(), End::Reset);
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_on_which_nothing_moves_is_given_up() {
    let bounds = Bounds {
        stall: Duration::from_millis(300),
        ..Bounds::default()
    };
    let served = Served::with(Setup {
        bounds,
        ..Setup::default()
    })
    .await;
    let reached = served.sandbox().await;
    make_zeros(&served, &reached).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(open(&served, &reached, "GET", "zeros").await.0);
        held.push(open(&served, &reached, "POST", "silent").await.0);
    }
    // Only when all of them are: to read one would bring it back to life.
    let begun = Instant::now();
    while guests_connections(&reached).await > 1 {
        assert!(begun.elapsed() < *BOUND, "they may stall for ever");
    }
    for mut wire in held {
        assert_eq!(ended(&mut wire).await, End::Reset);
    }
    served.end([reached]).await;
}
