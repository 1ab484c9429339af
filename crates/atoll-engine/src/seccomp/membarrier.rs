//! Keeps one system call from gVisor's own processes: `membarrier`.
//!
//! Each start of `runsc` registers for it, and that waits for all processors:
//! ten milliseconds, four times in the start of a sandbox. All that gVisor
//! wants it for is to offer it to programs inside, which live without it as
//! they do on an older kernel. What a program inside calls is not decided
//! here: gVisor catches its calls before this filter can answer them.

use std::io;

use seccompiler::sock_filter;

/// Where a call's number is in what the kernel shows to a filter.
const NUMBER_OFFSET: u32 = 0;

/// Refuses `membarrier` to this process and whatever it starts. It also gives
/// up for good what a program's set-user-id bit would grant, which gVisor does too.
pub(crate) fn refuse_membarrier() -> io::Result<()> {
    seccompiler::apply_filter(&program()?).map_err(io::Error::other)
}

fn program() -> io::Result<[sock_filter; 4]> {
    let code = |parts: u32| u16::try_from(parts).map_err(io::Error::other);
    let number = |call: libc::c_long| u32::try_from(call).map_err(io::Error::other);
    let errno = libc::ENOSYS.unsigned_abs();
    let statement = |parts: u32, k: u32| -> io::Result<sock_filter> {
        Ok(sock_filter {
            code: code(parts)?,
            jt: 0,
            jf: 0,
            k,
        })
    };
    Ok([
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, NUMBER_OFFSET)?,
        sock_filter {
            jf: 1,
            ..statement(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                number(libc::SYS_membarrier)?,
            )?
        },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno)?,
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::process::in_child;

    /// What the kernel says to the question which barriers it has.
    fn ask() -> io::Result<libc::c_long> {
        // SAFETY: command 0 only asks.
        match unsafe { libc::syscall(libc::SYS_membarrier, 0, 0, 0) } {
            -1 => Err(io::Error::last_os_error()),
            barriers => Ok(barriers),
        }
    }

    #[test]
    fn membarrier_is_refused_and_nothing_else() {
        in_child(|| {
            ask()?;
            refuse_membarrier()?;
            match ask().map_err(|error| error.raw_os_error()) {
                Err(Some(libc::ENOSYS)) => std::fs::metadata("/").map(drop),
                other => Err(io::Error::other(format!("it said {other:?}"))),
            }
        })
        .unwrap();
    }
}
