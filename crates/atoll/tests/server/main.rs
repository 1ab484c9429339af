//! The server's data side against real sandboxes: calls of the guest, ports of
//! users, names and certificates, and everybody who tries to get in.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "tests fail by panicking, and have no users"
)]

#[path = "../harness/mod.rs"]
mod harness;

#[path = "../clients/mod.rs"]
#[allow(dead_code, reason = "recorded exchanges are for the guest alone")]
mod clients;

mod calls;
mod code;
mod connections;
mod encrypted;
mod hostile_services;
mod lanes;
mod ports;
mod sdks;
mod served;
mod services;
mod signatures;
mod streams;
mod wire;
