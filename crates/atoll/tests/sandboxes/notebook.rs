//! `atoll run notebook.ipynb`: what ran is in the notebook, as Jupyter itself
//! would have written it, and nothing else of it has changed.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Finished, TestHome, installed_clients, second_home};

const TEMPLATE: &str = "code-interpreter-v1-tiny";

/// A notebook with these cells of code, in the style of Jupyter.
fn notebook(cells: &[&str]) -> Value {
    let cells: Vec<Value> = cells
        .iter()
        .enumerate()
        .map(|(place, source)| {
            json!({
                "cell_type": "code",
                "execution_count": 99,
                "id": format!("cell-{place}"),
                "metadata": {"tags": ["kept"]},
                "outputs": [{"name": "stdout", "output_type": "stream", "text": ["stale"]}],
                "source": source.split_inclusive('\n').collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python", "version": "3.11.2"},
            "mine": {"z": 1, "a": [1.50]},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    })
}

/// As Jupyter writes it: one space, and a line end.
fn text(notebook: &Value) -> String {
    let mut bytes = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b" ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, formatter);
    serde::Serialize::serialize(notebook, &mut serializer).unwrap();
    format!("{}\n", String::from_utf8(bytes).unwrap())
}

fn run(home: &TestHome, more: &[&str]) -> Finished {
    let mut words = vec!["run", "--template", TEMPLATE, "book.ipynb"];
    words.extend(more);
    home.run(words)
}

fn read(home: &TestHome, name: &str) -> Value {
    let text = fs::read(home.work().join(name)).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// What Jupyter's own library says: nothing, if the notebook is valid and in
/// the form in which it would write it.
fn jupyter_says(home: &TestHome, name: &str) -> String {
    let program = "
import pathlib, sys, nbformat
text = pathlib.Path(sys.argv[1]).read_text(encoding='utf-8')
book = nbformat.reads(text, as_version=4)
nbformat.validate(book)
if nbformat.writes(book) + '\\n' != text: print('it would write it otherwise')
";
    let output = Command::new(installed_clients().join("python/bin/python"))
        .args(["-W", "error", "-c", program])
        .arg(home.work().join(name))
        .output()
        .unwrap();
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

const CELLS: [&str; 6] = [
    "import sys\nprint('one')\nprint('two', file=sys.stderr)\na = 6",
    "",
    "a * 7",
    "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
    "import pandas as pd\npd.DataFrame({'ü': [1, 2]})",
    "from IPython.display import HTML, JSON, Markdown, display\ndisplay(HTML('<b>x</b>'), JSON({'a': 1}), Markdown('# x'))\n{'d': 1}",
];

#[test]
fn outputs_go_back_as_jupyter_would_write_them() {
    let home = second_home();
    let original = notebook(&CELLS);
    home.file("book.ipynb", text(&original));
    // What jupyter itself would write is what we begin with.
    let finished = run(&home, &[]);
    assert_eq!(finished.code, 0, "{finished:#?}");
    assert!(
        finished
            .stderr
            .contains("wrote book.ipynb: 5 cells ran, 0 failed, 1 did not run"),
        "{finished:#?}"
    );
    assert_eq!(jupyter_says(&home, "book.ipynb"), "");

    let written = read(&home, "book.ipynb");
    let cells = written["cells"].as_array().unwrap();
    assert_eq!(
        cells[0]["outputs"],
        json!([
            {"name": "stdout", "output_type": "stream", "text": ["one\n"]},
            {"name": "stderr", "output_type": "stream", "text": ["two\n"]},
        ])
    );
    assert_eq!(
        (&cells[1]["outputs"], &cells[1]["execution_count"]),
        (&json!([]), &Value::Null)
    );
    assert_eq!(
        cells[2]["outputs"],
        json!([{
            "data": {"text/plain": ["42"]}, "execution_count": 2, "metadata": {},
            "output_type": "execute_result",
        }])
    );
    let plot = &cells[3]["outputs"][0];
    assert_eq!(plot["output_type"], "display_data");
    assert!(
        plot["data"]["image/png"]
            .as_str()
            .unwrap()
            .starts_with("iVBORw0KGgo")
    );
    let frame = &cells[4]["outputs"][0]["data"];
    assert_eq!(frame["text/plain"], json!(["   ü\n", "0  1\n", "1  2"]));
    assert!(frame["text/html"].is_array());
    let kinds: Vec<Vec<&String>> = cells[5]["outputs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|output| output["data"].as_object().unwrap().keys().collect())
        .collect();
    assert_eq!(
        kinds,
        [
            vec!["text/html", "text/plain"],
            vec!["application/json", "text/plain"],
            vec!["text/markdown", "text/plain"],
            vec!["text/plain"],
        ]
    );
    // All else is as it was.
    let mut expected = original;
    for (cell, ran) in expected["cells"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .zip(cells)
    {
        cell["outputs"] = ran["outputs"].clone();
        cell["execution_count"] = ran["execution_count"].clone();
    }
    assert_eq!(
        fs::read_to_string(home.work().join("book.ipynb")).unwrap(),
        text(&expected)
    );
}

#[test]
fn it_stops_at_the_first_error_unless_it_is_told_to_go_on() {
    let home = second_home();
    let original = text(&notebook(&[
        "print(1)",
        "def f():\n    1/0\nf()",
        "print(3)",
    ]));
    home.file("book.ipynb", &original);
    let finished = run(&home, &["--output", "stopped.ipynb"]);
    assert_eq!(finished.code, 1, "{finished:#?}");
    assert!(
        finished.stderr.contains("ZeroDivisionError"),
        "{finished:#?}"
    );
    assert_eq!(
        fs::read_to_string(home.work().join("book.ipynb")).unwrap(),
        original
    );
    let cells = read(&home, "stopped.ipynb")["cells"].clone();
    let error = &cells[1]["outputs"][0];
    assert_eq!(
        (&error["output_type"], &error["ename"]),
        (&json!("error"), &json!("ZeroDivisionError"))
    );
    assert!(
        error["traceback"].as_array().unwrap().len() > 2,
        "{error:#}"
    );
    assert_eq!(
        cells[2]["outputs"],
        json!([]),
        "what did not run keeps nothing"
    );
    assert_eq!(cells[2]["execution_count"], Value::Null);

    let report = run(&home, &["--keep-going", "--json"]).json();
    assert_eq!(report["exit_code"], 1);
    let states: Vec<_> = report["cells"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cell| cell["status"].clone())
        .collect();
    assert_eq!(states, ["ok", "error", "ok"]);
    assert_eq!(report["notebook"], "book.ipynb");
    let cells = read(&home, "book.ipynb")["cells"].clone();
    assert_eq!(cells[2]["outputs"][0]["text"], json!(["3\n"]));
    for name in ["book.ipynb", "stopped.ipynb"] {
        assert_eq!(jupyter_says(&home, name), "", "{name}");
    }
}

#[test]
fn the_language_is_that_of_the_notebook() {
    let home = second_home();
    let mut book = notebook(&["const a: number = 6", "a * 7"]);
    book["metadata"] =
        json!({"kernelspec": {"display_name": "x", "language": "typescript", "name": "ts"}});
    home.file("book.ipynb", text(&book));
    assert_eq!(run(&home, &[]).code, 0);
    let cells = read(&home, "book.ipynb")["cells"].clone();
    assert_eq!(cells[1]["outputs"][0]["data"]["text/plain"], json!(["42"]));
    assert_eq!(jupyter_says(&home, "book.ipynb"), "");
}

/// A cell that shows what no notebook may hold.
const LIAR: &str = r#"
from IPython.display import publish_display_data as show
show({'image/png': {'not': 'a text'}, 'text/plain': 5})
show({'nonsense': 'x', 'x/y': {'a': 1}, 'application/vnd.x+json': {'a': 1}, 'text/html': '\ud800'})
import os
print('\x1b[2J\u2028\ud800')
os._exit(1)
"#;

#[test]
fn whatever_a_cell_says_the_notebook_stays_valid() {
    let home = second_home();
    let flood = "while True: print('x' * 1000)";
    for (cell, code) in [(LIAR, 1), (flood, 1), ("while True: pass", 124)] {
        home.file(
            "book.ipynb",
            text(&notebook(&["print(1)", cell, "print(3)"])),
        );
        let finished = run(&home, &["--timeout", "10s", "--max-output", "2M"]);
        assert_eq!(finished.code, code, "{cell}: {:.2000}", finished.stderr);
        assert_eq!(jupyter_says(&home, "book.ipynb"), "", "{cell}");
        let written = read(&home, "book.ipynb");
        let outputs = written["cells"][1]["outputs"].as_array().unwrap();
        assert_eq!(outputs.last().unwrap()["output_type"], "error", "{cell}");
        assert_eq!(
            written["cells"][0]["outputs"][0]["text"],
            json!(["1\n"]),
            "the control"
        );
        let size = fs::metadata(home.work().join("book.ipynb")).unwrap().len();
        assert!(size < 8 * 1024 * 1024, "{cell}: {size}");
    }
}

#[test]
fn what_is_no_notebook_is_told_with_what_to_do() {
    let home = second_home();
    for (content, expected) in [
        ("print(1)".to_owned(), "it is no JSON"),
        ("{}".to_owned(), "it has no `nbformat`"),
        (
            r#"{"nbformat": 3, "worksheets": []}"#.to_owned(),
            "of version 3, not 4",
        ),
        (
            format!(r#"{{"nbformat": 4, "cells": {}"#, "[".repeat(1_000_000)),
            "it is no JSON",
        ),
    ] {
        home.file("book.ipynb", &content);
        let refused = run(&home, &[]);
        assert_eq!(refused.code, 125, "{refused:#?}");
        assert!(refused.stderr.contains(expected), "{refused:#?}");
        assert!(refused.stderr.contains("hint: "), "{refused:#?}");
        assert_eq!(
            fs::read_to_string(home.work().join("book.ipynb")).unwrap(),
            content
        );
    }
    let missing = home.run(["run", "missing.ipynb"]);
    assert!(
        missing
            .stderr
            .contains("cannot read the notebook `missing.ipynb`"),
        "{missing:#?}"
    );
    home.file("book.ipynb", text(&notebook(&["1"])));
    let nowhere = run(&home, &["--output", "no/such/place.ipynb"]);
    assert!(
        nowhere.stderr.contains("--output names a file"),
        "{nowhere:#?}"
    );
}

#[test]
fn a_run_that_is_interrupted_leaves_the_notebook_as_it_was() {
    let home = second_home();
    let original = text(&notebook(&["open('/tmp/started', 'w')\nwhile True: pass"]));
    home.file("book.ipynb", &original);
    let running = home
        .atoll(["run", "--template", TEMPLATE, "book.ipynb"])
        .start();
    home.lease();
    running.signal_group(rustix::process::Signal::INT);
    let finished = running.finish();
    assert_eq!(finished.code, 130, "{finished:#?}");
    assert_eq!(
        fs::read_to_string(home.work().join("book.ipynb")).unwrap(),
        original
    );
}
