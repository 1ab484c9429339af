//! A real guest as a plain child process: all that it does and refuses. One
//! binary, so that what these modules share is compiled and linked once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

mod access;
mod commands;
mod compose;
mod downloads;
mod files;
mod filesystem;
mod floods;
mod hostile_code;
mod kernels;
mod lanes;
mod lifeline;
mod lying_kernels;
mod metrics;
mod signatures;
mod terminals;
mod timeouts;
mod trees;
mod uploads;
mod watching;
