//! Too much of everything: the guest stays small, answers meanwhile, and
//! ends what it is told to end.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use atoll_guest_client::{Command, ExitStatus, GuestError, ProcessEvent, PtySize};

use crate::support::{Finished, Guest, TOKEN, bash, finish, output_until, runs};

/// Most memory that any of this may cost the guest, in KiB.
const PEAK_KIB_MAX: u64 = 24 * 1024;

fn assert_small(guest: &Guest) {
    let peak = guest.peak_memory_kib();
    assert!(peak < PEAK_KIB_MAX, "the guest used {peak} KiB");
}

async fn assert_answers(guest: &Guest) {
    assert_eq!(
        guest.run("echo meanwhile").await,
        Finished::ok("meanwhile\n")
    );
}

/// Reads what a command prints first: pids, one per line.
async fn pids(process: &mut atoll_guest_client::Process, count: usize) -> Vec<String> {
    let mut text = String::new();
    while text.lines().count() < count || !text.ends_with('\n') {
        match process.next().await.unwrap().unwrap() {
            ProcessEvent::Stdout(bytes) => text.push_str(std::str::from_utf8(&bytes).unwrap()),
            other => panic!("{other:?}"),
        }
    }
    text.lines().map(str::to_owned).collect()
}

fn assert_none_runs(pids: &[String]) {
    let left: Vec<_> = pids.iter().filter(|pid| runs(pid)).collect();
    assert!(
        left.is_empty(),
        "{} of {} still run",
        left.len(),
        pids.len()
    );
}

