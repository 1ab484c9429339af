//! `atoll cp`: files and directories into a sandbox of a server, and out.
//!
//! ```text
//! walk the source ─▶ stream each file, counting and hashing ─▶ hash the copies inside, compare
//! ```
//!
//! What a sandbox says about names is only ever joined to a path of this
//! machine when it is one plain name; links inside are not followed out.

mod checksum;
mod download;
mod upload;

use std::process::ExitCode;

use super::exec::open;
use crate::arguments::remote::CpArguments;
use crate::failure::Hinted;
use crate::home::Home;
use crate::terminal::Progress;

/// Whether copies are read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    Contents,
    Nothing,
}

/// One side of a copy.
#[derive(Debug, PartialEq, Eq)]
enum Place<'a> {
    Here(&'a str),
    Inside { sandbox: &'a str, path: &'a str },
}

impl<'a> Place<'a> {
    fn parse(text: &'a str) -> Self {
        let is_id = |id: &str| {
            !id.is_empty()
                && id
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        match text.split_once(':') {
            Some((sandbox, path)) if is_id(sandbox) => Self::Inside { sandbox, path },
            _ => Self::Here(text),
        }
    }
}

pub(crate) async fn cp(home: &Home, arguments: &CpArguments) -> anyhow::Result<ExitCode> {
    let check = if arguments.no_verify {
        Check::Nothing
    } else {
        Check::Contents
    };
    let mut counter = Counter::new();
    match (
        Place::parse(&arguments.source),
        Place::parse(&arguments.target),
    ) {
        (Place::Here(source), Place::Inside { sandbox, path }) => {
            let sandbox = open(home, sandbox).await?;
            upload::upload(&sandbox, source, path, check, &mut counter).await?;
        }
        (Place::Inside { sandbox, path }, Place::Here(target)) => {
            let sandbox = open(home, sandbox).await?;
            download::download(&sandbox, path, target, check, &mut counter).await?;
        }
        (Place::Here(_), Place::Here(_)) => {
            return Err(Hinted::error(
                "neither side is in a sandbox",
                "write one of them as SANDBOX:PATH; `atoll ps` shows the sandboxes",
            ));
        }
        (Place::Inside { .. }, Place::Inside { .. }) => {
            return Err(Hinted::error(
                "both sides are in sandboxes",
                "copy out first, then in",
            ));
        }
    }
    counter.finish(check);
    Ok(ExitCode::SUCCESS)
}

/// What was copied so far, for a person to see.
struct Counter {
    progress: Progress,
    files: u64,
    bytes: u64,
    name: String,
}

impl Counter {
    fn new() -> Self {
        Self {
            progress: Progress::new(),
            files: 0,
            bytes: 0,
            name: String::new(),
        }
    }

    fn begin(&mut self, name: String) {
        self.files += 1;
        self.name = name;
        self.show();
    }

    fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.show();
    }

    fn say(&mut self, text: &str) {
        self.progress.now(text);
    }

    fn warn(&mut self, text: &str) {
        self.progress.line(&format!("warning: {text}"));
    }

    fn show(&mut self) {
        let text = format!("{} ({} copied)", self.name, size(self.bytes));
        self.progress.now(&text);
    }

    fn finish(mut self, check: Check) {
        let checked = match check {
            Check::Contents => ", checked",
            Check::Nothing => "",
        };
        let text = format!("{} files, {}{checked}", self.files, size(self.bytes));
        self.progress.line(&text);
    }
}

/// Bytes for a person.
fn size(bytes: u64) -> String {
    const KIB: u64 = 1024;
    if bytes < KIB {
        format!("{bytes} bytes")
    } else if bytes < KIB * KIB {
        format!("{} KiB", bytes / KIB)
    } else {
        format!("{} MiB", bytes / KIB / KIB)
    }
}

/// `name` below `directory`, both of a sandbox.
fn inside(directory: &str, name: &str) -> String {
    match directory.trim_end_matches('/') {
        "" if directory.is_empty() => name.to_owned(),
        directory => format!("{directory}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_and_a_path_are_told_from_a_file() {
        let inside = |sandbox, path| Place::Inside { sandbox, path };
        for (text, expected) in [
            ("iabc123:/tmp/x", inside("iabc123", "/tmp/x")),
            ("iabc123:", inside("iabc123", "")),
            ("iabc123:a:b", inside("iabc123", "a:b")),
            ("./iabc123:x", Place::Here("./iabc123:x")),
            ("a/b:c", Place::Here("a/b:c")),
            ("File:x", Place::Here("File:x")),
            (":x", Place::Here(":x")),
            ("plain", Place::Here("plain")),
        ] {
            assert_eq!(Place::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn names_are_put_below_directories() {
        assert_eq!(inside("", "x"), "x");
        assert_eq!(inside("/", "x"), "/x");
        assert_eq!(inside("a/", "x"), "a/x");
        assert_eq!(inside("/a", "x"), "/a/x");
    }
}
