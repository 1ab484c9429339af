//! File access in the name of a sandbox user.
//!
//! What a client makes belongs to the user it names, but no permission stops
//! it: E2B's clients write to `/app` and read `/root` without a thought, and
//! whoever holds the token is root in the sandbox anyway.
//!
//! The kernel keeps credentials per thread, so a thread of its own takes the
//! user's and ends with the work. `setfsuid` would be shorter, but gVisor
//! lacks it.

use std::io;

use tokio::sync::oneshot;

use crate::users::User;

/// Stack of such a thread. Its buffers are elsewhere.
const STACK_BYTES: usize = 256 * 1024;

/// Runs `work` in the user's name on a thread of its own.
pub(crate) async fn act_as<T: Send + 'static>(
    user: &User,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (answer, result) = oneshot::channel();
    start_as(user, move |assumed| {
        // A caller that went away wants no answer.
        let _ = answer.send(assumed.and_then(|()| work()));
    })?;
    result.await.map_err(|_| ended_silently())?
}

/// Starts `work` in the user's name on a thread of its own, for as long as it
/// takes. It hears whether it does have the user's name.
///
/// Not a thread of the runtime's pool: that one panics where the sandbox has
/// as many processes as it may have, which everybody inside can bring about.
pub(crate) fn start_as(
    user: &User,
    work: impl FnOnce(io::Result<()>) + Send + 'static,
) -> io::Result<()> {
    let user = user.clone();
    std::thread::Builder::new()
        .name("as-user".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || work(assume(&user)))?;
    Ok(())
}

/// What a caller says of a thread that panicked.
pub(crate) fn ended_silently() -> io::Error {
    io::Error::other("the thread ended without an answer")
}

/// Lets the calling thread act in the name of `user`, for good, and keep
/// its capabilities.
fn assume(user: &User) -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    if (uid.as_raw(), gid.as_raw()) == (user.uid, user.gid) {
        return Ok(());
    }
    const KEEP: u32 = u32::MAX;
    // SAFETY: the pointer and length describe one live slice. The raw calls
    // change this thread only, unlike glibc's wrappers.
    check(unsafe { libc::syscall(libc::SYS_setgroups, user.groups.len(), user.groups.as_ptr()) })?;
    // SAFETY: takes numbers only.
    check(unsafe { libc::syscall(libc::SYS_setresgid, KEEP, user.gid, KEEP) })?;
    // SAFETY: takes numbers only.
    check(unsafe { libc::syscall(libc::SYS_setresuid, KEEP, user.uid, KEEP) })?;
    // The kernel took the capabilities out of force, not away.
    let sets = rustix::thread::capabilities(None)?;
    let raised = rustix::thread::CapabilitySets {
        effective: sets.permitted,
        ..sets
    };
    Ok(rustix::thread::set_capabilities(None, raised)?)
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
