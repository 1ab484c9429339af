//! `search_files`: by content with `grep`, by name with `find`, inside.

use std::time::Duration;

use atoll_guest_client::{Command, ExitStatus};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::output::{End, follow};
use super::timeout;
use crate::cut::plain;
use crate::definition::{Answer, Call, Outcome};
use crate::error::{ErrorCode, ToolError};

const TIMEOUT: Duration = Duration::from_secs(30);
/// Matches that are shown when it is not said.
const MATCHES: usize = 100;
const MATCHES_MAX: usize = 500;
/// Characters of a line that are shown.
const LINE_CHARS_MAX: usize = 300;

/// What is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    #[default]
    Text,
    Regex,
    Name,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Arguments {
    /// What to look for: text, a regular expression (as `grep -E`), or a file name with `*` and `?`.
    pub(crate) pattern: String,
    /// What `pattern` is: text in files, regex in files, or the name of files. Default text.
    #[serde(default)]
    pub(crate) mode: Option<What>,
    /// Where to look, with everything below. Default: the user's home, `/home/user`.
    #[serde(default)]
    pub(crate) path: Option<String>,
    /// Only files with such names, for example `*.py`. Not for names.
    #[serde(default)]
    pub(crate) include: Option<String>,
    /// Whether upper and lower case are the same. Default: false.
    #[serde(default)]
    pub(crate) ignore_case: Option<bool>,
    /// Most matches to return. Default 100, at most 500.
    #[serde(default)]
    pub(crate) max_results: Option<usize>,
    /// Seconds after which it is ended. Default 30.
    #[serde(default)]
    pub(crate) timeout: Option<f64>,
    /// Which sandbox. Default: this session's own.
    #[serde(default)]
    pub(crate) sandbox_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Found {
    sandbox_id: String,
    matches: Vec<Match>,
    /// Whether there are more than are shown.
    has_more: bool,
}

#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
struct Match {
    path: String,
    /// Number of the line, for matches in files.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    /// The line, for matches in files.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

pub(crate) async fn run(call: &Call, arguments: Arguments) -> Answer {
    let limit = timeout(arguments.timeout, TIMEOUT)?;
    let most = arguments.max_results.unwrap_or(MATCHES);
    if arguments.pattern.is_empty() || !(1..=MATCHES_MAX).contains(&most) {
        return Err(ToolError::arguments(
            "`pattern` is empty, or `max_results` is out of range",
            format!("look for something, and for 1 to {MATCHES_MAX} results"),
        )
        .into());
    }
    let place = call.desk.place(arguments.sandbox_id.as_deref()).await?;
    let mode = arguments.mode.unwrap_or_default();
    let command = command(&arguments, mode);
    let followed = follow(call, &place, command, limit).await?;
    let stderr = String::from_utf8_lossy(&followed.stderr.into_kept()).into_owned();
    match followed.end {
        // `grep`: 1 is that nothing was found, 2 that something could not be read.
        End::Exited(ExitStatus::Exited(0 | 1)) => {}
        End::Exited(_) if followed.stdout.total() > 0 => {}
        End::Exited(_) => {
            let why = plain(stderr.trim());
            let why: String = why.chars().take(500).collect();
            return Err(ToolError::arguments(why, "correct `pattern` or `path`").into());
        }
        End::Timeout => {
            return Err(ToolError::new(
                ErrorCode::Timeout,
                "the search took too long",
                "search in fewer files with `path` and `include`",
            )
            .into());
        }
        End::Lost(error) => {
            let error = ToolError::of_guest(&error);
            return Err(call.desk.judge(&place, error).await.into());
        }
    }
    let kept = followed.stdout.into_kept();
    let text = String::from_utf8_lossy(&kept);
    let mut lines = text.lines().filter(|line| !line.is_empty());
    let matches: Vec<Match> = lines
        .by_ref()
        .take(most)
        .map(|line| parse(line, mode))
        .collect();
    let found = Found {
        sandbox_id: place.id.clone(),
        matches,
        has_more: lines.next().is_some(),
    };
    Ok(Outcome {
        text: shown(&found),
        structured: serde_json::to_value(&found).unwrap_or_default(),
        images: Vec::new(),
    })
}

fn command(arguments: &Arguments, mode: What) -> Command {
    let path = arguments.path.as_deref().unwrap_or("/home/user");
    // Whatever it begins with, it is a path.
    let path = if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/home/user/{path}")
    };
    let no_case = arguments.ignore_case == Some(true);
    let (cmd, args) = match mode {
        What::Name => {
            let test = if no_case { "-iname" } else { "-name" };
            let args = vec![path, test.to_owned(), arguments.pattern.clone()];
            ("find", args)
        }
        What::Text | What::Regex => {
            let kind = if mode == What::Regex { "-E" } else { "-F" };
            let mut args = vec!["-rnIHZ".to_owned(), kind.to_owned()];
            args.extend(no_case.then(|| "-i".to_owned()));
            let include = arguments.include.as_ref();
            args.extend(include.map(|include| format!("--include={include}")));
            args.extend(["-e".to_owned(), arguments.pattern.clone()]);
            args.extend(["--".to_owned(), path]);
            ("grep", args)
        }
    };
    Command {
        cmd: cmd.to_owned(),
        args,
        ..Command::default()
    }
}

/// A line of `grep -Z`: the path, NUL, the number, a colon and the line.
fn parse(line: &str, mode: What) -> Match {
    let whole = |path: &str| Match {
        path: plain(path),
        line: None,
        text: None,
    };
    if mode == What::Name {
        return whole(line);
    }
    let Some((path, rest)) = line.split_once('\0') else {
        return whole(line);
    };
    let (number, text) = rest.split_once(':').unwrap_or(("", rest));
    let mut text = plain(text);
    if let Some((index, _)) = text.char_indices().nth(LINE_CHARS_MAX) {
        text.truncate(index);
        text.push('…');
    }
    Match {
        path: plain(path),
        line: number.parse().ok(),
        text: Some(text),
    }
}

fn shown(found: &Found) -> String {
    if found.matches.is_empty() {
        return "[nothing was found]".to_owned();
    }
    let mut shown = String::new();
    for one in &found.matches {
        match (&one.line, &one.text) {
            (Some(line), Some(text)) => {
                shown.push_str(&format!("{}:{line}:{text}\n", one.path));
            }
            _ => shown.push_str(&format!("{}\n", one.path)),
        }
    }
    if found.has_more {
        shown.push_str("[… there are more; narrow the search …]");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(value: serde_json::Value) -> Arguments {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn nothing_that_is_searched_for_is_taken_for_an_option() {
        let hostile = arguments(serde_json::json!({"pattern": "-rf", "path": "--help"}));
        let command = command(&hostile, What::Text);
        assert_eq!(command.cmd, "grep");
        assert_eq!(
            command.args,
            ["-rnIHZ", "-F", "-e", "-rf", "--", "/home/user/--help"]
        );
        let named = super::command(&hostile, What::Name);
        assert_eq!(named.args, ["/home/user/--help", "-name", "-rf"]);
    }

    #[test]
    fn a_path_may_contain_what_separates() {
        let one = parse("/home/user/a:1:b.py\0".to_owned().as_str(), What::Text);
        assert_eq!(one.path, "/home/user/a:1:b.py");
        let two = parse("/x:y\u{0}12:let a = 1:2", What::Text);
        let expected = Match {
            path: "/x:y".to_owned(),
            line: Some(12),
            text: Some("let a = 1:2".to_owned()),
        };
        assert_eq!(two, expected);
    }
}
