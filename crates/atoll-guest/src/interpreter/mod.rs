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
//! | `telling.rs`, `cut.rs`, `ascii.rs`, `clock.rs` | what clients are told, and how much of it |
//! | `start.rs`, `sockets.rs` | how a kernel comes to run, and is reached |
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
mod cut;
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
mod sockets;
mod start;
mod table;
mod telling;
mod zmtp;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use atoll_protocol::Warmth;
use context::Context;
use language::Language;
pub(crate) use process::hold_kernels;
use start::Starter;
use table::Table;

use crate::process::Commands;
use crate::settings::Settings;

/// Why the first kernel is not there before it is needed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotWarm {
    #[error("there are too many contexts already")]
    TooMany,
    #[error("{0}")]
    NoKernel(String),
    #[error("the kernel started, but does not run code")]
    RunsNothing,
}

/// All contexts of the sandbox.
#[derive(Clone)]
pub(crate) struct Interpreter {
    starter: Arc<Starter>,
    table: Arc<Table>,
    /// How often the memory of the sandbox was restored.
    restores: Arc<AtomicU64>,
}

impl Interpreter {
    /// The contexts that there always are, without kernels.
    pub(crate) fn new(settings: Arc<Settings>, commands: Commands) -> Self {
        Self {
            starter: Arc::new(Starter::new(settings, commands)),
            table: Arc::default(),
            restores: Arc::default(),
        }
    }

    /// Starts the kernel that most clients ask for first, where there is one,
    /// and proves it by an execution. Whoever asks for it meanwhile waits for
    /// the same one.
    pub(crate) async fn warm(&self) -> Result<Warmth, NotWarm> {
        if !self.starter.has_python_kernel() {
            return Ok(Warmth {
                has_kernel: false,
                start_ms: 0,
                proof_ms: 0,
            });
        }
        let context = self
            .default_context(&Language::Python)
            .ok_or(NotWarm::TooMany)?;
        let begun = Instant::now();
        let mut turn = context.turn().await;
        context
            .occupy(&mut turn, &self.starter)
            .await
            .map_err(|error| NotWarm::NoKernel(error.to_string()))?;
        let start_ms = millis(begun);
        let begun = Instant::now();
        if !execution::prove(&mut turn).await {
            return Err(NotWarm::RunsNothing);
        }
        Ok(Warmth {
            has_kernel: true,
            start_ms,
            proof_ms: millis(begun),
        })
    }

    /// Lets each kernel draw other random numbers than whoever goes on from the same memory,
    /// before it runs code again.
    pub(crate) fn seed_again(&self) {
        self.restores.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes what is on the disk, at the end.
    pub(crate) fn clear(&self) {
        self.starter.clear();
    }

    fn default_context(&self, language: &Language) -> Option<Arc<Context>> {
        let cwd = self.starter.default_directory();
        self.table.default_context(language, &cwd)
    }
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
