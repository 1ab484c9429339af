//! The host's side of a guest: commands, terminals and files over a byte
//! stream that somebody else dials.
//!
//! **Invariant:** everything that comes back is hostile. Root inside a
//! sandbox can replace its PID 1, so heads, frames, messages and waits are
//! bounded, texts are stripped of control characters, and every misbehaviour
//! is a typed error. Bytes of commands and files pass unchanged; what a guest
//! says about files is [`GuestText`], which is no path of the host.
//!
//! | bound | for |
//! |---|---|
//! | 64 KiB, 64 headers, 30 s | a response's head |
//! | 256 KiB, 30 s | an answer that is read as a whole, an entry of a list |
//! | 128 MiB or as told, 30 s, and twice as much of entries | a list |
//! | 1 MiB | a frame of a stream |
//! | 90 s, or as told | silence of a stream or a file; only whole frames break it |
//! | 10 s | the end of a command beyond its timeout, whatever is sent meanwhile |
//! | 4 connections, 5 s | what is kept idle |
//! | 256 MiB, or as told | a line of an execution |
//! | 40 s | silence of an execution |
//! | 64 KiB | why a large file was refused |
//!
//! ```text
//! GuestClient ── idle connection, or a new one ──▶ dial(49983), or a Gateway ──▶ guest
//!   start() ─▶ Process  ── next() ─▶ ProcessEvent
//!                └ input() ─▶ ProcessInput (send, close, signal, resize)
//!   run_code() ─▶ CodeRun ── next() ─▶ CodeEvent
//!   stat, list_dir, make_dir, rename, remove ─▶ Entry
//!   watch() ─▶ Watch ── next() ─▶ WatchEvent
//!   forward() ─▶ ForwardedBody ── bounded_frames() ─▶ BoundedFrames
//!   forward_lane() ─▶ ForwardedLane
//!   read_file, read_file_range ─▶ FileReader        write_file ◀─ bytes
//! ```

mod answer;
mod client;
mod code;
mod connection;
mod download;
mod entry;
mod error;
mod files;
mod filesystem;
mod forward;
mod forward_download;
mod forward_lane;
mod forward_upload;
mod frames;
mod gateway;
mod input;
mod lane;
mod listing;
mod local;
mod messages;
mod moment;
mod passage;
mod pool;
mod process;
mod save;
mod upload;
mod user;
mod watch;

pub use atoll_protocol::connect::Code;
pub use atoll_protocol::status::ExitStatus;
pub use atoll_protocol::{InitRequest, KERNEL_RELEASE};
pub use client::{GuestClient, Narrow};
pub use code::{CodeContext, CodeError, CodeEvent, CodeResult, CodeRun, CodeToRun, NewContext};
pub use download::FileReader;
pub use entry::{Entry, EntryKind, FileNameError, GuestText};
pub use error::{GuestError, harmless_char};
pub use files::ReadOptions;
pub use forward::{ForwardOptions, ForwardedBody};
pub use forward_lane::{ForwardedLane, OpenLane};
pub use frames::{BoundedFrames, bounded_frames};
pub use gateway::{ByteStream, Connecting, Dialer, Gateway, GuestStream, Lanes};
pub use input::{ProcessInput, Signal};
pub use local::LocalFile;
pub use messages::FRAME_BYTES_MAX;
pub use passage::{Call, CodeCall, Direction, Route, Service};
pub use process::{Command, Process, ProcessEvent, PtySize};
pub use save::SaveError;
pub use user::ForwardedUser;
pub use watch::{Watch, WatchEvent, WatchEventKind, WatchOptions};
