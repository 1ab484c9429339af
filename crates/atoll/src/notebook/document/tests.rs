//! Reading and changing notebooks, also those that nobody should have written.

use proptest::prelude::*;
use serde_json::json;

use super::*;

const NOTEBOOK: &str = r##"{
 "cells": [
  {
   "cell_type": "markdown",
   "metadata": {},
   "source": ["# Title"]
  },
  {
   "cell_type": "code",
   "execution_count": 7,
   "id": "a-b",
   "metadata": {"tags": [ "x" ], "number": 1.50e3},
   "outputs": [{"old": true}],
   "source": [
    "a = 1\n",
    "a + 1"
   ]
  },
  {
   "cell_type": "code",
   "execution_count": null,
   "metadata": {},
   "outputs": [],
   "source": "print('ü')"
  }
 ],
 "metadata": {
  "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
  "of_the_future": [1,  2]
 },
 "nbformat": 4,
 "nbformat_minor": 5
}
"##;

fn parse(text: &str) -> Notebook {
    Notebook::parse(text.to_owned()).unwrap()
}

fn outcome(count: u64, outputs: Vec<Value>) -> CellOutcome {
    CellOutcome {
        execution_count: Some(count),
        outputs,
    }
}

#[test]
fn only_outputs_and_counts_change() {
    let notebook = parse(NOTEBOOK);
    let cells: Vec<_> = notebook
        .cells
        .iter()
        .map(|cell| (cell.number, cell.source.as_str()))
        .collect();
    assert_eq!(cells, [(2, "a = 1\na + 1"), (3, "print('ü')")]);
    assert_eq!(notebook.language.as_str(), "python");
    let stream = json!({"name": "stdout", "output_type": "stream", "text": ["ü\n"]});
    let text = notebook.with_outcomes(&[outcome(1, Vec::new()), outcome(2, vec![stream])]);
    let expected = NOTEBOOK
        .replace("\"execution_count\": 7", "\"execution_count\": 1")
        .replace("[{\"old\": true}]", "[]")
        .replace("\"execution_count\": null", "\"execution_count\": 2")
        .replace(
            "   \"outputs\": [],\n   \"source\": \"print",
            "   \"outputs\": [\n    {\n     \"name\": \"stdout\",\n     \"output_type\": \"stream\",\n     \
             \"text\": [\n      \"ü\\n\"\n     ]\n    }\n   ],\n   \"source\": \"print",
        );
    assert_eq!(text, expected);
}

#[test]
fn cells_that_did_not_run_keep_nothing_of_earlier_runs() {
    let notebook = parse(NOTEBOOK);
    let text = notebook.with_outcomes(&[CellOutcome::default(), CellOutcome::default()]);
    let expected = NOTEBOOK
        .replace("\"execution_count\": 7", "\"execution_count\": null")
        .replace("[{\"old\": true}]", "[]");
    assert_eq!(text, expected);
}

#[test]
fn what_a_cell_lacks_is_added_and_one_line_stays_one_line() {
    let text = r#"{"nbformat":4,"nbformat_minor":4,"metadata":{},"cells":[{"cell_type":"code","source":"1","metadata":{}}]}"#;
    let written = parse(text).with_outcomes(&[outcome(1, vec![json!({"a": 1})])]);
    assert_eq!(
        written,
        r#"{"nbformat":4,"nbformat_minor":4,"metadata":{},"cells":[{"cell_type":"code","source":"1","metadata":{},"execution_count":1,"outputs":[{"a":1}]}]}"#
    );
    let four = "{\n    \"cells\": [\n        {\n            \"cell_type\": \"code\",\n            \"source\": []\n        }\n    ],\n    \"nbformat\": 4\n}";
    let written = parse(four).with_outcomes(&[outcome(1, Vec::new())]);
    assert_eq!(
        written,
        four.replace(
            "[]",
            "[],\n            \"execution_count\": 1,\n            \"outputs\": []"
        )
    );
}

#[test]
fn the_language_is_that_of_the_metadata() {
    for (metadata, expected) in [
        (json!({}), Some("python")),
        (
            json!({"kernelspec": {"language": "R", "name": "ir"}}),
            Some("r"),
        ),
        (
            json!({"language_info": {"name": "TypeScript"}}),
            Some("typescript"),
        ),
        (
            json!({"kernelspec": {"language": "c++", "name": "xcpp17"}}),
            Some("xcpp17"),
        ),
        (
            json!({"kernelspec": {"name": "javascript"}}),
            Some("javascript"),
        ),
        (json!({"kernelspec": {"name": "../../etc"}}), None),
        (json!("nonsense"), Some("python")),
    ] {
        let text = json!({"nbformat": 4, "cells": [], "metadata": metadata}).to_string();
        let parsed = Notebook::parse(text);
        let language = parsed.as_ref().ok().map(|parsed| parsed.language.as_str());
        assert_eq!(language, expected, "{metadata}");
    }
}

