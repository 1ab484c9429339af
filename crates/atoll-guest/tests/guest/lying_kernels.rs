//! Kernels that lie on the wire, and Python without kernels.

use atoll_guest_client::{CodeToRun, GuestError};

use crate::support::Guest;
use crate::support::code::{Ran, guest_with, printed, python, ran, run};

const LIAR: &str = include_str!("support/liar.py");

/// A guest with a kernel called `liar`.
async fn guest_with_a_liar() -> (tempfile::TempDir, Guest) {
    let (place, path) = crate::support::place();
    std::fs::create_dir(place.path().join("bin")).unwrap();
    std::fs::write(place.path().join("liar.py"), LIAR).unwrap();
    let spec = place.path().join("share/jupyter/kernels/liar");
    std::fs::create_dir_all(&spec).unwrap();
    let json = format!(r#"{{"argv": ["python3", "{path}/liar.py", "{{connection_file}}"]}}"#);
    std::fs::write(spec.join("kernel.json"), json).unwrap();
    let guest = guest_with(&format!("{path}/bin")).await;
    (place, guest)
}

fn lie(code: &str) -> CodeToRun {
    CodeToRun {
        language: Some("liar".to_owned()),
        ..python(code)
    }
}

async fn told(guest: &Guest, code: &str) -> Ran {
    run(&guest.client, &lie(code)).await
}

fn error_name(ran: &Ran) -> Option<&str> {
    ran.error.as_ref().map(|error| error.name.as_str())
}

#[tokio::test]
async fn what_a_kernel_says_neither_ends_nor_fills_the_guest() {
    let (_place, guest) = guest_with_a_liar().await;
    for code in [
        "honest",
        "nonsense",
        "frames",
        "strangers",
        "lines",
        "deep",
        "twice",
    ] {
        let ran = told(&guest, code).await;
        let done = ran.stdout.ends_with("done") && !ran.stdout.contains("not yours");
        let expected = if code == "nonsense" {
            error_name(&ran)
        } else {
            None
        };
        assert!(done && error_name(&ran) == expected, "{code}: {ran:?}");
    }
    let peak = guest.peak_memory_kib();
    assert!(peak < 100 * 1024, "{peak} KiB");
}

#[tokio::test]
async fn half_an_answer_is_an_answer_or_a_loss() {
    let (_place, guest) = guest_with_a_liar().await;
    assert_eq!(error_name(&told(&guest, "no idle").await), None);
    assert_eq!(told(&guest, "honest").await.stdout, "done");
    for code in ["no answer", "hang up"] {
        let lost = told(&guest, code).await;
        let error = lost.error();
        assert!(
            error.is_state_lost() && error.value.contains("lost"),
            "{code}: {error:?}"
        );
        assert_eq!(told(&guest, "honest").await.stdout, "done", "{code}");
    }
}

#[tokio::test]
async fn who_promises_and_does_not_keep_it_is_ended_with_its_reader() {
    let (_place, guest) = guest_with_a_liar().await;
    for code in ["promise", "garbage", "silence"] {
        told(&guest, "honest").await;
        let run = guest.client.run_code(&lie(code)).await.unwrap();
        drop(run);
        // What it publishes from now on may be within what it promised.
        assert_eq!(error_name(&told(&guest, "honest").await), None, "{code}");
        assert!(told(&guest, "hang up").await.error().is_state_lost());
        assert_eq!(told(&guest, "honest").await.stdout, "done", "{code}");
    }
    let peak = guest.peak_memory_kib();
    assert!(peak < 100 * 1024, "{peak} KiB");
}

#[tokio::test]
async fn a_python_without_kernels_runs_code_too() {
    let (_place, guest) = guest_with_a_liar().await;
    let client = &guest.client;
    let first = ran(
        client,
        "import os\nx = 1\nprint('ü', flush=True)\nos.system('echo sub')\n{'a': [x]}",
    )
    .await;
    assert_eq!(
        (first.count, first.stdout.as_str(), first.text()),
        (Some(1), "ü\nsub\n", "{'a': [1]}")
    );
    assert_eq!(first.results[0].json, Some(serde_json::json!({"a": [1]})));
    let second = ran(client, "def f(): return y\nf()").await;
    assert_eq!(
        (second.count, second.error().name.as_str()),
        (Some(2), "NameError")
    );
    assert!(
        second.error().traceback.contains("def f(): return y"),
        "{second:?}"
    );
    let with = CodeToRun {
        envs: [("A".to_owned(), "😀".to_owned())].into(),
        ..python("(x, os.environ.get('A'))")
    };
    assert_eq!(run(client, &with).await.text(), "(1, '😀')");
    assert_eq!(
        ran(client, "os.environ.get('A') is None").await.text(),
        "True"
    );
    for (code, lost) in [
        ("os._exit(3)", "exit status 3"),
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
    ] {
        ran(client, "import os; x = 1").await;
        let died = ran(client, code).await;
        assert!(
            died.error().is_state_lost() && died.error().value.contains(lost),
            "{died:?}"
        );
        assert_eq!(ran(client, "x").await.error().name, "NameError");
    }
    ran(client, "x = 1").await;
    let mut endless = client
        .run_code(&python("print('runs')\nwhile True: pass"))
        .await
        .unwrap();
    printed(&mut endless, "runs").await;
    drop(endless);
    assert_eq!(ran(client, "x").await.text(), "1");
    let large = ran(client, "'x' * (40 * 1024 ** 2)").await;
    assert!(large.text().starts_with("[a result of "), "{large:?}");
    let long = ran(client, "print('x' * (20 * 1024 ** 2))").await;
    assert_eq!(long.stdout.len(), 16 * 1024 * 1024);
    assert!(
        long.stderr.contains("bytes of output were cut"),
        "{}",
        long.stderr
    );
}

#[tokio::test]
async fn a_template_without_python_says_so() {
    let (place, path) = crate::support::place();
    let guest =
        Guest::ready_under(&["env", &format!("PATH={path}")], &crate::support::whoami()).await;
    let Err(GuestError::Refused { status, message }) = guest.client.run_code(&python("1")).await
    else {
        panic!("it ran");
    };
    assert_eq!(status, 500);
    assert!(
        message.contains("no Python") && message.contains("hint:"),
        "{message}"
    );
    drop(place);
}
