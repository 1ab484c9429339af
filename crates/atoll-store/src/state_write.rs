//! Everything that the store and its users write for good, by name, so that a
//! crash test can end the process before and after each of them.

use atoll_failpoint::{Moment, reach};

macro_rules! state_writes {
    ($($(#[doc = $doc:literal])* $name:ident => $text:literal,)*) => {
        /// A kind of file or directory that is written for good.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum StateWrite { $($(#[doc = $doc])* $name,)* }

        impl StateWrite {
            /// Every kind, for tests that walk through all of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name in `ATOLL_FAILPOINT`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

state_writes! {
    /// A blob gets its final name.
    Blob => "blob",
    /// The record of a layer.
    LayerRecord => "layer_record",
    /// The tree of a layer gets its final name.
    LayerTree => "layer_tree",
    /// What a step of a build made.
    BuildCacheEntry => "build_cache_entry",
    /// A template.
    TemplateRecord => "template_record",
    /// A snapshot, or that it is retired.
    SnapshotRecord => "snapshot_record",
    /// The id of a home among the nodes of a database.
    NodeId => "node_id",
    /// The secret of a home.
    HomeSecret => "home_secret",
    /// An authority for certificates.
    Authority => "authority",
}

impl StateWrite {
    /// Runs `write` between the two points of this kind.
    pub(crate) fn around<T>(self, write: impl FnOnce() -> T) -> T {
        reach(self.name(), Moment::Before);
        let written = write();
        reach(self.name(), Moment::After);
        written
    }
}
