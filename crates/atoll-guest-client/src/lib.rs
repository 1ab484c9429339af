//! The host's side of a guest: commands, terminals and files over a byte
//! stream that somebody else dials.
//!
//! **Invariant:** everything that comes back is hostile. Root inside a
//! sandbox can replace its PID 1, so heads, frames, messages and waits are
//! bounded, texts are stripped of control characters, and every misbehaviour
//! is a typed error. Bytes of commands and files pass unchanged.
//!
//! ```text
//! GuestClient ── one connection per call ──▶ dial(49983) ──▶ guest
//!   start() ─▶ Process  ── next() ─▶ ProcessEvent
//!                └ input() ─▶ ProcessInput (send, close, signal, resize)
//! ```

mod client;
mod connection;
mod error;
mod files;
mod process;

pub use atoll_protocol::InitRequest;
pub use atoll_protocol::connect::Code;
pub use atoll_protocol::status::ExitStatus;
pub use client::GuestClient;
pub use connection::Dialer;
pub use error::GuestError;
pub use files::FileReader;
pub use process::{Command, Process, ProcessEvent, ProcessInput, PtySize, Signal};
