//! What a guest says about a file, checked as far as a host can check it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use atoll_protocol::envd::Timestamp;
use atoll_protocol::envd::filesystem::{EntryInfo, FileType};
use buffa::EnumValue;

use crate::error::{GuestError, harmless_char};

/// Most characters of a text that are shown, those of the longest path.
const SHOWN_CHARS_MAX: usize = 4096;

/// Bits that a mode may have: permissions, setuid, setgid, sticky.
const MODE_BITS: u32 = 0o7777;

/// Seconds of the first and last moment of the years 1 to 9999.
const SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// Text in a guest's words, unchanged. It is not a path of the host and does
/// not turn into one: there is no `AsRef<Path>`. Shown with `{}` it is
/// harmless to terminals, but long texts are cut.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GuestText(String);

impl GuestText {
    /// As the guest said it, also when it said something nasty.
    #[must_use]
    pub fn as_given(&self) -> &str {
        &self.0
    }

    /// As the guest said it.
    #[must_use]
    pub fn into_given(self) -> String {
        self.0
    }

    /// With a stand-in for everything that does something to a terminal.
    #[must_use]
    pub fn harmless(&self) -> String {
        self.to_string()
    }

    fn heap_bytes(&self) -> usize {
        // With what the allocator needs for itself.
        if self.0.capacity() == 0 {
            0
        } else {
            self.0.capacity() + 16
        }
    }
}

impl From<String> for GuestText {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for GuestText {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        self.0
            .chars()
            .take(SHOWN_CHARS_MAX)
            .try_for_each(|char| out.write_char(harmless_char(char)))
    }
}

impl fmt::Debug for GuestText {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.harmless(), out)
    }
}

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A link, from guests that do not look behind it.
    Symlink,
    /// A broken link, a pipe, a device, a socket, or what this version does not know.
    Other,
}

/// One file or directory of a sandbox, as its guest describes it. All of it
/// is a claim; what no honest guest can say is an error before it gets here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Last part of its path; [`Entry::file_name`] gives it as one.
    pub name: GuestText,
    /// What it is; for a link, what its target is.
    pub kind: EntryKind,
    /// Its path inside the sandbox.
    pub path: GuestText,
    /// Bytes.
    pub size: u64,
    /// Permission bits, with setuid, setgid and sticky at most.
    pub mode: u32,
    /// The same for people, `-rw-r--r--`.
    pub permissions: GuestText,
    /// Name of its owner.
    pub owner: GuestText,
    /// Name of its group.
    pub group: GuestText,
    /// When its content was last changed; `None` also outside of the years 1
    /// to 9999, which anybody can set.
    pub modified: Option<SystemTime>,
    /// Where a link leads.
    pub symlink_target: Option<GuestText>,
    /// What clients wrote beside it.
    pub metadata: BTreeMap<GuestText, GuestText>,
    /// Whether it is a link.
    pub is_symlink: bool,
}

/// Why a name is not that of a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no file name")]
pub struct FileNameError(GuestText);

