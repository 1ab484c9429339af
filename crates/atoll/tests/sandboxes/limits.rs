//! Every limit, driven over its edge: the outcome names it with its value, the
//! host does not suffer, and the next sandbox works.

use std::fs;

use atoll_engine::Tier;
use serde_json::{Value, json};

use crate::harness::{Finished, TIME_FACTOR, TestHome, eventually, second_home, tier};

/// A run that hits a limit, and then one that must not notice.
fn over_the_edge(home: &TestHome, arguments: &[&str]) -> Value {
    let finished = home.atoll(["run", "--json"]).and(arguments).finish();
    let report = finished.json();
    assert_eq!(report["exit_code"], json!(finished.code), "{report}");
    assert_eq!(
        home.python("print(6*7)"),
        Finished::printed("42\n"),
        "the next run"
    );
    report
}

#[test]
fn memory_ends_the_program_that_takes_too_much() {
    let home = second_home();
    let report = over_the_edge(
        &home,
        &[
            "--memory",
            "64M",
            "-l",
            "python",
            "-c",
            "bytearray(300 << 20)",
        ],
    );
    assert_eq!(
        report["outcome"],
        json!({"kind": "memory_limit", "limit_mib": 64})
    );
    assert_eq!(report["exit_code"], json!(137));
    let peak = report["usage"]["memory_peak_bytes"].as_u64().unwrap();
    // gVisor has 32 MiB of its own, and up to four loans of 64 MiB while room is made.
    let most = match tier() {
        Tier::Gvisor => (64 + 32 + 4 * 64) << 20,
        _ => 64 << 20,
    };
    assert!(peak <= most, "{peak} bytes were used");

    // The same below the limit is fine.
    let report = over_the_edge(
        &home,
        &[
            "--memory",
            "512M",
            "-l",
            "python",
            "-c",
            "bytearray(300 << 20)",
        ],
    );
    assert_eq!(report["outcome"], json!({"kind": "exited", "code": 0}));
}

#[test]
fn memory_of_every_kind_counts() {
    let home = second_home();
    let shared =
        "import mmap\nm = mmap.mmap(-1, 200 << 20)\nfor i in range(0, len(m), 4096): m[i] = 1";
    let files = "open('/dev/shm/a', 'wb').write(bytes(60 << 20))\nx = bytearray(60 << 20)";
    for code in [shared, files] {
        let report = over_the_edge(&home, &["--memory", "96M", "-l", "python", "-c", code]);
        assert_eq!(
            report["outcome"],
            json!({"kind": "memory_limit", "limit_mib": 96}),
            "{code}"
        );
    }
    // Pages of files on the disk can be written out, so they are no reason to end anything.
    let cached = "dd if=/dev/zero of=big bs=1M count=200 status=none && cat big big > /dev/null && echo done";
    let report = over_the_edge(&home, &["--memory", "64M", "-l", "bash", "-c", cached]);
    assert_eq!(
        (&report["stdout"], &report["outcome"]["kind"]),
        (&json!("done\n"), &json!("exited")),
        "{report}"
    );
}

#[test]
fn memory_ends_the_guilty_process_and_not_the_sandbox() {
    let home = second_home();
    let code = "import os\n\
        child = os.fork()\n\
        if child == 0:\n\
        \x20   bytearray(300 << 20)\n\
        \x20   os._exit(0)\n\
        print('child ended by', os.WTERMSIG(os.waitpid(child, 0)[1]))\n\
        print(os.popen('echo still alive').read().strip())";
    let report = over_the_edge(&home, &["--memory", "64M", "-l", "python", "-c", code]);
    assert_eq!(report["stdout"], json!("child ended by 9\nstill alive\n"));
    assert_eq!(report["outcome"], json!({"kind": "exited", "code": 0}));
    assert!(report["usage"]["oom_kills"].as_u64() > Some(0), "{report}");
}

