//! The guest in its sandbox: against root inside, against a liar in its
//! place, and with more bytes than fit into memory.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use atoll_engine::{GUEST_PORT, Limits, Outcome, Sandbox, Tier};
use atoll_guest_client::{
    Command, ExitStatus, GuestClient, GuestError, InitRequest, ProcessEvent, ReadOptions,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, ReadBuf};

use crate::harness;
use crate::harness::sandboxes::{Sandboxes, client, initialise};
use crate::harness::{BOUND, init_of};

const TOKEN: &str = "token of the tests";

/// Tests that measure the memory of this process, which all of them share,
/// run one after the other.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A sandbox whose guest is up.
async fn ready(sandboxes: &Sandboxes, limits: Limits) -> (Arc<dyn Sandbox>, GuestClient) {
    let sandbox = sandboxes.create(limits);
    let client = client(&sandbox, TOKEN);
    initialise(&client, TOKEN, &[]).await;
    (sandbox, client)
}

/// Runs a script as a user; its exit status and everything it said.
async fn run(client: &GuestClient, user: &str, script: &str) -> (ExitStatus, String) {
    let command = Command {
        cmd: "/bin/bash".to_owned(),
        args: vec!["-c".to_owned(), script.to_owned()],
        user: Some(user.to_owned()),
        ..Command::default()
    };
    let mut process = client.start(&command).await.unwrap();
    let mut said = Vec::new();
    loop {
        match process.next().await.unwrap().unwrap() {
            ProcessEvent::End(status) => {
                return (status, String::from_utf8_lossy(&said).into_owned());
            }
            ProcessEvent::Stdout(bytes)
            | ProcessEvent::Stderr(bytes)
            | ProcessEvent::Pty(bytes) => {
                said.extend_from_slice(&bytes);
            }
        }
    }
}

/// A value of `/proc/PID/status` in KiB.
fn memory_kib(pid: &str, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let value = line
        .unwrap()
        .trim_start_matches(':')
        .split_whitespace()
        .next();
    value.unwrap().parse().unwrap()
}

/// What root inside tries against PID 1; each line that it prints is one success.
const ATTACKS: &str = r#"
import os, signal, socket, ctypes
def attempt(name, action):
    try:
        action()
        print(name)
    except (OSError, PermissionError):
        pass
for number in SIGNALS:
    os.kill(1, number)
libc = ctypes.CDLL(None, use_errno=True)
def traced():
    if libc.ptrace(16, 1, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), 'ptrace')
attempt('traced', traced)
attempt('read its memory', lambda: open('/proc/1/mem', 'rb').read(1))
attempt('read its variables', lambda: open('/proc/1/environ', 'rb').read(1))
attempt('replaced its binary', lambda: open('/proc/1/exe', 'r+b').write(b'x'))
attempt('wrote over its file', lambda: open('/.atoll/guest', 'r+b').write(b'x'))
def listen(family, address, reuse):
    def action():
        server = socket.socket(family)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind((address, 49983))
        server.listen()
    return action
for reuse in (False, True):
    for address in ('127.0.0.1', '0.0.0.0'):
        attempt(f'listened on {address}, {reuse}', listen(socket.AF_INET, address, reuse))
attempt('control: another port', lambda: socket.socket().bind(('127.0.0.1', 49984)))
"#;

