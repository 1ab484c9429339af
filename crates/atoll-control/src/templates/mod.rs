//! Templates: what a sandbox starts from, and how that is built.
//!
//! ```text
//! spec file ─▶ TemplateSpec ─▶ Builder ─▶ Template ─▶ TemplateCatalog
//!                                │ source (debian, host, template) ─▶ first layer
//!                                └ steps: sandbox ─▶ halt ─▶ upper ─▶ layer each
//! ```
//! Everything lives below the home: `templates/` (records and locks),
//! `snapshots/` (records of what sandboxes became), `memory/` (of those, under gVisor),
//! `layers/` and `blobs/` (bytes, see `atoll-store`), `build-cache/` (what
//! each step made) and `build-logs/`.

mod build_log;
mod builder;
mod builtin;
mod cache;
mod catalog;
mod context;
mod event;
mod identity;
mod lock;
mod memory;
mod record;
mod reporter;
mod snapshot;
mod source;
mod spec;
mod step;
mod workshop;

pub use builder::{BuildError, BuildOptions, Builder, CacheUse, Events};
pub use builtin::{Builtin, builtin_minutes, builtin_names};
pub use catalog::{
    CatalogError, InUse, LayersHeld, TemplateCatalog, layer_directories, layers_in_use,
};
pub use context::ContextError;
pub use event::{BuildEvent, OutputStream};
pub use identity::{InvalidTemplateName, TemplateId, TemplateName};
pub use memory::MemoryHeld;
pub use record::{Resources, Template, TemplateMemory};
pub use snapshot::Snapshot;
pub use source::SourceError;
pub use spec::{DebianSource, Source, SpecError, TemplateSpec};
pub use step::Step;
pub use workshop::WorkshopError;
