//! `atoll run`: what goes in reaches the program, what it says comes out, and
//! nothing else does.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use atoll_engine::Tier;
use serde_json::{Value, json};

use crate::harness::{self, Finished, second_home, tier};

#[test]
fn a_line_of_code_prints_its_output_and_nothing_else() {
    let home = second_home();
    for (language, code) in [
        ("python", "print(6*7)"),
        ("javascript", "console.log(6*7)"),
        ("bash", "echo $((6*7))"),
        ("py", "print(6*7)"),
        ("js", "console.log(6*7)"),
        ("sh", "echo $((6*7))"),
    ] {
        let finished = home.run(["run", "-c", code, "--lang", language]);
        assert_eq!(finished, Finished::printed("42\n"), "{language}");
    }
}

#[test]
fn the_language_of_a_file_is_known_by_its_extension() {
    let home = second_home();
    home.file("one.py", "print(__file__, 6*7)");
    home.file(
        "two.js",
        "console.log(require('path').basename(__filename), 6*7)",
    );
    home.file(
        "three.mjs",
        "import os from 'os'; console.log(typeof os.cpus, 6*7)",
    );
    home.file("four.sh", "echo $0 $((6*7)); [[ -n $BASH_VERSION ]]");
    home.file("deep/five.bash", "echo $0 42");
    home.file("seven.ts", "const a: number = 6*7; console.log(a)");
    for (file, expected) in [
        ("one.py", "/home/user/one.py 42\n"),
        ("two.js", "two.js 42\n"),
        ("three.mjs", "function 42\n"),
        ("four.sh", "four.sh 42\n"),
        ("deep/five.bash", "five.bash 42\n"),
        ("seven.ts", "42\n"),
    ] {
        assert_eq!(
            home.run(["run", file]),
            Finished::printed(expected),
            "{file}"
        );
    }
    // The flag counts more than the extension.
    home.file("six.sh", "print(6*7)");
    assert_eq!(
        home.run(["run", "six.sh", "--lang", "python"]),
        Finished::printed("42\n")
    );
}

#[test]
fn a_program_can_come_by_standard_input() {
    let home = second_home();
    let finished = home
        .atoll(["run", "--lang", "python", "-", "one"])
        .stdin("import sys; print(sys.argv[1:], repr(sys.stdin.read()))")
        .finish();
    assert_eq!(finished, Finished::printed("['one'] ''\n"));
}

#[test]
fn arguments_reach_the_program_as_they_are() {
    let home = second_home();
    home.file(
        "show.py",
        "import sys, json; print(json.dumps(sys.argv[1:]))",
    );
    let show = "import sys, json; print(json.dumps(sys.argv[1:]))";
    let tables: [(&[&str], &[&str]); 6] = [
        (&["show.py", "one", "two"], &["one", "two"]),
        (
            &["show.py", "one", "--memory", "1T", "-c", "--", "-"],
            &["one", "--memory", "1T", "-c", "--", "-"],
        ),
        (
            &["show.py", "--verbose", "-n", "5"],
            &["--verbose", "-n", "5"],
        ),
        (&["show.py", "--", "--json"], &["--json"]),
        (
            &["show.py", "", " ", "a b", "é\n$HOME"],
            &["", " ", "a b", "é\n$HOME"],
        ),
        (
            &["--lang", "python", "-c", show, "one", "-x"],
            &["one", "-x"],
        ),
    ];
    for (arguments, expected) in tables {
        let seen = home.run([&["run"], arguments].concat());
        assert_eq!(seen.json(), json!(expected), "{arguments:?}");
        assert_eq!((seen.code, seen.stderr.as_str()), (0, ""), "{arguments:?}");
    }
}

#[test]
fn standard_input_is_passed_on_to_its_end() {
    let home = second_home();
    let input: String = (0..40_000).map(|number| format!("{number}\n")).collect();
    let counted = home
        .atoll(["run", "--lang", "bash", "-c", "wc -lc"])
        .stdin(&input)
        .finish()
        .succeeded();
    let counted: Vec<usize> = counted
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect();
    assert_eq!(counted, [40_000, input.len()]);
    // A program that does not read it ends all the same.
    let unread = home
        .atoll(["run", "--lang", "bash", "-c", "echo done"])
        .stdin(&input)
        .finish();
    assert_eq!(unread, Finished::printed("done\n"));
}

