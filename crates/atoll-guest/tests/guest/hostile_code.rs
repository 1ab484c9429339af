//! Code that turns against the interpreter: its parent, its lines, its
//! contexts, its variables and its own copies.

use std::io::Write;
use std::time::Duration;

use atoll_guest_client::{CodeToRun, GuestError, NewContext};
use tokio::time::timeout;

use crate::support::code::{
    follow, guest_with, guest_with_kernels, in_context, kernels, printed, python, ran, run,
};
use crate::support::raw;
use crate::support::{TOKEN, runs};

/// What nothing here comes close to taking.
const BOUND: Duration = Duration::from_secs(100);

fn refused(error: GuestError) -> (u16, String) {
    match error {
        GuestError::Refused { status, message } => (status, message),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_stopped_parent_of_kernels_is_no_end_of_new_ones() {
    let guest = guest_with_kernels().await;
    let client = &guest.client;
    ran(client, "kept = 1").await;
    // Once, and without end.
    for code in [
        "import os, signal; os.kill(os.getppid(), signal.SIGSTOP)",
        "import os, signal, threading\nparent = os.getppid()\ndef stop():\n    while True: os.kill(parent, signal.SIGSTOP)\nthreading.Thread(target=stop, daemon=True).start()",
    ] {
        ran(client, code).await;
        let made = timeout(BOUND, client.create_context(&NewContext::default())).await;
        let context = made.unwrap().unwrap();
        let answer = run(client, &in_context(&context.id, "1 + 1")).await;
        assert_eq!(answer.text(), "2", "{code}");
        // Nobody lost anything by that.
        assert_eq!(ran(client, "kept").await.text(), "1", "{code}");
    }
}

#[tokio::test]
async fn a_context_is_restarted_before_everybody_who_waits_for_it() {
    let guest = guest_with_kernels().await;
    let client = &guest.client;
    let context = client.create_context(&NewContext::default()).await.unwrap();
    let code = |text: &str| in_context(&context.id, text);
    let mut first = client
        .run_code(&code("print('runs', flush=True)\nwhile True: pass"))
        .await
        .unwrap();
    printed(&mut first, "runs").await;
    // Endless ones as well: whoever had to wait for them would wait for ever.
    let second = client
        .run_code(&code("print('second', flush=True)\nwhile True: pass"))
        .await
        .unwrap();
    let third = client.run_code(&code("x = 3")).await.unwrap();
    timeout(BOUND, client.restart_context(&context.id))
        .await
        .expect("the restart hangs")
        .unwrap();
    let ended = follow(first).await;
    assert!(ended.error().value.contains("restarted"), "{ended:?}");
    // Who waited runs in the new kernel.
    let mut second = second;
    printed(&mut second, "second").await;
    drop(second);
    assert_eq!(follow(third).await.error, None);
    assert_eq!(run(client, &code("x")).await.text(), "3");
}

#[tokio::test]
async fn a_client_that_does_not_read_keeps_no_context() {
    let guest = guest_with_kernels().await;
    let client = &guest.client;
    for what in ["restart", "remove", "kill"] {
        let context = client.create_context(&NewContext::default()).await.unwrap();
        let code = |text: &str| in_context(&context.id, text);
        let pid = run(client, &code("import os; os.getpid()")).await;
        let pid = pid.text().to_owned();
        let mut deaf = client
            .run_code(&code("while True: print('x' * 100000, flush=True)"))
            .await
            .unwrap();
        printed(&mut deaf, "x").await;
        match what {
            "restart" => timeout(BOUND, client.restart_context(&context.id))
                .await
                .expect("the restart hangs")
                .unwrap(),
            "remove" => timeout(BOUND, client.remove_context(&context.id))
                .await
                .expect("the removal hangs")
                .unwrap(),
            _ => drop(guest.run(&format!("kill -9 {pid}")).await),
        }
        if what != "remove" {
            let next = timeout(BOUND, run(client, &code("1 + 1"))).await;
            assert_eq!(next.expect("the next one hangs").text(), "2", "{what}");
        }
        assert!(!runs(&pid), "{what}");
        drop(deaf);
    }
}

#[tokio::test]
async fn names_of_no_language_leave_no_context() {
    let guest = guest_with_kernels().await;
    let client = &guest.client;
    for number in 0..20 {
        let unknown = CodeToRun {
            language: Some(format!("cobol{number}")),
            ..python("1")
        };
        assert_eq!(refused(client.run_code(&unknown).await.unwrap_err()).0, 500);
        let wanted = NewContext {
            language: Some(format!("cobol{number}")),
            ..NewContext::default()
        };
        let failed = client.create_context(&wanted).await.unwrap_err();
        assert_eq!(refused(failed).0, 500);
    }
    let listed = client.list_contexts().await.unwrap();
    let languages: Vec<&str> = listed.iter().map(|one| one.language.as_str()).collect();
    assert_eq!(languages, ["python", "javascript"]);
}

#[tokio::test]
async fn a_context_whose_client_went_away_before_it_was_made_is_not_kept() {
    let (place, path) = crate::support::place();
    std::fs::create_dir(place.path().join("bin")).unwrap();
    let spec = place.path().join("share/jupyter/kernels/never");
    std::fs::create_dir_all(&spec).unwrap();
    let start = format!("echo $$ > {path}/pid; exec sleep 1000");
    let json = serde_json::json!({"argv": ["sh", "-c", start]});
    std::fs::write(spec.join("kernel.json"), json.to_string()).unwrap();
    let guest = guest_with(&format!("{path}/bin")).await;
    let wanted = NewContext {
        language: Some("never".to_owned()),
        ..NewContext::default()
    };
    let mut making = Box::pin(guest.client.create_context(&wanted));
    let mut look = tokio::time::interval(Duration::from_millis(10));
    while !place.path().join("pid").exists() {
        tokio::select! {
            made = &mut making => panic!("{made:?}"),
            _ = look.tick() => {}
        }
    }
    assert_eq!(guest.client.list_contexts().await.unwrap().len(), 3);
    drop(making);
    timeout(BOUND, async {
        while guest.client.list_contexts().await.unwrap().len() > 2 {
            look.tick().await;
        }
    })
    .await
    .expect("it is kept");
}

#[tokio::test]
async fn variables_that_cannot_be_set_are_told() {
    let guest = guest_with_kernels().await;
    let client = &guest.client;
    let with = |value: &str, code: &str| CodeToRun {
        envs: [("A".to_owned(), value.to_owned())].into(),
        ..python(code)
    };
    let zero = client.run_code(&with("a\0b", "1")).await.unwrap_err();
    let (status, message) = refused(zero);
    assert!(status == 400 && message.contains("hint:"), "{message}");
    let broken = "import os\nkept = os.environ\nclass Broken(dict):\n    update = pop = None\nos.environ = Broken(kept)";
    ran(client, broken).await;
    let untold = run(client, &with("1", "2")).await;
    assert_eq!(untold.text(), "2");
    assert!(untold.stderr.contains("could not be set"), "{untold:?}");
    let next = ran(client, "os.environ = kept").await;
    assert!(next.stderr.contains("could not be reset"), "{next:?}");
    let set = run(client, &with("1", "os.environ['A']")).await;
    assert_eq!((set.text(), set.stderr.as_str()), ("1", ""));
}

#[tokio::test]
async fn forks_of_a_cell_end_with_it_and_are_no_kernels() {
    let guest = guest_with_kernels().await;
    let client = &guest.client;
    let own = ran(client, "import os; os.getpid()").await;
    let own = own.text().to_owned();
    for (code, expected) in [
        // The child comes to the end of the cell,
        ("child = os.fork()", "0"),
        // prints before,
        (
            "child = os.fork()\nif child == 0: print('of the child')",
            "0",
        ),
        // fails,
        ("child = os.fork()\nif child == 0: 1 / 0", "1"),
        // or ends as it should.
        (
            "import sys\nchild = os.fork()\nif child == 0: sys.exit(7)",
            "7",
        ),
    ] {
        let forked = ran(client, &format!("{code}\nprint('parent')")).await;
        assert_eq!(forked.error, None, "{code}");
        let waited = ran(client, "os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])").await;
        assert_eq!(waited.text(), expected, "{code}");
        // What a fork says last takes a way of its own, through its kernel, and may come
        // when no cell listens; the kernel's own words do not.
        assert!(forked.stdout.contains("parent"), "{code}: {forked:?}");
    }
    for _ in 0..10 {
        assert_eq!(ran(client, "os.getpid()").await.text(), own);
    }
    // Where memory runs out they go first, then their kernel, then its parent.
    let weights = "
def weight(pid):
    with open(f'/proc/{pid}/oom_score_adj') as file:
        return int(file.read())
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.write(writing, str(weight('self')).encode())
    os._exit(0)
os.waitpid(child, 0)
int(os.read(reading, 10)) > weight('self') > weight(os.getppid())";
    assert_eq!(ran(client, weights).await.text(), "True");
}

#[tokio::test]
async fn who_waits_for_a_kernel_that_starts_hears_that_somebody_is_there() {
    let (place, path) = crate::support::place();
    std::fs::create_dir(place.path().join("bin")).unwrap();
    let spec = place.path().join("share/jupyter/kernels/slow");
    std::fs::create_dir_all(&spec).unwrap();
    // Slow the second time, for longer than anybody is silent.
    let start = format!(
        "[ ! -e {path}/slow ] || sleep 7; exec {} -m ipykernel_launcher -f {{connection_file}}",
        kernels().join("bin/python").display()
    );
    let json = serde_json::json!({"argv": ["sh", "-c", start]});
    std::fs::write(spec.join("kernel.json"), json.to_string()).unwrap();
    let guest = guest_with(&format!("{path}/bin")).await;
    let code = |text: &str| CodeToRun {
        language: Some("slow".to_owned()),
        ..python(text)
    };
    let wait = format!(
        "import os, time\nprint('runs', flush=True)\nwhile not os.path.exists('{path}/go'): time.sleep(0.01)\nos._exit(1)"
    );
    let mut first = guest.client.run_code(&code(&wait)).await.unwrap();
    printed(&mut first, "runs").await;
    std::fs::write(place.path().join("slow"), "").unwrap();
    let address = guest.address;
    let body = serde_json::json!({"code": "1 + 1", "language": "slow"}).to_string();
    let go = place.path().join("go");
    let second = tokio::task::spawn_blocking(move || {
        let mut stream = raw::connect(address);
        let head = format!(
            "POST /execute HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Access-Token: {TOKEN}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        // Who is answered stands in the line.
        stream.peek(&mut [0]).unwrap();
        std::fs::write(go, "").unwrap();
        raw::receive(stream)
    });
    let died = follow(first).await;
    assert_eq!(died.error().name, "ContextRestarting");
    let answer = second.await.unwrap();
    let lines = String::from_utf8(answer.body).unwrap();
    let alive = lines.find("keepalive").expect("a silent start");
    assert!(alive < lines.find("\"text\":\"2\"").unwrap(), "{lines}");
}

#[tokio::test]
async fn the_first_kernel_is_proven_or_it_is_told_why_not() {
    let guest = guest_with_kernels().await;
    for _ in 0..2 {
        let warmth = guest.client.warm(BOUND).await.unwrap();
        assert!(warmth.has_kernel, "{warmth:?}");
        println!("{warmth:?}");
    }
    // Nothing of that is seen.
    let first = ran(&guest.client, "dir()[0], 1 + 1").await;
    assert_eq!((first.count, first.text()), (Some(1), "('In', 2)"));

    for (argv, expected) in [
        (
            vec!["sh", "-c", "echo no luck >&2; exit 3"],
            "exit status 3",
        ),
        (
            vec!["sleep", "1000"],
            "did not have a kernel ready within 1s",
        ),
    ] {
        let (place, path) = crate::support::place();
        std::fs::create_dir(place.path().join("bin")).unwrap();
        let spec = place.path().join("share/jupyter/kernels/python3");
        std::fs::create_dir_all(&spec).unwrap();
        let json = serde_json::json!({ "argv": argv }).to_string();
        std::fs::write(spec.join("kernel.json"), json).unwrap();
        let guest = guest_with(&format!("{path}/bin")).await;
        let bound = if argv[0] == "sleep" {
            Duration::from_secs(1)
        } else {
            BOUND
        };
        let cold = guest.client.warm(bound).await.unwrap_err().to_string();
        assert!(cold.contains(expected), "{cold}");
        // Everything else goes on.
        assert_eq!(guest.client.list_contexts().await.unwrap().len(), 2);
        assert_eq!(guest.run("echo here").await.stdout, "here\n");
    }
}
