//! Notebooks (nbformat 4): their cells, and new outputs in the place of the
//! old ones.
//!
//! | file | owns |
//! |---|---|
//! | `document.rs` | reading a notebook, and putting outputs into its text |
//! | `outputs.rs` | what came of a cell, as nbformat says it |
//! | `file.rs` | reading the file, and replacing it as a whole |
//!
//! **Invariant:** the text of a notebook is never written anew: only the
//! values of `outputs` and `execution_count` are replaced, every other byte
//! stays.

mod document;
mod file;
mod outputs;

pub(crate) use document::{CellOutcome, CodeCell, Notebook, NotebookError};
pub(crate) use file::{NotebookFile, replace};
pub(crate) use outputs::Outputs;
