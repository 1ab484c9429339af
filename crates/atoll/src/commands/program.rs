//! The program that the user wants to run: where its text comes from, its
//! language, and the command that runs it.

use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use atoll_guest_client::Command;

use crate::arguments::{Language, RunArguments};
use crate::failure::Hinted;

/// Program text beyond this is data in disguise.
const PROGRAM_LIMIT: u64 = 16 * 1024 * 1024;
/// What to run, checked before anything is made.
pub(crate) struct Program {
    pub(crate) text: Vec<u8>,
    pub(crate) name: String,
    pub(crate) language: Language,
}

impl Program {
    pub(crate) fn read(arguments: &RunArguments) -> anyhow::Result<Self> {
        let from_input = arguments.program() == Some(Path::new("-"));
        let (text, path) = match (&arguments.code, arguments.program()) {
            (Some(code), _) => (code.clone().into_bytes(), None),
            (None, Some(_)) if from_input => (
                read_bounded(std::io::stdin().lock(), "standard input")?,
                None,
            ),
            (None, Some(path)) => {
                let name = format!("`{}`", path.display());
                let file = std::fs::File::open(path)
                    .with_context(|| format!("cannot read the program {name}"))?;
                if !file.metadata()?.is_file() {
                    return Err(Hinted::error(
                        format!("{name} is not a file"),
                        "name a program, or pass code with -c",
                    ));
                }
                (read_bounded(file, &name)?, Some(path))
            }
            (None, None) => {
                return Err(Hinted::error(
                    "nothing to run",
                    "name a program, or pass code with -c",
                ));
            }
        };
        if let Err(error) = std::str::from_utf8(&text) {
            return Err(Hinted::error(
                format!(
                    "the program is not valid UTF-8 (byte {})",
                    error.valid_up_to()
                ),
                "save it as UTF-8; pass binary data with --file",
            ));
        }
        let language = arguments
            .lang
            .or_else(|| by_extension(path?))
            .ok_or_else(|| {
                Hinted::error(
                    "cannot tell the language of the program",
                    "add --lang python, javascript, typescript, bash, r or java",
                )
            })?;
        let name = path
            .and_then(|path| path.file_name()?.to_str())
            .map_or_else(|| format!("program.{}", extension(language)), str::to_owned);
        Ok(Self {
            text,
            name,
            language,
        })
    }

    pub(crate) fn command(&self, arguments: &[String], timeout: Duration) -> Command {
        let (program, flag) = match self.language {
            Language::Python => ("python3", Some("-u")),
            Language::Javascript | Language::Typescript => ("node", None),
            Language::Bash => ("bash", None),
            Language::R => ("Rscript", None),
            Language::Java => ("java", None),
        };
        let mut words: Vec<String> = flag.into_iter().map(str::to_owned).collect();
        words.push(self.name.clone());
        words.extend_from_slice(arguments);
        Command {
            cmd: program.to_owned(),
            args: words,
            stdin: true,
            timeout: Some(timeout),
            ..Command::default()
        }
    }
}

fn read_bounded(source: impl std::io::Read, name: &str) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    source
        .take(PROGRAM_LIMIT + 1)
        .read_to_end(&mut text)
        .with_context(|| format!("cannot read {name}"))?;
    if text.len() as u64 > PROGRAM_LIMIT {
        return Err(Hinted::error(
            format!(
                "the program in {name} is larger than {} MiB",
                PROGRAM_LIMIT >> 20
            ),
            "pass data with --file SOURCE:TARGET and read it from the program",
        ));
    }
    Ok(text)
}

fn by_extension(path: &Path) -> Option<Language> {
    match path.extension()?.to_str()? {
        "py" => Some(Language::Python),
        "js" | "mjs" | "cjs" => Some(Language::Javascript),
        "ts" | "mts" | "cts" => Some(Language::Typescript),
        "sh" | "bash" => Some(Language::Bash),
        "r" | "R" => Some(Language::R),
        "java" => Some(Language::Java),
        _ => None,
    }
}

fn extension(language: Language) -> &'static str {
    match language {
        Language::Python => "py",
        Language::Javascript => "js",
        Language::Typescript => "ts",
        Language::Bash => "sh",
        Language::R => "r",
        Language::Java => "java",
    }
}
