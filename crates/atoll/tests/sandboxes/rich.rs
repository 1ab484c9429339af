//! `atoll run --rich`: plots become files, tables and results are shown, and
//! a hostile sandbox gets nothing past that.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use crate::harness::{Finished, TestHome, second_home};

/// The smallest template with kernels.
const TEMPLATE: &str = "code-interpreter-v1-tiny";

/// `atoll run --rich` with a Python program.
fn rich(home: &TestHome, code: &str, more: &[&str]) -> Finished {
    let mut words = vec!["run", "--rich", "--template", TEMPLATE, "--lang", "python"];
    words.extend(["--code", code]);
    words.extend(more);
    home.run(words)
}

fn rich_json(home: &TestHome, code: &str, more: &[&str]) -> Value {
    let mut words = vec!["--json"];
    words.extend(more);
    rich(home, code, &words).json()
}

/// Names of what is in the working directory, besides the home.
fn files(home: &TestHome) -> Vec<String> {
    let entries = fs::read_dir(home.work()).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != "home").collect();
    names.sort();
    names
}

const PLOT: &str = "
import matplotlib.pyplot as plt
plt.plot([1, 2], [3, 4])
plt.show()
print('after', flush=True)
plt.bar(['a'], [1])
plt.show()
";

#[test]
fn plots_become_files_that_are_named() {
    let home = second_home();
    home.file("chart-1.png", "mine");
    let finished = rich(&home, PLOT, &[]);
    assert_eq!(
        (finished.code, finished.stdout.as_str()),
        (0, "after\n"),
        "{finished:#?}"
    );
    for name in ["chart-2.png", "chart-3.png"] {
        assert!(
            finished.stderr.contains(&format!("saved {name} (")),
            "{finished:#?}"
        );
        let bytes = fs::read(home.work().join(name)).unwrap();
        assert!(
            bytes.starts_with(b"\x89PNG\r\n\x1a\n") && bytes.len() > 1000,
            "{name}"
        );
    }
    assert_eq!(fs::read(home.work().join("chart-1.png")).unwrap(), b"mine");
    assert_eq!(files(&home), ["chart-1.png", "chart-2.png", "chart-3.png"]);

    let finished = rich(&home, PLOT, &["--output", "new/plots"]);
    assert!(
        finished.stderr.contains("saved new/plots/chart-1.png ("),
        "{finished:#?}"
    );
    assert!(home.work().join("new/plots/chart-2.png").exists());
}

#[test]
fn results_and_tables_are_shown_as_text() {
    let home = second_home();
    let shown = rich(&home, "print('out', end='')\n[6*7, 'x']", &[]);
    assert_eq!(shown, Finished::printed("out\n[42, 'x']\n"));
    let frame = "import pandas as pd\npd.DataFrame({'name': ['Ada', 'Bob'], 'age': [36, 41]})";
    let shown = rich(&home, frame, &[]);
    assert_eq!(
        shown,
        Finished::printed("   name  age\n0  Ada    36\n1  Bob    41\n")
    );
    // Rows that have names keep them.
    let shown = rich(&home, &format!("{frame}.set_index('name')"), &[]);
    assert_eq!(
        shown,
        Finished::printed("      age\nname     \nAda    36\nBob    41\n")
    );
    assert_eq!(files(&home), Vec::<String>::new());
}

#[test]
fn errors_go_to_standard_error_with_their_status() {
    let home = second_home();
    let failed = rich(&home, "print(1)\ndef f():\n    return 1/0\nf()", &[]);
    assert_eq!(
        (failed.code, failed.stdout.as_str()),
        (1, "1\n"),
        "{failed:#?}"
    );
    assert!(failed.stderr.contains("Traceback"), "{failed:#?}");
    assert!(
        failed
            .stderr
            .trim_end()
            .ends_with("ZeroDivisionError: division by zero"),
        "{failed:#?}"
    );

    assert_eq!(rich(&home, "import sys\nsys.exit(3)", &[]).code, 3);
    let slow = rich(&home, "while True: pass", &["--timeout", "1s"]);
    assert_eq!(slow.code, 124, "{slow:#?}");
    assert!(
        slow.stderr
            .contains("hint: allow more, for example --timeout"),
        "{slow:#?}"
    );
    let loud = rich(
        &home,
        "while True: print('x' * 10000)",
        &["--max-output", "1M"],
    );
    assert_eq!(loud.code, 1, "{loud:#?}");
    assert!(loud.stdout.len() <= 1024 * 1024, "{}", loud.stdout.len());
    assert!(loud.stderr.contains("--max-output"), "{:?}", loud.stderr);
    let large = rich(
        &home,
        "a = 'x' * (1 << 33)\nb = a + a",
        &["--memory", "512M"],
    );
    assert!(
        large.code == 137 || large.stderr.contains("MemoryError"),
        "{large:#?}"
    );
}

#[test]
fn other_languages_are_cells_as_well() {
    let home = second_home();
    for (language, code, expected) in [
        ("javascript", "await Promise.resolve(6*7)", "42\n"),
        ("typescript", "const a: number = 6; a * 7", "42\n"),
        ("bash", "echo $((6*7))", "42\n"),
    ] {
        let words = ["run", "--rich", "-t", TEMPLATE, "-l", language, "-c", code];
        assert_eq!(home.run(words), Finished::printed(expected), "{language}");
    }
    home.file("one.js", "6*7");
    let shown = home.run(["run", "--rich", "-t", TEMPLATE, "one.js"]);
    assert_eq!(shown, Finished::printed("42\n"));
    let failed = home.run([
        "run", "--rich", "-t", TEMPLATE, "-l", "bash", "-c", "exit 7",
    ]);
    assert_ne!(failed.code, 0);
    let failed = home.run([
        "run", "--rich", "-t", TEMPLATE, "-l", "bash", "-c", "(exit 7)",
    ]);
    assert_eq!(failed.code, 7, "{failed:#?}");
    // On `base` there is Python without a kernel, and no kernel for anything else.
    let plain = home.run(["run", "--rich", "-t", "base", "-l", "python", "-c", "6*7"]);
    assert_eq!(plain, Finished::printed("42\n"));
    let none = home.run([
        "run",
        "--rich",
        "-t",
        "base",
        "-l",
        "javascript",
        "-c",
        "6*7",
    ]);
    assert_eq!(none.code, 125, "{none:#?}");
    assert!(
        none.stderr.contains("cannot run javascript code here"),
        "{none:#?}"
    );
    assert!(
        none.stderr
            .contains("hint: `--template code-interpreter-v1-slim`"),
        "{none:#?}"
    );
}

