//! Keeps events of descriptors that are not watched any more from the runtime.
//!
//! gVisor lets every registration that it finds in a checkpoint report once after a restore,
//! among them some that were removed before. The runtime takes what an event carries for the
//! address of a live object, so such an event would reach memory that is something else by
//! now. Linux reports nothing of that kind, and there this passes everything on.
//!
//! These two functions take the places of those of the C library in this program.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

/// What events of each watched descriptor carry.
static WATCHED: Mutex<BTreeMap<(c_int, c_int), u64>> = Mutex::new(BTreeMap::new());

/// Whether the runtime calls these functions and not those of the C library.
pub(crate) fn is_in_place() -> bool {
    std::ptr::fn_addr_eq(
        libc::epoll_wait as WaitFunction,
        self::epoll_wait as WaitFunction,
    )
}

type WaitFunction = unsafe extern "C" fn(c_int, *mut libc::epoll_event, c_int, c_int) -> c_int;

/// As `epoll_ctl(2)`.
///
/// # Safety
/// As there: `event` is null or points to one event.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    descriptor: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (epoll, descriptor);
    let before = watched.get(&key).copied();
    // Before the call: another thread may be told of it at once.
    if operation == libc::EPOLL_CTL_DEL {
        watched.retain(|(_, other), _| *other != descriptor);
    } else if !event.is_null() {
        // SAFETY: it is not null, and the caller promises that it is one.
        let carried = unsafe { (&raw const (*event).u64).read_unaligned() };
        watched.insert(key, carried);
    }
    drop(watched);
    // SAFETY: the arguments are the caller's, who promises what the call needs.
    let result = unsafe {
        libc::syscall(
            libc::SYS_epoll_ctl,
            libc::c_long::from(epoll),
            libc::c_long::from(operation),
            libc::c_long::from(descriptor),
            event,
        )
    };
    // What could not be removed is not watched either.
    if result != 0 && operation != libc::EPOLL_CTL_DEL {
        let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        match before {
            Some(carried) => watched.insert(key, carried),
            None => watched.remove(&key),
        };
    }
    c_int::try_from(result).unwrap_or(-1)
}

/// As `epoll_wait(2)`, without events of descriptors that nobody watches.
///
/// # Safety
/// As there: `events` points to room for `most` events.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the arguments are the caller's, who promises what the call needs; without a set
    // of signals this is `epoll_wait`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait,
            libc::c_long::from(epoll),
            events,
            libc::c_long::from(most),
            libc::c_long::from(timeout_ms),
            std::ptr::null::<libc::sigset_t>(),
            std::mem::size_of::<u64>(),
        )
    };
    let Ok(count) = usize::try_from(result) else {
        return -1;
    };
    if count == 0 {
        return 0;
    }
    // SAFETY: the kernel has written so many events there.
    let events = unsafe { std::slice::from_raw_parts_mut(events, count) };
    let watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut kept = 0;
    for index in 0..count {
        let carried = events[index].u64;
        if watched.values().any(|other| *other == carried) {
            events[kept] = events[index];
            kept += 1;
        }
    }
    // None at all looks as if the time were over: the runtime looks at its clock and waits on.
    c_int::try_from(kept).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_is_told_of_nothing_that_it_does_not_watch() {
        assert!(is_in_place());
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut event = libc::epoll_event {
            events: u32::try_from(libc::EPOLLIN).unwrap(),
            u64: 0x5eed,
        };
        let mut got = [libc::epoll_event { events: 0, u64: 0 }; 4];
        std::io::Write::write_all(&mut writer, b"x").unwrap();
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&reader);
        // SAFETY: each call gets descriptors that are open and room for what it writes.
        unsafe {
            let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            let add = libc::EPOLL_CTL_ADD;
            assert_eq!(libc::epoll_ctl(epoll, add, descriptor, &raw mut event), 0);
            assert_eq!(libc::epoll_wait(epoll, got.as_mut_ptr(), 4, 1000), 1);
            assert_eq!({ got[0].u64 }, 0x5eed);
            // As if it had been removed, and the kernel did not know.
            WATCHED.lock().unwrap().remove(&(epoll, descriptor));
            assert_eq!(libc::epoll_wait(epoll, got.as_mut_ptr(), 4, 1000), 0);
            let modify = libc::EPOLL_CTL_MOD;
            assert_eq!(
                libc::epoll_ctl(epoll, modify, descriptor, &raw mut event),
                0
            );
            assert_eq!(libc::epoll_wait(epoll, got.as_mut_ptr(), 4, 1000), 1);
            let remove = libc::EPOLL_CTL_DEL;
            assert_eq!(
                libc::epoll_ctl(epoll, remove, descriptor, std::ptr::null_mut()),
                0
            );
            assert_eq!(libc::epoll_wait(epoll, got.as_mut_ptr(), 4, 0), 0);
            libc::close(epoll);
        }
    }
}
