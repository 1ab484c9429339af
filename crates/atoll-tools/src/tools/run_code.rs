//! `run_code`: code in a kernel that keeps its state.

use std::time::Duration;

use atoll_guest_client::{CodeError, CodeEvent, CodeResult, CodeToRun, Command, GuestError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::execute_command::{self, separate};
use super::output::{follow, keep, millis, readable, say_last_line, shell};
use super::timeout;
use crate::cut::{Collected, cut, plain};
use crate::definition::{Answer, Call, Failure, Image, Outcome};
use crate::error::{BAD_GATEWAY, ErrorCode, ToolError};
use crate::workplace::Place;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Results of one run that are shown.
const RESULTS_MAX: usize = 20;
/// Pictures of one run that are shown.
const IMAGES_MAX: usize = 4;
/// Bytes of one picture, in base64.
const IMAGE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// What code is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Language {
    #[default]
    Python,
    Javascript,
    Typescript,
    Bash,
    R,
    Java,
}

impl Language {
    fn as_str(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Javascript => "javascript",
            Self::Typescript => "typescript",
            Self::Bash => "bash",
            Self::R => "r",
            Self::Java => "java",
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Arguments {
    /// The code. The value of its last expression is part of the result; so are plots.
    pub(crate) code: String,
    /// Its language. Default: python.
    #[serde(default)]
    pub(crate) language: Option<Language>,
    /// Seconds after which it is interrupted. Default 30, at most 3600.
    #[serde(default)]
    pub(crate) timeout: Option<f64>,
    /// Which sandbox. Default: this session's own, made on first use.
    #[serde(default)]
    pub(crate) sandbox_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Ran {
    /// The sandbox it ran in.
    pub(crate) sandbox_id: String,
    /// What it was written in.
    pub(crate) language: Language,
    /// Whether it came to its end without an error.
    pub(crate) success: bool,
    /// What it printed, cut in the middle when long.
    pub(crate) stdout: String,
    /// What it printed to standard error, cut in the middle when long.
    pub(crate) stderr: String,
    /// What it showed, as text; the value of its last expression is the one with `is_main`.
    pub(crate) results: Vec<Shown>,
    /// The exception that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<Raised>,
    /// Number of this run in its kernel; absent where there is no kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) execution_count: Option<u64>,
    /// File inside the sandbox with all of standard output, when it was cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stdout_path: Option<String>,
    /// File inside the sandbox with all of standard error, when it was cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stderr_path: Option<String>,
    /// How long it took.
    pub(crate) duration_ms: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Shown {
    /// Whether it is the value of the last expression.
    is_main: bool,
    /// As text, cut in the middle when long.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// Forms it has: text, html, markdown, svg, png, jpeg, pdf, latex, json, chart, data.
    forms: Vec<&'static str>,
    /// Resource with the picture, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    image_uri: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Raised {
    /// Name of the exception.
    name: String,
    /// What it says.
    message: String,
    /// Where it happened.
    traceback: String,
}

/// How the stream of events ended.
enum End {
    Over,
    Timeout,
    Lost(GuestError),
}

#[derive(Default)]
struct Heard {
    stdout: Collected,
    stderr: Collected,
    /// In the form in which they are shown: those of code may be large.
    results: Vec<Shown>,
    images: Vec<Image>,
    results_left_out: usize,
    error: Option<Raised>,
    is_state_lost: bool,
    execution_count: Option<u64>,
}

pub(crate) async fn run(call: &Call, arguments: Arguments) -> Answer {
    let limit = timeout(arguments.timeout, TIMEOUT)?;
    let place = call.desk.place(arguments.sandbox_id.as_deref()).await?;
    let language = arguments.language.unwrap_or_default();
    in_place(call, &place, language, arguments.code, limit).await
}

pub(crate) async fn in_place(
    call: &Call,
    place: &Place,
    language: Language,
    code: String,
    limit: Duration,
) -> Answer {
    keep(call, place, limit).await;
    let started = Instant::now();
    let deadline = started + limit;
    let wanted = CodeToRun {
        text: code,
        language: Some(language.as_str().to_owned()),
        ..CodeToRun::default()
    };
    let mut heard = Heard::default();
    let end = match tokio::time::timeout_at(deadline, place.code.run_code(&wanted)).await {
        Err(_) => End::Timeout,
        Ok(Err(GuestError::Refused { status: 500, .. })) if language == Language::Bash => {
            // Without a kernel for it there is still a shell, which keeps nothing.
            let command = Command {
                args: vec!["-c".to_owned(), wanted.text],
                ..shell("")
            };
            let followed = follow(call, place, command, limit).await?;
            return execute_command::told(call, place, followed, limit)
                .await
                .map(|outcome| of_shell(&outcome));
        }
        Ok(Err(GuestError::Refused { status, message })) if status != BAD_GATEWAY => {
            let error = ToolError::new(
                ErrorCode::Unsupported,
                format!(
                    "`{}` code cannot run in this sandbox: {message}",
                    language.as_str()
                ),
                "use `create_sandbox` with a template that has kernels (`code-interpreter-v1-slim`, \
                 or `code-interpreter-v1` for R and Java), or run a program with `execute_command`",
            );
            return Err(error.into());
        }
        Ok(Err(error)) => End::Lost(error),
        Ok(Ok(mut run)) => {
            let end = loop {
                match tokio::time::timeout_at(deadline, run.next()).await {
                    // Dropped, it is interrupted.
                    Err(_) => break End::Timeout,
                    Ok(Err(error)) => break End::Lost(error),
                    Ok(Ok(None | Some(CodeEvent::EndOfExecution))) => break End::Over,
                    Ok(Ok(Some(event))) => take(call, &place.id, &mut heard, event),
                }
            };
            heard.results_left_out += run.left_out();
            end
        }
    };
    told(call, place, language, heard, end, limit, started.elapsed()).await
}

/// Takes of an event what is shown of it, and nothing else.
fn take(call: &Call, sandbox: &str, heard: &mut Heard, event: CodeEvent) {
    match event {
        CodeEvent::Stdout { text } => {
            say_last_line(call, text.as_bytes());
            heard.stdout.push(text.as_bytes());
        }
        CodeEvent::Stderr { text } => {
            say_last_line(call, text.as_bytes());
            heard.stderr.push(text.as_bytes());
        }
        CodeEvent::Result(result) if heard.results.len() < RESULTS_MAX => {
            let shown = shown(call, sandbox, &result, &mut heard.images);
            heard.results.push(shown);
        }
        CodeEvent::Result(_) => heard.results_left_out += 1,
        CodeEvent::Error(error) => {
            heard.is_state_lost = error.is_state_lost();
            heard.error = Some(Raised::of(&error));
        }
        CodeEvent::NumberOfExecutions { execution_count } => {
            heard.execution_count = Some(execution_count);
        }
        CodeEvent::Keepalive | CodeEvent::EndOfExecution | CodeEvent::Unknown => {}
    }
}

async fn told(
    call: &Call,
    place: &Place,
    language: Language,
    heard: Heard,
    end: End,
    limit: Duration,
    took: Duration,
) -> Answer {
    let stdout = readable(place, heard.stdout, "stdout").await;
    let stderr = readable(place, heard.stderr, "stderr").await;
    let ran = Ran {
        sandbox_id: place.id.clone(),
        language,
        success: matches!(end, End::Over) && heard.error.is_none(),
        stdout: stdout.text,
        stderr: stderr.text,
        results: heard.results,
        error: heard.error,
        execution_count: heard.execution_count,
        stdout_path: stdout.full_output_path,
        stderr_path: stderr.full_output_path,
        duration_ms: millis(took),
    };
    let outcome = Outcome {
        text: text(&ran, heard.results_left_out),
        structured: serde_json::to_value(&ran).unwrap_or_default(),
        images: heard.images,
    };
    let error = match end {
        End::Over if heard.is_state_lost => ToolError::new(
            ErrorCode::KernelDied,
            "the kernel ended while the code ran: all variables are lost, files are not \
             (often it used more memory than the sandbox has)",
            "define again what you need; use less memory",
        ),
        End::Over => return Ok(outcome),
        End::Timeout => ToolError::new(
            ErrorCode::Timeout,
            format!(
                "the code ran longer than {} s and was interrupted; variables are kept",
                limit.as_secs_f64()
            ),
            "allow more with `timeout`, or do less at once",
        ),
        End::Lost(error) => call.desk.judge(place, ToolError::of_guest(&error)).await,
    };
    Err(Failure {
        error,
        partial: Some(Box::new(outcome)),
    })
}

impl Raised {
    fn of(error: &CodeError) -> Self {
        let rest = "the middle of the traceback";
        Self {
            name: cut(&plain(&error.name)).text(rest),
            message: cut(&plain(&error.value)).text(rest),
            traceback: cut(&plain(&error.traceback)).text(rest),
        }
    }
}

fn shown(call: &Call, sandbox: &str, result: &CodeResult, images: &mut Vec<Image>) -> Shown {
    let forms = [
        ("text", result.text.is_some()),
        ("html", result.html.is_some()),
        ("markdown", result.markdown.is_some()),
        ("svg", result.svg.is_some()),
        ("png", result.png.is_some()),
        ("jpeg", result.jpeg.is_some()),
        ("pdf", result.pdf.is_some()),
        ("latex", result.latex.is_some()),
        ("json", result.json.is_some()),
        ("chart", result.chart.is_some()),
        ("data", result.data.is_some()),
    ];
    let forms = forms.into_iter().filter(|(_, has)| *has);
    let forms: Vec<&'static str> = forms.map(|(name, _)| name).collect();
    let picture = match (&result.png, &result.jpeg) {
        (Some(data), _) => Some(("image/png", data)),
        (None, Some(data)) => Some(("image/jpeg", data)),
        (None, None) => None,
    };
    let mut image_uri = None;
    if let Some((mime_type, data)) = picture
        && data.len() <= IMAGE_BYTES_MAX
    {
        // Lines of base64 are one line to clients.
        let data: String = data.split_whitespace().collect();
        image_uri = call.desk.keep_plot(sandbox, mime_type, &data);
        if images.len() < IMAGES_MAX {
            images.push(Image {
                data,
                mime_type,
                uri: image_uri.clone(),
            });
        }
    }
    let text = result.markdown.as_ref().or(result.text.as_ref());
    let text = text.or(result.latex.as_ref()).cloned();
    let text = text.or_else(|| result.json.as_ref().map(ToString::to_string));
    let text =
        text.map(|text| cut(&plain(&text)).text("print a part of it, or write it to a file"));
    Shown {
        is_main: result.is_main_result,
        text,
        forms,
        image_uri,
    }
}

fn text(ran: &Ran, results_left_out: usize) -> String {
    let mut text = ran.stdout.clone();
    if !ran.stderr.is_empty() {
        separate(&mut text);
        text.push_str(&format!("[stderr]\n{}", ran.stderr));
    }
    for result in &ran.results {
        separate(&mut text);
        if let Some(shown) = &result.text {
            text.push_str(shown);
        }
        if let Some(uri) = &result.image_uri {
            separate(&mut text);
            text.push_str(&format!("[picture: {uri}]"));
        }
    }
    if results_left_out > 0 {
        separate(&mut text);
        text.push_str(&format!(
            "[… {results_left_out} more results are not shown …]"
        ));
    }
    if let Some(error) = &ran.error {
        separate(&mut text);
        if error.traceback.is_empty() {
            text.push_str(&format!("{}: {}", error.name, error.message));
        } else {
            text.push_str(&error.traceback);
        }
    }
    if text.is_empty() {
        text.push_str("[no output]");
    }
    text
}

/// The result of a plain shell in the form of this tool.
fn of_shell(outcome: &Outcome) -> Outcome {
    let field = |name: &str| outcome.structured.get(name).cloned().unwrap_or_default();
    let word = |name: &str| field(name).as_str().unwrap_or_default().to_owned();
    let code = field("exit_code").as_i64();
    let ran = Ran {
        sandbox_id: word("sandbox_id"),
        language: Language::Bash,
        success: code == Some(0),
        stdout: word("stdout"),
        stderr: word("stderr"),
        results: Vec::new(),
        error: (code != Some(0)).then(|| Raised {
            name: "ExitStatus".to_owned(),
            message: code.map_or_else(|| word("status"), |code| code.to_string()),
            traceback: String::new(),
        }),
        execution_count: None,
        stdout_path: field("stdout_path").as_str().map(str::to_owned),
        stderr_path: field("stderr_path").as_str().map(str::to_owned),
        duration_ms: field("duration_ms").as_u64().unwrap_or_default(),
    };
    Outcome {
        text: text(&ran, 0),
        structured: serde_json::to_value(&ran).unwrap_or_default(),
        images: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cut::{HEAD_CHARS, TAIL_CHARS};
    use crate::desk::Desk;
    use crate::workplace::nowhere::Nowhere;

    fn heard(results: impl IntoIterator<Item = CodeResult>) -> (Call, Heard) {
        let call = Call::new(Arc::new(Desk::new(Arc::new(Nowhere))));
        let mut heard = Heard::default();
        for result in results {
            take(&call, "s", &mut heard, CodeEvent::Result(Box::new(result)));
        }
        (call, heard)
    }

    #[tokio::test]
    async fn of_large_results_only_what_is_shown_is_kept() {
        let large = || CodeResult {
            text: Some("x".repeat(1024 * 1024)),
            html: Some("<p>".repeat(1024 * 1024)),
            png: Some("A".repeat(IMAGE_BYTES_MAX + 1)),
            ..CodeResult::default()
        };
        let (call, heard) = heard((0..RESULTS_MAX + 2).map(|_| large()));
        assert_eq!(heard.results.len(), RESULTS_MAX);
        assert_eq!(heard.results_left_out, 2);
        for shown in &heard.results {
            let text = shown.text.as_ref().unwrap();
            assert!(text.len() < HEAD_CHARS + TAIL_CHARS + 200, "{}", text.len());
            assert_eq!(shown.forms, ["text", "html", "png"]);
            assert_eq!(shown.image_uri, None);
        }
        assert!(heard.images.is_empty() && call.desk.plots().is_empty());
    }

    #[tokio::test]
    async fn pictures_beyond_the_first_ones_are_resources_only() {
        let picture = |_| CodeResult {
            png: Some("AA\nAA\n".to_owned()),
            ..CodeResult::default()
        };
        let (call, heard) = heard((0..IMAGES_MAX + 1).map(picture));
        assert_eq!(heard.images.len(), IMAGES_MAX);
        assert_eq!(heard.images[0].data, "AAAA");
        assert_eq!(call.desk.plots().len(), IMAGES_MAX + 1);
        let last = heard.results.last().unwrap();
        assert_eq!(
            last.image_uri.as_deref(),
            Some("atoll://sandbox/s/plots/5.png")
        );
    }
}
