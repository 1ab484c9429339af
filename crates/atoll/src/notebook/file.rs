//! The file of a notebook: read within a bound, replaced as a whole or not at
//! all, and never over changes that somebody made meanwhile.

use std::fs::{self, File, Metadata};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::cells::give_to_caller;
use crate::failure::Hinted;

/// Largest notebook that is read.
const NOTEBOOK_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// Mode of a new file, before the mask of the user.
const NEW_FILE_MODE: u32 = 0o666;

/// A notebook on the disk, as it was read.
#[derive(Debug)]
pub(crate) struct NotebookFile {
    /// Where it really is: what replaces it must not replace a link to it.
    path: PathBuf,
    text: String,
}

impl NotebookFile {
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let name = || format!("cannot read the notebook `{}`", path.display());
        let path = fs::canonicalize(path).with_context(name)?;
        let file = File::open(&path).with_context(name)?;
        if !file.metadata().with_context(name)?.is_file() {
            return Err(Hinted::error(
                format!("`{}` is not a file", path.display()),
                "name a notebook",
            ));
        }
        let mut bytes = Vec::new();
        file.take(NOTEBOOK_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .with_context(name)?;
        if bytes.len() as u64 > NOTEBOOK_BYTES_MAX {
            return Err(Hinted::error(
                format!(
                    "the notebook `{}` is larger than {} MiB",
                    path.display(),
                    NOTEBOOK_BYTES_MAX >> 20
                ),
                "clear its outputs in Jupyter and save it again",
            ));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            Hinted::error(
                format!(
                    "the notebook `{}` is not valid UTF-8 (byte {})",
                    path.display(),
                    error.utf8_error().valid_up_to()
                ),
                "a notebook is saved by Jupyter; a program has another extension",
            )
        })?;
        Ok(Self { path, text })
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Puts `text` in its place, unless somebody changed it since it was read.
    pub(crate) fn replace(&self, text: &str) -> anyhow::Result<()> {
        let now = fs::read(&self.path);
        if !now.is_ok_and(|now| now == self.text.as_bytes()) {
            return Err(Hinted::error(
                format!(
                    "`{}` was changed while it ran, and is left as it is",
                    self.path.display()
                ),
                "run it again, or write elsewhere with --output FILE",
            ));
        }
        replace(&self.path, text)
    }
}

/// Makes `text` the content of the file `path`, as a whole or not at all. A
/// file that is there keeps its owner and its mode.
pub(crate) fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let writing = || format!("cannot write the notebook `{}`", path.display());
    // Through a link, like every program that writes to a name.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let before = fs::metadata(&path).ok();
    if before.as_ref().is_some_and(|before| !before.is_file()) {
        return Err(Hinted::error(
            format!("`{}` is not a file", path.display()),
            "for a notebook, --output names a file",
        ));
    }
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .prefix(".atoll-notebook-")
        .permissions(fs::Permissions::from_mode(NEW_FILE_MODE))
        .tempfile_in(parent)
        .with_context(writing)?;
    file.write_all(text.as_bytes()).with_context(writing)?;
    dress(file.as_file(), before.as_ref()).with_context(writing)?;
    file.as_file().sync_all().with_context(writing)?;
    file.persist(&path)
        .map_err(|error| error.error)
        .with_context(writing)?;
    Ok(())
}

/// Owner and mode of what was there before, or of a file that the user makes.
fn dress(file: &File, before: Option<&Metadata>) -> std::io::Result<()> {
    let Some(before) = before else {
        give_to_caller(file);
        return Ok(());
    };
    // Only root can, and only root needs to.
    let _ = fchown(file, Some(before.uid()), Some(before.gid()));
    file.set_permissions(before.permissions())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_is_replaced_with_its_mode_and_through_links() {
        let here = tempfile::tempdir().unwrap();
        let (path, link) = (here.path().join("a.ipynb"), here.path().join("link.ipynb"));
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        symlink(&path, &link).unwrap();
        let file = NotebookFile::read(&link).unwrap();
        assert_eq!(file.text(), "old");
        file.replace("new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o640
        );
        assert_eq!(
            fs::read_dir(here.path()).unwrap().count(),
            2,
            "nothing is left over"
        );
    }

    #[test]
    fn changes_of_others_are_not_lost() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("a.ipynb");
        fs::write(&path, "old").unwrap();
        let file = NotebookFile::read(&path).unwrap();
        fs::write(&path, "theirs").unwrap();
        let error = file.replace("new").unwrap_err();
        assert!(error.to_string().contains("was changed while it ran"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
        fs::remove_file(&path).unwrap();
        assert!(file.replace("new").is_err());
        assert!(!path.exists());
    }

    #[test]
    fn what_is_no_text_is_refused() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("a.ipynb");
        fs::write(&path, b"{\"a\": \xff}").unwrap();
        let error = NotebookFile::read(&path).unwrap_err();
        assert!(
            error.to_string().contains("not valid UTF-8 (byte 6)"),
            "{error}"
        );
        assert!(NotebookFile::read(here.path()).is_err());
        assert!(replace(here.path(), "x").is_err());
        let huge = here.path().join("huge.ipynb");
        let file = File::create(&huge).unwrap();
        file.set_len(NOTEBOOK_BYTES_MAX + 1).unwrap();
        let error = NotebookFile::read(&huge).unwrap_err();
        assert!(error.to_string().contains("larger than 512 MiB"), "{error}");
    }
}
