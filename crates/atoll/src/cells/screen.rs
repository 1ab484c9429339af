//! A cell on the terminal: what it prints as it comes, results in the form
//! that a terminal can show, pictures as files.

use std::io::{self, Write};

use anyhow::Context as _;
use atoll_guest_client::{CodeError, CodeEvent, CodeResult};

use super::gallery::{Gallery, pictures};
use super::table::table;
use crate::quantity::show_bytes;

/// Longest text of a result that is shown.
const TEXT_BYTES_MAX: usize = 1024 * 1024;

/// Where events of cells are shown.
pub(crate) struct Screen<'a> {
    gallery: &'a mut Gallery,
    /// Whether the last thing printed left a line unfinished.
    is_mid_line: bool,
}

impl<'a> Screen<'a> {
    pub(crate) fn new(gallery: &'a mut Gallery) -> Self {
        Self {
            gallery,
            is_mid_line: false,
        }
    }

    pub(crate) fn show(&mut self, event: &CodeEvent) -> anyhow::Result<()> {
        match event {
            // Output is the program's own, as with a program that is no cell.
            CodeEvent::Stdout { text } => {
                self.is_mid_line = !text.ends_with('\n');
                write_out(io::stdout().lock(), text)
            }
            CodeEvent::Stderr { text } => write_out(io::stderr().lock(), text),
            CodeEvent::Result(result) => self.result(result),
            // Shown at the end, by whoever knows how the cell ended.
            CodeEvent::Error(_)
            | CodeEvent::NumberOfExecutions { .. }
            | CodeEvent::Keepalive
            | CodeEvent::EndOfExecution
            | CodeEvent::Unknown => Ok(()),
        }
    }

    /// Begins a new line, if the last one is unfinished.
    pub(crate) fn end_line(&mut self) -> anyhow::Result<()> {
        if std::mem::take(&mut self.is_mid_line) {
            write_out(io::stdout().lock(), "\n")?;
        }
        Ok(())
    }

    fn result(&mut self, result: &CodeResult) -> anyhow::Result<()> {
        self.end_line()?;
        let mut is_shown = false;
        for picture in pictures(result) {
            match self.gallery.save(picture) {
                Ok(saved) => {
                    is_shown = true;
                    let size = show_bytes(saved.bytes);
                    eprintln!("saved {} ({size})", saved.path.display());
                }
                Err(error) => {
                    let error = anyhow::Error::from(error);
                    eprintln!("warning: a picture was not saved: {error:#}");
                }
            }
        }
        if is_shown {
            return Ok(());
        }
        let text = text_of(result);
        let mut shown = result
            .data
            .as_ref()
            .and_then(|data| table(data, result.text.as_deref().unwrap_or_default()))
            .or_else(|| text.map(printable))
            .unwrap_or_else(|| format!("({})", forms(result)));
        if !shown.ends_with('\n') {
            shown.push('\n');
        }
        write_out(io::stdout().lock(), &shown)
    }
}

/// Shows why a cell did not come to its end.
pub(crate) fn show_error(error: &CodeError) {
    let traceback = printable(error.traceback.trim_end());
    let summary = format!("{}: {}", printable(&error.name), printable(&error.value));
    if traceback.is_empty() {
        eprintln!("{summary}");
    } else {
        eprintln!("{traceback}");
    }
}

/// The form of a result that reads best as text.
fn text_of(result: &CodeResult) -> Option<&str> {
    [&result.markdown, &result.latex, &result.text]
        .into_iter()
        .find_map(Option::as_deref)
}

/// The names of the forms that a terminal cannot show.
fn forms(result: &CodeResult) -> String {
    let known = [
        ("HTML", result.html.is_some()),
        ("JavaScript", result.javascript.is_some()),
        ("JSON", result.json.is_some()),
        ("a chart", result.chart.is_some()),
        ("data", result.data.is_some()),
    ];
    let mut names: Vec<String> = known
        .into_iter()
        .filter(|(_, is_there)| *is_there)
        .map(|(name, _)| name.to_owned())
        .collect();
    names.extend(result.extra.keys().take(5).map(|name| {
        let name: String = name.chars().take(60).collect();
        printable(&name)
    }));
    if names.is_empty() {
        return "an empty result".to_owned();
    }
    format!("a result as {}; --json shows it", names.join(", "))
}

/// A text that cannot move the cursor, but may have lines and columns.
fn printable(text: &str) -> String {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut out: String = text[..end]
        .chars()
        .map(|char| match char {
            '\n' | '\t' => char,
            other => atoll_guest_client::harmless_char(other),
        })
        .collect();
    if end < text.len() {
        out.push_str(&format!("\n… {} bytes more", text.len() - end));
    }
    out
}

fn write_out(mut out: impl Write, text: &str) -> anyhow::Result<()> {
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("nobody takes the output any more")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_keep_their_lines_and_nothing_that_moves_the_cursor() {
        assert_eq!(
            printable("a\tb\n\u{1b}[2Jc\r"),
            "a\tb\n\u{fffd}[2Jc\u{fffd}"
        );
        let long = "ü".repeat(TEXT_BYTES_MAX);
        assert!(printable(&long).ends_with(&format!("\n… {TEXT_BYTES_MAX} bytes more")));
    }

    #[test]
    fn the_best_form_is_chosen_and_others_are_named() {
        let result = CodeResult {
            text: Some("<Markdown>".to_owned()),
            markdown: Some("# a".to_owned()),
            ..CodeResult::default()
        };
        assert_eq!(text_of(&result), Some("# a"));
        let result = CodeResult {
            html: Some("<b>".to_owned()),
            extra: std::iter::once(("x/\u{1b}".to_owned(), serde_json::Value::Null)).collect(),
            ..CodeResult::default()
        };
        assert_eq!(text_of(&result), None);
        assert_eq!(
            forms(&result),
            "a result as HTML, x/\u{fffd}; --json shows it"
        );
        assert_eq!(forms(&CodeResult::default()), "an empty result");
    }
}
