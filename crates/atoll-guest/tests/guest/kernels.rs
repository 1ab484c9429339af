//! Real kernels: state, contexts, variables, and everything that may happen to
//! a kernel while code runs in it.

use atoll_guest_client::{CodeToRun, GuestError, NewContext};

use crate::support::code::{
    follow, guest_with, guest_with_kernels, in_context, kernels, printed, python, ran, run,
};
use crate::support::runs;

#[tokio::test]
async fn state_stays_and_executions_are_counted() {
    let guest = guest_with_kernels().await;
    let first = ran(&guest.client, "x = 20\nprint('ü')\nx + 1").await;
    assert_eq!(
        (first.count, first.stdout.as_str(), first.text()),
        (Some(1), "ü\n", "21")
    );
    assert!(first.results[0].is_main_result);
    let second = ran(
        &guest.client,
        "import sys\nprint('e', file=sys.stderr)\nx * 2",
    )
    .await;
    assert_eq!(
        (second.count, second.stderr.as_str(), second.text()),
        (Some(2), "e\n", "40")
    );
    let failed = ran(&guest.client, "1 / 0").await;
    let error = failed.error();
    assert_eq!(
        (error.name.as_str(), error.value.as_str()),
        ("ZeroDivisionError", "division by zero")
    );
    assert!(
        error.traceback.contains("----> 1") && !error.traceback.contains('\x1b'),
        "{error:?}"
    );
    assert!(!error.is_state_lost());
    assert_eq!(ran(&guest.client, "x").await.text(), "20");
    let shown = ran(
        &guest.client,
        "from IPython.display import Latex, display\ndisplay(Latex('$x$'))\n'a'",
    )
    .await;
    let forms: Vec<_> = shown
        .results
        .iter()
        .map(|one| (one.is_main_result, one.latex.as_deref()))
        .collect();
    assert_eq!(forms, [(false, Some("$x$")), (true, None)]);
    assert_eq!(shown.results[1].text.as_deref(), Some("a"));
}

#[tokio::test]
async fn what_programs_write_belongs_to_the_cell_that_ran_them() {
    let guest = guest_with_kernels().await;
    // What is written at once stays together; `print` writes the end of its line by itself.
    let code = "import os, sys\n\
        print('before')\n\
        os.system('echo by a program; echo to the other >&2')\n\
        os.write(1, b'by its number\\n')\n\
        sys.stderr.write('after\\n');";
    for _ in 0..40 {
        let said = ran(&guest.client, code).await;
        let mut lines: Vec<_> = said.stdout.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["before", "by a program", "by its number"]);
        let mut lines: Vec<_> = said.stderr.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["after", "to the other"]);
    }
    // Whoever closes them is heard all the same.
    let closed = ran(&guest.client, "os.close(1); print('still there'); 1").await;
    assert_eq!(
        (closed.stdout.as_str(), closed.text()),
        ("still there\n", "1")
    );
    assert_eq!(ran(&guest.client, "2").await.text(), "2");
}

