//! Everything that `atoll` does with real sandboxes, driven as users and
//! programs drive it. One binary: what these modules share is compiled and
//! linked once, and no core waits for the slowest test of a file.
//!
//! Beside it are the tests that must have the host for themselves: `crash`,
//! `serve_crash`, `serve_load` and `server_bulk`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

#[path = "../harness/mod.rs"]
mod harness;

#[path = "../clients/mod.rs"]
mod clients;

mod attach;
mod bad_input;
mod ca;
mod dial;
mod guest;
mod interpreter_bombs;
mod interpreter_chaos;
mod interpreter_clients;
mod interruption;
mod isolation;
mod kernel_interfaces;
mod key;
mod limits;
mod mcp;
mod mcp_sessions;
mod monitor;
mod network;
mod notebook;
mod oci_runtimes;
mod protocol;
mod repl;
mod rich;
mod run;
mod selftest;
mod serve;
mod serve_api;
mod serve_chaos;
mod serve_checkpoint;
mod serve_cli;
mod serve_clients;
mod serve_events;
mod serve_executions;
mod serve_limits;
mod serve_memory;
mod serve_packages;
mod serve_pause;
mod serve_pool;
mod serve_recovery;
mod serve_restart;
mod serve_rights;
mod serve_roles;
mod serve_routes;
mod serve_schema;
mod serve_sdk;
mod serve_session_life;
mod serve_sessions;
mod serve_snapshots;
mod serve_usage;
mod serve_versions;
mod shell;
mod template;
mod tiers;
mod upkeep;
