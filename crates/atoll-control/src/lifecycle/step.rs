//! Every step of a life at which a crash leaves something to finish or to
//! undo, by name: a test ends the process before and after each of them.

use atoll_failpoint::{Moment, reach};

macro_rules! steps {
    ($($(#[doc = $doc:literal])* $name:ident => $text:literal,)*) => {
        /// A step of the life of a sandbox.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Step { $($(#[doc = $doc])* $name,)* }

        impl Step {
            /// Every step, for tests that walk through all of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name in `ATOLL_FAILPOINT`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

steps! {
    /// The row of a sandbox that is to be made.
    WriteIntent => "lifecycle_write_intent",
    /// The sandbox itself, up to its first command.
    MakeSandbox => "lifecycle_make_sandbox",
    /// The row says that it runs.
    WriteRunning => "lifecycle_write_running",
    /// The monitor learns when it ends.
    SetEnd => "lifecycle_set_end",
    /// The key that made it gets a token.
    GrantToken => "lifecycle_grant_token",
    /// The row says when it ends.
    WriteEnd => "lifecycle_write_end",
    /// The row says what it may reach.
    WriteNetwork => "lifecycle_write_network",
    /// The kernel learns what it may reach.
    SetNetwork => "lifecycle_set_network",
    /// The row says that it is being paused.
    WritePausing => "lifecycle_write_pausing",
    /// Its processes hold still.
    Freeze => "lifecycle_freeze",
    /// The row says that it is paused.
    WritePaused => "lifecycle_write_paused",
    /// The row says that it is woken up.
    WriteResuming => "lifecycle_write_resuming",
    /// Its processes run on.
    Thaw => "lifecycle_thaw",
    /// The row says that it runs again.
    WriteResumed => "lifecycle_write_resumed",
    /// Its processes hold still while its files are read.
    HoldStill => "lifecycle_hold_still",
    /// Its files become a layer.
    ReadFiles => "lifecycle_read_files",
    /// Its memory becomes files.
    WriteMemory => "lifecycle_write_memory",
    /// The record of its snapshot.
    WriteSnapshot => "lifecycle_write_snapshot",
    /// A sandbox that nobody asked for yet, up to its first command.
    MakeMember => "pool_make_member",
    /// One that waited becomes what its row says.
    ClaimMember => "pool_claim_member",
    /// One that is not needed any more, or of no use.
    EndMember => "pool_end_member",
    /// The row says that it is being ended.
    WriteKilling => "lifecycle_write_killing",
    /// Its processes, and everything it has on this host.
    Destroy => "lifecycle_destroy",
    /// The tombstone.
    Bury => "lifecycle_bury",
}

impl Step {
    /// Runs `work` between the two points of this step.
    pub(super) async fn around<T>(self, work: impl Future<Output = T>) -> T {
        reach(self.name(), Moment::Before);
        let done = work.await;
        reach(self.name(), Moment::After);
        done
    }
}