#[test]
fn cpu_time_is_what_was_allowed() {
    let home = second_home();
    // Two loops want two CPUs; both are counted from one moment to another.
    let code = "import os, time\n\
        start, before = time.monotonic(), sum(os.times()[:4])\n\
        child = os.fork()\n\
        while time.monotonic() - start < 1.2: pass\n\
        if child == 0: os._exit(0)\n\
        os.waitpid(child, 0)\n\
        print(time.monotonic() - start, sum(os.times()[:4]) - before)";
    let start = std::time::Instant::now();
    let finished = home
        .atoll(["run", "--json", "--cpus", "0.5", "-l", "python", "-c", code])
        .finish();
    let (life, report) = (start.elapsed().as_secs_f64(), finished.json());
    assert_eq!(
        report["outcome"],
        json!({"kind": "exited", "code": 0}),
        "{report}"
    );
    let printed = report["stdout"].as_str().unwrap().split_whitespace();
    let numbers: Vec<f64> = printed.map(|number| number.parse().unwrap()).collect();
    let (wall, used) = (numbers[0], numbers[1]);
    let measured = report["usage"]["cpu_usec"].as_f64().unwrap() / 1e6;
    if tier() == Tier::Gvisor {
        // Its kernel does not know that it was held back: the host's measure counts.
        assert!(measured <= 0.75 * life, "{measured} s of CPU in {life} s");
    } else {
        assert!(used <= 0.75 * wall, "{used} s of CPU in {wall} s");
        assert!(
            measured >= 0.9 * used,
            "the host saw {measured} s of {used} s"
        );
    }
    assert!(
        report["usage"]["throttled_usec"].as_u64() > Some(0),
        "{report}"
    );
}

#[test]
fn a_fork_bomb_stays_within_its_processes() {
    let home = second_home();
    let code = "import os, time\n\
        count = 0\n\
        try:\n\
        \x20   while True:\n\
        \x20       if os.fork() == 0:\n\
        \x20           time.sleep(1000)\n\
        \x20       count += 1\n\
        except BlockingIOError:\n\
        \x20   print(count, flush=True)\n\
        \x20   raise";
    let report = over_the_edge(&home, &["--pids", "40", "-l", "python", "-c", code]);
    assert_eq!(
        report["outcome"],
        json!({"kind": "pids_limit", "limit": 40})
    );
    let made: u64 = report["stdout"].as_str().unwrap().trim().parse().unwrap();
    if tier() == Tier::Gvisor {
        // Counted inside, for the user alone, whose shell is one of them.
        assert!((38..=41).contains(&(made + 1)), "{made} processes");
    } else {
        // Up to 24 more are kept for Atoll's own processes inside, which uses a few of them.
        assert!((40..=64).contains(&(made + 1)), "{made} processes");
        assert!(report["usage"]["pids_refused"].as_u64() > Some(0));
    }
}

#[test]
fn a_fork_bomb_that_never_ends_is_ended_by_its_timeout() {
    let home = second_home();
    let code = ":(){ :|:& };: ; while :; do :; done";
    let report = over_the_edge(
        &home,
        &["--pids", "64", "--timeout", "1s", "-l", "bash", "-c", code],
    );
    assert_eq!(
        report["outcome"],
        json!({"kind": "timeout", "limit_ms": 1000})
    );
    assert_eq!(report["exit_code"], json!(124));
}

#[test]
fn threads_count_as_processes() {
    let home = second_home();
    let code = "import threading\n\
        stop = threading.Event()\n\
        for _ in range(100): threading.Thread(target=stop.wait, daemon=True).start()";
    let report = over_the_edge(&home, &["--pids", "40", "-l", "python", "-c", code]);
    assert_eq!(
        report["outcome"],
        json!({"kind": "pids_limit", "limit": 40}),
        "{report}"
    );
}