#[test]
fn json_has_typed_results_and_names_files() {
    let home = second_home();
    let report = rich_json(
        &home,
        "import matplotlib.pyplot as plt, pandas as pd\nprint('out')\nplt.plot([1, 2])\nplt.show()\npd.DataFrame({'a': [1]})",
        &["--output", "plots"],
    );
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 2, "{report:#}");
    let size = fs::metadata(home.work().join("plots/chart-1.png"))
        .unwrap()
        .len();
    assert_eq!(
        results[0]["files"],
        json!([{"kind": "png", "path": "plots/chart-1.png", "bytes": size}])
    );
    assert_eq!(results[0]["chart"]["type"], "line");
    assert_eq!(results[0].get("png"), None, "embedded");
    assert_eq!(results[1]["data"], json!({"a": [1]}));
    assert_eq!(
        (&report["stdout"], &report["exit_code"], &report["error"]),
        (&json!("out\n"), &json!(0), &Value::Null)
    );
    assert_eq!(report["outcome"], json!({"kind": "exited", "code": 0}));

    let report = rich_json(&home, "1/0", &[]);
    assert_eq!(report["exit_code"], 1);
    assert_eq!(report["error"]["name"], "ZeroDivisionError");
    assert_eq!(report["error"]["is_state_lost"], false);
    let report = rich_json(&home, "import os\nos._exit(1)", &[]);
    assert_eq!(report["error"]["is_state_lost"], true, "{report:#}");
}

/// Shows whatever it likes under whatever type.
const LIAR: &str = r##"
import base64
from IPython.display import publish_display_data as show
png = base64.b64encode(b'\x89PNG\r\n\x1a\n' + b'x' * 100).decode()
show({'image/png': base64.b64encode(b'#!/bin/sh\nid').decode()})
show({'image/png': '../../../etc/passwd'})
show({'image/png': {'path': '/etc/passwd'}, 'text/plain': 'odd'})
show({'image/svg+xml': '#!/bin/sh'})
show({'image/jpeg': png})
show({'application/pdf': png})
show({'../../evil/png': png, 'image/png\n../x': png, 'text/plain': '\x1b]0;title\x07\x1b[2J'})
show({'e2b/data': {'../a': [1], '\x1b[2J': ['\x1b[2J']}, 'text/plain': '  ../a\n0 1'})
show({'e2b/data': 5, 'e2b/chart': 'x', 'text/plain': 'fine'})
show({'image/png': png})
"##;

#[test]
fn a_lying_sandbox_writes_nothing_but_pictures_under_our_names() {
    let home = second_home();
    let away = home.work().join("away");
    symlink(&away, home.work().join("chart-1.png")).unwrap();
    let finished = rich(&home, LIAR, &[]);
    assert_eq!(finished.code, 0, "{finished:#?}");
    assert_eq!(
        files(&home),
        ["chart-1.png", "chart-2.png"],
        "{finished:#?}"
    );
    assert!(!away.exists(), "a link was followed");
    let saved = fs::read(home.work().join("chart-2.png")).unwrap();
    assert_eq!(saved.len(), 108, "the control");
    assert!(
        finished.stderr.contains("warning: a picture was not saved"),
        "{finished:#?}"
    );
    assert!(
        !finished.stdout.contains('\u{1b}') && !finished.stderr.contains('\u{1b}'),
        "{finished:#?}"
    );
}

#[test]
fn a_flood_of_pictures_has_an_end() {
    let home = second_home();
    let flood = "
import base64
from IPython.display import publish_display_data as show
png = base64.b64encode(b'\\x89PNG\\r\\n\\x1a\\n').decode()
for _ in range(1500): show({'image/png': png})
";
    let finished = rich(&home, flood, &["--output", "plots"]);
    assert_eq!(finished.code, 0);
    assert_eq!(
        fs::read_dir(home.work().join("plots")).unwrap().count(),
        1000
    );
    assert!(finished.stderr.contains("more than 1000 pictures"));
}

#[test]
fn options_that_say_nothing_are_refused() {
    let home = second_home();
    home.file("plain.py", "print(1)");
    home.file("file", "not a directory");
    for (words, expected) in [
        (
            vec!["run", "plain.py", "--output", "x"],
            "--output is for plots and notebooks",
        ),
        (
            vec!["run", "plain.py", "--keep-going"],
            "--keep-going is for notebooks",
        ),
        (
            vec!["run", "--rich", "plain.py", "one"],
            "a cell has no arguments",
        ),
        (
            vec!["run", "--rich", "plain.py", "--output", "file"],
            "cannot make the directory",
        ),
    ] {
        let refused = home.run(&words);
        assert_eq!(refused.code, 125, "{words:?}: {refused:#?}");
        assert!(refused.stderr.contains(expected), "{words:?}: {refused:#?}");
        assert!(refused.stderr.contains("hint: "), "{words:?}: {refused:#?}");
    }
}
