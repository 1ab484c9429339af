//! Commands: output, status, input, users, environment, errors.

use std::time::Duration;

use atoll_guest_client::{Code, Command, ExitStatus, GuestError, ProcessEvent, Signal};

use crate::support::{Finished, Guest, bash, finish, output_until, require_root, runs};

#[tokio::test]
async fn output_comes_on_the_stream_it_was_written_to() {
    let guest = Guest::ready().await;
    let finished = guest.run("echo out; echo err >&2; exit 3").await;
    let expected = Finished {
        stdout: "out\n".to_owned(),
        stderr: "err\n".to_owned(),
        pty: String::new(),
        status: ExitStatus::Exited(3),
    };
    assert_eq!(finished, expected);
}

#[tokio::test]
async fn every_exit_status_is_told() {
    let guest = Guest::ready().await;
    for code in [0, 1, 2, 127, 255] {
        assert_eq!(
            guest.run(&format!("exit {code}")).await.status,
            ExitStatus::Exited(code)
        );
    }
    for (name, number) in [("KILL", 9), ("TERM", 15), ("SEGV", 11), ("RTMIN+3", 37)] {
        assert_eq!(
            guest.run(&format!("kill -{name} $$")).await.status,
            ExitStatus::Signaled(number),
            "{name}"
        );
    }
}

#[tokio::test]
async fn the_pid_is_the_commands_own() {
    let guest = Guest::ready().await;
    let process = guest.start("echo $$").await;
    let pid = process.pid();
    assert_eq!(
        finish(process).await.unwrap(),
        Finished::ok(&format!("{pid}\n"))
    );
}

#[tokio::test]
async fn input_arrives_unchanged_and_ends_when_closed() {
    let guest = Guest::ready().await;
    let input: Vec<u8> = (0..3_000_000_u32)
        .map(|index| index.wrapping_mul(2_654_435_761).to_le_bytes()[2])
        .collect();
    let mut process = guest
        .client
        .start(&Command {
            cmd: "cat".to_owned(),
            stdin: true,
            ..Command::default()
        })
        .await
        .unwrap();
    let (handle, sent) = (process.input(), input.clone());
    let sender = tokio::spawn(async move {
        handle.send(&sent).await.unwrap();
        handle.close().await.unwrap();
    });
    let mut output = Vec::new();
    while let Some(event) = process.next().await.unwrap() {
        match event {
            ProcessEvent::Stdout(bytes) => output.extend_from_slice(&bytes),
            other => assert_eq!(other, ProcessEvent::End(ExitStatus::Exited(0))),
        }
    }
    sender.await.unwrap();
    assert!(
        output == input,
        "{} bytes came back of {}",
        output.len(),
        input.len()
    );
}

#[tokio::test]
async fn without_stdin_a_command_reads_nothing_and_input_is_refused() {
    let guest = Guest::ready().await;
    assert_eq!(
        guest.run("cat; readlink /proc/self/fd/0").await,
        Finished::ok("/dev/null\n")
    );
    let process = guest.start("sleep 600").await;
    let refused = process.input().send(b"x").await.unwrap_err();
    assert!(
        matches!(
            refused,
            GuestError::Rpc {
                code: Code::Internal,
                ..
            }
        ),
        "{refused}"
    );
    process.input().signal(Signal::Kill).await.unwrap();
    assert_eq!(
        finish(process).await.unwrap().status,
        ExitStatus::Signaled(9)
    );
}

#[tokio::test]
async fn input_that_nobody_reads_is_given_up_when_the_command_ends() {
    let guest = Guest::ready().await;
    let process = guest
        .client
        .start(&Command {
            stdin: true,
            ..bash("exec sleep 600")
        })
        .await
        .unwrap();
    let handle = process.input();
    let blocked = tokio::spawn(async move { handle.send(&vec![0; 1 << 20]).await });
    process.input().signal(Signal::Terminate).await.unwrap();
    assert_eq!(
        finish(process).await.unwrap().status,
        ExitStatus::Signaled(15)
    );
    assert!(blocked.await.unwrap().is_err());
}

#[tokio::test]
async fn a_command_starts_clean() {
    let guest = Guest::ready().await;
    let finished = guest.run("ls /proc/self/fd | wc -l; grep -E 'Sig(Blk|Ign)' /proc/self/status; cat /proc/self/oom_score_adj; umask").await;
    // Three streams and the listing itself.
    assert_eq!(
        finished,
        Finished::ok("4\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n500\n0022\n")
    );
}

