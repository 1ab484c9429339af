//! What the reader sees while work is done: one line per stage, on stderr.

use std::fmt;
use std::time::{Duration, Instant};

/// Announces what happens next.
pub(crate) fn step(text: impl fmt::Display) {
    eprintln!("==> {text}");
}

/// One stage that has ended.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    pub(crate) name: String,
    pub(crate) took: Duration,
}

/// Measures a stage: announces it and says how long it took, however it ends.
pub(crate) fn stage<T>(stages: &mut Vec<Stage>, name: &str, work: impl FnOnce() -> T) -> T {
    step(name);
    let start = Instant::now();
    let result = work();
    let took = start.elapsed();
    step(format_args!("{name}: {:.1} s", took.as_secs_f64()));
    stages.push(Stage {
        name: name.to_owned(),
        took,
    });
    result
}
