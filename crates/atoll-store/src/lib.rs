//! What Atoll keeps: blobs by digest, the unpacked layers of templates, and a database.
//!
//! - [`Digest`]: the only name a blob or layer has; it can never be a path trick.
//! - [`Blobs`]: immutable bytes behind `object_store`, verified on every read.
//! - [`Layers`]: unpacked trees that sandboxes mount, made only from bytes
//!   that were hashed on the way, complete or absent after any crash.
//! - [`db`]: who there is and what lives: tenants, keys, sandboxes.
//! - [`write_atomically`]: a small file that is either the old or the new one;
//!   [`write_once`]: one that never changes.
//!
//! **Invariant**: nothing here knows what a template is or who may use it.

mod atomic;
mod blobs;
pub mod db;
mod digest;
mod layers;
mod state_write;

pub use atomic::{sweep_unfinished, write_atomically, write_once};
pub use blobs::{BlobError, BlobInfo, Blobs};
pub use digest::{Digest, Hasher, InvalidDigest};
pub use layers::{ArchiveError, LayerError, LayerInfo, Layers, Progress, UnpackError, no_progress};
pub use state_write::StateWrite;
