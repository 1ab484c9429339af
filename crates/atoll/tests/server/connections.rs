//! Connections that take too long, are too many, or say too much.

use std::time::{Duration, Instant};

use atoll_server::Bounds;

use crate::calls::{call, payloads, start};
use crate::harness::BOUND;
use crate::ports::{get, host};
use crate::served::{CONTROL, Reached, Served, Setup, start_program};
use crate::services::{ECHO, on_port};
use crate::streams::guests_connections;
use crate::wire::{End, Wire, request};

fn with(bounds: Bounds) -> Setup {
    Setup {
        bounds,
        ..Setup::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_have_a_size() {
    let served = Served::new().await;
    let long = "a".repeat(1 << 20);
    for headers in [
        &[("x-long", long.as_str())][..],
        &[("cookie", &long)],
        &[("e2b-sandbox-id", &long), ("e2b-sandbox-port", "1")],
    ] {
        let answer = served.ask(request("GET", "/", headers, b"")).await;
        assert_eq!(answer.status(), 431);
    }
    let answer = served
        .ask(request("GET", &format!("/{long}"), &[], b""))
        .await;
    assert!(matches!(answer.status(), 414 | 431), "{}", answer.status());
    let many: Vec<(String, &str)> = (0..1000).map(|n| (format!("x-{n}"), "y")).collect();
    let many: Vec<(&str, &str)> = many
        .iter()
        .map(|(name, value)| (name.as_str(), *value))
        .collect();
    assert_eq!(
        served.ask(request("GET", "/", &many, b"")).await.status(),
        431
    );
    let almost = "a".repeat(66 * 1024);
    let answer = served
        .ask(request("GET", "/", &[("x", &almost)], b""))
        .await;
    assert_eq!(answer.status(), 431);
    let large = "a".repeat(60 * 1024);
    let control = served.ask(request("GET", "/", &[("x", &large)], b"")).await;
    assert_eq!(control.text(), CONTROL);
    served.end([]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_heads_are_cut_off_and_slow_answers_are_not() {
    let head = Duration::from_millis(500);
    let served = Served::with(with(Bounds {
        head,
        ..Bounds::default()
    }))
    .await;
    let mut slow = Wire::open(served.address).await;
    slow.send("GET / HTTP/1.1\r\n").await;
    let begun = Instant::now();
    // A header now and then does not help.
    let mut sent = 0;
    while slow.try_send("x: y\r\n").await.is_ok() {
        sent += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(begun.elapsed() < *BOUND, "it may take as long as it likes");
    }
    assert!(sent > 1 && begun.elapsed() >= head);
    // Who does what it should in between is served, on the same connection.
    let mut good = Wire::open(served.address).await;
    for _ in 0..3 {
        good.send("GET / HTTP/1.1\r\nhost: ").await;
        tokio::time::sleep(head / 4).await;
        good.send("localhost\r\n\r\n").await;
        assert_eq!(good.answer().await.text(), CONTROL);
        tokio::time::sleep(head * 2).await;
    }
    served.end([]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_end() {
    let served = Served::with(with(Bounds {
        first: Duration::from_millis(300),
        idle: Duration::from_millis(900),
        ..Bounds::default()
    }))
    .await;
    let mut silent = Wire::open(served.address).await;
    assert_eq!(silent.end().await, End::Closed);
    let mut used = Wire::open(served.address).await;
    used.send(request("GET", "/", &[], b"")).await;
    assert_eq!(used.answer().await.text(), CONTROL);
    let begun = Instant::now();
    assert_eq!(used.end().await, End::Closed);
    assert!(
        begun.elapsed() >= Duration::from_millis(850),
        "{:?}",
        begun.elapsed()
    );
    served.end([]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn there_are_only_so_many_connections() {
    let served = Served::with(with(Bounds {
        connections: 10,
        ..Bounds::default()
    }))
    .await;
    let mut held = Vec::new();
    for _ in 0..10 {
        let mut wire = Wire::open(served.address).await;
        wire.send(request("GET", "/", &[], b"")).await;
        assert_eq!(wire.answer().await.text(), CONTROL);
        held.push(wire);
    }
    let mut late = Wire::open(served.address).await;
    let head = late.head().await;
    assert_eq!((head.status, head.header("retry-after")), (503, Some("1")));
    drop(held);
    let begun = Instant::now();
    loop {
        let mut wire = Wire::open(served.address).await;
        let last = [("connection", "close")];
        let asked = wire.try_send(request("GET", "/", &last, b"")).await;
        if asked.is_ok() && wire.all().await.ends_with(CONTROL.as_bytes()) {
            break;
        }
        assert!(begun.elapsed() < *BOUND, "places are not given back");
    }
    served.end([]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_lets_answers_finish_and_waits_for_no_endless_one() {
    let mut served = Served::with(with(Bounds {
        grace: Duration::from_millis(700),
        ..Bounds::default()
    }))
    .await;
    let reached = served.sandbox().await;
    start_program(&reached.sandbox, &on_port(ECHO, 8000)).await;
    let host = host(&reached, 8000);
    let mut endless = Wire::open(served.address).await;
    endless
        .send(request("GET", "/events", &[("host", &host)], b""))
        .await;
    assert_eq!(endless.head().await.status, 200);
    endless.piece().await.unwrap();
    let mut idle = Wire::open(served.address).await;
    idle.send(request("GET", "/", &[], b"")).await;
    assert_eq!(idle.answer().await.text(), CONTROL);
    let begun = Instant::now();
    served.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!(endless.end().await, End::Reset);
    assert_eq!(idle.end().await, End::Closed);
    let refused = tokio::net::TcpStream::connect(served.address).await;
    assert!(refused.is_err());
    // The sandbox is still there.
    assert!(reached.sandbox.live.stats().await.is_ok());
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_sandbox_cannot_take_what_all_share() {
    let served = Served::with(with(Bounds {
        requests_per_sandbox: 3,
        ..Bounds::default()
    }))
    .await;
    let (busy, quiet) = (served.sandbox().await, served.sandbox().await);
    for reached in [&busy, &quiet] {
        start_program(&reached.sandbox, &on_port(ECHO, 8000)).await;
    }
    let events = |reached: &Reached| {
        let host = host(reached, 8000);
        request("GET", "/events", &[("host", &host)], b"")
    };
    let mut held = Vec::new();
    for _ in 0..3 {
        for request in [events(&busy), start(&busy, "echo x; sleep 1000")] {
            let mut wire = Wire::open(served.address).await;
            wire.send(request).await;
            assert_eq!(wire.head().await.status, 200);
            wire.piece().await.unwrap();
            held.push(wire);
        }
    }
    let answer = served.ask(events(&busy)).await;
    assert_eq!(answer.status(), 429);
    assert_eq!(answer.json()["connectionLimit"], 3);
    let answer = served.ask(start(&busy, "true")).await;
    let frames = payloads(&answer.body);
    assert_eq!(frames[0]["error"]["code"], "resource_exhausted");
    let answer = served.ask(call(&busy, "GET", "/envs", &[], b"")).await;
    assert_eq!(answer.status(), 429);
    // The neighbour does not notice.
    assert_eq!(served.ask(start(&quiet, "true")).await.status(), 200);
    assert_eq!(get(&served, &quiet, "/").await.status(), 200);
    drop(held);
    let begun = Instant::now();
    while get(&served, &busy, "/").await.status() != 200
        || served
            .ask(call(&busy, "GET", "/envs", &[], b""))
            .await
            .status()
            != 200
    {
        assert!(begun.elapsed() < *BOUND, "places are not given back");
    }
    served.end([busy, quiet]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_takes_nothing_is_cut_off() {
    let served = Served::with(with(Bounds {
        stall: Duration::from_millis(300),
        ..Bounds::default()
    }))
    .await;
    let reached = served.sandbox().await;
    served
        .ask(start(&reached, "truncate -s 256M /home/user/zeros"))
        .await;
    let download = call(&reached, "GET", "/files?path=zeros", &[], b"");
    let mut idle = Wire::open(served.address).await;
    idle.send(&download).await;
    assert_eq!(idle.head().await.status, 200);
    let begun = Instant::now();
    while guests_connections(&reached).await > 1 {
        assert!(begun.elapsed() < *BOUND, "it may take nothing for ever");
    }
    let mut taken = 0;
    let end = loop {
        match idle.piece().await {
            Ok(Some(piece)) => taken += piece.len(),
            Ok(None) => panic!("it got everything"),
            Err(end) => break end,
        }
    };
    assert_eq!(end, End::Reset);
    assert!(taken < 256 << 20);
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_slowly_gets_everything() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    let make = "truncate -s 64M /home/user/zeros";
    served.ask(start(&reached, make)).await;
    let mut slow = Wire::open(served.address).await;
    slow.send(call(&reached, "GET", "/files?path=zeros", &[], b""))
        .await;
    assert_eq!(slow.head().await.status, 200);
    let mut taken = 0;
    while let Some(piece) = slow.piece().await.unwrap() {
        taken += piece.len();
        if taken % (8 << 20) < piece.len() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    assert_eq!(taken, 64 << 20);
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_ends_only_where_a_body_was_left_unread() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    start_program(&reached.sandbox, &on_port(ECHO, 8000)).await;
    let host = host(&reached, 8000);
    let port = [("host", host.as_str())];
    let list = |token: &str| {
        let headers = [
            ("e2b-sandbox-id", reached.id()),
            ("e2b-sandbox-port", "49983"),
            ("x-access-token", token),
            ("content-type", "application/json"),
        ];
        request("POST", "/process.Process/List", &headers, b"{}")
    };
    let chunked = format!(
        "POST /x HTTP/1.1\r\nhost: {host}\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
    );
    let mut wire = Wire::open(served.address).await;
    for _ in 0..5 {
        for (request, status) in [
            (list(&reached.token), 200),
            (request("POST", "/x", &port, b"body"), 200),
            (chunked.clone().into_bytes(), 200),
            (request("GET", "/x", &port, b""), 200),
            (call(&reached, "GET", "/unknown", &[], b""), 404),
        ] {
            wire.send(request).await;
            let answer = wire.answer().await;
            assert_eq!(answer.status(), status);
            assert_eq!(answer.head.header("connection"), None);
        }
    }
    // A refusal before the body was read says that it is the last answer.
    wire.send(list("wrong")).await;
    let answer = wire.answer().await;
    assert_eq!(answer.status(), 401);
    assert_eq!(answer.head.header("connection"), Some("close"));
    assert_eq!(wire.end().await, End::Closed);
    // Also to who still sends a lot.
    let mut wire = Wire::open(served.address).await;
    let upload = call(&reached, "PUT", "/files?path=x", &[], &vec![0; 4 << 20]);
    wire.send(upload).await;
    assert_eq!(wire.answer().await.status(), 404);
    served.end([reached]).await;
}