impl Entry {
    /// Its name, when it is one plain part of a path: not empty, not `.` or
    /// `..`, without `/` and NUL, at most 255 bytes. The only thing of an
    /// entry that may be joined to a path of the host.
    ///
    /// # Errors
    /// When it is none, as that of `/`.
    pub fn file_name(&self) -> Result<&str, FileNameError> {
        let name = self.name.as_given();
        if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) || name.len() > 255 {
            return Err(FileNameError(self.name.clone()));
        }
        Ok(name)
    }

    /// Reads what a guest said.
    ///
    /// # Errors
    /// [`GuestError::Protocol`] when no file can be like that.
    pub(crate) fn read(info: EntryInfo) -> Result<Self, GuestError> {
        let broken = |what: &str| GuestError::Protocol(what.to_owned());
        let size = u64::try_from(info.size).map_err(|_| broken("a file has less than no bytes"))?;
        if info.mode & !MODE_BITS != 0 {
            return Err(broken("a mode has bits that are no permissions"));
        }
        let modified = info
            .modified_time
            .into_option()
            .map(|time| read_time(&time))
            .transpose()?
            .flatten();
        Ok(Self {
            name: info.name.into(),
            kind: match info.r#type {
                EnumValue::Known(FileType::FILE_TYPE_FILE) => EntryKind::File,
                EnumValue::Known(FileType::FILE_TYPE_DIRECTORY) => EntryKind::Directory,
                EnumValue::Known(FileType::FILE_TYPE_SYMLINK) => EntryKind::Symlink,
                EnumValue::Known(FileType::FILE_TYPE_UNSPECIFIED) | EnumValue::Unknown(_) => {
                    EntryKind::Other
                }
            },
            path: info.path.into(),
            size,
            mode: info.mode,
            permissions: info.permissions.into(),
            owner: info.owner.into(),
            group: info.group.into(),
            modified,
            symlink_target: info.symlink_target.map(GuestText::from),
            metadata: info
                .metadata
                .into_iter()
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
            is_symlink: info.is_symlink,
        })
    }

    /// Memory it takes, about.
    pub(crate) fn memory_bytes(&self) -> usize {
        /// A leaf of a map has room for eleven pairs, also when it holds one.
        const LEAF_BYTES: usize = 11 * 2 * size_of::<GuestText>() + 16;
        let texts = [
            &self.name,
            &self.path,
            &self.permissions,
            &self.owner,
            &self.group,
        ];
        let texts = texts
            .into_iter()
            .chain(&self.symlink_target)
            .chain(self.metadata.iter().flat_map(|(key, value)| [key, value]));
        size_of::<Self>()
            + texts.map(GuestText::heap_bytes).sum::<usize>()
            + self.metadata.len().div_ceil(5) * LEAF_BYTES
    }
}

/// A moment, `None` for one that no calendar of ours has.
fn read_time(time: &Timestamp) -> Result<Option<SystemTime>, GuestError> {
    let nanos = u32::try_from(time.nanos)
        .ok()
        .filter(|nanos| *nanos < 1_000_000_000)
        .ok_or_else(|| GuestError::Protocol("a time has no such part of a second".to_owned()))?;
    if !SECONDS.contains(&time.seconds) {
        return Ok(None);
    }
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let moment = if time.seconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(whole)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(whole)
    };
    Ok(moment.and_then(|moment| moment.checked_add(Duration::from_nanos(nanos.into()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> EntryInfo {
        EntryInfo {
            name: name.to_owned(),
            ..Default::default()
        }
    }

    #[test]
    fn only_plain_names_are_file_names() {
        let read = |name: &str| Entry::read(named(name)).unwrap();
        for name in ["a", "a b", "...", "-rf", "~", "ü", "a\nb", "C:"] {
            assert_eq!(read(name).file_name(), Ok(name));
        }
        let long = "x".repeat(256);
        for name in [
            "",
            ".",
            "..",
            "/",
            "a/b",
            "../a",
            "/etc/passwd",
            "a\0b",
            &long,
        ] {
            assert!(read(name).file_name().is_err(), "{name:?}");
        }
    }

    #[test]
    fn what_no_file_can_be_is_refused() {
        let time = |seconds, nanos| EntryInfo {
            modified_time: Timestamp {
                seconds,
                nanos,
                ..Default::default()
            }
            .into(),
            ..Default::default()
        };
        for info in [
            EntryInfo {
                size: -1,
                ..Default::default()
            },
            EntryInfo {
                mode: 0o100_644,
                ..Default::default()
            },
            EntryInfo {
                mode: u32::MAX,
                ..Default::default()
            },
            time(0, -1),
            time(0, 1_000_000_000),
        ] {
            assert!(matches!(Entry::read(info), Err(GuestError::Protocol(_))));
        }
        for seconds in [i64::MIN, i64::MAX, -62_135_596_801, 253_402_300_800] {
            assert_eq!(Entry::read(time(seconds, 1)).unwrap().modified, None);
        }
        let early = SystemTime::UNIX_EPOCH - Duration::from_millis(1500);
        assert_eq!(
            Entry::read(time(-2, 500_000_000)).unwrap().modified,
            Some(early)
        );
    }

    #[test]
    fn texts_are_kept_and_shown_harmlessly() {
        let entry = Entry::read(named("a\x1b]0;x\x07")).unwrap();
        assert_eq!(entry.name.as_given(), "a\x1b]0;x\x07");
        assert_eq!(entry.name.to_string(), "a\u{fffd}]0;x\u{fffd}");
        assert!(!format!("{entry:?}").contains('\x1b'));
        assert!(!entry.file_name().unwrap().is_empty());
    }
}
