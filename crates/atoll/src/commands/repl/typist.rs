//! Who types: a person at a terminal, with an editor and a history, or a
//! program that sends lines.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Editor, Helper};
use tokio::task::spawn_blocking;

use super::completeness::{Completeness, Syntax};
use crate::cells::Language;
use crate::failure::Hinted;

/// Cells that are remembered.
const HISTORY_MAX: usize = 1000;
/// Longest cell; the code interpreter takes no more.
const CELL_BYTES_MAX: usize = 8 * 1024 * 1024;

const PROMPT: &str = ">>> ";

/// What was typed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Typed {
    Cell(String),
    Order(Order),
    End,
}

/// Something for the prompt itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Help,
    Restart,
    Quit,
}

/// Where cells come from.
pub(super) struct Typist {
    source: Source,
}

enum Source {
    Person {
        /// Taken while a line is being edited.
        editor: Option<Box<Editor<Assistant, DefaultHistory>>>,
        history: PathBuf,
    },
    Lines(Gatherer),
}

impl Typist {
    pub(super) fn new(language: &Language, home: &Path) -> anyhow::Result<Self> {
        let syntax = Syntax::of(language);
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            return Ok(Self {
                source: Source::Lines(Gatherer::new(syntax)),
            });
        }
        let config = Config::builder()
            .max_history_size(HISTORY_MAX)?
            .history_ignore_dups(true)?
            .auto_add_history(true)
            .bracketed_paste(true)
            .build();
        let mut editor = Editor::with_config(config)?;
        editor.set_helper(Some(Assistant { syntax }));
        let history = home.join(format!("repl-history-{language}"));
        // There is none at first.
        let _ = editor.load_history(&history);
        Ok(Self {
            source: Source::Person {
                editor: Some(Box::new(editor)),
                history,
            },
        })
    }

    /// Whether somebody sees what is shown, and decides by it.
    pub(super) fn is_person(&self) -> bool {
        matches!(self.source, Source::Person { .. })
    }

    /// What is typed next.
    pub(super) async fn next(&mut self) -> anyhow::Result<Typed> {
        match &mut self.source {
            Source::Person { editor, history } => edit(editor, history).await,
            Source::Lines(gatherer) => gatherer.next().await,
        }
    }
}

async fn edit(
    place: &mut Option<Box<Editor<Assistant, DefaultHistory>>>,
    history: &Path,
) -> anyhow::Result<Typed> {
    loop {
        let Some(mut editor) = place.take() else {
            return Ok(Typed::End);
        };
        let (editor, line) = spawn_blocking(move || {
            let line = editor.readline(PROMPT);
            (editor, line)
        })
        .await?;
        let editor = place.insert(editor);
        let text = match line {
            Ok(text) => text,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(Typed::End),
            Err(error) => return Err(error).context("cannot read from the terminal"),
        };
        // Without one, there is no history the next time.
        let _ = editor.append_history(history);
        if let Some(typed) = understood(text) {
            return Ok(typed);
        }
    }
}

/// What a whole cell means; `None` when it is empty.
fn understood(text: String) -> Option<Typed> {
    Some(match text.trim() {
        "" => return None,
        ":help" => Typed::Order(Order::Help),
        ":restart" => Typed::Order(Order::Restart),
        ":quit" | "exit" | "exit()" | "quit" | "quit()" => Typed::Order(Order::Quit),
        _ => Typed::Cell(text),
    })
}

/// Tells the editor whether a cell is whole.
struct Assistant {
    syntax: Syntax,
}

impl Helper for Assistant {}

impl Completer for Assistant {
    type Candidate = String;
}

impl Hinter for Assistant {
    type Hint = String;
}

impl Highlighter for Assistant {}

impl Validator for Assistant {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match self.syntax.completeness(context.input()) {
            Completeness::Complete => ValidationResult::Valid(None),
            // An empty line ends a block that has a body.
            Completeness::Block if ends_with_empty_line(context.input()) => {
                ValidationResult::Valid(None)
            }
            Completeness::Block | Completeness::Incomplete => ValidationResult::Incomplete,
        })
    }
}

fn ends_with_empty_line(text: &str) -> bool {
    text.rsplit_once('\n')
        .is_some_and(|(_, last)| last.trim().is_empty())
}

/// Lines on their way to become cells. A block goes on until a line that does
/// not belong to it, so that a program with empty lines in its functions is
/// understood.
struct Gatherer {
    syntax: Syntax,
    pending: String,
    /// Cells that are ready.
    ready: Option<String>,
    is_over: bool,
}