#[tokio::test]
async fn contexts_are_apart_in_order_and_can_be_emptied() {
    let guest = guest_with_kernels().await;
    let client = &guest.client;
    let (place, path) = crate::support::place();
    let wanted = NewContext {
        cwd: Some(path.clone()),
        ..NewContext::default()
    };
    let own = client.create_context(&wanted).await.unwrap();
    assert_eq!(
        (own.language.as_str(), own.cwd.as_str()),
        ("python", path.as_str())
    );
    ran(client, "x = 'of the default one'").await;
    assert_eq!(
        run(
            client,
            &in_context(&own.id, "import os; x = 1; os.getcwd()")
        )
        .await
        .text(),
        path
    );
    assert_eq!(ran(client, "x").await.text(), "of the default one");
    let listed = client.list_contexts().await.unwrap();
    let languages: Vec<_> = listed.iter().map(|one| one.language.as_str()).collect();
    assert_eq!(
        (languages.as_slice(), &listed[2]),
        (["python", "javascript", "python"].as_slice(), &own)
    );
    assert_eq!(
        run(client, &in_context(&listed[0].id, "x")).await.text(),
        "of the default one"
    );

    client.restart_context(&own.id).await.unwrap();
    assert_eq!(client.list_contexts().await.unwrap(), listed);
    let emptied = run(
        client,
        &in_context(&own.id, "import os; print(os.getcwd()); x"),
    )
    .await;
    assert_eq!(
        (emptied.count, emptied.stdout.trim()),
        (Some(1), path.as_str())
    );
    assert_eq!(emptied.error().name, "NameError");

    client.remove_context(&own.id).await.unwrap();
    let gone = |error: GuestError| match error {
        GuestError::Refused { status, message } => (status, message),
        other => panic!("{other}"),
    };
    let expected = (404, format!("Context {} not found", own.id));
    assert_eq!(
        gone(
            client
                .run_code(&in_context(&own.id, "1"))
                .await
                .unwrap_err()
        ),
        expected
    );
    assert_eq!(
        gone(client.remove_context(&own.id).await.unwrap_err()),
        expected
    );
    assert_eq!(
        gone(client.restart_context(&own.id).await.unwrap_err()),
        expected
    );
    let both = CodeToRun {
        language: Some("python".to_owned()),
        ..in_context(&own.id, "1")
    };
    assert_eq!(gone(client.run_code(&both).await.unwrap_err()).0, 400);
    let unknown = CodeToRun {
        language: Some("cobol".to_owned()),
        ..python("1")
    };
    let (status, message) = gone(client.run_code(&unknown).await.unwrap_err());
    assert_eq!(status, 500);
    assert!(
        message.contains("no kernel for 'cobol'") && message.contains("python3"),
        "{message}"
    );
    drop(place);
    let (status, message) = gone(client.create_context(&wanted).await.unwrap_err());
    assert!(
        status == 500 && message.contains("cannot be entered"),
        "{message}"
    );
}