#[test]
fn what_is_no_notebook_is_named() {
    let cells = |cells: &str| format!(r#"{{"nbformat": 4, "cells": {cells}}}"#);
    let deep = format!("{}{}", "[".repeat(1_000_000), "]".repeat(1_000_000));
    for (text, expected) in [
        (String::new(), "it is no JSON: EOF"),
        ("import os".to_owned(), "it is no JSON"),
        (format!("{NOTEBOOK}x"), "it is no JSON: trailing"),
        ("[]".to_owned(), "no notebook: it is no object"),
        ("{}".to_owned(), "it has no `nbformat`"),
        (r#"{"nbformat": "4"}"#.to_owned(), "it has no `nbformat`"),
        (
            r#"{"nbformat": 3, "worksheets": []}"#.to_owned(),
            "of version 3, not 4",
        ),
        (
            r#"{"nbformat": 5, "cells": []}"#.to_owned(),
            "of version 5, not 4",
        ),
        (r#"{"nbformat": 4}"#.to_owned(), "it has no list `cells`"),
        (
            r#"{"nbformat": 4, "cells": [], "cells": []}"#.to_owned(),
            "a key twice",
        ),
        (cells("[1]"), "cell 1 is no object"),
        (cells("[{}]"), "cell 1 has no `cell_type`"),
        (
            cells(r#"[{"cell_type": "raw"}, {"cell_type": "code"}]"#),
            "cell 2 has no `source`",
        ),
        (
            cells(r#"[{"cell_type": "code", "source": [1]}]"#),
            "cell 1 has no `source`",
        ),
        (
            cells(r#"[{"cell_type": "code", "source": "\ud800"}]"#),
            "cell 1 has no `source`",
        ),
        (
            cells(r#"[{"cell_type": "code", "source": "", "outputs": 1, "outputs": 2}]"#),
            "a key twice",
        ),
        (cells(&deep), "cell 1 is no object"),
        (
            cells(&format!("[{}0]", "0,".repeat(CELLS_MAX))),
            "more than 100000 cells",
        ),
    ] {
        let error = Notebook::parse(text.clone()).unwrap_err();
        let shown = error.to_string();
        let start: String = text.chars().take(80).collect();
        assert!(shown.contains(expected), "{start}: {shown}");
        assert!(!error.hint().is_empty());
    }
}

#[test]
fn what_is_deep_but_nothing_of_ours_stays() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let text = format!(
        r#"{{"nbformat":4,"metadata":{{"x":{deep}}},"cells":[{{"cell_type":"code","metadata":{deep},"execution_count":null,"outputs":{deep},"source":"1"}}]}}"#
    );
    let written = parse(&text).with_outcomes(&[outcome(3, Vec::new())]);
    assert_eq!(
        written,
        text.replace(&format!(r#""outputs":{deep}"#), r#""outputs":[]"#)
            .replace("null", "3")
    );
}

/// Any JSON of a reasonable size.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(".{0,4}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn any_cell() -> impl Strategy<Value = Value> {
    (any::<bool>(), any_json(), ".{0,12}", any_json()).prop_map(|(is_code, extra, source, old)| {
        if is_code {
            json!({"cell_type": "code", "x": extra, "source": source, "outputs": old, "execution_count": 9})
        } else {
            json!({"cell_type": "markdown", "x": extra, "source": source})
        }
    })
}

proptest! {
    #[test]
    fn whatever_is_in_a_notebook_only_its_outputs_change(
        cells in prop::collection::vec(any_cell(), 0..5),
        metadata in any_json(),
        new in prop::collection::vec(any_json(), 0..3),
        is_pretty in any::<bool>(),
    ) {
        let original = json!({"nbformat": 4, "cells": cells, "more": metadata});
        let text = if is_pretty {
            serde_json::to_string_pretty(&original).unwrap()
        } else {
            original.to_string()
        };
        let notebook = parse(&text);
        let outcomes: Vec<_> = notebook.cells.iter().map(|_| outcome(5, new.clone())).collect();
        let written = notebook.with_outcomes(&outcomes);
        let mut expected = original;
        for cell in expected["cells"].as_array_mut().unwrap() {
            if cell["cell_type"] == "code" {
                cell["outputs"] = Value::from(new.clone());
                cell["execution_count"] = Value::from(5);
            }
        }
        prop_assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), expected.clone());
        // The style is kept to the last byte.
        let restyled = if is_pretty {
            serde_json::to_string_pretty(&expected).unwrap()
        } else {
            expected.to_string()
        };
        prop_assert_eq!(&written, &restyled);
        // Running it again changes nothing.
        prop_assert_eq!(parse(&written).with_outcomes(&outcomes), written);
    }

    #[test]
    fn no_text_makes_it_panic(text in ".{0,200}") {
        let _ = Notebook::parse(text);
    }

    #[test]
    fn no_change_of_a_notebook_makes_it_panic(at in 0..NOTEBOOK.len(), with in ".{0,3}") {
        let mut text = NOTEBOOK.to_owned();
        if text.is_char_boundary(at) {
            text.insert_str(at, &with);
        }
        if let Ok(notebook) = Notebook::parse(text) {
            let outcomes: Vec<_> = notebook.cells.iter().map(|_| outcome(5, Vec::new())).collect();
            let written = notebook.with_outcomes(&outcomes);
            prop_assert!(Notebook::parse(written).is_ok());
        }
    }
}