#[tokio::test]
async fn the_environment_is_the_sandboxs_and_nothing_of_the_guests() {
    let guest = Guest::ready().await;
    let command = Command {
        envs: [("MINE".to_owned(), "a b".to_owned())].into(),
        cmd: "/usr/bin/env".to_owned(),
        ..Command::default()
    };
    let finished = finish(guest.client.start(&command).await.unwrap())
        .await
        .unwrap();
    let mut names: Vec<_> = finished
        .stdout
        .lines()
        .map(|line| line.split('=').next().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "HOME",
            "LOGNAME",
            "MINE",
            "PATH",
            "SANDBOX_VARIABLE",
            "USER"
        ]
    );
    assert!(finished.stdout.contains("MINE=a b\n"));
    assert!(finished.stdout.contains("SANDBOX_VARIABLE=from-init\n"));
}

#[tokio::test]
async fn the_directory_is_the_requests_or_the_default() {
    let guest = Guest::ready().await;
    assert_eq!(guest.run("pwd").await, Finished::ok("/tmp\n"));
    let elsewhere = Command {
        cwd: Some("/usr/".to_owned()),
        ..bash("pwd")
    };
    assert_eq!(
        finish(guest.client.start(&elsewhere).await.unwrap())
            .await
            .unwrap(),
        Finished::ok("/usr\n")
    );
}

#[tokio::test]
async fn impossible_commands_are_refused_with_the_reason() {
    let guest = Guest::ready().await;
    let refusal = async |command: Command| match guest.client.start(&command).await.unwrap_err() {
        GuestError::Rpc { code, message } => (code, message),
        other => panic!("{other}"),
    };
    assert_eq!(
        refusal(Command {
            cwd: Some("/no/such".to_owned()),
            ..bash("true")
        })
        .await,
        (
            Code::InvalidArgument,
            "cwd '/no/such' does not exist".to_owned()
        )
    );
    assert_eq!(
        refusal(Command {
            user: Some("nobody-here".to_owned()),
            ..bash("true")
        })
        .await,
        (
            Code::Unauthenticated,
            "invalid username: 'nobody-here'".to_owned()
        )
    );
    assert_eq!(
        refusal(Command {
            cmd: "/no/such".to_owned(),
            ..Command::default()
        })
        .await,
        (
            Code::InvalidArgument,
            "error starting process '/no/such': No such file or directory (os error 2)".to_owned()
        )
    );
    assert_eq!(
        refusal(Command {
            cmd: "/etc/passwd".to_owned(),
            ..Command::default()
        })
        .await
        .0,
        Code::InvalidArgument
    );
    assert_eq!(
        refusal(Command {
            cmd: "a\0b".to_owned(),
            ..Command::default()
        })
        .await
        .0,
        Code::InvalidArgument
    );
}

#[tokio::test]
async fn a_command_has_the_rights_of_its_user_only() {
    require_root();
    let guest = Guest::ready().await;
    let command = Command {
        user: Some("nobody".to_owned()),
        ..bash(
            "id -un; id -u; id -G; echo $USER $LOGNAME; grep CapEff /proc/self/status; cat /etc/shadow 2>/dev/null",
        )
    };
    let finished = finish(guest.client.start(&command).await.unwrap())
        .await
        .unwrap();
    assert_eq!(
        finished.stdout,
        "nobody\n65534\n65534\nnobody nobody\nCapEff:\t0000000000000000\n"
    );
    assert_eq!(finished.status, ExitStatus::Exited(1));
}

#[tokio::test]
async fn a_client_that_hangs_up_does_not_end_its_command() {
    let guest = Guest::ready().await;
    let mut process = guest
        .client
        .start(&Command {
            stdin: true,
            ..bash("echo up; while read line; do echo $line > /dev/null; done; exit 7")
        })
        .await
        .unwrap();
    output_until(&mut process, "up").await;
    let (pid, input) = (process.pid(), process.input());
    drop(process);
    input.send(b"still there\n").await.unwrap();
    assert!(runs(&pid.to_string()));
    input.signal(Signal::Kill).await.unwrap();
}

#[tokio::test]
async fn signals_hit_the_one_process() {
    let guest = Guest::ready().await;
    let mut process = guest.start("sleep 600 & echo child $!; wait").await;
    let seen = output_until(&mut process, "\n").await;
    let child = seen.trim().strip_prefix("child ").unwrap().to_owned();
    process.input().signal(Signal::Terminate).await.unwrap();
    assert_eq!(
        finish(process).await.unwrap().status,
        ExitStatus::Signaled(15)
    );
    assert!(runs(&child));
    let gone = guest
        .client
        .start(&bash(&format!("kill -9 {child}")))
        .await
        .unwrap();
    assert_eq!(finish(gone).await.unwrap().status, ExitStatus::Exited(0));
}

