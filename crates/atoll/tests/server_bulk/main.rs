//! A process of its own for what looks at the memory of its process, which is
//! the server.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking, and use a part of what the others share"
)]

#[path = "../harness/mod.rs"]
mod harness;

mod bulk;
#[path = "../server/served.rs"]
mod served;
#[path = "../server/services.rs"]
mod services;
#[path = "../server/wire.rs"]
mod wire;
