//! Cells: code that runs in a kernel of a sandbox and keeps its state, and
//! what a person gets to see of it. `run --rich`, notebooks and `repl` share
//! this.
//!
//! ```text
//! follow ── CodeEvent ──▶ Screen  ── streams, tables, texts ──▶ the terminal
//!                     └─▶ Report  ── for `--json`
//!                              both: pictures ──▶ Gallery ──▶ files
//! ```
//!
//! **Invariant:** the sandbox names no file, chooses no directory and decides
//! no size: see [`gallery`].

mod follow;
pub(crate) mod gallery;
mod owner;
mod report;
mod screen;
mod table;

pub(crate) use follow::{Budget, CellEnd, Followed, Language, follow};
pub(crate) use gallery::Gallery;
pub(crate) use owner::give_to_caller;
pub(crate) use report::{ErrorReport, Report};
pub(crate) use screen::{Screen, show_error};