#[test]
fn only_named_variables_reach_the_program() {
    let home = second_home();
    let finished = home
        .atoll([
            "run",
            "--lang",
            "python",
            "-e",
            "GIVEN=a=b c",
            "-e",
            "TAKEN",
            "--env",
            "EMPTY=",
        ])
        .through(["env", "TAKEN=from the caller", "SECRET=host only"])
        .env("SECRET_TOO", "host only");
    let finished = finished_with(
        finished,
        "import os, json; print(json.dumps(dict(os.environ)))",
    );
    let mut seen = finished.json();
    let seen = seen.as_object_mut().unwrap();
    for name in ["E2B_SANDBOX_ID", "E2B_TEMPLATE_ID", "PATH", "LANG"] {
        assert!(seen.remove(name).is_some_and(|value| value != ""), "{name}");
    }
    // What makes certificates and packages work is the template's business.
    seen.retain(|name, _| !name.starts_with("PIP_") && !name.ends_with("_CERT_FILE"));
    seen.retain(|name, _| !name.ends_with("_CERTS") && !name.ends_with("_CA_BUNDLE"));
    let expected = json!({
        "GIVEN": "a=b c", "TAKEN": "from the caller", "EMPTY": "",
        "E2B_SANDBOX": "true", "HOME": "/home/user", "USER": "user", "LOGNAME": "user",
    });
    assert_eq!(Value::Object(seen.clone()), expected);
}

fn finished_with(invocation: harness::Invocation, code: &str) -> Finished {
    invocation.and(["-c", code]).finish()
}

#[test]
fn files_and_directories_are_copied_in() {
    let home = second_home();
    let all_bytes: Vec<u8> = (0..=255).collect();
    home.file("data.bin", &all_bytes);
    home.file("tree/one.txt", "1");
    home.file("tree/below/two.txt", "2");
    let tool = home.file("tool.sh", "#!/bin/sh\necho tool");
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    let absolute = format!("{}:/tmp/data.bin", home.work().join("data.bin").display());
    let finished = home.run([
        "run", "--lang", "bash",
        "--file", "data.bin:here.bin",
        "--file", &absolute,
        "-f", "tree:copy/of tree",
        "-f", "tool.sh:tool",
        "-c", "cmp here.bin /tmp/data.bin && stat -c %s:%U here.bin && cd 'copy/of tree' && find . -type f -exec grep -H . {} + | sort; ls -l ~/tool | cut -c1-10",
    ]);
    assert_eq!(
        finished,
        Finished::printed("256:user\n./below/two.txt:2\n./one.txt:1\n-rwxr-xr-x\n")
    );
}

#[test]
fn exit_status_is_passed_on_and_signals_are_128_more() {
    let home = second_home();
    for (code, expected) in [
        ("exit 0", Finished::printed("")),
        ("exit 7", Finished::with_code(7, "")),
        ("exit 255", Finished::with_code(255, "")),
    ] {
        assert_eq!(home.bash(code), expected, "{code}");
    }
    for (signal, number) in [("TERM", 15), ("KILL", 9), ("SEGV", 11)] {
        let expected = Finished {
            code: 128 + number,
            stdout: String::new(),
            stderr: format!("atoll: ended by signal {number}\n"),
        };
        assert_eq!(home.bash(&format!("kill -{signal} $$")), expected);
    }
}

#[test]
fn standard_error_stays_apart() {
    let home = second_home();
    let finished = home.bash("echo out; echo err >&2; echo out; exit 3");
    let expected = Finished {
        code: 3,
        stdout: "out\nout\n".to_owned(),
        stderr: "err\n".to_owned(),
    };
    assert_eq!(finished, expected);
}

#[test]
fn output_arrives_while_the_program_runs() {
    let home = second_home();
    let code = "print('first'); print('got', input())";
    let mut running = home.atoll(["run", "--lang", "python", "-c", code]).start();
    assert_eq!(running.wait_for("first\n"), "first\n");
    running.write("answer\n");
    assert_eq!(running.finish(), Finished::printed("first\ngot answer\n"));
}

