//! What a path is, as clients are told.
//!
//! Of a link they learn the type and mode of what it leads to, everything
//! else about the link itself. Nothing here opens a file, so pipes and
//! devices are safe to look at.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use atoll_protocol::envd::Timestamp;
use atoll_protocol::envd::filesystem::{EntryInfo, FileType as Kind};
use rustix::fs::{AtFlags, CWD, FileType, Stat, statat};
use rustix::io::Errno;

use crate::metadata;
use crate::users::Names;

/// Seconds that a timestamp can carry.
const TIMES: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// What `path` is.
pub(crate) fn describe(path: &str, names: &Names) -> Result<EntryInfo, Errno> {
    let stat = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
    let followed = || statat(CWD, path, AtFlags::empty()).ok();
    Ok(entry(path, &stat, followed, names))
}

/// What `name` in the directory `dir` is. `path` is where clients find it.
pub(crate) fn describe_in(
    dir: BorrowedFd<'_>,
    name: &CStr,
    path: &str,
    names: &Names,
) -> Result<EntryInfo, Errno> {
    let stat = statat(dir.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)?;
    let followed = || statat(dir.as_fd(), name, AtFlags::empty()).ok();
    Ok(entry(path, &stat, followed, names))
}

fn entry(
    path: &str,
    stat: &Stat,
    followed: impl FnOnce() -> Option<Stat>,
    names: &Names,
) -> EntryInfo {
    let is_symlink = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
    let target = if is_symlink { followed() } else { Some(*stat) };
    let kind = match target.map(|target| FileType::from_raw_mode(target.st_mode)) {
        Some(FileType::RegularFile) => Kind::FILE_TYPE_FILE,
        Some(FileType::Directory) => Kind::FILE_TYPE_DIRECTORY,
        _ => Kind::FILE_TYPE_UNSPECIFIED,
    };
    let has_metadata = !is_symlink && kind != Kind::FILE_TYPE_UNSPECIFIED;
    EntryInfo {
        name: base_name(path).to_owned(),
        r#type: kind.into(),
        path: path.to_owned(),
        size: stat.st_size,
        mode: target.map_or(0, |target| target.st_mode & 0o777),
        permissions: permissions(stat.st_mode),
        owner: names.user(stat.st_uid),
        group: names.group(stat.st_gid),
        modified_time: modified(stat).into(),
        symlink_target: is_symlink.then(|| link_target(path)),
        metadata: if has_metadata {
            metadata::read(path).into_iter().collect()
        } else {
            Default::default()
        },
        is_symlink,
        ..EntryInfo::default()
    }
}

/// When it was last changed, unless that is a time that no message can
/// carry: before the year 1 or after 9999, which anybody may set.
fn modified(stat: &Stat) -> Option<Timestamp> {
    TIMES.contains(&stat.st_mtime).then(|| Timestamp {
        seconds: stat.st_mtime,
        nanos: i32::try_from(stat.st_mtime_nsec).unwrap_or_default(),
        ..Timestamp::default()
    })
}

/// Where the link at `path` leads in the end; what is written in it when
/// that is nowhere.
fn link_target(path: &str) -> String {
    let target = std::fs::canonicalize(path).or_else(|_| std::fs::read_link(path));
    target.map_or_else(
        |_| String::new(),
        |target| target.to_string_lossy().into_owned(),
    )
}

/// The last part of a clean path.
fn base_name(path: &str) -> &str {
    match path.rsplit('/').next() {
        Some(name) if !name.is_empty() => name,
        _ => "/",
    }
}

/// A mode as Go prints it: letters for what the file is, then its permissions.
fn permissions(mode: u32) -> String {
    let mut text = String::with_capacity(12);
    match FileType::from_raw_mode(mode) {
        FileType::Directory => text.push('d'),
        FileType::Symlink => text.push('L'),
        FileType::BlockDevice | FileType::CharacterDevice => text.push('D'),
        FileType::Fifo => text.push('p'),
        FileType::Socket => text.push('S'),
        FileType::RegularFile | FileType::Unknown => {}
    }
    for (bit, letter) in [(libc::S_ISUID, 'u'), (libc::S_ISGID, 'g')] {
        if mode & bit != 0 {
            text.push(letter);
        }
    }
    if FileType::from_raw_mode(mode) == FileType::CharacterDevice {
        text.push('c');
    }
    if mode & libc::S_ISVTX != 0 {
        text.push('t');
    }
    if text.is_empty() {
        text.push('-');
    }
    for (index, letter) in "rwxrwxrwx".chars().enumerate() {
        let set = mode & (0o400 >> index) != 0;
        text.push(if set { letter } else { '-' });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_look_as_go_prints_them() {
        for (mode, expected) in [
            (0o100_644, "-rw-r--r--"),
            (0o040_755, "drwxr-xr-x"),
            (0o041_777, "dtrwxrwxrwx"),
            (0o104_755, "urwxr-xr-x"),
            (0o102_755, "grwxr-xr-x"),
            (0o107_000, "ugt---------"),
            (0o042_770, "dgrwxrwx---"),
            (0o120_777, "Lrwxrwxrwx"),
            (0o010_644, "prw-r--r--"),
            (0o140_755, "Srwxr-xr-x"),
            (0o020_666, "Dcrw-rw-rw-"),
            (0o060_640, "Drw-r-----"),
        ] {
            assert_eq!(permissions(mode), expected, "{mode:o}");
        }
    }

    #[test]
    fn the_root_has_a_name() {
        assert_eq!(base_name("/"), "/");
        assert_eq!(base_name("/a/b"), "b");
    }
}
