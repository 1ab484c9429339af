//! Code that runs in a guest under test.

use std::path::PathBuf;

use atoll_guest_client::{CodeError, CodeEvent, CodeResult, CodeRun, CodeToRun, GuestClient};

use super::{Guest, whoami};

/// A Python that has ipykernel: of the clients that `cargo xtask test` installs.
pub fn kernels() -> PathBuf {
    let clients = std::env::var_os("ATOLL_TEST_CLIENTS")
        .expect("run `cargo xtask test`, it installs the kernels that this test needs");
    let kernels = PathBuf::from(clients).join("kernels");
    assert!(kernels.join("bin/python").exists(), "{kernels:?}");
    kernels
}

/// A guest whose programs are first looked for in `bin`.
pub async fn guest_with(bin: &str) -> Guest {
    let path = format!("PATH={bin}:/usr/local/bin:/usr/bin:/bin");
    Guest::ready_under(&["env", &path], &whoami()).await
}

/// A guest whose Python has a kernel.
pub async fn guest_with_kernels() -> Guest {
    guest_with(kernels().join("bin").to_str().unwrap()).await
}

/// Everything that came of running code.
#[derive(Debug, Default, PartialEq)]
pub struct Ran {
    pub count: Option<u64>,
    pub stdout: String,
    pub stderr: String,
    pub results: Vec<CodeResult>,
    pub error: Option<CodeError>,
}

impl Ran {
    /// The text of its one result.
    #[track_caller]
    pub fn text(&self) -> &str {
        assert_eq!(
            (self.error.as_ref(), self.results.len()),
            (None, 1),
            "{self:?}"
        );
        self.results[0].text.as_deref().unwrap()
    }

    #[track_caller]
    pub fn error(&self) -> &CodeError {
        self.error.as_ref().unwrap_or_else(|| panic!("{self:?}"))
    }
}

pub fn python(code: &str) -> CodeToRun {
    CodeToRun {
        text: code.to_owned(),
        ..CodeToRun::default()
    }
}

pub fn in_context(id: &str, code: &str) -> CodeToRun {
    CodeToRun {
        context: Some(id.to_owned()),
        ..python(code)
    }
}

pub async fn follow(mut run: CodeRun) -> Ran {
    let mut ran = Ran::default();
    let mut is_over = false;
    while let Some(event) = run.next().await.unwrap() {
        assert!(!is_over, "{event:?} after the end");
        match event {
            CodeEvent::NumberOfExecutions { execution_count } => ran.count = Some(execution_count),
            CodeEvent::Stdout { text } => ran.stdout.push_str(&text),
            CodeEvent::Stderr { text } => ran.stderr.push_str(&text),
            CodeEvent::Result(result) => ran.results.push(*result),
            CodeEvent::Error(error) => {
                assert_eq!(ran.error.replace(error), None, "a second error");
            }
            CodeEvent::EndOfExecution => is_over = true,
            CodeEvent::Keepalive | CodeEvent::Unknown => panic!("not passed on"),
        }
    }
    assert!(is_over);
    ran
}

pub async fn run(client: &GuestClient, code: &CodeToRun) -> Ran {
    follow(client.run_code(code).await.unwrap()).await
}

/// Runs Python in the default context.
pub async fn ran(client: &GuestClient, code: &str) -> Ran {
    run(client, &python(code)).await
}

/// Reads events until one prints something that has `needle`.
pub async fn printed(run: &mut CodeRun, needle: &str) {
    loop {
        match run.next().await.unwrap().expect("the code ended early") {
            CodeEvent::Stdout { text } | CodeEvent::Stderr { text } if text.contains(needle) => {
                return;
            }
            CodeEvent::EndOfExecution | CodeEvent::Error(_) => panic!("ended before {needle}"),
            _ => {}
        }
    }
}
