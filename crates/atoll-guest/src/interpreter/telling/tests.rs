//! What clients are told, and that it has an end.

use serde_json::{Value, json};

use super::*;

fn message(kind: Kind, content: &str) -> Message {
    Message {
        kind,
        parent: String::new(),
        content: content.as_bytes().to_vec(),
        dropped: 0,
    }
}

fn said(kind: Kind, content: &str) -> Vec<Value> {
    parsed(&Told::default().lines(&message(kind, content)))
}

fn parsed(lines: &[Bytes]) -> Vec<Value> {
    lines
        .iter()
        .map(|line| {
            assert!(line.is_ascii() && line.ends_with(b"}\n"));
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            let mut value: Value = serde_json::from_slice(line).unwrap();
            if let Some(object) = value.as_object_mut() {
                object.remove("timestamp");
            }
            value
        })
        .collect()
}

#[test]
fn results_have_the_fields_that_clients_know() {
    let content = r#"{"data": {"text/plain": "'a\u00fc'", "text/html": ["<b>", "x"],
        "application/json": {"k": [1, "ü"]}, "image/png": "aGk=", "x/y": {"z": 1},
        "text/latex": null}, "metadata": {}}"#;
    assert_eq!(
        said(Kind::ExecuteResult, content),
        [
            json!({"type": "result", "text": "aü", "html": "<b>x", "json": {"k": [1, "ü"]},
            "png": "aGk=", "is_main_result": true, "extra": {"x/y": {"z": 1}}})
        ]
    );
    assert_eq!(
        said(Kind::DisplayData, r#"{"data":{"text/latex":"$x$"}}"#),
        [json!({"type": "result", "latex": "$x$", "is_main_result": false, "extra": {}})]
    );
}

