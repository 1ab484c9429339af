//! Words that rows hold: states, intents. Which may follow which is decided above.

use std::fmt;

macro_rules! words {
    ($(#[doc = $doc:literal])* $name:ident, $what:literal, { $($(#[doc = $variant_doc:literal])* $variant:ident => $text:literal,)* }) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[doc = $variant_doc])* $variant,)* }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// As rows have it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl TryFrom<String> for $name {
            type Error = crate::db::DatabaseError;

            fn try_from(text: String) -> Result<Self, crate::db::DatabaseError> {
                match text.as_str() {
                    $($text => Ok(Self::$variant),)*
                    _ => Err(crate::db::DatabaseError::Content { what: $what, found: text }),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(self.as_str())
            }
        }
    };
}

pub(crate) use words;

words! {
    /// Where a sandbox is in its life. One that is gone has a tombstone instead of a state.
    SandboxState, "state of a sandbox", {
        /// It is being made; nobody can use it yet.
        Creating => "creating",
        /// It runs.
        Running => "running",
        /// It is on its way to `Paused`.
        Pausing => "pausing",
        /// It holds still.
        Paused => "paused",
        /// It is on its way back to `Running`.
        Resuming => "resuming",
        /// It is on its way to its tombstone.
        Killing => "killing",
    }
}

words! {
    /// What its server is about to do with a sandbox: after a crash, what has
    /// to be finished or undone.
    Intent, "intent", {
        /// Make it.
        Create => "create",
        /// Pause it.
        Pause => "pause",
        /// Resume it.
        Resume => "resume",
        /// Take a snapshot of it.
        Snapshot => "snapshot",
        /// End it.
        Kill => "kill",
    }
}
