//! Terminals: size, control, input.

use atoll_guest_client::{Code, Command, ExitStatus, GuestError, PtySize, Signal};

use crate::support::{Guest, bash, finish, output_until};

fn in_terminal(script: &str) -> Command {
    Command {
        pty: Some(PtySize { cols: 91, rows: 33 }),
        ..bash(script)
    }
}

#[tokio::test]
async fn a_terminal_has_its_size_and_learns_a_new_one() {
    let guest = Guest::ready().await;
    let script = "trap 'stty size; exit 0' WINCH; stty size; tty; while :; do sleep 0.01; done";
    let mut process = guest.client.start(&in_terminal(script)).await.unwrap();
    let seen = output_until(&mut process, "/dev/pts/").await;
    assert!(seen.starts_with("33 91\r\n"), "{seen:?}");
    process
        .input()
        .resize(PtySize {
            cols: 120,
            rows: 40,
        })
        .await
        .unwrap();
    let finished = finish(process).await.unwrap();
    assert!(finished.pty.ends_with("40 120\r\n"), "{finished:?}");
    assert_eq!(finished.status, ExitStatus::Exited(0));
}

#[tokio::test]
async fn typed_input_arrives_and_control_keys_work() {
    let guest = Guest::ready().await;
    let script = "trap 'echo interrupted' INT; stty -echo; echo ready; read line; echo got:$line; sh -c 'echo again; exec sleep 600'; cat; echo over";
    let mut process = guest.client.start(&in_terminal(script)).await.unwrap();
    output_until(&mut process, "ready").await;
    process.input().send(b"hello\n").await.unwrap();
    output_until(&mut process, "again").await;
    process.input().send(b"\x03").await.unwrap();
    output_until(&mut process, "interrupted").await;
    process.input().send(b"\x04").await.unwrap();
    let finished = finish(process).await.unwrap();
    assert!(finished.pty.contains("over"), "{finished:?}");
}

#[tokio::test]
async fn the_terminal_controls_its_session() {
    let guest = Guest::ready().await;
    let finished = finish(guest.client.start(&in_terminal("exec < /dev/tty && [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && ps -o tpgid= -p $$ && echo $$")).await.unwrap());
    let finished = finished.await.unwrap();
    let numbers: Vec<&str> = finished.pty.split_whitespace().collect();
    assert_eq!(numbers.len(), 2, "{finished:?}");
    assert_eq!(numbers[0], numbers[1]);
}

#[tokio::test]
async fn a_terminals_input_cannot_be_closed_and_pipes_have_no_size() {
    let guest = Guest::ready().await;
    let process = guest.client.start(&in_terminal("sleep 600")).await.unwrap();
    let error = process.input().close().await.unwrap_err();
    assert!(
        matches!(
            error,
            GuestError::Rpc {
                code: Code::FailedPrecondition,
                ..
            }
        ),
        "{error}"
    );
    process.input().signal(Signal::Kill).await.unwrap();
    finish(process).await.unwrap();

    let process = guest.start("sleep 600").await;
    let error = process
        .input()
        .resize(PtySize { cols: 1, rows: 1 })
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            GuestError::Rpc {
                code: Code::FailedPrecondition,
                ..
            }
        ),
        "{error}"
    );
    process.input().signal(Signal::Kill).await.unwrap();
    finish(process).await.unwrap();
}
