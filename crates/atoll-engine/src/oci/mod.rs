//! Turning a bundle into a container, by the runtime in this binary or by
//! `runc`: the same bundle, the same two steps.

mod builtin;
mod external;

use std::io::{self, PipeReader};
use std::path::Path;

use crate::bundle::SeccompBy;
use crate::config::OciRuntimeChoice;

pub(crate) use builtin::Builtin;
pub(crate) use external::External;

/// A program or library that runs OCI bundles.
pub(crate) trait OciRuntime {
    /// How this runtime gets the profile of system calls to the kernel.
    fn seccomp_by(&self) -> SeccompBy;

    /// Makes the container of `bundle` and returns its first process, which waits for [`Self::start`].
    /// Its standard input is `lifeline`, by which it learns that the monitor is gone already.
    fn create(
        &mut self,
        id: &str,
        bundle: &Path,
        state: &Path,
        lifeline: PipeReader,
    ) -> io::Result<i32>;

    /// Lets the first process go.
    fn start(&mut self, id: &str, state: &Path) -> io::Result<()>;
}

/// The runtime that `choice` names.
pub(crate) fn runtime(choice: &OciRuntimeChoice) -> Box<dyn OciRuntime> {
    match choice {
        OciRuntimeChoice::Builtin => Box::new(Builtin::default()),
        OciRuntimeChoice::External(program) => Box::new(External::new(program.clone())),
    }
}
