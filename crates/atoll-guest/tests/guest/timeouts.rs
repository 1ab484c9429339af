//! The end of a command by its timeout reaches everything it started.

use std::time::Duration;

use atoll_guest_client::{Command, ExitStatus, GuestError, ProcessEvent, Signal};

use crate::support::{Finished, Guest, bash, finish, output_until, place, runs};

/// Starts a background process, one in a session of its own, and one that
/// is orphaned by a double fork, and prints the pids of all.
const FAMILY: &str = r#"
    sleep 600 & echo $!
    setsid sh -c 'echo $$; exec sleep 600' &
    ( setsid sh -c 'sh -c "trap : TERM HUP; echo \$\$; while :; do sleep 600; done" & exit' & )
    while :; do sleep 600; done
"#;

async fn family(
    guest: &Guest,
    timeout: Option<Duration>,
) -> (atoll_guest_client::Process, Vec<String>) {
    let mut process = guest
        .client
        .start(&Command {
            timeout,
            ..bash(FAMILY)
        })
        .await
        .unwrap();
    let mut pids = String::new();
    while pids.lines().count() < 3 {
        match process.next().await.unwrap().unwrap() {
            ProcessEvent::Stdout(bytes) => pids.push_str(std::str::from_utf8(&bytes).unwrap()),
            other => panic!("{other:?}"),
        }
    }
    let mut pids: Vec<String> = pids.lines().map(str::to_owned).collect();
    pids.push(process.pid().to_string());
    (process, pids)
}

#[tokio::test]
async fn a_timeout_ends_sessions_and_double_forks_too() {
    let guest = Guest::ready().await;
    let (mut process, pids) = family(&guest, Some(Duration::from_millis(700))).await;
    assert!(matches!(
        process.next().await,
        Err(GuestError::DeadlineExceeded)
    ));
    let left: Vec<_> = pids.iter().filter(|pid| runs(pid)).collect();
    assert!(left.is_empty(), "{left:?} of {pids:?} still run");
}

#[tokio::test]
async fn a_tree_kill_ends_all_of_it_at_once() {
    let guest = Guest::ready().await;
    let (process, pids) = family(&guest, None).await;
    assert!(pids.iter().all(|pid| runs(pid)));
    process.input().kill_tree().await.unwrap();
    assert_eq!(
        finish(process).await.unwrap(),
        Finished {
            status: ExitStatus::Signaled(9),
            ..Finished::ok("")
        }
    );
    let left: Vec<_> = pids.iter().filter(|pid| runs(pid)).collect();
    assert!(left.is_empty(), "{left:?} of {pids:?} still run");
}

#[tokio::test]
async fn a_fork_bomb_is_ended() {
    let guest = Guest::ready().await;
    let bomb = "spawn() { ( sleep 0.02; spawn ) & ( sleep 0.02; setsid sleep 600 ) & }; spawn; echo up; wait; sleep 600";
    let mut process = guest.client.start(&bash(bomb)).await.unwrap();
    output_until(&mut process, "up").await;
    process.input().kill_tree().await.unwrap();
    assert_eq!(
        finish(process).await.unwrap().status,
        ExitStatus::Signaled(9)
    );
    // What escaped would be a child of the guest now.
    assert_eq!(
        guest
            .run("pgrep -P $(cut -d' ' -f4 /proc/$PPID/stat) sleep")
            .await
            .stdout,
        ""
    );
}

#[tokio::test]
async fn a_natural_end_ends_nothing_else() {
    let guest = Guest::ready().await;
    let finished = guest
        .run("sleep 600 >/dev/null 2>&1 & echo $!; setsid sleep 600 >/dev/null 2>&1 & echo $!")
        .await;
    assert_eq!(finished.status, ExitStatus::Exited(0));
    let pids: Vec<&str> = finished.stdout.lines().collect();
    assert!(pids.iter().all(|pid| runs(pid)), "{pids:?}");
    guest.run(&format!("kill {}", pids.join(" "))).await;
}