#[tokio::test]
async fn a_terminal_that_nobody_reads_waits_and_goes_on_when_its_reader_leaves() {
    let guest = Guest::ready().await;
    let place = tempfile::tempdir().unwrap();
    let done = place.path().join("done");
    let mut process = guest
        .client
        .start(&Command {
            pty: Some(PtySize { cols: 80, rows: 24 }),
            ..bash(&format!(
                "seq 1 2000000; touch {}; sleep 600",
                done.display()
            ))
        })
        .await
        .unwrap();
    output_until(&mut process, "1\r\n").await;
    let pid = process.pid().to_string();
    // Fourteen megabytes do not fit between a command and a reader that rests.
    for _ in 0..20 {
        assert_answers(&guest).await;
    }
    assert!(!done.exists());
    drop(process);
    for _ in 0..3000 {
        if done.exists() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(done.exists(), "output that nobody wants is dropped");
    assert!(runs(&pid));
    assert_small(&guest);
    guest.run(&format!("kill -9 {pid}")).await;
}

#[tokio::test]
#[ignore = "long: four gigabytes"]
async fn gigabytes_of_output_cost_no_memory() {
    const TOTAL: u64 = 4 << 30;
    let guest = Guest::ready().await;
    let mut process = guest.start(&format!("head -c {TOTAL} /dev/zero")).await;
    let (mut received, mut rested) = (0, 0);
    while let Some(event) = process.next().await.unwrap() {
        if let ProcessEvent::Stdout(bytes) = event {
            received += bytes.len() as u64;
            if received >> 28 > rested {
                rested = received >> 28;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    assert_eq!(received, TOTAL);
    assert_small(&guest);
}

#[tokio::test]
async fn five_thousand_processes_are_ended_with_their_command() {
    let guest = Guest::ready().await;
    let mut process = guest
        .start("for i in $(seq 5000); do sleep 600 & echo $!; done; wait")
        .await;
    let children = pids(&mut process, 5000).await;
    assert!(children.iter().all(|pid| runs(pid)));
    assert_answers(&guest).await;
    process.input().kill_tree().await.unwrap();
    assert_eq!(
        finish(process).await.unwrap().status,
        ExitStatus::Signaled(9)
    );
    assert_none_runs(&children);
    assert_small(&guest);
}

#[tokio::test]
async fn three_hundred_commands_at_once_are_listed_and_ended() {
    let guest = Guest::ready().await;
    let mut processes = Vec::new();
    for _ in 0..300 {
        processes.push(guest.start("exec sleep 600").await);
    }
    let pids: Vec<String> = processes
        .iter()
        .map(|process| process.pid().to_string())
        .collect();
    assert!(pids.iter().all(|pid| runs(pid)));
    for process in &processes {
        process.input().kill_tree().await.unwrap();
    }
    for process in processes {
        assert_eq!(
            finish(process).await.unwrap().status,
            ExitStatus::Signaled(9)
        );
    }
    assert_none_runs(&pids);
    assert_answers(&guest).await;
}

/// Stops a child under `ptrace`, hangs a parent in `vfork`, ignores every
/// signal that can be ignored, and prints the pids of all.
const STUBBORN: &str = r#"
    nohup sleep 600 >/dev/null 2>&1 & echo $!
    setsid nohup sh -c 'trap "" HUP INT QUIT TERM USR1; echo $$; while :; do sleep 600; done' 2>/dev/null &
    perl -e '$| = 1; my $pid = fork; if (!$pid) { syscall(101, 0, 0, 0, 0); kill STOP => $$; sleep 600 } waitpid $pid, 2; print "$$\n$pid\n"; sleep 600' &
    perl -e '$| = 1; print "$$\n"; my $pid = syscall(58); if ($pid == 0) { print getppid() == 1 ? "lost\n" : syscall(39) . "\n"; sleep 600 }' &
    while :; do sleep 600; done
"#;

#[tokio::test]
async fn traced_suspended_and_deaf_processes_are_ended_by_the_timeout() {
    let guest = Guest::ready().await;
    let mut process = guest
        .client
        .start(&Command {
            timeout: Some(Duration::from_secs(3)),
            ..bash(STUBBORN)
        })
        .await
        .unwrap();
    let pids = pids(&mut process, 6).await;
    assert!(pids.iter().all(|pid| runs(pid)), "{pids:?}");
    // What waits in `vfork` for its child cannot be interrupted, and what is
    // traced is stopped: the test would show nothing otherwise.
    let states: Vec<char> = pids
        .iter()
        .map(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            let (_, rest) = stat.rsplit_once(") ").unwrap();
            rest.chars().next().unwrap()
        })
        .collect();
    assert!(states.contains(&'D') && states.contains(&'t'), "{states:?}");
    assert!(matches!(
        process.next().await,
        Err(GuestError::DeadlineExceeded)
    ));
    assert_none_runs(&pids);
}

/// Whether the client says that it has no more to send. The guest takes that
/// for a client that left, so a whole request must not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Listen,
    HangUp,
}

/// Sends bytes and reads what comes until the guest closes.
fn exchange(guest: &Guest, bytes: &[u8], then: Then) -> String {
    let mut stream = TcpStream::connect(guest.address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    // A guest that has seen enough may close before all is sent.
    let _ = stream.write_all(bytes);
    if then == Then::HangUp {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn rpc(method: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "POST /{method} HTTP/1.1\r\nhost: guest\r\nx-access-token: {TOKEN}\r\ncontent-type: {content_type}\r\nconnect-protocol-version: 1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

fn frame(flags: u8, length: u32, payload: &[u8]) -> Vec<u8> {
    [&[flags][..], &length.to_be_bytes(), payload].concat()
}

#[tokio::test]
async fn garbage_and_half_frames_are_refused_and_start_nothing() {
    let guest = Guest::ready().await;
    let place = tempfile::tempdir().unwrap();
    let made = place.path().join("made");
    let order = format!(
        r#"{{"process":{{"cmd":"/bin/touch","args":["{}"]}},"stdin":false}}"#,
        made.display()
    )
    .into_bytes();
    let whole = frame(0, u32::try_from(order.len()).unwrap(), &order);
    const STREAM: &str = "application/connect+json";
    const START: &str = "process.Process/Start";

    for length in 0..whole.len() {
        let answer = exchange(&guest, &rpc(START, STREAM, &whole[..length]), Then::Listen);
        assert!(answer.contains("\"error\""), "{length}: {answer}");
    }
    for body in [
        frame(0, u32::MAX, &order),
        frame(1, u32::try_from(order.len()).unwrap(), &order),
        frame(0xff, 3, b"{}x"),
        frame(2, 2, b"{}"),
        frame(0, 4, b"\xff\xfe{}"),
        frame(0, 4, b"[[[["),
        [whole.clone(), whole.clone()].concat(),
    ] {
        let answer = exchange(&guest, &rpc(START, STREAM, &body), Then::Listen);
        assert!(answer.contains("\"error\""), "{body:?}: {answer}");
    }
    // Nesting as deep as the largest request allows.
    let deep = vec![b'['; 4 << 20];
    for body in [&deep[..], b"", b"null", b"\"x\"", b"{\"processes\":1}"] {
        let answer = exchange(
            &guest,
            &rpc("process.Process/SendInput", "application/json", body),
            Then::Listen,
        );
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00"[..],
        b"GET\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /process.Process/Start HTTP/1.1\r\ncontent-length: 18446744073709551616\r\n\r\n",
        b"POST /process.Process/Start HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    ] {
        exchange(&guest, garbage, Then::HangUp);
    }
    exchange(
        &guest,
        &[b"GET / HTTP/1.1\r\nx: ", &vec![b'x'; 8 << 20][..]].concat(),
        Then::HangUp,
    );
    assert!(!made.exists(), "something was started");
    assert_answers(&guest).await;
    assert_small(&guest);

    // The same order, whole, does start.
    let answer = exchange(&guest, &rpc(START, STREAM, &whole), Then::Listen);
    assert!(answer.contains("exit status 0"), "{answer}");
    assert!(made.exists());
}

#[tokio::test]
async fn connections_that_say_nothing_cost_little_and_others_are_served() {
    let guest = Guest::ready().await;
    let silent: Vec<TcpStream> = (0..800)
        .map(|number| {
            let mut stream = TcpStream::connect(guest.address).unwrap();
            if number % 2 == 0 {
                stream
                    .write_all(b"POST /process.Process/Start HTTP/1.1\r\nhost: g\r\n")
                    .unwrap();
            }
            stream
        })
        .collect();
    assert_answers(&guest).await;
    drop(silent);
    assert_answers(&guest).await;
    assert_small(&guest);
}

#[tokio::test]
async fn a_follower_that_never_reads_keeps_nobody_from_the_deadline() {
    let guest = Guest::ready().await;
    let mut process = guest
        .client
        .start(&Command {
            timeout: Some(Duration::from_secs(2)),
            ..bash("yes")
        })
        .await
        .unwrap();
    let connect = format!(r#"{{"process":{{"pid":{}}}}}"#, process.pid());
    let connect = frame(0, u32::try_from(connect.len()).unwrap(), connect.as_bytes());
    let mut stalled = TcpStream::connect(guest.address).unwrap();
    stalled
        .write_all(&rpc(
            "process.Process/Connect",
            "application/connect+json",
            &connect,
        ))
        .unwrap();
    let end = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            if let Err(error) = process.next().await {
                return error;
            }
        }
    })
    .await
    .expect("the starter waits for somebody else");
    assert!(matches!(end, GuestError::DeadlineExceeded), "{end:?}");
    // The one that slept sees all of it when it wakes up, and the end.
    let mut rest = Vec::new();
    stalled
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stalled.read_to_end(&mut rest).unwrap();
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.contains("signal: killed"), "no end");
}

#[tokio::test]
async fn a_traced_command_is_ended_by_its_deadline_though_its_end_is_hidden() {
    let guest = Guest::ready().await;
    let mut victim = guest
        .client
        .start(&Command {
            timeout: Some(Duration::from_secs(3)),
            ..bash("exec sleep 600")
        })
        .await
        .unwrap();
    // `PTRACE_SEIZE`, and never a `wait` for what it traces.
    let mut tracer = guest
        .start(&format!(
            "exec perl -e '$| = 1; my $r = syscall(101, 0x4206, {}, 0, 0); print \"$r\\n\"; sleep 600'",
            victim.pid()
        ))
        .await;
    assert_eq!(pids(&mut tracer, 1).await, ["0"], "nothing is traced");
    let end = tokio::time::timeout(Duration::from_secs(60), victim.next())
        .await
        .expect("the deadline is not told");
    assert!(matches!(end, Err(GuestError::DeadlineExceeded)), "{end:?}");
    tracer.input().kill_tree().await.unwrap();
}

#[tokio::test]
async fn a_long_chain_of_processes_is_ended() {
    let guest = Guest::ready().await;
    let chain =
        "exec perl -e '$| = 1; for (1..1500) { last if fork } print \"up\\n\" if !fork; sleep 600'";
    let mut process = guest.start(chain).await;
    output_until(&mut process, "up").await;
    process.input().kill_tree().await.unwrap();
    assert_eq!(
        finish(process).await.unwrap().status,
        ExitStatus::Signaled(9)
    );
    assert_answers(&guest).await;
}

#[tokio::test]
async fn numbers_that_overflow_clocks_are_taken_for_large_ones() {
    let guest = Guest::ready().await;
    let order = br#"{"process":{"cmd":"/bin/true"},"stdin":false}"#;
    let body = frame(0, u32::try_from(order.len()).unwrap(), order);
    let request = rpc("process.Process/Start", "application/connect+json", &body);
    let request = String::from_utf8_lossy(&request).replacen(
        "host: guest",
        "host: guest\r\nkeepalive-ping-interval: 18446744073709551615\r\nconnect-timeout-ms: 9999999999",
        1,
    );
    let answer = exchange(&guest, request.as_bytes(), Then::Listen);
    assert!(answer.contains("exit status 0"), "{answer}");
    assert_answers(&guest).await;
}

#[tokio::test]
async fn a_tag_has_a_largest_size() {
    let guest = Guest::ready().await;
    let start = |length: usize| {
        let order = format!(
            r#"{{"process":{{"cmd":"/bin/true"}},"stdin":false,"tag":"{}"}}"#,
            "t".repeat(length)
        );
        let body = frame(0, u32::try_from(order.len()).unwrap(), order.as_bytes());
        let request = rpc("process.Process/Start", "application/connect+json", &body);
        exchange(&guest, &request, Then::Listen)
    };
    assert!(start(1024).contains("exit status 0"));
    assert!(start(1025).contains("a tag has at most 1024 bytes"));
}
