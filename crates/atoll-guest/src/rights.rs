//! File access with the rights of a sandbox user.
//!
//! The kernel keeps credentials per thread, so a thread of its own takes the
//! user's and ends with the work. `setfsuid` would be shorter, but gVisor
//! lacks it.

use std::io;

use tokio::sync::oneshot;

use crate::users::User;

/// Stack of a thread that opens a file.
const STACK_BYTES: usize = 256 * 1024;

/// Runs `work` with the user's rights on a thread of its own.
pub(crate) async fn act_as<T: Send + 'static>(
    user: &User,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let user = user.clone();
    let (answer, result) = oneshot::channel();
    std::thread::Builder::new()
        .name("as-user".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            // A caller that went away wants no answer.
            let _ = answer.send(assume(&user).and_then(|()| work()));
        })?;
    result
        .await
        .map_err(|_| io::Error::other("the thread ended without an answer"))?
}

/// Gives the calling thread the effective rights of `user`, for good.
fn assume(user: &User) -> io::Result<()> {
    if rustix::process::geteuid().as_raw() == user.uid {
        return Ok(());
    }
    const KEEP: u32 = u32::MAX;
    // SAFETY: the pointer and length describe one live slice. The raw calls
    // change this thread only, unlike glibc's wrappers.
    check(unsafe { libc::syscall(libc::SYS_setgroups, user.groups.len(), user.groups.as_ptr()) })?;
    // SAFETY: takes numbers only.
    check(unsafe { libc::syscall(libc::SYS_setresgid, KEEP, user.gid, KEEP) })?;
    // SAFETY: takes numbers only.
    check(unsafe { libc::syscall(libc::SYS_setresuid, KEEP, user.uid, KEEP) })
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
