//! A cell for programs: what it printed and showed, typed and bounded.
//! Pictures are files and are named, not embedded.

use atoll_guest_client::{CodeError, CodeEvent, CodeResult};
use serde::Serialize;
use serde_json::{Map, Value};

use super::follow::json_bytes;
use super::gallery::{Gallery, Saved, pictures};

/// How much of each stream, and of all results together, is kept.
const KEPT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Most results that are kept.
const RESULTS_MAX: usize = 10_000;

/// What a cell printed and showed.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) results: Vec<ResultReport>,
    pub(crate) warnings: Vec<String>,
    /// Bytes beyond what is kept.
    pub(crate) truncated_bytes: u64,
    results_bytes: usize,
}

/// Something that a cell showed.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ResultReport {
    is_main_result: bool,
    /// The forms that are texts or values, by their names in E2B's protocol.
    #[serde(flatten)]
    forms: Map<String, Value>,
    /// Those that are pictures.
    files: Vec<Saved>,
}

/// Why a cell did not come to its end.
#[derive(Debug, Serialize)]
pub(crate) struct ErrorReport {
    name: String,
    value: String,
    traceback: String,
    /// Whether everything that code had left in its context is gone.
    is_state_lost: bool,
}

impl From<&CodeError> for ErrorReport {
    fn from(error: &CodeError) -> Self {
        Self {
            name: error.name.clone(),
            value: error.value.clone(),
            traceback: error.traceback.clone(),
            is_state_lost: error.is_state_lost(),
        }
    }
}

impl Report {
    pub(crate) fn take(&mut self, event: CodeEvent, gallery: &mut Gallery) {
        match event {
            CodeEvent::Stdout { text } => keep(&mut self.stdout, &text, &mut self.truncated_bytes),
            CodeEvent::Stderr { text } => keep(&mut self.stderr, &text, &mut self.truncated_bytes),
            CodeEvent::Result(result) => self.result(*result, gallery),
            CodeEvent::Error(_)
            | CodeEvent::NumberOfExecutions { .. }
            | CodeEvent::Keepalive
            | CodeEvent::EndOfExecution
            | CodeEvent::Unknown => {}
        }
    }

    fn result(&mut self, result: CodeResult, gallery: &mut Gallery) {
        let mut files = Vec::new();
        for picture in pictures(&result) {
            match gallery.save(picture) {
                Ok(saved) => files.push(saved),
                Err(error) if self.warnings.len() < RESULTS_MAX => {
                    let error = anyhow::Error::from(error);
                    self.warnings
                        .push(format!("a picture was not saved: {error:#}"));
                }
                Err(_) => {}
            }
        }
        let CodeResult {
            is_main_result,
            text,
            html,
            markdown,
            latex,
            json,
            javascript,
            data,
            chart,
            extra,
            svg: _,
            png: _,
            jpeg: _,
            pdf: _,
        } = result;
        let texts = [
            ("text", text),
            ("html", html),
            ("markdown", markdown),
            ("latex", latex),
            ("javascript", javascript),
        ];
        let texts = texts
            .into_iter()
            .filter_map(|(name, text)| Some((name, Value::String(text?))));
        let extra = (!extra.is_empty()).then_some(Value::Object(extra));
        let values = [
            ("json", json),
            ("data", data),
            ("chart", chart),
            ("extra", extra),
        ];
        let values = values
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        let mut forms = Map::new();
        for (name, value) in texts.chain(values) {
            let size = json_bytes(&value);
            let fits = usize::try_from(size)
                .ok()
                .and_then(|size| self.results_bytes.checked_add(size))
                .filter(|total| *total <= KEPT_BYTES_MAX && self.results.len() < RESULTS_MAX);
            match fits {
                Some(total) => {
                    self.results_bytes = total;
                    forms.insert(name.to_owned(), value);
                }
                None => self.truncated_bytes += size,
            }
        }
        if self.results.len() < RESULTS_MAX {
            self.results.push(ResultReport {
                is_main_result,
                forms,
                files,
            });
        }
    }
}

/// Adds what has room.
fn keep(kept: &mut String, text: &str, truncated: &mut u64) {
    let mut room = KEPT_BYTES_MAX.saturating_sub(kept.len()).min(text.len());
    while !text.is_char_boundary(room) {
        room -= 1;
    }
    kept.push_str(&text[..room]);
    *truncated += (text.len() - room) as u64;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(result: CodeResult) -> CodeEvent {
        CodeEvent::Result(Box::new(result))
    }

    #[test]
    fn results_are_typed_and_pictures_are_files() {
        let here = tempfile::tempdir().unwrap();
        let mut gallery = Gallery::open(Some(here.path())).unwrap();
        let mut report = Report::default();
        let result = CodeResult {
            is_main_result: true,
            text: Some("<Figure>".to_owned()),
            svg: Some("<svg/>".to_owned()),
            png: Some("no picture".to_owned()),
            chart: Some(json!({"type": "line"})),
            ..CodeResult::default()
        };
        report.take(shown(result), &mut gallery);
        let path = here.path().join("chart-1.svg");
        assert_eq!(
            serde_json::to_value(&report.results).unwrap(),
            json!([{
                "is_main_result": true,
                "text": "<Figure>",
                "chart": {"type": "line"},
                "files": [{"kind": "svg", "path": path, "bytes": 6}],
            }])
        );
        assert_eq!(
            report.warnings,
            ["a picture was not saved: a result says it is Png and is not"]
        );
    }

    #[test]
    fn what_is_kept_has_an_end_and_the_rest_is_counted() {
        let here = tempfile::tempdir().unwrap();
        let mut gallery = Gallery::open(Some(here.path())).unwrap();
        let mut report = Report::default();
        for _ in 0..3 {
            let text = "ü".repeat(KEPT_BYTES_MAX / 4);
            report.take(CodeEvent::Stdout { text: text.clone() }, &mut gallery);
            report.take(
                shown(CodeResult {
                    text: Some(text),
                    ..CodeResult::default()
                }),
                &mut gallery,
            );
        }
        assert_eq!(report.stdout.len(), KEPT_BYTES_MAX);
        let kept = serde_json::to_vec(&report.results).unwrap().len();
        assert!(kept < KEPT_BYTES_MAX + 1000, "{kept}");
        // A stream's third half, and two results, whose quotes are too much.
        let half = (KEPT_BYTES_MAX / 2) as u64;
        assert_eq!(report.truncated_bytes, half + 2 * (half + 2));
        assert_eq!(report.results.len(), 3);
    }
}
