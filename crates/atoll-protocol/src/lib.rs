//! Wire types of the protocols that Atoll speaks, and nothing that acts on them.
//!
//! - [`envd`]: messages and service traits generated from `proto/`.
//! - [`connect`]: framing and error codes of the Connect protocol.
//! - [`init`]: what the host tells a guest before it lets anybody in.
//! - [`lane`]: large files between host and guest.
//! - [`rest`]: requests and answers of the control plane.
//! - [`signature`]: what lets a bare URL read or write one file.
//! - [`status`]: how the end of a command is spelled.

pub mod connect;
pub mod init;
pub mod lane;
pub mod rest;
pub mod signature;
pub mod status;

pub use init::{InitRequest, UnkeptWishes, Warmth};

/// Version of envd whose clients find everything that they look for in a guest.
pub const ENVD_VERSION: &str = "0.6.13";

/// Port on which the guest of a sandbox listens.
pub const ENVD_PORT: u16 = 49983;

/// Port at which clients look for the code interpreter. The guest serves both on
/// [`ENVD_PORT`]; nobody listens here.
pub const CODE_PORT: u16 = 49999;

/// Where the host asks the guest to have the first kernel ready, and waits for it.
pub const WARM_ROUTE: &str = "/warm";

/// Silence after which a stream of `/execute` says that it lives.
pub const CODE_KEEPALIVE: std::time::Duration = std::time::Duration::from_secs(5);

/// Port of the guest's passage, where the sandbox has a network stack that the
/// host cannot enter: two bytes of a port (the higher first) go in, one byte of
/// answer comes back, then the bytes of whoever listens there.
pub const PASSAGE_PORT: u16 = 49982;

/// Answers of the passage.
pub mod passage {
    /// Connected: all further bytes are those of the service.
    pub const OPEN: u8 = 0;
    /// Nobody listens on that port.
    pub const REFUSED: u8 = 1;
    /// The guest could not connect, or has too many connections.
    pub const FAILED: u8 = 2;
}

/// Argument with which the guest's binary, run as a command, says the release of the
/// kernel it is on: no program of a template can say it in its place.
pub const KERNEL_RELEASE: &str = "kernel-release";

/// Header that carries the secret between host and guest.
pub const ACCESS_TOKEN_HEADER: &str = "x-access-token";

/// Header by which a client asks for a `keepalive` event, in seconds of silence.
pub const KEEPALIVE_HEADER: &str = "keepalive-ping-interval";

/// Header on `SendSignal` that widens its reach; see [`SIGNAL_SCOPE_TREE`].
/// Atoll's own: E2B's clients never send it.
pub const SIGNAL_SCOPE_HEADER: &str = "atoll-signal-scope";

/// Value of [`SIGNAL_SCOPE_HEADER`] that ends a command with everything it
/// started, also what left its session or its process group.
pub const SIGNAL_SCOPE_TREE: &str = "tree";

/// Largest piece of output in one event, in bytes.
pub const OUTPUT_CHUNK_BYTES: usize = 32 * 1024;

/// `proto/` with all it imports, as an encoded `FileDescriptorSet`: for
/// clients that make their messages at run time.
pub const FILE_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/envd.binpb"));

/// Messages and service traits generated from `proto/`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::restriction
)]
pub mod envd {
    connectrpc::include_generated!();

    /// Points in time in messages.
    pub use buffa_types::google::protobuf::Timestamp;

    /// The `oneof` of [`filesystem`], under a name that people can read.
    pub mod filesystem_oneof {
        pub use super::filesystem::__buffa::oneof::watch_dir_response::Event as WatchDirEvent;
    }

    /// The `oneof`s of [`process`], under names that people can read.
    pub mod process_oneof {
        pub use super::process::__buffa::oneof::process_event::Event;
        pub use super::process::__buffa::oneof::process_event::data_event::Output;
        pub use super::process::__buffa::oneof::process_input::Input;
        pub use super::process::__buffa::oneof::process_selector::Selector;
        pub use super::process::__buffa::oneof::stream_input_request::Event as StreamInputEvent;
    }
}