impl Gatherer {
    fn new(syntax: Syntax) -> Self {
        Self {
            syntax,
            pending: String::new(),
            ready: None,
            is_over: false,
        }
    }

    async fn next(&mut self) -> anyhow::Result<Typed> {
        loop {
            if let Some(typed) = self.ready.take().and_then(understood) {
                return Ok(typed);
            }
            if self.is_over {
                let rest = std::mem::take(&mut self.pending);
                return Ok(understood(rest).unwrap_or(Typed::End));
            }
            match spawn_blocking(read_line).await?? {
                None => self.is_over = true,
                Some(line) => self.push(&line)?,
            }
        }
    }

    /// Adds a line, with its end.
    fn push(&mut self, line: &str) -> anyhow::Result<()> {
        if self.pending.len() + line.len() > CELL_BYTES_MAX {
            return Err(Hinted::error(
                format!("a cell has more than {} MiB", CELL_BYTES_MAX >> 20),
                "pass data with --file SOURCE:TARGET",
            ));
        }
        match self.syntax.completeness(&self.pending) {
            // A new line of its own ends the block before it.
            Completeness::Block if self.syntax.begins_anew(line) => {
                self.ready = Some(std::mem::take(&mut self.pending));
            }
            Completeness::Complete | Completeness::Block | Completeness::Incomplete => {}
        }
        self.pending.push_str(line);
        if self.ready.is_none() && self.syntax.completeness(&self.pending) == Completeness::Complete
        {
            self.ready = Some(std::mem::take(&mut self.pending));
        } else if self.ready.is_some()
            && self.syntax.completeness(&self.pending) == Completeness::Complete
        {
            // Both are whole: they run as one cell.
            let block = self.ready.take().unwrap_or_default();
            self.ready = Some(block + &std::mem::take(&mut self.pending));
        }
        Ok(())
    }
}

/// The next line of standard input; `None` at its end.
fn read_line() -> anyhow::Result<Option<String>> {
    let mut line = Vec::new();
    let mut input = io::stdin().lock().take(CELL_BYTES_MAX as u64 + 1);
    input
        .read_until(b'\n', &mut line)
        .context("cannot read standard input")?;
    if line.is_empty() {
        return Ok(None);
    }
    let line = String::from_utf8(line).map_err(|_| {
        Hinted::error(
            "standard input is not valid UTF-8",
            "save the program as UTF-8; pass binary data with --file",
        )
    })?;
    Ok(Some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(language: &str, text: &str) -> Vec<String> {
        let mut gatherer = Gatherer::new(Syntax::of(&language.parse().unwrap()));
        let mut cells = Vec::new();
        for line in text.split_inclusive('\n') {
            gatherer.push(line).unwrap();
            cells.extend(gatherer.ready.take());
        }
        cells.push(gatherer.pending);
        cells.retain(|cell| !cell.trim().is_empty());
        cells
    }

    #[test]
    fn lines_become_cells_when_they_are_whole() {
        let program = "a = 1\ndef f():\n    b = (2,\n3)\n\n    return b\n\nf()\nif a:\n    f()\nelse:\n    a\n";
        assert_eq!(
            gathered("python", program),
            [
                "a = 1\n",
                "def f():\n    b = (2,\n3)\n\n    return b\n\nf()\n",
                "if a:\n    f()\nelse:\n    a\n",
            ]
        );
        assert_eq!(
            gathered("python", "@d\ndef f():\n    pass\ndef g():\n    pass\n"),
            ["@d\ndef f():\n    pass\n", "def g():\n    pass\n"]
        );
        assert_eq!(
            gathered("bash", "for i in 1 2\ndo echo $i\ndone\necho x"),
            ["for i in 1 2\ndo echo $i\ndone\n", "echo x"]
        );
    }

    #[test]
    fn orders_are_no_cells() {
        assert_eq!(understood("  \n".to_owned()), None);
        assert_eq!(
            understood(" :restart\n".to_owned()),
            Some(Typed::Order(Order::Restart))
        );
        assert_eq!(
            understood("exit()".to_owned()),
            Some(Typed::Order(Order::Quit))
        );
        assert_eq!(
            understood("exit(1)".to_owned()),
            Some(Typed::Cell("exit(1)".to_owned()))
        );
    }

    #[test]
    fn an_empty_line_is_the_last_one() {
        assert!(ends_with_empty_line("if a:\n    b\n"));
        assert!(ends_with_empty_line("if a:\n    b\n    "));
        assert!(!ends_with_empty_line("if a:\n    b"));
        assert!(!ends_with_empty_line(""));
    }
}
