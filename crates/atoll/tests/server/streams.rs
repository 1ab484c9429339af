//! Streams of a guest end with the right to them, with their sandbox and with
//! their client.

use crate::calls::{call, start};
use crate::harness::BOUND;
use crate::served::{Reached, Served};
use crate::wire::{End, Wire, request};

#[tokio::test(flavor = "multi_thread")]
async fn streams_break_when_the_sandbox_ends_or_the_key_does() {
    let served = Served::new().await;
    let (first, second) = (
        served.caller("default").await,
        served.caller("default").await,
    );
    let reached = served.sandbox_of(&first, Default::default()).await;
    let token = served.access.grant(&second, &reached.sandbox.id).await;
    let others = Reached {
        sandbox: std::sync::Arc::clone(&reached.sandbox),
        token: token.unwrap().reveal().to_owned(),
    };
    let open = async |reached: &Reached| {
        let mut wire = Wire::open(served.address).await;
        wire.send(start(reached, "echo begun; sleep 1000")).await;
        assert_eq!(wire.head().await.status, 200);
        let mut seen = Vec::new();
        while !seen.windows(4).any(|four| four == b"data") {
            seen.extend(wire.piece().await.unwrap().unwrap());
        }
        wire
    };
    let mut of_first = open(&reached).await;
    let mut of_second = open(&others).await;
    served.identity.keys.revoke(second.key).await.unwrap();
    served.access.revoke(second.key);
    assert_eq!(of_second.end().await, End::Reset);
    let denied = served.ask(call(&others, "GET", "/envs", &[], b"")).await;
    assert_eq!(denied.status(), 401);

    // The other key's stream goes on, until the sandbox ends.
    let control = served.ask(call(&reached, "GET", "/envs", &[], b"")).await;
    assert_eq!(control.status(), 200);
    let waiting = tokio::spawn(async move { of_first.end().await });
    // A request whose answer has not begun breaks as well.
    let mut upload = Wire::open(served.address).await;
    let headers = [
        ("content-type", "application/octet-stream"),
        ("content-length", "1000000"),
    ];
    let begun = call(&reached, "POST", "/files?path=half", &headers, b"");
    upload.send(begun).await;
    upload.send(b"not all of it").await;
    let begun = std::time::Instant::now();
    while reached
        .sandbox
        .live
        .guest()
        .stat("half", None)
        .await
        .is_err()
    {
        assert!(begun.elapsed() < *BOUND, "the upload does not begin");
    }
    assert!(!waiting.is_finished());
    served.kill(&reached).await;
    assert_eq!(waiting.await.unwrap(), End::Reset);
    assert_eq!(upload.end().await, End::Reset);
    let health = request(
        "GET",
        "/health",
        &[
            ("e2b-sandbox-id", reached.id()),
            ("e2b-sandbox-port", "49983"),
        ],
        b"",
    );
    assert_eq!(served.ask(health).await.status(), 502);
    served.end([reached, others]).await;
}

/// Connections to the guest's port that are open inside.
pub async fn guests_connections(reached: &Reached) -> usize {
    // 49983 in the kernel's spelling, established.
    let count = "grep -c ':C33F .* 01 ' /proc/net/tcp";
    let command = atoll_guest_client::Command {
        cmd: "/bin/bash".to_owned(),
        args: vec!["-c".to_owned(), format!("{count} || true")],
        ..Default::default()
    };
    let mut process = reached.sandbox.live.guest().start(&command).await.unwrap();
    let mut said = Vec::new();
    while let Some(event) = process.next().await.unwrap() {
        match event {
            atoll_guest_client::ProcessEvent::Stdout(bytes) => said.extend(bytes),
            atoll_guest_client::ProcessEvent::End(_) => break,
            _ => {}
        }
    }
    String::from_utf8(said).unwrap().trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_is_gone_for_the_guest_too() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    let mut wires = Vec::new();
    for number in 0..20 {
        let mut wire = Wire::open(served.address).await;
        wire.send(start(&reached, &format!("echo {number}; sleep 1000")))
            .await;
        assert_eq!(wire.head().await.status, 200);
        wire.piece().await.unwrap();
        wires.push(wire);
    }
    let open = guests_connections(&reached).await;
    assert!(open >= 20, "{open}");
    drop(wires);
    let begun = std::time::Instant::now();
    while guests_connections(&reached).await > 10 {
        assert!(begun.elapsed() < *BOUND, "connections stay");
    }
    served.end([reached]).await;
}
