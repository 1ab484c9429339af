//! The way in: any port of a sandbox, also of a service that is bound to its
//! loopback interface, on every tier.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_engine::{GUEST_PORT, Limits, PASSAGE_PORT, Sandbox, Tier};
use atoll_guest_client::{Command, GuestClient, ProcessEvent};

use crate::harness;
use crate::harness::sandboxes::{Sandboxes, client, initialise};
use crate::harness::{BOUND, eventually};

const TOKEN: &str = "token of the tests";

/// A sandbox with this Python program running in it.
async fn with_program(sandboxes: &Sandboxes, code: &str) -> (Arc<dyn Sandbox>, GuestClient) {
    let sandbox = sandboxes.create(Limits::default());
    let client = client(&sandbox, TOKEN);
    initialise(&client, TOKEN, &[]).await;
    start(&client, code).await;
    (sandbox, client)
}

async fn start(client: &GuestClient, code: &str) {
    let command = Command {
        cmd: "python3".to_owned(),
        args: vec!["-u".to_owned(), "-c".to_owned(), code.to_owned()],
        ..Command::default()
    };
    let mut process = client.start(&command).await.unwrap();
    // It says so when it listens, and lives on when nobody follows it.
    let said = process.next().await.unwrap().unwrap();
    assert!(matches!(said, ProcessEvent::Stdout(_)), "{said:?}");
}

/// Reads until the end of what it is sent, and only then sends it back.
const ECHO: &str = "
import socket, threading
def serve(peer):
    got = b''
    while piece := peer.recv(65536):
        got += piece
    peer.sendall(got)
    peer.shutdown(socket.SHUT_WR)
server = socket.socket()
server.bind(('127.0.0.1', 8000))
server.listen(64)
print('listening')
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
";

#[tokio::test(flavor = "multi_thread")]
async fn a_service_on_the_loopback_of_ipv6_alone_is_reached_too() {
    let sandboxes = Sandboxes::new();
    let code = ECHO
        .replace("socket.socket()", "socket.socket(socket.AF_INET6)")
        .replace("127.0.0.1", "::1");
    let (sandbox, _client) = with_program(&sandboxes, &code).await;
    let mut stream = sandbox.dial(8000).unwrap();
    stream.set_read_timeout(Some(*BOUND)).unwrap();
    stream.write_all(b"well").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"well");
    let closed = sandbox.dial(8001).unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::ConnectionRefused);
    sandbox.destroy().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_on_loopback_is_reached_and_half_closed_connections_pass() {
    let sandboxes = Sandboxes::new();
    let (sandbox, _client) = with_program(&sandboxes, ECHO).await;
    let sent: Vec<u8> = (0..3_000_000_u32)
        .map(|number| number.to_le_bytes()[0])
        .collect();
    for _ in 0..3 {
        let mut stream = sandbox.dial(8000).unwrap();
        stream.set_read_timeout(Some(*BOUND)).unwrap();
        stream.write_all(&sent).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        assert!(got == sent, "{} bytes of {}", got.len(), sent.len());
    }
    sandbox.destroy().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nobody_listens_the_connection_is_refused() {
    let sandboxes = Sandboxes::new();
    let (sandbox, _client) = with_program(&sandboxes, ECHO).await;
    sandbox.dial(8000).unwrap();
    for port in [1, 8001, 65535] {
        let error = sandbox.dial(port).unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::ConnectionRefused,
            "{port}: {error}"
        );
    }
    sandbox.destroy().unwrap();
}

/// Connects to the passage from inside, by every address that leads there, and
/// asks for a port at which somebody listens.
const INTRUDER: &str = "
import socket
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.connect(('169.254.0.22', 9))
for address in ('127.0.0.1', own.getsockname()[0]):
    try:
        peer = socket.create_connection((address, 49982), 5)
        peer.sendall((8000).to_bytes(2, 'big'))
        said = peer.recv(1)
    except OSError:
        said = b''
    print(address, said, flush=True)
";

#[tokio::test(flavor = "multi_thread")]
async fn nobody_inside_can_use_the_passage() {
    if harness::tier() != Tier::Gvisor {
        // Containers have none: the host enters their network.
        let sandboxes = Sandboxes::new();
        let (sandbox, _client) = with_program(&sandboxes, ECHO).await;
        let error = sandbox.dial(PASSAGE_PORT).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        sandbox.destroy().unwrap();
        return;
    }
    let sandboxes = Sandboxes::new();
    let (sandbox, client) = with_program(&sandboxes, ECHO).await;
    let command = Command {
        cmd: "python3".to_owned(),
        args: vec!["-c".to_owned(), INTRUDER.to_owned()],
        ..Command::default()
    };
    let mut process = client.start(&command).await.unwrap();
    let mut said = Vec::new();
    while let Some(event) = process.next().await.unwrap() {
        match event {
            ProcessEvent::Stdout(bytes) | ProcessEvent::Stderr(bytes) => said.extend(bytes),
            ProcessEvent::End(_) => break,
            ProcessEvent::Pty(_) => {}
        }
    }
    assert_eq!(
        String::from_utf8_lossy(&said),
        "127.0.0.1 b''\n169.254.0.21 b''\n"
    );
    // The same question from the host is answered.
    sandbox.dial(8000).unwrap();
    sandbox.destroy().unwrap();
}

/// Takes the place of the guest's ports and never says a word.
const SILENCE: &str = "
import os, signal, socket, sys, time
pairs = []
for port in (8080,):
    server = socket.socket()
    server.bind(('127.0.0.1', port))
    server.listen(1)
    pairs.append(server)
print('listening')
time.sleep(600)
";

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_says_nothing_keeps_nobody_waiting_for_the_connection() {
    let sandboxes = Sandboxes::new();
    let (sandbox, client) = with_program(&sandboxes, SILENCE).await;
    let start = Instant::now();
    let mut open = Vec::new();
    // Its queue is full after a few; the rest is refused or given up in time.
    for _ in 0..4 {
        open.push(sandbox.dial(8080));
    }
    assert!(
        start.elapsed() < Duration::from_secs(60),
        "{:?}",
        start.elapsed()
    );
    assert!(open[0].is_ok(), "{open:?}");
    // The guest itself has not noticed.
    eventually("the guest", || sandbox.dial(GUEST_PORT).ok());
    assert!(client.stat("/", None).await.is_ok());
    sandbox.destroy().unwrap();
}