#[test]
fn binary_output_is_unharmed() {
    let home = second_home();
    let code = "import os\nfor fd in (1, 2): os.write(fd, bytes(range(256)) * 2000)";
    let (status, stdout, stderr) = home.atoll(["run", "--lang", "python", "-c", code]).bytes();
    let expected: Vec<u8> = (0..=255).cycle().take(512_000).collect();
    assert_eq!(status, 0);
    assert!(
        stdout == expected && stderr == expected,
        "{} and {} bytes",
        stdout.len(),
        stderr.len()
    );
}

#[test]
fn json_is_one_object_with_everything() {
    let home = second_home();
    let finished = home.run([
        "run",
        "--json",
        "--lang",
        "bash",
        "-c",
        "echo out; echo err >&2; exit 5",
    ]);
    assert_eq!((finished.code, finished.stderr.as_str()), (5, ""));
    assert_eq!(finished.stdout.lines().count(), 1, "{}", finished.stdout);
    let mut report = finished.json();
    let usage = report["usage"].take();
    let id = report["sandbox_id"].take();
    let id = id.as_str().unwrap();
    assert!(
        id.len() >= 16 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()),
        "{id}"
    );
    assert!(
        report["duration_ms"]
            .take()
            .as_u64()
            .is_some_and(|millis| millis < 60_000)
    );
    assert_eq!(
        report,
        json!({
            "sandbox_id": null,
            "template": "base",
            "isolation": tier().to_string(),
            "isolation_reason": "it was asked for",
            "outcome": {"kind": "exited", "code": 5},
            "exit_code": 5,
            "stdout": "out\n",
            "stderr": "err\n",
            "truncated_bytes": 0,
            "duration_ms": null,
            "usage": null,
        })
    );
    let used: Vec<&str> = usage
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let measured = [
        "cpu_usec",
        "disk_free_bytes",
        "disk_total_bytes",
        "inodes_free",
        "inodes_total",
        "memory_bytes",
        "memory_cache_bytes",
        "memory_peak_bytes",
        "network",
        "oom_kills",
        "pids",
        "pids_refused",
        "throttled_usec",
    ];
    assert_eq!(used, measured);
    for name in [
        "cpu_usec",
        "memory_peak_bytes",
        "pids",
        "disk_free_bytes",
        "inodes_free",
    ] {
        assert!(
            usage[name].as_u64().is_some_and(|value| value > 0),
            "{name}: {usage}"
        );
    }
}

#[test]
fn every_run_is_fresh() {
    let home = second_home();
    let leave =
        "sudo touch /trace /usr/bin/trace && touch ~/trace /tmp/trace /dev/shm/trace && echo left";
    assert_eq!(home.bash(leave), Finished::printed("left\n"));
    let look = "ls -d /trace /usr/bin/trace ~/trace /tmp/trace /dev/shm/trace 2>/dev/null | wc -l";
    assert_eq!(home.bash(look), Finished::printed("0\n"));
}

#[test]
fn sudo_gives_the_root_of_the_sandbox() {
    let home = second_home();
    let code = "id -un; sudo id -un; sudo sh -c 'echo x > /etc/root-was-here && stat -c %U:%a /etc/root-was-here'";
    assert_eq!(home.bash(code), Finished::printed("user\nroot\nroot:644\n"));
}

#[test]
fn without_a_network_there_is_only_the_loopback() {
    let home = second_home();
    let code = r#"
import errno, os, socket
print(sorted(name for _, name in socket.if_nameindex()))
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
for address in ["1.1.1.1", "10.87.0.1", "169.254.169.254", "192.168.0.1"]:
    try:
        socket.create_connection((address, 53), timeout=20)
        print("connected")
    except OSError as error:
        print(errno.errorcode[error.errno])
try:
    socket.getaddrinfo("example.com", 80)
    print("resolved")
except socket.gaierror:
    print("no name")
"#;
    // The other end of gVisor's interface is in a namespace with nothing else in it.
    let (interfaces, unreachable) = match tier() {
        Tier::Gvisor => ("['eth0', 'lo']", "EHOSTUNREACH\n"),
        _ => ("['lo']", "ENETUNREACH\n"),
    };
    let unreachable = unreachable.repeat(4);
    assert_eq!(
        home.python(code),
        Finished::printed(&format!("{interfaces}\n{unreachable}no name\n"))
    );
}
