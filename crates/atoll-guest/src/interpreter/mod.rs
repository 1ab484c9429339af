//! Code that keeps its state from one run to the next: contexts, each with a
//! kernel of its language, behind E2B's `/execute` and `/contexts`.
//!
//! ```text
//!  /execute ─▶ context ─▶ seat ─▶ kernel ── ZeroMQ or lines ── ipykernel, bash, …
//!                  one at a time     └─ process: a fork of the warm parent, or its own
//! ```
//!
//! | file | owns |
//! |---|---|
//! | `routes.rs` | requests and answers |
//! | `table.rs` | which contexts there are |
//! | `context.rs` | one context, and whose turn it is |
//! | `execution.rs` | one execution, from the code to its last line |
//! | `telling.rs`, `ascii.rs`, `clock.rs` | what clients are told, and how much of it |
//! | `start.rs` | how a kernel comes to run |
//! | `forkserver.rs` | the warm parent of Python kernels (`kernels/forkserver.py`) |
//! | `kernelspec.rs`, `language.rs` | which kernels there are, and for what |
//! | `kernel.rs`, `process.rs`, `ear.rs` | a kernel that runs: speaking, ending, hearing |
//! | `message.rs`, `zmtp.rs` | Jupyter's messages on ZeroMQ's wire |
//! | `place.rs` | files and directories of kernels |
//!
//! **Invariant:** code of the user runs in kernels, so nothing that one says
//! is believed, kept without a bound or waited for without one.
//!
//! **Invariant:** whoever ran code learns when the state behind it was lost.

mod ascii;
mod clock;
mod context;
mod ear;
mod execution;
mod forkserver;
mod kernel;
mod kernelspec;
mod language;
mod message;
mod place;
mod process;
pub(crate) mod routes;
mod start;
mod table;
mod telling;
mod zmtp;

use std::sync::Arc;
use std::time::Duration;

use context::Context;
use language::Language;
use start::Starter;
use table::Table;

use crate::process::Commands;
use crate::settings::Settings;

/// How long the first kernel leaves the processor to others after `/init`.
const WARM_PAUSE: Duration = Duration::from_millis(25);

/// All contexts of the sandbox.
#[derive(Clone)]
pub(crate) struct Interpreter {
    starter: Arc<Starter>,
    table: Arc<Table>,
}

impl Interpreter {
    /// The contexts that there always are, without kernels.
    pub(crate) fn new(settings: Arc<Settings>, commands: Commands) -> Self {
        Self {
            starter: Arc::new(Starter::new(settings, commands)),
            table: Arc::default(),
        }
    }

    /// Starts the kernel that most clients ask for first, where there is one.
    pub(crate) fn warm(&self) {
        let interpreter = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(WARM_PAUSE).await;
            if !interpreter.starter.has_python_kernel() {
                return;
            }
            let context = interpreter.default_context(&Language::Python);
            // Whoever asks for it meanwhile waits for the same one.
            if let Some(mut seat) = context.free_seat() {
                // Who asks for it is told why there is none.
                let _ = context.occupy(&mut seat, &interpreter.starter).await;
            }
        });
    }

    /// Removes what is on the disk, at the end.
    pub(crate) fn clear(&self) {
        self.starter.clear();
    }

    fn default_context(&self, language: &Language) -> Arc<Context> {
        let cwd = self.starter.default_directory();
        self.table.default_context(language, &cwd)
    }
}