#[tokio::test]
async fn an_ended_command_is_not_found() {
    let guest = Guest::ready().await;
    let process = guest.start("true").await;
    let input = process.input();
    finish(process).await.unwrap();
    let error = input.signal(Signal::Kill).await.unwrap_err();
    assert!(
        matches!(
            error,
            GuestError::Rpc {
                code: Code::NotFound,
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn big_output_is_complete() {
    let guest = Guest::ready().await;
    let expected: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
    assert!(guest.run("seq 1 300000").await == Finished::ok(&expected));
}

#[tokio::test]
async fn a_slow_reader_slows_the_command_and_costs_no_memory() {
    const TOTAL: usize = 64 << 20;
    let guest = Guest::ready().await;
    let mut process = guest
        .start(&format!("head -c {TOTAL} /dev/zero; echo written >&2"))
        .await;
    let mut received = match process.next().await.unwrap() {
        Some(ProcessEvent::Stdout(bytes)) => bytes.len(),
        other => panic!("{other:?}"),
    };
    // While nobody reads, the guest does other things.
    for _ in 0..20 {
        assert_eq!(
            guest.run("echo meanwhile").await,
            Finished::ok("meanwhile\n")
        );
    }
    while let Some(event) = process.next().await.unwrap() {
        if let ProcessEvent::Stdout(bytes) = event {
            assert!(bytes.len() <= 32 * 1024);
            received += bytes.len();
        }
    }
    assert_eq!(received, TOTAL);
    let peak = guest.peak_memory_kib();
    assert!(peak < 24 * 1024, "the guest used {peak} KiB");
}

#[tokio::test]
async fn output_after_the_shells_end_still_comes() {
    let guest = Guest::ready().await;
    assert_eq!(
        guest.run("echo late > >(sleep 0.05; cat)").await,
        Finished::ok("late\n")
    );
}

#[tokio::test]
async fn many_commands_at_once_keep_their_output_apart() {
    let guest = Guest::ready().await;
    let tasks: Vec<_> = (0..40)
        .map(|number| {
            let client = guest.client.clone();
            tokio::spawn(async move {
                finish(
                    client
                        .start(&bash(&format!("echo {number}; exit {number}")))
                        .await
                        .unwrap(),
                )
                .await
                .unwrap()
            })
        })
        .collect();
    for (number, task) in (0..).zip(tasks) {
        let expected = Finished {
            status: ExitStatus::Exited(number),
            ..Finished::ok(&format!("{number}\n"))
        };
        assert_eq!(task.await.unwrap(), expected);
    }
}

#[tokio::test]
async fn orphans_are_reaped() {
    let guest = Guest::ready().await;
    guest.run("for n in 1 2 3 4 5; do (true &) ; done").await;
    // The guest reaps before it answers the next command, or soon after.
    let children = || {
        std::fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("stat")).ok())
            .filter(|stat| {
                stat.rsplit(')').next().unwrap().split_whitespace().nth(1)
                    == Some(&guest.pid().to_string())
            })
            .count()
    };
    tokio::time::timeout(Duration::from_secs(5), async {
        // One stays: the reaper of the next command.
        while children() > 1 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("zombies are left");
}

#[tokio::test]
async fn sigterm_ends_the_guest_cleanly_with_everything_in_it() {
    let mut guest = Guest::ready().await;
    let mut process = guest.start("echo $$; exec sleep 600").await;
    let pid = output_until(&mut process, "\n").await.trim().to_owned();
    assert!(guest.terminate().success());
    assert!(!runs(&pid));
    // The last word may still get out; a broken stream is as good.
    match process.next().await {
        Ok(last) => assert_eq!(last, Some(ProcessEvent::End(ExitStatus::Signaled(9)))),
        Err(error) => assert!(
            matches!(error, GuestError::Disconnected(_) | GuestError::Protocol(_)),
            "{error}"
        ),
    }
}

#[tokio::test]
async fn a_running_command_can_be_followed_and_an_ended_one_tells_its_end() {
    let guest = Guest::ready().await;
    let command = Command {
        stdin: true,
        ..bash("echo up; read line; echo got $line; exit 5")
    };
    let mut process = guest.client.start(&command).await.unwrap();
    output_until(&mut process, "up").await;
    let pid = process.pid();
    drop(process);
    let visitor = guest.client.follow(pid).await.unwrap();
    assert_eq!(visitor.pid(), pid);
    visitor.input().send(b"it\n").await.unwrap();
    let expected = Finished {
        status: ExitStatus::Exited(5),
        ..Finished::ok("got it\n")
    };
    assert_eq!(finish(visitor).await.unwrap(), expected);
    let late = finish(guest.client.follow(pid).await.unwrap()).await;
    assert_eq!(late.unwrap().status, ExitStatus::Exited(5));
    let nobody = guest.client.follow(4_000_000).await.unwrap_err();
    assert!(
        matches!(
            nobody,
            GuestError::Rpc {
                code: Code::NotFound,
                ..
            }
        ),
        "{nobody}"
    );
}