#[tokio::test]
async fn variables_are_there_while_the_code_runs_and_not_after() {
    let guest = guest_with_kernels().await;
    let look = "import os; [os.environ.get(n) for n in ('SANDBOX_VARIABLE', 'A', 'HOME')]";
    let home = std::env::var("HOME").unwrap();
    let with = |pairs: &[(&str, &str)]| CodeToRun {
        envs: pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        ..python(look)
    };
    let before = ran(&guest.client, look).await;
    assert_eq!(before.text(), format!("['from-init', None, '{home}']"));
    let value = "it's \"quoted\" \\ \n 😀";
    let during = run(
        &guest.client,
        &with(&[("A", value), ("SANDBOX_VARIABLE", "other"), ("HOME", "/x")]),
    )
    .await;
    assert_eq!(during.count, Some(2));
    let expected = format!("['other', {}, '/x']", r#"'it\'s "quoted" \\ \n 😀'"#);
    assert_eq!(during.text(), expected);
    let after = ran(&guest.client, look).await;
    assert_eq!((after.count, after.text()), (Some(3), before.text()));
    let GuestError::Refused { status, .. } = guest
        .client
        .run_code(&with(&[("A=B", "")]))
        .await
        .unwrap_err()
    else {
        panic!("taken");
    };
    assert_eq!(status, 400);
    let names = ran(&guest.client, "[n for n in dir() if 'json' in n]").await;
    assert_eq!(names.text(), "[]");
}

/// Every way in which code can end its own kernel.
const DEATHS: [(&str, &str); 6] = [
    ("import os; os._exit(3)", "exit status 3"),
    ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
    ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    ("import os; os.abort()", "SIGABRT"),
    (
        "import os; os.kill(os.getppid(), 9)\nwhile True: pass",
        "ended",
    ),
    (
        "import sys\nsys.setrecursionlimit(10**8)\ndef f():\n    return repr(type('x', (), {'__repr__': lambda s: repr(s)})())\nf()",
        "SIGSEGV",
    ),
];

#[tokio::test]
async fn a_kernel_that_dies_is_told_and_the_context_goes_on() {
    let guest = guest_with_kernels().await;
    for (code, how) in DEATHS {
        assert_eq!(
            ran(&guest.client, "kept = 1\nkept").await.text(),
            "1",
            "{code}"
        );
        let death = ran(
            &guest.client,
            &format!("print('before', flush=True)\n{code}"),
        )
        .await;
        let error = death.error();
        assert_eq!(
            (error.name.as_str(), error.is_state_lost()),
            ("ContextRestarting", true)
        );
        assert!(
            error.value.contains(how) && error.value.contains("lost"),
            "{code}: {}",
            error.value
        );
        let next = ran(&guest.client, "kept").await;
        assert_eq!(
            (next.count, next.error().name.as_str()),
            (Some(1), "NameError"),
            "{code}"
        );
    }
    assert_eq!(guest.client.list_contexts().await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_kernel_that_died_between_two_executions_is_told_too() {
    let guest = guest_with_kernels().await;
    let pid = ran(&guest.client, "import os; os.getpid()").await;
    let pid = pid.text().to_owned();
    assert!(runs(&pid));
    guest
        .run(&format!(
            "kill -9 {pid}; while kill -0 {pid}; do :; done 2> /dev/null"
        ))
        .await;
    let next = ran(&guest.client, "1 + 1").await;
    assert!(
        next.stderr.contains("SIGKILL") && next.stderr.contains("lost"),
        "{next:?}"
    );
    assert_eq!((next.count, next.text()), (Some(1), "2"));
}

#[tokio::test]
async fn code_is_interrupted_when_nobody_waits_for_it() {
    let guest = guest_with_kernels().await;
    for code in [
        "while True: pass",
        "import time\nwhile True: time.sleep(1000)",
        "import subprocess; subprocess.run(['sleep', '1000'])",
    ] {
        ran(&guest.client, "kept = 1").await;
        let mut endless = guest
            .client
            .run_code(&python(&format!("print('runs')\n{code}")))
            .await
            .unwrap();
        printed(&mut endless, "runs").await;
        drop(endless);
        let next = ran(&guest.client, "kept").await;
        assert_eq!((next.text(), next.stderr.as_str()), ("1", ""), "{code}");
    }
}

#[tokio::test]
async fn a_kernel_that_does_not_stop_is_restarted_and_that_is_said() {
    let guest = guest_with_kernels().await;
    let code = "import time\nkept = 1\nprint('runs')\nwhile True:\n    try:\n        time.sleep(1000)\n    except KeyboardInterrupt:\n        pass";
    let mut stubborn = guest.client.run_code(&python(code)).await.unwrap();
    printed(&mut stubborn, "runs").await;
    drop(stubborn);
    let next = ran(&guest.client, "'kept' in globals()").await;
    assert_eq!(next.text(), "False");
    assert!(
        next.stderr.contains("did not stop") && next.stderr.contains("lost"),
        "{next:?}"
    );
}

#[tokio::test]
async fn output_and_results_are_cut_and_that_is_said() {
    const MIB: usize = 1024 * 1024;
    let guest = guest_with_kernels().await;
    // In one piece and in many.
    for code in [
        "print('x' * (40 * 1024 ** 2))",
        "for _ in range(40 * 1024): print('x' * 1023)",
    ] {
        let long = ran(&guest.client, code).await;
        assert_eq!(
            (long.stdout.len() >> 20, long.error),
            (15 + usize::from(long.stdout.len() == 16 * MIB), None)
        );
        let cut = long.stderr.lines().last().unwrap();
        let count: usize = cut
            .trim_start_matches('[')
            .split(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        // A line break is two bytes in JSON.
        let lines = if code.starts_with("for") {
            40 * 1024
        } else {
            1
        };
        assert_eq!(
            long.stdout.replace('\n', "..").len() + count,
            40 * MIB + lines * 2 - if lines > 1 { lines } else { 0 },
            "{cut}"
        );
    }
    let large = ran(&guest.client, "'x' * (64 * 1024 ** 2)").await;
    assert!(
        large.text().starts_with("[a result of 6710") && large.text().contains("hint:"),
        "{}",
        large.text()
    );
    let error = ran(&guest.client, "raise ValueError('x' * (64 * 1024 ** 2))").await;
    assert_eq!(error.error().name, "OutputCut");
    assert_eq!(ran(&guest.client, "1 + 1").await.text(), "2");
    let peak = guest.peak_memory_kib();
    assert!(peak < 300 * 1024, "{peak} KiB");
}

#[tokio::test]
async fn endless_output_ends_with_its_reader() {
    let guest = guest_with_kernels().await;
    let mut endless = guest
        .client
        .run_code(&python("kept = 1\nwhile True: print('x' * 10000)"))
        .await
        .unwrap();
    printed(&mut endless, "[the output is cut here").await;
    drop(endless);
    assert_eq!(ran(&guest.client, "kept").await.text(), "1");
}

#[tokio::test]
async fn one_at_a_time_in_a_context_and_who_leaves_the_line_is_not_run() {
    let guest = guest_with_kernels().await;
    let (place, path) = crate::support::place();
    ran(&guest.client, "import os, time; order = []").await;
    let wait = format!(
        "print('runs')\nwhile not os.path.exists('{path}/go'): time.sleep(0.01)\norder.append(1)"
    );
    let mut first = guest.client.run_code(&python(&wait)).await.unwrap();
    printed(&mut first, "runs").await;
    let second = guest
        .client
        .run_code(&python("order.append(2)"))
        .await
        .unwrap();
    let gone = guest
        .client
        .run_code(&python("order.append('gone')"))
        .await
        .unwrap();
    let third = guest
        .client
        .run_code(&python("order.append(3); order"))
        .await
        .unwrap();
    drop(gone);
    // Another context does not wait.
    let other = guest
        .client
        .create_context(&NewContext::default())
        .await
        .unwrap();
    assert_eq!(
        run(&guest.client, &in_context(&other.id, "1")).await.text(),
        "1"
    );
    std::fs::write(place.path().join("go"), "").unwrap();
    let (first, second, third) = tokio::join!(follow(first), follow(second), follow(third));
    assert_eq!((first.error, second.error), (None, None));
    assert_eq!(third.text(), "[1, 2, 3]");
}

#[tokio::test]
async fn who_restarts_or_removes_a_context_ends_what_runs_in_it() {
    let guest = guest_with_kernels().await;
    let context = guest
        .client
        .create_context(&NewContext::default())
        .await
        .unwrap();
    let endless = "import subprocess, time\nchild = subprocess.Popen(['sleep', '1000'])\nprint('child', child.pid)\nwhile True: time.sleep(1)";
    for what in ["restarted", "removed"] {
        let mut run = guest
            .client
            .run_code(&in_context(&context.id, endless))
            .await
            .unwrap();
        let child = loop {
            match run.next().await.unwrap().unwrap() {
                atoll_guest_client::CodeEvent::Stdout { text } => {
                    break text.replace("child", "").trim().to_owned();
                }
                _ => continue,
            }
        };
        assert!(runs(&child));
        match what {
            "restarted" => guest.client.restart_context(&context.id).await.unwrap(),
            _ => guest.client.remove_context(&context.id).await.unwrap(),
        }
        let ended = follow(run).await;
        let error = ended.error();
        assert_eq!(error.name, "ContextRestarting");
        assert!(error.value.contains(what), "{error:?}");
        assert!(!runs(&child), "{what}");
    }
}

#[tokio::test]
async fn nothing_of_a_dead_kernel_stays_behind() {
    let guest = guest_with_kernels().await;
    // Into a file: what a kernel printed last may go with it.
    let (place, path) = crate::support::place();
    let code = format!(
        "import os, time\npids = []\nfor _ in range(30):\n    pid = os.fork()\n    if pid == 0:\n        time.sleep(1000)\n    pids.append(pid)\nwith open('{path}/pids', 'w') as file:\n    print(*pids, file=file)\nos._exit(1)"
    );
    let died = ran(&guest.client, &code).await;
    assert_eq!(died.error().name, "ContextRestarting");
    let pids = std::fs::read_to_string(place.path().join("pids")).unwrap();
    let pids: Vec<&str> = pids.split_whitespace().collect();
    assert_eq!(pids.len(), 30);
    assert_eq!(ran(&guest.client, "1 + 1").await.text(), "2");
    assert_eq!(pids.iter().filter(|pid| runs(pid)).count(), 0);
}

#[tokio::test]
async fn a_kernel_without_its_streams_goes_on() {
    let guest = guest_with_kernels().await;
    for code in [
        "import os; os.close(1); os.close(2); os.close(0)",
        "import os; os.closerange(0, 3)",
    ] {
        ran(&guest.client, code).await;
        assert_eq!(ran(&guest.client, "1 + 1").await.text(), "2", "{code}");
    }
    assert_eq!(
        ran(&guest.client, "input()").await.error().name,
        "StdinNotImplementedError"
    );
    assert_eq!(ran(&guest.client, "1 + 1").await.text(), "2");
}

#[tokio::test]
async fn other_kernels_run_in_processes_of_their_own_also_over_ports() {
    let program = kernels().join("bin/python");
    let (place, path) = crate::support::place();
    std::fs::create_dir(place.path().join("bin")).unwrap();
    for transport in ["ipc", "tcp"] {
        let spec = place.path().join("share/jupyter/kernels").join(transport);
        std::fs::create_dir_all(&spec).unwrap();
        let json = serde_json::json!({
            "argv": [program, "-X", "utf8", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "env": {"OF_THE_KERNEL": "yes"},
            "metadata": {"transport": transport},
        });
        std::fs::write(spec.join("kernel.json"), json.to_string()).unwrap();
    }
    let guest = guest_with(&format!("{path}/bin")).await;
    for transport in ["ipc", "tcp"] {
        let code = |text: &str| CodeToRun {
            language: Some(transport.to_owned()),
            ..python(text)
        };
        let look = "import os; os.environ['OF_THE_KERNEL'], os.environ['SANDBOX_VARIABLE']";
        let first = run(&guest.client, &code(look)).await;
        assert_eq!(first.text(), "('yes', 'from-init')", "{transport}");
        let mut endless = guest
            .client
            .run_code(&code("kept = 1\nprint('runs')\nwhile True: pass"))
            .await
            .unwrap();
        printed(&mut endless, "runs").await;
        drop(endless);
        assert_eq!(run(&guest.client, &code("kept")).await.text(), "1");
        let died = run(&guest.client, &code("os._exit(7)")).await;
        assert!(died.error().value.contains("exit status 7"), "{died:?}");
        assert_eq!(run(&guest.client, &code("1 + 1")).await.text(), "2");
    }
}

#[tokio::test]
async fn many_contexts_share_a_parent_and_no_random_numbers() {
    let guest = guest_with_kernels().await;
    let (mut numbers, mut parents) = (Vec::new(), Vec::new());
    for _ in 0..12 {
        let context = guest
            .client
            .create_context(&NewContext::default())
            .await
            .unwrap();
        let made = run(
            &guest.client,
            &in_context(
                &context.id,
                "import os, random; print(os.getppid()); random.random()",
            ),
        )
        .await;
        numbers.push(made.text().to_owned());
        parents.push(made.stdout);
    }
    for list in [&mut numbers, &mut parents] {
        list.sort();
        list.dedup();
    }
    assert_eq!((numbers.len(), parents.len()), (12, 1));
}

#[tokio::test]
async fn a_thread_that_prints_while_no_code_runs_is_not_held_up() {
    let guest = guest_with_kernels().await;
    let code = "import threading, sys\ncount = 0\ndone = threading.Event()\ndef work():\n    global count\n    for _ in range(20000):\n        print('x' * 100, flush=True)\n        count += 1\n    done.set()\nthreading.Thread(target=work).start()";
    ran(&guest.client, code).await;
    // It is heard by nobody until this asks for it.
    let done = ran(&guest.client, "done.wait(60), count").await;
    assert_eq!(done.text(), "(True, 20000)");
}
