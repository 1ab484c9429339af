//! A notebook as its text, and where in it the values are that change.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Value, ser::PrettyFormatter};

use crate::cells::Language;
use crate::terminal::harmless;

/// The version of the format.
const NBFORMAT: u64 = 4;
/// Most cells.
const CELLS_MAX: usize = 100_000;
/// Where keys of cells stand: notebook, list, cell.
const CELL_DEPTH: usize = 3;
/// Widest indentation that is taken over.
const INDENT_MAX: usize = 16;
/// Languages that kernels are found by.
const LANGUAGES: [&str; 6] = ["python", "javascript", "typescript", "bash", "r", "java"];

/// Why a text is no notebook that can be run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotebookError {
    #[error("it is no JSON: {0}")]
    NotJson(String),
    #[error("it is JSON, but no notebook: {0}")]
    NotANotebook(String),
    #[error("it is a notebook of version {0}, not {NBFORMAT}")]
    Version(u64),
    #[error("cell {number} {what}")]
    Cell { number: usize, what: String },
    #[error("its language `{0}` is no name of a kernel")]
    Language(String),
}

impl NotebookError {
    /// What its user can do.
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Self::NotJson(_) => "a notebook is saved by Jupyter; a program has another extension",
            Self::NotANotebook(_) => "open it in Jupyter and save it again",
            Self::Version(_) => {
                "convert it with `jupyter nbconvert --to notebook --nbformat 4 FILE`"
            }
            Self::Cell { .. } => "correct the cell in Jupyter and save the notebook again",
            Self::Language(_) => "name the language with --lang",
        }
    }
}

/// A notebook that can be run.
#[derive(Debug)]
pub(crate) struct Notebook {
    text: String,
    indent: Option<String>,
    /// What its metadata says.
    pub(crate) language: Language,
    pub(crate) cells: Vec<CodeCell>,
}

/// A cell with code.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CodeCell {
    /// Its place among all cells, from one on.
    pub(crate) number: usize,
    pub(crate) source: String,
    outputs: Slot,
    execution_count: Slot,
}

/// Where a value is, or where it would go.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Slot {
    Value(Range<usize>),
    Missing { name: &'static str, at: usize },
}

/// What came of a cell; of one that did not run, nothing.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct CellOutcome {
    pub(crate) execution_count: Option<u64>,
    pub(crate) outputs: Vec<Value>,
}

impl Notebook {
    pub(crate) fn parse(text: String) -> Result<Self, NotebookError> {
        // First of all, so that whatever follows speaks of JSON.
        serde_json::from_str::<IgnoredAny>(&text)
            .map_err(|error| NotebookError::NotJson(harmless(&error.to_string())))?;
        let not_a_notebook = |what: &str| NotebookError::NotANotebook(what.to_owned());
        let root: Entries<'_> = serde_json::from_str(&text)
            .map_err(|_| not_a_notebook("it is no object, or has a key twice"))?;
        let version: u64 = root
            .parse("nbformat")
            .ok_or_else(|| not_a_notebook("it has no `nbformat`"))?;
        if version != NBFORMAT {
            return Err(NotebookError::Version(version));
        }
        let cells: Vec<&RawValue> = root
            .parse("cells")
            .ok_or_else(|| not_a_notebook("it has no list `cells`"))?;
        if cells.len() > CELLS_MAX {
            return Err(NotebookError::NotANotebook(format!(
                "it has more than {CELLS_MAX} cells"
            )));
        }
        let mut code = Vec::new();
        for (index, cell) in cells.into_iter().enumerate() {
            let number = index + 1;
            code.extend(CodeCell::parse(&text, cell, number)?);
        }
        let metadata: Metadata = root.parse("metadata").unwrap_or_default();
        let language = metadata.language()?;
        Ok(Self {
            indent: indent(&text),
            language,
            cells: code,
            text,
        })
    }

    /// The text with these outputs, one for each code cell.
    pub(crate) fn with_outcomes(&self, outcomes: &[CellOutcome]) -> String {
        let mut edits = Vec::new();
        for (cell, outcome) in self.cells.iter().zip(outcomes) {
            let count = match outcome.execution_count {
                Some(count) => count.to_string(),
                None => "null".to_owned(),
            };
            edits.push((&cell.execution_count, count));
            edits.push((&cell.outputs, self.written(&outcome.outputs)));
        }
        edits.sort_by_key(|(slot, _)| slot.start());
        let mut out = String::with_capacity(self.text.len());
        let mut done = 0;
        for (slot, value) in edits {
            out.push_str(&self.text[done..slot.start()]);
            match slot {
                Slot::Value(range) => {
                    out.push_str(&value);
                    done = range.end;
                }
                Slot::Missing { name, at } => {
                    let (line, space) = match &self.indent {
                        Some(indent) => (format!("\n{}", indent.repeat(CELL_DEPTH)), " "),
                        None => (String::new(), ""),
                    };
                    out.push_str(&format!(",{line}\"{name}\":{space}{value}"));
                    done = *at;
                }
            }
        }
        out.push_str(&self.text[done..]);
        out
    }