#[test]
fn a_full_disk_is_told_and_what_is_deleted_is_free_again() {
    let home = second_home();
    let fill = "head -c 1G /dev/zero > big";
    let report = over_the_edge(&home, &["--disk", "64M", "-l", "bash", "-c", fill]);
    assert_eq!(
        report["outcome"],
        json!({"kind": "disk_full", "limit_mib": 64}),
        "{report}"
    );
    assert_eq!(report["exit_code"], json!(1));
    assert!(report["usage"]["disk_total_bytes"].as_u64() <= Some(64 << 20));

    // Below /usr and in /tmp, as root: it is all the same disk.
    let fill = "sudo sh -c 'head -c 1G /dev/zero > /usr/big'; head -c 1G /dev/zero > /tmp/big";
    let report = over_the_edge(&home, &["--disk", "64M", "-l", "bash", "-c", fill]);
    assert_eq!(
        report["outcome"],
        json!({"kind": "disk_full", "limit_mib": 64}),
        "{report}"
    );

    let refill = "head -c 1G /dev/zero > big 2>/dev/null; rm big; head -c 40M /dev/zero > again && stat -c %s again";
    let report = over_the_edge(&home, &["--disk", "64M", "-l", "bash", "-c", refill]);
    assert_eq!(
        (&report["stdout"], &report["outcome"]["kind"]),
        (&json!("41943040\n"), &json!("exited")),
        "{report}"
    );
}

#[test]
fn files_are_counted() {
    let home = second_home();
    let code = "n = 0\nwhile True:\n    open(f'file-{n}', 'w').close()\n    n += 1";
    if tier() == Tier::Gvisor {
        let refused = home.run(["run", "--inodes", "512", "-l", "python", "-c", code]);
        assert_eq!((refused.code, refused.stdout.as_str()), (125, ""));
        let what = "error: cannot create the sandbox: the gvisor tier cannot limit the number of files and directories";
        assert!(refused.stderr.starts_with(what), "{refused:#?}");
        // Files take memory, and that is limited.
        let report = over_the_edge(&home, &["--memory", "64M", "-l", "python", "-c", code]);
        assert_eq!(
            report["outcome"],
            json!({"kind": "memory_limit", "limit_mib": 64}),
            "{report}"
        );
        return;
    }
    let report = over_the_edge(&home, &["--inodes", "512", "-l", "python", "-c", code]);
    assert_eq!(
        report["outcome"],
        json!({"kind": "inodes_full", "limit": 512}),
        "{report}"
    );
    assert_eq!(report["usage"]["inodes_total"], json!(512));
}

#[test]
fn open_files_are_counted_per_process() {
    let home = second_home();
    let code = "files = []\nwhile True: files.append(open('/dev/null'))";
    let report = over_the_edge(&home, &["--open-files", "100", "-l", "python", "-c", code]);
    assert_eq!(
        report["outcome"],
        json!({"kind": "open_files_limit", "limit": 100}),
        "{report}"
    );
    // The default, or what this host allows where that is less.
    let default = atoll_engine::open_files_ceiling().min(16384);
    for (arguments, expected) in [
        (vec![], format!("{default}\n{default}\n")),
        (vec!["--open-files", "77"], "77\n77\n".to_owned()),
    ] {
        let show = home.atoll(["run", "-l", "bash", "-c", "ulimit -Sn; ulimit -Hn"]);
        assert_eq!(
            show.and_options(&arguments).finish(),
            Finished::printed(&expected)
        );
    }
    // Nor can root inside raise it.
    let raise = "sudo bash -c 'ulimit -n 4096' 2>/dev/null || echo refused";
    let finished = home.run(["run", "--open-files", "100", "-l", "bash", "-c", raise]);
    assert_eq!(finished, Finished::printed("refused\n"));
}

