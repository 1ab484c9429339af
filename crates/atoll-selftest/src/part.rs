//! Parts of a selftest that are processes of their own: the same binary,
//! called with [`PART_ARGUMENT`]. They end when whoever started them does,
//! because they wait for the end of their standard input.

use std::process::ExitCode;

use crate::{keeper, room};

/// First argument of a call that means [`run_part`].
pub const PART_ARGUMENT: &str = "selftest-part";

/// A part that can be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Keeper,
    Room,
}

impl Part {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Keeper => "keeper",
            Self::Room => "room",
        }
    }
}

/// Plays the part that the command line names. The caller has started no thread yet.
#[must_use]
pub fn run_part() -> ExitCode {
    let name = std::env::args().nth(2).unwrap_or_default();
    let played = if name == Part::Keeper.name() {
        keeper::keep()
    } else if name == Part::Room.name() {
        room::enter()
    } else {
        Err(std::io::Error::other(format!("there is no part `{name}`")))
    };
    match played {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Where a build with counters counts the lines that run: parts start with no
/// other variable of whoever starts them.
pub(crate) fn counting() -> Option<(&'static str, std::ffi::OsString)> {
    let name = "LLVM_PROFILE_FILE";
    Some((name, std::env::var_os(name)?))
}
