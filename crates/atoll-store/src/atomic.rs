//! Small files that survive a crash as the old or the new version, never as half of one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Replaces `path` by `bytes` (mode 0600) so that a crash at any moment leaves
/// either the previous content or the whole new one.
///
/// # Errors
/// When the directory is missing or the file system refuses; the previous
/// content is then untouched.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.ok_or_else(|| io::Error::other("the path has no directory"))?;
    let mut file = tempfile::Builder::new()
        .prefix(".new-")
        .tempfile_in(directory)?;
    file.write_all(bytes)?;
    file.as_file()
        .set_permissions(fs::Permissions::from_mode(0o600))?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_content_and_leaves_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a.json");
        write_atomically(&path, b"one").unwrap();
        write_atomically(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_directory_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        assert!(write_atomically(&home.path().join("no/a.json"), b"x").is_err());
    }
}
