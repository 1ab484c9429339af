//! PID 1 does not outlive whoever started it.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A guest as PID 1 of a namespace of its own, with the reading end of a pipe
/// as its standard input.
fn init_with(lifeline: std::io::PipeReader, listen: SocketAddr) -> Child {
    Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child"])
        .arg(env!("CARGO_BIN_EXE_atoll-guest"))
        .env("ATOLL_GUEST_LISTEN", listen.to_string())
        .stdin(lifeline)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// An address at which nobody listens.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

#[test]
fn a_guest_whose_monitor_died_before_it_came_up_does_not_come_up() {
    let (theirs, ours) = std::io::pipe().unwrap();
    drop(ours);
    let ended = init_with(theirs, free_address())
        .wait_with_output()
        .unwrap();
    assert_eq!(
        (
            ended.status.code(),
            String::from_utf8(ended.stderr).unwrap()
        ),
        (
            Some(1),
            "error: cannot prepare the process: whoever started this sandbox is gone\n".to_owned()
        )
    );
}

#[test]
fn a_guest_whose_monitor_lives_comes_up_and_ends_with_its_parent() {
    let (theirs, _ours) = std::io::pipe().unwrap();
    let address = free_address();
    let mut child = init_with(theirs, address);
    let answers = || TcpStream::connect(address).is_ok();
    let until = |wanted: bool| {
        let start = Instant::now();
        while answers() != wanted {
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "answers: {}",
                !wanted
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    until(true);
    child.kill().unwrap();
    child.wait().unwrap();
    until(false);
}
