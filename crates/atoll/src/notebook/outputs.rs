//! Events of a cell as outputs of a notebook, in the form in which Jupyter
//! saves them: texts as lists of lines, pieces of one stream together.

use atoll_guest_client::{CodeError, CodeEvent, CodeResult};
use serde_json::{Map, Value, json};

/// How IPython writes that an object is for JSON alone.
const JSON_OBJECT_TEXT: &str = "<IPython.core.display.JSON";

/// The outputs of one cell, in their order.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    list: Vec<Output>,
    execution_count: Option<u64>,
}

#[derive(Debug)]
enum Output {
    Stream { name: &'static str, text: String },
    Shown(Box<CodeResult>),
    Error(CodeError),
}

impl Outputs {
    pub(crate) fn take(&mut self, event: CodeEvent) {
        match event {
            CodeEvent::Stdout { text } => self.stream("stdout", text),
            CodeEvent::Stderr { text } => self.stream("stderr", text),
            CodeEvent::Result(result) => self.list.push(Output::Shown(result)),
            CodeEvent::Error(error) => self.error(error),
            CodeEvent::NumberOfExecutions { execution_count } => {
                self.execution_count = Some(execution_count);
            }
            CodeEvent::Keepalive | CodeEvent::EndOfExecution | CodeEvent::Unknown => {}
        }
    }

    /// Adds an error, of the cell or of ours.
    pub(crate) fn error(&mut self, error: CodeError) {
        self.list.push(Output::Error(error));
    }

    fn stream(&mut self, name: &'static str, text: String) {
        match self.list.last_mut() {
            Some(Output::Stream {
                name: last,
                text: before,
            }) if *last == name => before.push_str(&text),
            _ => self.list.push(Output::Stream { name, text }),
        }
    }