#[tokio::test(flavor = "multi_thread")]
async fn root_inside_cannot_stop_read_or_impersonate_the_guest() {
    let _alone = ALONE.lock().await;
    let sandboxes = Sandboxes::new();
    let (sandbox, client) = ready(&sandboxes, Limits::default()).await;
    // gVisor protects its PID 1 from no signal: one that ends it ends the sandbox
    // (see the next test).
    let signals = match harness::tier() {
        Tier::Gvisor => "(signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)",
        _ => {
            "(signal.SIGKILL, signal.SIGSTOP, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGSEGV, signal.SIGUSR1)"
        }
    };
    let mut attacks = ATTACKS.replace("SIGNALS", signals);
    if harness::tier() == Tier::Gvisor {
        // Root may write there, and its sandbox starts no command after that.
        let line = "attempt('wrote over its file'";
        attacks = attacks.replace(line, "#");
    }
    // Nor does it keep root from what concerns nobody but this sandbox.
    let expected = match harness::tier() {
        Tier::Gvisor => {
            "read its variables\nlistened on 0.0.0.0, False\nlistened on 0.0.0.0, True\ncontrol: another port\n"
        }
        _ => "control: another port\n",
    };
    client
        .write_file("/tmp/attacks.py", None, std::io::Cursor::new(attacks))
        .await
        .unwrap();
    let (status, said) = run(&client, "root", "python3 /tmp/attacks.py").await;
    assert_eq!((status, said.as_str()), (ExitStatus::Exited(0), expected));
    // Who listens everywhere hears nothing: the guest has each address by itself.
    let command = Command {
        cmd: "python3".to_owned(),
        args: vec!["-u".to_owned(), "-c".to_owned(), IMPOSTOR.to_owned()],
        ..Command::default()
    };
    let mut impostor = client.start(&command).await.unwrap();
    let said = impostor.next().await.unwrap().unwrap();
    assert!(matches!(said, ProcessEvent::Stdout(_)), "{said:?}");
    for _ in 0..5 {
        let mut stream = sandbox.dial(GUEST_PORT).unwrap();
        stream.set_read_timeout(Some(*BOUND)).unwrap();
        let request = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        std::io::Write::write_all(&mut stream, request).unwrap();
        let mut answer = [0_u8; 12];
        std::io::Read::read_exact(&mut stream, &mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 204");
    }
    let ended = run(&client, "user", "echo still here").await;
    assert_eq!(ended, (ExitStatus::Exited(0), "still here\n".to_owned()));
    sandbox.destroy().unwrap();
}

/// Listens at the guest's port of all addresses, if it can, and hangs up on everybody.
const IMPOSTOR: &str = "
import socket, time
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try:
    server.bind(('0.0.0.0', 49983))
    server.listen()
    print('listens')
except OSError:
    print('refused')
    time.sleep(600)
while True:
    server.accept()[0].close()
";

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_root_inside_ends_ends_the_sandbox_and_nothing_else() {
    let _alone = ALONE.lock().await;
    let sandboxes = Sandboxes::new();
    let (sandbox, client) = ready(&sandboxes, Limits::default()).await;
    let (_other, beside) = ready(&sandboxes, Limits::default()).await;
    let command = Command {
        cmd: "/bin/bash".to_owned(),
        args: vec!["-c".to_owned(), "kill -TERM 1; sleep 600".to_owned()],
        user: Some("root".to_owned()),
        ..Command::default()
    };
    // The answer may be cut off at any byte.
    if let Ok(mut process) = client.start(&command).await {
        while process.next().await.is_ok_and(|event| event.is_some()) {}
    }
    let outcome = sandbox.wait(*BOUND).unwrap().unwrap();
    assert!(matches!(outcome, Outcome::Crashed { .. }), "{outcome:?}");
    let error = client.stat("/", None).await.unwrap_err();
    assert!(
        matches!(
            error,
            GuestError::Unreachable(_) | GuestError::Disconnected(_)
        ),
        "{error:?}"
    );
    let ended = run(&beside, "user", "echo unharmed").await;
    assert_eq!(ended, (ExitStatus::Exited(0), "unharmed\n".to_owned()));
}

/// A program that takes the guest's place: it answers `/health` and `/init`
/// as it should, and everything else as `LIE` says.
const LIAR: &str = r#"#!/usr/bin/python3
import os, socket, threading
def answer(peer):
    head = b''
    while b'\r\n\r\n' not in head:
        got = peer.recv(4096)
        if not got:
            return
        head += got
    try:
        if head.startswith((b'GET /health', b'POST /init')) and not EARLY:
            peer.sendall(b'HTTP/1.1 204 No Content\r\ncontent-length: 0\r\nconnection: close\r\n\r\n')
        else:
            lie(peer)
    except OSError:
        pass
    peer.close()
STREAM = b'HTTP/1.1 200 OK\r\ncontent-type: application/connect+proto\r\nconnection: close\r\n\r\n'
START = bytes([0, 0, 0, 0, 6, 0x0a, 4, 0x0a, 2, 8, 7])
def endless(peer, start, piece):
    peer.sendall(start)
    while True:
        peer.sendall(piece)
LIE
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(('0.0.0.0', 49983))
server.listen(64)
try:
    os.write(1, b'!')  # gVisor's host waits for a word, whatever it is
except OSError:
    pass
while True:
    threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()
"#;

/// What a liar does, as a function of the program above.
const LIES: &[(&str, &str)] = &[
    (
        "an endless head",
        "def lie(peer): endless(peer, b'HTTP/1.1 200 OK\\r\\n', b'x: y\\r\\n' * 1000)",
    ),
    (
        "an endless body",
        "def lie(peer): endless(peer, b'HTTP/1.1 200 OK\\r\\ncontent-type: application/proto\\r\\ncontent-length: 99999999999\\r\\n\\r\\n', b'x' * 65536)",
    ),
    (
        "a frame of four gigabytes",
        "def lie(peer): endless(peer, STREAM + START + bytes([0, 255, 255, 255, 255]), b'x' * 65536)",
    ),
    (
        "garbage in a stream",
        "def lie(peer): endless(peer, STREAM + START, bytes([0, 0, 0, 0, 4]) + b'\\xff\\xff\\xff\\xff')",
    ),
    ("no answer but a closed door", "def lie(peer): pass"),
    (
        "no HTTP",
        "def lie(peer): endless(peer, b'SSH-2.0-liar\\r\\n', b'x' * 65536)",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_liar_in_the_guests_place_is_a_typed_error_and_costs_little() {
    let _alone = ALONE.lock().await;
    let mut sandboxes = Sandboxes::new();
    let honest = sandboxes.config.guest.clone();
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for (number, (name, lie)) in LIES.iter().enumerate() {
        for early in [false, true] {
            let layer = place.path().join(format!("{number}-{early}"));
            fs::create_dir_all(layer.join(".atoll")).unwrap();
            let guest = layer.join(".atoll/guest");
            let early_text = if early { "True" } else { "False" };
            fs::write(
                &guest,
                LIAR.replace("LIE", lie).replace("EARLY", early_text),
            )
            .unwrap();
            fs::set_permissions(&guest, fs::Permissions::from_mode(0o755)).unwrap();
            sandboxes.config.guest = layer;
            let sandbox = sandboxes.create(Limits::default());
            let client = client(&sandbox, TOKEN);
            let before = memory_kib("self", "VmHWM");
            if early {
                let error = client.wait_ready(Duration::from_secs(3)).await.unwrap_err();
                println!("{name}, early: {error}");
            } else {
                client.wait_ready(*BOUND).await.unwrap();
                let init = InitRequest {
                    access_token: Some(TOKEN.to_owned()),
                    ..InitRequest::default()
                };
                client.init(&init).await.unwrap();
                assert_calls_fail(&client, name).await;
            }
            // The kernel counts in batches: the highest value may even fall a little.
            let grown = memory_kib("self", "VmHWM").saturating_sub(before);
            assert!(grown < 300 * 1024, "{name} cost {grown} KiB");
            sandbox.destroy().unwrap();
        }
    }
    sandboxes.config.guest = honest;
    let (sandbox, client) = ready(&sandboxes, Limits::default()).await;
    let ended = run(&client, "user", "echo believed").await;
    assert_eq!(ended, (ExitStatus::Exited(0), "believed\n".to_owned()));
    sandbox.destroy().unwrap();
}

/// Every kind of call ends with an error, soon.
async fn assert_calls_fail(client: &GuestClient, name: &str) {
    let calls = async {
        let command = Command {
            cmd: "true".to_owned(),
            ..Command::default()
        };
        let started = match client.start(&command).await {
            Ok(mut process) => loop {
                match process.next().await {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("{name}: a command ended well"),
                    Err(error) => break error,
                }
            },
            Err(error) => error,
        };
        let listed = client.list_dir("/", 1, None).await.unwrap_err();
        let asked = client.stat("/", None).await.unwrap_err();
        let wrote = client.write_file("x", None, &b"x"[..]).await.unwrap_err();
        // Bytes of a file are whatever they are: only a bound ends them.
        let options = ReadOptions {
            max_bytes: Some(1 << 20),
        };
        let read = match client.read_file_with("x", None, options).await {
            Ok(mut reader) => {
                let mut bytes = Vec::new();
                format!("{:?}", reader.read_to_end(&mut bytes).await.unwrap_err())
            }
            Err(error) => format!("{error:?}"),
        };
        println!("{name}: {started}; {listed}; {asked}; {wrote}; {read}");
    };
    tokio::time::timeout(*BOUND, calls)
        .await
        .unwrap_or_else(|_| panic!("{name}: a call did not end"));
}

/// Bytes that differ everywhere and need no memory.
struct Noise {
    state: u64,
    left: u64,
}

impl Noise {
    fn new(left: u64) -> Self {
        Self {
            state: 0x2545_f491_4f6c_dd1d,
            left,
        }
    }

    fn fill(&mut self, buffer: &mut [u8]) -> usize {
        let length = usize::try_from(self.left).map_or(buffer.len(), |left| left.min(buffer.len()));
        // Whole words, so that the bytes do not depend on how they are asked for.
        let length = if length as u64 == self.left {
            length
        } else {
            length / 8 * 8
        };
        for word in buffer[..length].chunks_mut(8) {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            word.copy_from_slice(&self.state.to_le_bytes()[..word.len()]);
        }
        self.left -= length as u64;
        length
    }
}

impl AsyncRead for Noise {
    fn poll_read(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        let length = self.get_mut().fill(buffer.initialize_unfilled());
        buffer.advance(length);
        std::task::Poll::Ready(Ok(()))
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: a gigabyte in and out"]
async fn a_gigabyte_goes_in_and_comes_out_with_flat_memory() {
    let _alone = ALONE.lock().await;
    use sha2::{Digest as _, Sha256};
    const LENGTH: u64 = 1 << 30;
    let sandboxes = Sandboxes::new();
    let (sandbox, client) = ready(&sandboxes, Limits::default()).await;
    let init = init_of(sandbox.id().as_str()).to_string();
    let (ours, theirs) = (memory_kib("self", "VmHWM"), memory_kib(&init, "VmHWM"));

    client
        .write_file("big", None, Noise::new(LENGTH))
        .await
        .unwrap();
    let mut expected = Sha256::new();
    let (mut noise, mut buffer) = (Noise::new(LENGTH), vec![0; 1 << 16]);
    loop {
        match noise.fill(&mut buffer) {
            0 => break,
            length => expected.update(&buffer[..length]),
        }
    }
    let expected: String = expected
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let (_, inside) = run(&client, "user", "sha256sum big").await;
    assert_eq!(inside, format!("{expected}  big\n"));

    let mut reader = client.read_file("big", None).await.unwrap();
    let mut returned = Sha256::new();
    loop {
        match reader.read(&mut buffer).await.unwrap() {
            0 => break,
            length => returned.update(&buffer[..length]),
        }
    }
    let returned: String = returned
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(returned, expected);

    let grown = (
        memory_kib("self", "VmHWM").saturating_sub(ours),
        memory_kib(&init, "VmHWM").saturating_sub(theirs),
    );
    assert!(grown.0 < 32 * 1024 && grown.1 < 8 * 1024, "{grown:?} KiB");
    sandbox.destroy().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: ten gigabytes out"]
async fn a_sparse_file_of_ten_gigabytes_comes_out_with_flat_memory() {
    let _alone = ALONE.lock().await;
    const LENGTH: u64 = 10 << 30;
    let sandboxes = Sandboxes::new();
    let (sandbox, client) = ready(&sandboxes, Limits::default()).await;
    let init = init_of(sandbox.id().as_str()).to_string();
    let (status, said) = run(
        &client,
        "user",
        &format!("truncate -s {LENGTH} sparse && printf end | dd of=sparse bs=1 seek={} conv=notrunc status=none", LENGTH - 3),
    )
    .await;
    assert_eq!((status, said.as_str()), (ExitStatus::Exited(0), ""));
    let (ours, theirs) = (memory_kib("self", "VmHWM"), memory_kib(&init, "VmHWM"));

    let mut last = String::new();
    client
        .read_file_range("sparse", LENGTH - 3..LENGTH, None)
        .await
        .unwrap()
        .read_to_string(&mut last)
        .await
        .unwrap();
    assert_eq!(last, "end");

    let mut reader = client.read_file("sparse", None).await.unwrap();
    let (mut buffer, mut total) = (vec![0; 1 << 18], 0);
    loop {
        match reader.read(&mut buffer).await.unwrap() {
            0 => break,
            length => total += length as u64,
        }
    }
    assert_eq!(total, LENGTH);
    let grown = (
        memory_kib("self", "VmHWM").saturating_sub(ours),
        memory_kib(&init, "VmHWM").saturating_sub(theirs),
    );
    assert!(grown.0 < 32 * 1024 && grown.1 < 8 * 1024, "{grown:?} KiB");
    sandbox.destroy().unwrap();
}