    /// A list of outputs in the style of the text, as it stands in a cell.
    fn written(&self, outputs: &[Value]) -> String {
        let Some(indent) = &self.indent else {
            return Value::Array(outputs.to_vec()).to_string();
        };
        let mut bytes = Vec::new();
        let formatter = PrettyFormatter::with_indent(indent.as_bytes());
        let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, formatter);
        // A value can always be written to memory.
        let _ = serde::Serialize::serialize(outputs, &mut serializer);
        // No text in JSON has a line break of its own.
        String::from_utf8_lossy(&bytes).replace('\n', &format!("\n{}", indent.repeat(CELL_DEPTH)))
    }
}

impl CodeCell {
    /// The cell, if it has code.
    fn parse(text: &str, cell: &RawValue, number: usize) -> Result<Option<Self>, NotebookError> {
        let wrong = |what: &str| NotebookError::Cell {
            number,
            what: what.to_owned(),
        };
        let entries: Entries<'_> = serde_json::from_str(cell.get())
            .map_err(|_| wrong("is no object, or has a key twice"))?;
        let kind: String = entries
            .parse("cell_type")
            .ok_or_else(|| wrong("has no `cell_type`"))?;
        if kind != "code" {
            return Ok(None);
        }
        let source: Source = entries
            .parse("source")
            .ok_or_else(|| wrong("has no `source` that is a text or a list of lines"))?;
        let end = entries.0.iter().map(|(_, value)| range(text, value).end);
        let end = end.max().ok_or_else(|| wrong("is empty"))?;
        let slot = |name: &'static str| match entries.get(name) {
            Some(value) => Slot::Value(range(text, value)),
            None => Slot::Missing { name, at: end },
        };
        Ok(Some(Self {
            number,
            source: source.joined(),
            outputs: slot("outputs"),
            execution_count: slot("execution_count"),
        }))
    }
}

impl Slot {
    fn start(&self) -> usize {
        match self {
            Self::Value(range) => range.start,
            Self::Missing { at, .. } => *at,
        }
    }
}

/// Where a value that was borrowed from a text is in it.
fn range(text: &str, value: &RawValue) -> Range<usize> {
    let start = value.get().as_ptr().addr() - text.as_ptr().addr();
    start..start + value.get().len()
}

/// How the text is indented; `None` where it is one line.
fn indent(text: &str) -> Option<String> {
    let inside = text.trim_start().strip_prefix('{')?;
    let blank = &inside[..inside.len() - inside.trim_start().len()];
    let (_, last) = blank.rsplit_once('\n')?;
    Some(last.chars().take(INDENT_MAX).collect())
}

/// An object whose values stay as they are written. No key is there twice.
struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Entries<'a> {
    fn get(&self, name: &str) -> Option<&'a RawValue> {
        let found = self.0.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| *value)
    }

    fn parse<T: Deserialize<'a>>(&self, name: &str) -> Option<T> {
        serde_json::from_str(self.get(name)?.get()).ok()
    }
}

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;
        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries<'de>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let (mut entries, mut seen) = (Vec::new(), BTreeSet::new());
                while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
                    if !seen.insert(key.clone()) {
                        return Err(serde::de::Error::custom("a key is there twice"));
                    }
                    entries.push((key, value));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(EntriesVisitor)
    }
}

/// A text, or the lines of one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Source {
    Text(String),
    Lines(Vec<String>),
}

impl Source {
    fn joined(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Lines(lines) => lines.concat(),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    kernelspec: Kernelspec,
    language_info: LanguageInfo,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Kernelspec {
    name: Option<String>,
    language: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LanguageInfo {
    name: Option<String>,
}

impl Metadata {
    /// The language if there is a kernel for it under that name, else the kernel itself.
    fn language(self) -> Result<Language, NotebookError> {
        let language = self.kernelspec.language.or(self.language_info.name);
        let known = language
            .as_deref()
            .and_then(|name| name.parse::<Language>().ok())
            .filter(|language| LANGUAGES.contains(&language.as_str()));
        if let Some(language) = known {
            return Ok(language);
        }
        let name = self.kernelspec.name.or(language);
        let name = name.unwrap_or_else(|| LANGUAGES[0].to_owned());
        let shown = harmless(&name.chars().take(64).collect::<String>());
        name.parse().map_err(|_| NotebookError::Language(shown))
    }
}

#[cfg(test)]
mod tests;
