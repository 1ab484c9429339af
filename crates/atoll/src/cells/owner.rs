//! Whose files are made: with `sudo`, those of whoever typed it.

use std::fs::File;

use rustix::fs::{Gid, Uid};

/// Gives a new file to the user behind `sudo`, if there is one. It is a
/// courtesy: a file that stays root's is no failure.
pub(crate) fn give_to_caller(file: &File) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    // The highest number means "as it is".
    let (Some(user), Some(group)) = (number("SUDO_UID"), number("SUDO_GID")) else {
        return;
    };
    if user != u32::MAX && group != u32::MAX {
        let owner = (Some(Uid::from_raw(user)), Some(Gid::from_raw(group)));
        let _ = rustix::fs::fchown(file, owner.0, owner.1);
    }
}
