//! The runtime in this binary, on youki's `libcontainer`.
//!
//! It forks and goes on in the child, so it runs only in the monitor, which
//! has one thread.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, PipeReader};
use std::os::fd::OwnedFd;
use std::path::Path;

use libcontainer::container::Container;
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::oci_spec::runtime::Spec;
use libcontainer::syscall::syscall::SyscallType;
use libcontainer::workload::{Executor, ExecutorError, ExecutorValidationError};

use super::OciRuntime;
use crate::bundle::SeccompBy;
use crate::seccomp;

#[derive(Default)]
pub(crate) struct Builtin {
    container: Option<Container>,
}

impl OciRuntime for Builtin {
    fn seccomp_by(&self) -> SeccompBy {
        SeccompBy::Executor
    }

    fn create(
        &mut self,
        id: &str,
        bundle: &Path,
        state: &Path,
        lifeline: PipeReader,
    ) -> io::Result<i32> {
        let programs = if atoll_failpoint::is_missing("seccomp") {
            Vec::new()
        } else {
            seccomp::compiled().map_err(io::Error::other)?
        };
        let nowhere = File::options().read(true).write(true).open("/dev/null")?;
        let container = ContainerBuilder::new(id.to_owned(), SyscallType::default())
            .with_executor(GuestExecutor { programs })
            // Nothing else of the monitor's own reaches the guest.
            .with_stdin(OwnedFd::from(lifeline))
            .with_stdout(nowhere.try_clone()?)
            .with_stderr(nowhere)
            .with_root_path(state)
            .and_then(|builder| {
                builder
                    .as_init(bundle)
                    .with_systemd(false)
                    .with_detach(true)
                    .build()
            })
            .map_err(whole_chain)?;
        let pid = container
            .pid()
            .ok_or_else(|| io::Error::other("the container has no process"))?;
        self.container = Some(container);
        Ok(pid.as_raw())
    }

    fn start(&mut self, _id: &str, _state: &Path) -> io::Result<()> {
        let container = self
            .container
            .as_mut()
            .ok_or_else(|| io::Error::other("the container was not created"))?;
        container.start().map_err(whole_chain)
    }
}

/// An error with all its causes: libcontainer's own texts often say only which step failed.
fn whole_chain(error: impl std::error::Error) -> io::Error {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    io::Error::other(text)
}

/// Runs in the container's first process, just before it becomes the guest.
#[derive(Clone)]
struct GuestExecutor {
    programs: Vec<seccompiler::BpfProgram>,
}

impl Executor for GuestExecutor {
    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        let arguments = spec
            .process()
            .as_ref()
            .and_then(|process| process.args().as_ref());
        let arguments = arguments.ok_or(ExecutorError::InvalidArg)?;
        let arguments: Vec<CString> = arguments
            .iter()
            .map(|argument| {
                CString::new(argument.as_bytes()).map_err(|_| ExecutorError::InvalidArg)
            })
            .collect::<Result<_, _>>()?;
        let mut pointers: Vec<*const libc::c_char> =
            arguments.iter().map(|argument| argument.as_ptr()).collect();
        pointers.push(std::ptr::null());
        lock_down(&self.programs)
            .map_err(|error| ExecutorError::Other(format!("cannot lock the guest in: {error}")))?;
        // SAFETY: both are null-terminated and outlive the call, which returns only on failure.
        unsafe { libc::execv(pointers[0], pointers.as_ptr()) };
        Err(ExecutorError::Other(format!(
            "cannot start the guest: {}",
            io::Error::last_os_error()
        )))
    }

    fn validate(&self, _spec: &Spec) -> Result<(), ExecutorValidationError> {
        Ok(())
    }
}

/// Loads the filters, which without `no_new_privs` takes `CAP_SYS_ADMIN`, and gives that capability up for good.
fn lock_down(programs: &[seccompiler::BpfProgram]) -> io::Result<()> {
    use rustix::thread::{
        CapabilitySet, capabilities, remove_capability_from_bounding_set, set_capabilities,
    };

    let gone = CapabilitySet::SYS_ADMIN;
    remove_capability_from_bounding_set(gone)?;
    for program in programs {
        let filter = libc::sock_fprog {
            len: u16::try_from(program.len()).map_err(io::Error::other)?,
            filter: program.as_ptr().cast_mut().cast(),
        };
        // SAFETY: `sock_filter` of seccompiler and of the kernel have the same layout, and the program lives through the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                0,
                &raw const filter,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let mut sets = capabilities(None)?;
    sets.effective.remove(gone);
    sets.permitted.remove(gone);
    sets.inheritable.remove(gone);
    set_capabilities(None, sets)?;
    Ok(())
}