#[tokio::test]
async fn a_background_process_that_holds_the_pipe_does_not_hold_the_end() {
    let guest = Guest::ready().await;
    let finished = guest.run("sleep 600 & echo $!").await;
    assert_eq!(finished.status, ExitStatus::Exited(0));
    assert!(runs(finished.stdout.trim()));
}

#[tokio::test]
async fn a_background_process_may_write_after_the_end() {
    let guest = Guest::ready().await;
    let mut process = guest
        .client
        .start(&bash("yes & echo pid $! >&2"))
        .await
        .unwrap();
    let mut pid = String::new();
    while let Some(event) = process.next().await.unwrap() {
        match event {
            ProcessEvent::Stderr(bytes) => pid.push_str(std::str::from_utf8(&bytes).unwrap()),
            ProcessEvent::End(status) => assert_eq!(status, ExitStatus::Exited(0)),
            ProcessEvent::Stdout(_) | ProcessEvent::Pty(_) => {}
        }
    }
    let pid = pid.trim().strip_prefix("pid ").unwrap();
    assert!(runs(pid), "it was ended by a closed pipe");
    guest.run(&format!("kill {pid}")).await;
}

#[tokio::test]
async fn a_timeout_with_a_slow_reader_loses_no_output() {
    let guest = Guest::ready().await;
    let command = Command {
        timeout: Some(Duration::from_millis(400)),
        ..bash("seq 1 100000; sleep 600")
    };
    let mut process = guest.client.start(&command).await.unwrap();
    let mut output = Vec::new();
    let error = loop {
        match process.next().await {
            Ok(Some(ProcessEvent::Stdout(bytes))) => output.extend_from_slice(&bytes),
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, GuestError::DeadlineExceeded), "{error}");
    assert!(output.ends_with(b"\n100000\n"));
}

#[tokio::test]
async fn when_somebody_kills_the_reaper_the_command_goes_too() {
    let guest = Guest::ready().await;
    // It waits for a line, so that the reaper has said which pid it started.
    let mut command = bash("echo up; read; kill -9 $PPID; while :; do sleep 600; done");
    command.stdin = true;
    let mut process = guest.client.start(&command).await.unwrap();
    output_until(&mut process, "up").await;
    process.input().send(b"\n").await.unwrap();
    let pid = process.pid().to_string();
    assert_eq!(
        finish(process).await.unwrap().status,
        ExitStatus::Signaled(9)
    );
    assert!(!runs(&pid));
}

#[tokio::test]
async fn a_command_whose_reaper_ends_before_it_takes_it_runs_once_all_the_same() {
    let guest = Guest::ready().await;
    let (_place, path) = place();
    guest.run("true").await;
    let is_waiting = |pid: &i32| {
        let words = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().unwrap_or_default();
        words.contains("command-reaper")
            && parent.split_whitespace().nth(1) == Some(&guest.pid().to_string())
    };
    let waiting = loop {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        if let Some(pid) = pids.find(is_waiting) {
            break rustix::process::Pid::from_raw(pid).unwrap();
        }
        tokio::task::yield_now().await;
    };
    let send = |signal| rustix::process::kill_process(waiting, signal).unwrap();
    let descriptors = || {
        let directory = format!("/proc/{}/fd", guest.pid());
        std::fs::read_dir(directory).unwrap().count()
    };
    send(rustix::process::Signal::STOP);
    let before = descriptors();
    let script = format!("echo ran >> {path}/runs; cat {path}/runs");
    let ended = async {
        // It has its streams, and is about to be handed over.
        while descriptors() < before + 3 {
            tokio::task::yield_now().await;
        }
        send(rustix::process::Signal::KILL);
    };
    let (finished, ()) = tokio::join!(guest.run(&script), ended);
    assert_eq!(finished, Finished::ok("ran\n"));
}

#[tokio::test]
async fn a_stopped_command_can_be_killed() {
    let guest = Guest::ready().await;
    let process = guest.start("kill -STOP $$").await;
    process.input().signal(Signal::Kill).await.unwrap();
    assert_eq!(
        finish(process).await.unwrap().status,
        ExitStatus::Signaled(9)
    );
}
