//! Files that copy steps take from beside the spec.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

use atoll_store::{Digest, Hasher};

/// Files and directories of one copy step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Whether the path named in the spec is a directory.
    pub(crate) is_directory: bool,
    /// Sorted by name; a single file has its own name.
    pub(crate) entries: Vec<Entry>,
    /// Hash of names, modes and contents.
    pub(crate) digest: Digest,
}

/// One file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Name below the destination.
    pub(crate) name: PathBuf,
    /// Where it is on the host, without symbolic links.
    pub(crate) path: PathBuf,
    /// Permission bits.
    pub(crate) mode: u32,
    /// Whether it is a directory.
    pub(crate) is_directory: bool,
}

impl Entry {
    /// Opens the file that was selected: a link put in its place, or in that
    /// of a directory above it, is not followed.
    pub(crate) fn open(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = openat2(
            CWD,
            &self.path,
            flags,
            Mode::empty(),
            ResolveFlags::NO_SYMLINKS,
        )?;
        let file = File::from(file);
        if file.metadata()?.is_file() {
            Ok(file)
        } else {
            Err(io::Error::other("it is not a regular file any more"))
        }
    }
}

/// Why files could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    /// The spec came from nowhere.
    #[error("the spec has no directory to copy `{0}` from")]
    NoDirectory(PathBuf),
    /// A symbolic link points outside.
    #[error("`{0}` leads out of the directory of the spec through a symbolic link")]
    Outside(PathBuf),
    /// It is neither file nor directory.
    #[error("`{0}` is neither a file nor a directory")]
    Unsupported(PathBuf),
    /// A symbolic link to a directory, which could make a circle.
    #[error("`{0}` is a symbolic link to a directory; copy that directory by its own name")]
    DirectoryLink(PathBuf),
    /// It cannot be read.
    #[error("cannot read `{path}`")]
    Read {
        /// The path below the directory of the spec.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Finds everything below `from` in the directory `context`.
pub(crate) fn select(context: Option<&Path>, from: &Path) -> Result<Selection, ContextError> {
    let context = context.ok_or_else(|| ContextError::NoDirectory(from.to_owned()))?;
    let read = |path: &Path, source| ContextError::Read {
        path: path.to_owned(),
        source,
    };
    let context = context
        .canonicalize()
        .map_err(|error| read(context, error))?;
    let top = confined(&context, from)?;
    let is_directory = fs::metadata(&top)
        .map_err(|error| read(from, error))?
        .is_dir();
    let mut entries = Vec::new();
    let mut pending = vec![(PathBuf::new(), from.to_owned())];
    while let Some((name, shown)) = pending.pop() {
        let path = confined(&context, &shown)?;
        let data = fs::metadata(&path).map_err(|error| read(&shown, error))?;
        let mode = data.permissions().mode() & 0o777;
        if data.is_dir() {
            let is_link =
                fs::symlink_metadata(context.join(&shown)).is_ok_and(|data| data.is_symlink());
            if is_link && !name.as_os_str().is_empty() {
                return Err(ContextError::DirectoryLink(shown));
            }
            for entry in fs::read_dir(&path).map_err(|error| read(&shown, error))? {
                let part = entry.map_err(|error| read(&shown, error))?.file_name();
                pending.push((name.join(&part), shown.join(&part)));
            }
            if !name.as_os_str().is_empty() {
                entries.push(Entry {
                    name,
                    path,
                    mode,
                    is_directory: true,
                });
            }
        } else if data.is_file() {
            let name = if name.as_os_str().is_empty() {
                PathBuf::from(from.file_name().unwrap_or_default())
            } else {
                name
            };
            entries.push(Entry {
                name,
                path,
                mode,
                is_directory: false,
            });
        } else {
            return Err(ContextError::Unsupported(shown));
        }
    }
    entries.sort_by(|left, right| left.name.cmp(&right.name));
    let digest = digest(is_directory, &entries)?;
    Ok(Selection {
        is_directory,
        entries,
        digest,
    })
}

/// The real path of `shown`, when it is inside of `context`.
fn confined(context: &Path, shown: &Path) -> Result<PathBuf, ContextError> {
    let real = context
        .join(shown)
        .canonicalize()
        .map_err(|source| ContextError::Read {
            path: shown.to_owned(),
            source,
        })?;
    if real.starts_with(context) {
        Ok(real)
    } else {
        Err(ContextError::Outside(shown.to_owned()))
    }
}

fn digest(is_directory: bool, entries: &[Entry]) -> Result<Digest, ContextError> {
    let mut hasher = Hasher::new();
    hasher.update(&[u8::from(is_directory)]);
    let mut buffer = vec![0; 256 * 1024];
    for entry in entries {
        let name = entry.name.as_os_str().as_encoded_bytes();
        // Lengths first, so that no two selections give the same bytes.
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name);
        hasher.update(&entry.mode.to_le_bytes());
        hasher.update(&[u8::from(entry.is_directory)]);
        if entry.is_directory {
            continue;
        }
        let read = |source| ContextError::Read {
            path: entry.name.clone(),
            source,
        };
        let mut file = entry.open().map_err(read)?;
        let mut content = Hasher::new();
        loop {
            let length = file.read(&mut buffer).map_err(read)?;
            if length == 0 {
                break;
            }
            content.update(&buffer[..length]);
        }
        hasher.update(content.finish().hex().as_bytes());
    }
    Ok(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_directory_gives_its_content_and_its_hash_follows_every_change() {
        let context = tempfile::tempdir().unwrap();
        let app = context.path().join("app");
        fs::create_dir_all(app.join("empty")).unwrap();
        fs::write(app.join("main.py"), "print(1)").unwrap();
        symlink("main.py", app.join("link.py")).unwrap();
        let names = |selection: &Selection| {
            selection
                .entries
                .iter()
                .map(|entry| entry.name.display().to_string())
                .collect::<Vec<_>>()
        };
        let first = select(Some(context.path()), Path::new("app")).unwrap();
        assert_eq!(names(&first), ["empty", "link.py", "main.py"]);
        assert_eq!(
            select(Some(context.path()), Path::new("./app"))
                .unwrap()
                .digest,
            first.digest
        );
        fs::set_permissions(app.join("main.py"), fs::Permissions::from_mode(0o755)).unwrap();
        let second = select(Some(context.path()), Path::new("app")).unwrap();
        assert_ne!(second.digest, first.digest);
        fs::write(app.join("main.py"), "print(2)").unwrap();
        assert_ne!(
            select(Some(context.path()), Path::new("app"))
                .unwrap()
                .digest,
            second.digest
        );
        let file = select(Some(context.path()), Path::new("app/main.py")).unwrap();
        assert_eq!(
            (file.is_directory, names(&file)),
            (false, vec!["main.py".to_owned()])
        );
    }

    #[test]
    fn a_link_put_in_the_place_of_a_selected_file_is_not_followed() {
        let context = tempfile::tempdir().unwrap();
        let (file, dir) = (context.path().join("file"), context.path().join("dir"));
        fs::write(&file, "fine").unwrap();
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("passwd"), "fine").unwrap();
        let mut entries = select(Some(context.path()), Path::new("."))
            .unwrap()
            .entries;
        entries.retain(|entry| !entry.is_directory);
        assert!(entries.iter().all(|entry| entry.open().is_ok()));
        fs::remove_file(&file).unwrap();
        symlink("/etc/passwd", &file).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        symlink("/etc", &dir).unwrap();
        assert!(entries.iter().all(|entry| entry.open().is_err()));
    }

    #[test]
    fn links_out_and_circles_are_refused() {
        let context = tempfile::tempdir().unwrap();
        let at = |name: &str| context.path().join(name);
        fs::create_dir(at("dir")).unwrap();
        symlink("/etc/passwd", at("dir/out")).unwrap();
        let outside = select(Some(context.path()), Path::new("dir"));
        assert!(
            matches!(outside, Err(ContextError::Outside(_))),
            "{outside:?}"
        );
        symlink("/etc", at("etc")).unwrap();
        let outside = select(Some(context.path()), Path::new("etc/passwd"));
        assert!(
            matches!(outside, Err(ContextError::Outside(_))),
            "{outside:?}"
        );
        fs::create_dir(at("circle")).unwrap();
        symlink(".", at("circle/again")).unwrap();
        let circle = select(Some(context.path()), Path::new("circle"));
        assert!(
            matches!(circle, Err(ContextError::DirectoryLink(_))),
            "{circle:?}"
        );
        let missing = select(Some(context.path()), Path::new("nothing"));
        assert!(
            matches!(missing, Err(ContextError::Read { .. })),
            "{missing:?}"
        );
        assert!(matches!(
            select(None, Path::new("dir")),
            Err(ContextError::NoDirectory(_))
        ));
    }
}