/// `sudo` hands on a hard limit of 0, which not every root can raise again.
#[test]
fn a_caller_without_core_dumps_runs_sandboxes_too() {
    let home = second_home();
    let allowed = home.atoll(["run", "-l", "bash", "-c", "ulimit -Hc"]);
    let lowered = allowed.through(["sh", "-c", "ulimit -c 0; exec \"$0\" \"$@\""]);
    let finished = lowered.finish();
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if finished.code == 0 {
        assert_eq!(finished.succeeded(), "0\n");
    } else {
        assert!(pattern.starts_with('|'), "{finished:?}");
        assert!(finished.stderr.contains("core dumps"), "{finished:?}");
    }
}

#[test]
fn a_timeout_ends_the_whole_tree() {
    let home = second_home();
    let marker = format!("{}", 1_000_000 + std::process::id());
    let code = format!(
        "setsid sleep {marker}1 & (setsid sleep {marker}2 &); nohup sleep {marker}3 > /dev/null 2>&1 &\n\
         trap '' TERM INT HUP; echo ready; sleep {marker}4"
    );
    // Long enough for all of them to start.
    let seconds = 2 * *TIME_FACTOR;
    let timeout = format!("{seconds}s");
    let mut running = home
        .atoll(["run", "--timeout", &timeout, "-l", "bash", "-c", &code])
        .start();
    running.wait_for("ready\n");
    // Positive control: the host sees them while they run. Processes of gVisor it
    // does not see; for those `tiers.rs` looks from inside.
    if tier() == Tier::Container {
        eventually("four sleepers", || (sleepers(&marker) == 4).then_some(()));
    }
    let finished = running.finish();
    assert_eq!((finished.code, finished.stdout.as_str()), (124, "ready\n"));
    assert_eq!(
        finished.stderr,
        format!(
            "atoll: timeout of {seconds} s reached\nhint: allow more, for example --timeout {}s\n",
            2 * seconds
        )
    );
    assert_eq!(sleepers(&marker), 0);

    let report = over_the_edge(
        &home,
        &["--timeout", "300ms", "-l", "bash", "-c", "sleep 1000"],
    );
    assert_eq!(
        report["outcome"],
        json!({"kind": "timeout", "limit_ms": 300})
    );
    assert_eq!(report["exit_code"], json!(124));
}

/// Processes of any sandbox whose command line holds `marker` and that sleep.
fn sleepers(marker: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|process| fs::read(process.path().join("cmdline")).ok())
        .filter(|line| line.starts_with(b"sleep\0"))
        .filter(|line| String::from_utf8_lossy(line).contains(marker))
        .count()
}

#[test]
fn a_frozen_or_stopped_program_is_ended_by_its_timeout_too() {
    let home = second_home();
    let report = over_the_edge(
        &home,
        &["--timeout", "400ms", "-l", "bash", "-c", "kill -STOP $$"],
    );
    assert_eq!(
        report["outcome"],
        json!({"kind": "timeout", "limit_ms": 400})
    );
}

#[test]
fn output_is_bounded() {
    let home = second_home();
    for code in ["yes", "yes >&2"] {
        let report = over_the_edge(&home, &["--max-output", "100k", "-l", "bash", "-c", code]);
        assert_eq!(
            report["outcome"],
            json!({"kind": "output_limit", "limit_bytes": 102_400})
        );
        assert_eq!(report["exit_code"], json!(1));
        let kept =
            report["stdout"].as_str().unwrap().len() + report["stderr"].as_str().unwrap().len();
        assert_eq!(kept, 102_400, "exactly what was allowed is shown");
    }
    let finished = home.run(["run", "--max-output", "1000", "-l", "bash", "-c", "yes"]);
    assert_eq!((finished.code, finished.stdout.len()), (1, 1000));
    assert_eq!(
        finished.stderr,
        "atoll: output limit of 1000 bytes reached\nhint: allow more with --max-output, or write to a file\n"
    );
    // Exactly the limit is not too much.
    let exact = home.run([
        "run",
        "--max-output",
        "1000",
        "-l",
        "bash",
        "-c",
        "head -c 1000 /dev/zero",
    ]);
    assert_eq!((exact.code, exact.stdout.len()), (0, 1000));
}

