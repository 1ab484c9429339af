//! The host's side of a guest: commands, terminals and files over a byte
//! stream that somebody else dials.
//!
//! **Invariant:** everything that comes back is hostile. Root inside a
//! sandbox can replace its PID 1, so heads, frames, messages and waits are
//! bounded, texts are stripped of control characters, and every misbehaviour
//! is a typed error. Bytes of commands and files pass unchanged.
//!
//! ```text
//! GuestClient ── idle connection, or a new one ──▶ dial(49983) ──▶ guest
//!   start() ─▶ Process  ── next() ─▶ ProcessEvent
//!                └ input() ─▶ ProcessInput (send, close, signal, resize)
//!   stat, list_dir, make_dir, rename, remove ─▶ Entry
//!   watch() ─▶ Watch ── next() ─▶ WatchEvent
//!   forward() ─▶ ForwardedBody ── bounded_frames() ─▶ BoundedFrames
//!   read_file, read_file_range ─▶ FileReader        write_file ◀─ bytes
//! ```

mod answer;
mod client;
mod connection;
mod download;
mod entry;
mod error;
mod files;
mod filesystem;
mod forward;
mod frames;
mod input;
mod listing;
mod messages;
mod passage;
mod pool;
mod process;
mod upload;
mod watch;

pub use atoll_protocol::InitRequest;
pub use atoll_protocol::connect::Code;
pub use atoll_protocol::status::ExitStatus;
pub use client::GuestClient;
pub use connection::Dialer;
pub use download::FileReader;
pub use entry::{Entry, EntryKind, FileNameError, GuestText};
pub use error::GuestError;
pub use files::ReadOptions;
pub use forward::{ForwardOptions, ForwardedBody};
pub use frames::{BoundedFrames, bounded_frames};
pub use input::{ProcessInput, Signal};
pub use messages::FRAME_BYTES_MAX;
pub use process::{Command, Process, ProcessEvent, PtySize};
pub use watch::{Watch, WatchEvent, WatchEventKind, WatchOptions};
