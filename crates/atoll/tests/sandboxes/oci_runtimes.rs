//! The built-in runtime and `runc` run the same bundle with the same results.

use rustix::process::Signal;

use crate::harness::{Finished, TestHome, second_home};

const RUNTIMES: [&str; 2] = ["builtin", "runc"];

fn on(home: &TestHome, runtime: &str, arguments: &[&str]) -> Finished {
    home.atoll(["run"])
        .and(arguments)
        .env("ATOLL_OCI_RUNTIME", runtime)
        .finish()
}

#[test]
fn small_programs_behave_the_same() {
    let rows: [(&[&str], Finished); 7] = [
        (
            &["-l", "python", "-c", "print(6*7)"],
            Finished::printed("42\n"),
        ),
        (
            &["-l", "javascript", "-c", "console.log(6*7)"],
            Finished::printed("42\n"),
        ),
        (&["-l", "bash", "-c", "exit 7"], Finished::with_code(7, "")),
        (
            &["-l", "bash", "-c", "id -un; sudo id -un"],
            Finished::printed("user\nroot\n"),
        ),
        (
            &["-l", "bash", "-c", "ls /sys/class/net"],
            Finished::printed("lo\n"),
        ),
        (
            &["-l", "bash", "--net", "full", "-c", "ls /sys/class/net"],
            Finished::printed("eth0\nlo\n"),
        ),
        (
            &["-l", "bash", "--open-files", "99", "-c", "ulimit -n"],
            Finished::printed("99\n"),
        ),
    ];
    for runtime in RUNTIMES {
        let home = second_home();
        for (arguments, expected) in &rows {
            assert_eq!(
                on(&home, runtime, arguments),
                *expected,
                "{runtime} {arguments:?}"
            );
        }
    }
}

#[test]
fn rights_are_the_same() {
    let probe = "import ctypes, os\n\
        keys = ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp:')\n\
        print([line.split() for line in open('/proc/self/status') if line.startswith(keys)])\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        for call in (165, 166, 272, 321, 250, 425, 435, 1000):\n\
        \x20   print(call, libc.syscall(call, 0, 0, 0, 0, 0), ctypes.get_errno())\n\
        print(sorted(os.listdir('/dev')), sorted(os.listdir('/sys/firmware')))\n\
        print([line.split()[4:6] for line in open('/proc/self/mountinfo') if '/proc' in line or '/sys' in line])";
    let seen = RUNTIMES.map(|runtime| {
        let home = second_home();
        let script = home.file("probe.py", probe);
        let file = format!("{}:/tmp/probe.py", script.display());
        on(
            &home,
            runtime,
            &[
                "-l",
                "bash",
                "-f",
                &file,
                "-c",
                "python3 /tmp/probe.py; sudo python3 /tmp/probe.py",
            ],
        )
    });
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0].code, 0, "{seen:#?}");
    assert!(seen[0].stdout.contains("a80425fb"), "{seen:#?}");
}

#[test]
fn limits_are_the_same() {
    let rows: [(&[&str], &str); 3] = [
        (
            &[
                "--memory",
                "64M",
                "-l",
                "python",
                "-c",
                "bytearray(200 << 20)",
            ],
            "memory_limit",
        ),
        (
            &["--timeout", "400ms", "-l", "bash", "-c", "sleep 1000"],
            "timeout",
        ),
        (
            &[
                "--disk",
                "32M",
                "-l",
                "bash",
                "-c",
                "head -c 100M /dev/zero > big",
            ],
            "disk_full",
        ),
    ];
    for runtime in RUNTIMES {
        let home = second_home();
        for (arguments, expected) in rows {
            let report = on(&home, runtime, &[&["--json"], arguments].concat()).json();
            assert_eq!(report["outcome"]["kind"], expected, "{runtime} {report}");
        }
    }
}

#[test]
fn interruption_leaves_nothing() {
    for runtime in RUNTIMES {
        let home = second_home();
        for (signal, code) in [(Signal::INT, 130), (Signal::KILL, -9)] {
            let mut running = home
                .atoll(["run", "-l", "bash", "-c", "echo started; cat"])
                .env("ATOLL_OCI_RUNTIME", runtime)
                .start();
            running.wait_for("started");
            running.signal_group(signal);
            assert_eq!(running.finish().code, code, "{runtime}");
            home.assert_nothing_left(runtime);
        }
    }
}

#[test]
fn a_runtime_that_is_not_there_is_named() {
    let home = second_home();
    let missing = on(&home, "crun-of-nobody", &["-l", "bash", "-c", "true"]);
    assert_eq!(missing.code, 125);
    assert!(
        missing
            .stderr
            .starts_with("error: the OCI runtime `crun-of-nobody` is not installed\nhint: "),
        "{missing:#?}"
    );
    let broken = on(&home, "/bin/false", &["-l", "bash", "-c", "true"]);
    assert_eq!(broken.code, 125);
    assert!(
        broken.stderr.starts_with("error: ") && broken.stderr.contains("/bin/false"),
        "{broken:#?}"
    );
}