#[test]
fn what_no_client_could_read_is_left_out() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let shown = |json: &str| {
        let content =
            format!(r#"{{"data":{{"text/plain":"t","application/json":{json},"x/y":{json}}}}}"#);
        let line = said(Kind::ExecuteResult, &content).remove(0);
        (
            line["text"] == "t",
            line.get("json").is_some(),
            line["extra"].get("x/y").is_some(),
        )
    };
    assert_eq!(shown(&nested(DEPTH_MAX)), (true, true, true));
    assert_eq!(shown(&nested(DEPTH_MAX + 1)), (true, false, false));
    let text = format!(r#""\"{}""#, "[".repeat(1000));
    assert_eq!(shown(&text), (true, true, true));
}

#[test]
fn one_pair_of_quotes_is_taken_off() {
    for (text, expected) in [
        ("'a'", "a"),
        ("\"it's\"", "it's"),
        ("''a''", "'a'"),
        ("'a\"", "'a\""),
        ("'", "'"),
        ("''", ""),
        ("\\\"", "\\\""),
        ("2", "2"),
    ] {
        let content = json!({"data": {"text/plain": text}}).to_string();
        assert_eq!(said(Kind::ExecuteResult, &content)[0]["text"], expected);
    }
}

#[test]
fn errors_and_output_pass_with_half_characters() {
    assert_eq!(
        said(Kind::Stream, r#"{"name":"stdout","text":"ü\n"}"#),
        [json!({"type": "stdout", "text": "ü\n"})]
    );
    // Python knows this text, and Rust does not.
    let lines = Told::default().lines(&message(
        Kind::Stream,
        r#"{"name":"stderr","text":"\ud83d"}"#,
    ));
    assert!(lines[0].starts_with(br#"{"type":"stderr","text":"\ud83d","timestamp":""#));
    assert_eq!(
        said(
            Kind::Error,
            r#"{"ename":"E","evalue":"v\"","traceback":["a","b ü"]}"#
        ),
        [json!({"type": "error", "name": "E", "value": "v\"", "traceback": "a\nb ü"})]
    );
}

#[test]
fn what_a_liar_sends_is_nothing_or_harmless() {
    for (kind, content) in [
        (Kind::Stream, "{}"),
        (Kind::Stream, r#"{"name":"stdout","text":7}"#),
        (Kind::Stream, "\u{0}"),
        (Kind::ExecuteResult, r#"{"data":[]}"#),
        (Kind::ExecuteInput, r#"{"execution_count":"x"}"#),
        (Kind::ExecuteInput, r#"{"execution_count":-1}"#),
        (Kind::Error, "[]"),
        (Kind::Other, "{}"),
    ] {
        assert_eq!(said(kind, content), Vec::<Value>::new(), "{content}");
    }
    assert_eq!(
        said(
            Kind::Error,
            r#"{"ename":{"a":1},"evalue":[],"traceback":[7,"x"]}"#
        ),
        [json!({"type": "error", "name": "{\"a\":1}", "value": "[]", "traceback": "\nx"})]
    );
}

#[test]
fn output_is_cut_once_and_counted() {
    let mut told = Told::default();
    let half = "x".repeat(OUTPUT_BYTES_MAX / 2 + 1);
    let content = json!({"name": "stdout", "text": half}).to_string();
    let print = message(Kind::Stream, &content);
    let kept = |lines: Vec<Bytes>| -> Vec<(String, usize)> {
        parsed(&lines)
            .iter()
            .map(|line| {
                let text = line["text"].as_str().unwrap();
                (line["type"].as_str().unwrap().to_owned(), text.len())
            })
            .collect()
    };
    let out = |length| ("stdout".to_owned(), length);
    assert_eq!(kept(told.lines(&print)), [out(half.len())]);
    assert_eq!(told.last_words(), None);
    let second = kept(told.lines(&print));
    assert_eq!(second[0], out(half.len() - 2));
    assert_eq!((second.len(), second[1].0.as_str()), (2, "stderr"));
    assert_eq!(kept(told.lines(&print)), []);
    let last = parsed(&[told.last_words().unwrap()]);
    let expected = format!("[{} bytes of output were cut", half.len() + 2);
    assert!(
        last[0]["text"].as_str().unwrap().starts_with(&expected),
        "{last:?}"
    );
}

#[test]
fn a_cut_message_is_told_as_far_as_it_goes() {
    for tail in ["ab", r"a\u00", r"\ud83d\u", r"\", r"x\ud83d\ude0"] {
        let cut = Message {
            dropped: 1000,
            ..message(
                Kind::Stream,
                &format!(r#"{{"name": "stdout", "text": "begin{tail}"#),
            )
        };
        let mut told = Told::default();
        let lines = parsed(&told.lines(&cut));
        assert!(
            lines[0]["text"].as_str().unwrap().starts_with("begin"),
            "{tail}"
        );
        assert!(told.cut >= 998);
    }
    let cut = Message {
        dropped: 1 << 30,
        ..message(Kind::ExecuteResult, r#"{"data": {"text/plain": "xx"#)
    };
    let lines = parsed(&Told::default().lines(&cut));
    assert_eq!(lines[0]["is_main_result"], true);
    let text = lines[0]["text"].as_str().unwrap();
    assert!(
        text.starts_with("[a result of 1073741851 bytes was cut"),
        "{text}"
    );
}

#[test]
fn nothing_can_be_said_without_end() {
    let content = json!({"ename": "E", "evalue": "v", "traceback": ["x".repeat(1000)]});
    let error = message(Kind::Error, &content.to_string());
    let mut told = Told::default();
    let mut bytes = 0;
    for _ in 0..20_000 {
        bytes += told.lines(&error).iter().map(Bytes::len).sum::<usize>();
    }
    assert!(bytes > ERRORS_BYTES_MAX / 2 && bytes < 2 * ERRORS_BYTES_MAX);
    let last = parsed(&[told.last_words().unwrap()]);
    let text = last[0]["text"].as_str().unwrap();
    assert!(text.contains("more errors were cut"), "{text}");

    // One after too much output is told all the same, and a large one as such.
    let mut told = Told::default();
    let print = json!({"name": "stdout", "text": "x".repeat(OUTPUT_BYTES_MAX)}).to_string();
    told.lines(&message(Kind::Stream, &print));
    told.lines(&message(Kind::Stream, &print));
    assert_eq!(parsed(&told.lines(&error))[0]["name"], "E");
    let large = json!({"ename": "E", "evalue": "x".repeat(ERRORS_BYTES_MAX), "traceback": []});
    let large = message(Kind::Error, &large.to_string());
    assert_eq!(told.lines(&large).len(), 0);
    assert_eq!(
        parsed(&Told::default().lines(&large))[0]["name"],
        "OutputCut"
    );

    let mut told = Told::default();
    let count = message(Kind::ExecuteInput, r#"{"execution_count":1}"#);
    let huge = Message {
        dropped: 1,
        ..message(Kind::DisplayData, "{}")
    };
    let lines: usize = (0..1000)
        .map(|_| told.lines(&count).len() + told.lines(&huge).len())
        .sum();
    assert_eq!(lines, 1 + 100);
    let last = parsed(&[told.last_words().unwrap()]);
    assert_eq!(last[0]["text"], "[900 more results were cut]\n");
}

proptest::proptest! {
    #[test]
    fn no_content_makes_it_panic_or_leave_its_line(content in "\\PC{0,80}", dropped in 0_u64..3) {
        for kind in [Kind::Stream, Kind::ExecuteResult, Kind::Error, Kind::ExecuteInput] {
            let message = Message { dropped, ..message(kind, &content) };
            parsed(&Told::default().lines(&message));
        }
    }
}