#[test]
fn shared_memory_has_a_size() {
    let home = second_home();
    let code = "head -c 100M /dev/zero > /dev/shm/big || stat -c %s /dev/shm/big; echo fine > file && cat file";
    let finished = home.bash(code);
    assert_eq!(
        (finished.code, finished.stdout.as_str()),
        (0, "67108864\nfine\n"),
        "{finished:#?}"
    );
}

#[test]
fn other_writable_places_have_a_size_too() {
    let home = second_home();
    let code = "grep ' tmpfs rw' /proc/mounts | grep -v size=; \
        sudo sh -c 'head -c 100M /dev/zero > /run/big; head -c 100M /dev/zero > /dev/big' 2>/dev/null; \
        sudo stat -c %s /run/big /dev/big | awk '{print ($1 < 20000000)}'";
    // gVisor's own `/dev` takes no size: what root puts there is memory, and limited as such.
    let expected = match tier() {
        Tier::Gvisor => "none /dev tmpfs rw,mode=0755 0 0\n1\n0\n",
        _ => "1\n1\n",
    };
    assert_eq!(home.bash(code), Finished::printed(expected));
}

#[test]
fn impossible_limits_are_refused_before_anything_is_made() {
    let home = second_home();
    for (arguments, named) in [
        (
            ["--memory", "1M"],
            "memory (MiB) = 1 is outside 16..=16777216",
        ),
        (["--memory", "99T"], "memory (MiB) = 103809024 is outside"),
        (["--cpus", "0.001"], "cpus (1/1000) = 1 is outside 10..="),
        (["--cpus", "100000"], "cpus (1/1000) = 100000000 is outside"),
        (["--pids", "1"], "pids = 1 is outside 8..="),
        (["--disk", "1M"], "disk (MiB) = 1 is outside 16..="),
        (["--inodes", "1"], "inodes = 1 is outside 256..="),
        (["--open-files", "1"], "open files = 1 is outside 64..="),
    ] {
        let refused = home
            .atoll(["run", "-l", "bash", "-c", "true"])
            .and_options(&arguments)
            .finish();
        assert_eq!(
            (refused.code, refused.stdout.as_str()),
            (125, ""),
            "{arguments:?}"
        );
        assert!(
            refused.stderr.starts_with(&format!("error: {named}")),
            "{refused:#?}"
        );
        assert!(
            refused
                .stderr
                .ends_with("hint: choose a value within the range\n"),
            "{refused:#?}"
        );
    }
    assert!(!home.path().join("sandboxes").exists() && !home.path().join("disks").exists());
}

#[test]
fn the_smallest_limits_still_run_a_program() {
    let home = second_home();
    let smallest_cpus = match tier() {
        Tier::Gvisor => {
            let refused = home.run(["run", "--cpus", "0.049", "-l", "bash", "-c", "echo 42"]);
            assert_eq!((refused.code, refused.stdout.as_str()), (125, ""));
            let what = "error: cannot create the sandbox: 49m CPUs are too few for the gvisor tier";
            assert!(refused.stderr.starts_with(what), "{refused:#?}");
            "0.05"
        }
        _ => "0.01",
    };
    for (arguments, code) in [
        (["--memory", "16M"], "echo 42"),
        (["--cpus", smallest_cpus], "echo 42"),
        (["--pids", "8"], "echo 42"),
        (["--disk", "16M"], "echo 42 > f; cat f"),
        (["--inodes", "256"], "echo 42 > f; cat f"),
        (["--open-files", "64"], "echo 42"),
    ] {
        if tier() == Tier::Gvisor && arguments[0] == "--inodes" {
            continue; // refused, see `files_are_counted`
        }
        let finished = home
            .atoll(["run", "-l", "bash", "-c", code])
            .and_options(&arguments)
            .finish();
        assert_eq!(finished, Finished::printed("42\n"), "{arguments:?}");
    }
}