    /// As nbformat has them.
    pub(crate) fn into_values(self) -> Vec<Value> {
        let count = self.execution_count;
        self.list
            .into_iter()
            .map(|output| match output {
                Output::Stream { name, text } => json!({
                    "name": name,
                    "output_type": "stream",
                    "text": lines(&text),
                }),
                Output::Error(error) => json!({
                    "ename": error.name,
                    "evalue": error.value,
                    "output_type": "error",
                    "traceback": error.traceback.split('\n').collect::<Vec<_>>(),
                }),
                Output::Shown(result) if result.is_main_result => json!({
                    "data": bundle(*result),
                    "execution_count": count,
                    "metadata": {},
                    "output_type": "execute_result",
                }),
                Output::Shown(result) => json!({
                    "data": bundle(*result),
                    "metadata": {},
                    "output_type": "display_data",
                }),
            })
            .collect()
    }
}

/// The forms of a result by their MIME types. Data and charts are for E2B's
/// clients; notebooks have text, HTML and pictures of the same.
fn bundle(result: CodeResult) -> Map<String, Value> {
    let CodeResult {
        is_main_result: _,
        text,
        html,
        markdown,
        svg,
        png,
        jpeg,
        pdf,
        latex,
        json,
        javascript,
        data: _,
        chart: _,
        extra,
    } = result;
    // Lists and dictionaries have JSON too, which a notebook would show in place of their text.
    let is_json_alone = text
        .as_deref()
        .is_none_or(|text| text.starts_with(JSON_OBJECT_TEXT));
    let json = json.filter(|_| is_json_alone);
    let mut bundle = Map::new();
    for (name, value) in extra {
        // A value may be a text, and JSON only where the type says so.
        let is_json = name == "application/json" || name.ends_with("+json");
        let value = match value {
            Value::String(text) if !is_json => lines(&text),
            value if is_json => value,
            value => Value::String(value.to_string()),
        };
        if name.contains('/') {
            bundle.insert(name, value);
        }
    }
    for (name, text) in [
        ("application/javascript", javascript),
        ("image/svg+xml", svg),
        ("text/html", html),
        ("text/latex", latex),
        ("text/markdown", markdown),
        ("text/plain", text),
    ] {
        if let Some(text) = text {
            bundle.insert(name.to_owned(), lines(&text));
        }
    }
    for (name, text) in [
        ("application/pdf", pdf),
        ("image/jpeg", jpeg),
        ("image/png", png),
    ] {
        if let Some(text) = text {
            bundle.insert(name.to_owned(), Value::String(text));
        }
    }
    if let Some(json) = json {
        bundle.insert("application/json".to_owned(), json);
    }
    bundle
}

/// A text as its lines, each with its end.
fn lines(text: &str) -> Value {
    text.split_inclusive('\n').collect::<Vec<_>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(text: &str) -> CodeEvent {
        CodeEvent::Stdout {
            text: text.to_owned(),
        }
    }

    #[test]
    fn events_become_outputs_in_their_order() {
        let mut outputs = Outputs::default();
        let figure = CodeResult {
            text: Some("<Figure>".to_owned()),
            png: Some("iVBO\n".to_owned()),
            chart: Some(json!({"type": "line"})),
            ..CodeResult::default()
        };
        let frame = CodeResult {
            is_main_result: true,
            text: Some("  a\n0 1".to_owned()),
            html: Some("<table>".to_owned()),
            data: Some(json!({"a": [1]})),
            ..CodeResult::default()
        };
        let error = CodeError {
            name: "ValueError".to_owned(),
            value: "no".to_owned(),
            traceback: "one\ntwo".to_owned(),
        };
        for event in [
            CodeEvent::NumberOfExecutions { execution_count: 4 },
            printed("a"),
            printed("b\nc"),
            CodeEvent::Stderr {
                text: "d\n".to_owned(),
            },
            printed("e"),
            CodeEvent::Keepalive,
            CodeEvent::Result(Box::new(figure)),
            CodeEvent::Result(Box::new(frame)),
            CodeEvent::Error(error),
        ] {
            outputs.take(event);
        }
        assert_eq!(
            Value::from(outputs.into_values()),
            json!([
                {"output_type": "stream", "name": "stdout", "text": ["ab\n", "c"]},
                {"output_type": "stream", "name": "stderr", "text": ["d\n"]},
                {"output_type": "stream", "name": "stdout", "text": ["e"]},
                {"output_type": "display_data", "metadata": {}, "data": {
                    "text/plain": ["<Figure>"], "image/png": "iVBO\n",
                }},
                {"output_type": "execute_result", "metadata": {}, "execution_count": 4, "data": {
                    "text/plain": ["  a\n", "0 1"], "text/html": ["<table>"],
                }},
                {"output_type": "error", "ename": "ValueError", "evalue": "no",
                 "traceback": ["one", "two"]},
            ])
        );
    }

    #[test]
    fn json_is_kept_where_nothing_else_says_it() {
        let bundle = |text: Option<&str>| {
            bundle(CodeResult {
                text: text.map(str::to_owned),
                json: Some(json!([1])),
                ..CodeResult::default()
            })
        };
        assert_eq!(
            bundle(None).keys().collect::<Vec<_>>(),
            ["application/json"]
        );
        assert_eq!(
            bundle(Some("[1]")).keys().collect::<Vec<_>>(),
            ["text/plain"]
        );
        let both = bundle(Some("<IPython.core.display.JSON object>"));
        assert_eq!(both.len(), 2);
    }

    #[test]
    fn other_forms_fit_their_types() {
        let extra = json!({
            "application/vnd.x+json": {"a": 1},
            "text/x": "a\nb",
            "image/gif": 5,
            "nonsense": "x",
        });
        let Value::Object(extra) = extra else {
            unreachable!()
        };
        let bundle = bundle(CodeResult {
            extra,
            ..CodeResult::default()
        });
        assert_eq!(
            Value::Object(bundle),
            json!({
                "application/vnd.x+json": {"a": 1},
                "text/x": ["a\n", "b"],
                "image/gif": "5",
            })
        );
    }
}
