//! Where kernels find what they need: our programs, and a directory for each
//! with its sockets, which only its user may enter.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::boot::is_init;
use crate::users::User;

/// Everything that Python reads, by name.
const PROGRAMS: [(&str, &str); 4] = [
    ("charts.py", include_str!("../../kernels/charts.py")),
    ("forkserver.py", include_str!("../../kernels/forkserver.py")),
    ("hooks.py", include_str!("../../kernels/hooks.py")),
    ("plain.py", include_str!("../../kernels/plain.py")),
];

/// In a sandbox; a guest under test has a directory of its own.
const ROOT: &str = "/run/atoll/kernels";

/// Directories of all kernels.
#[derive(Debug)]
pub(super) struct Place {
    root: PathBuf,
    next: AtomicU64,
}

/// A kernel's own directory, which goes with it.
#[derive(Debug)]
pub(super) struct KernelDirectory(PathBuf);

impl Default for Place {
    fn default() -> Self {
        let root = if is_init() {
            PathBuf::from(ROOT)
        } else {
            std::env::temp_dir().join(format!("atoll-guest-{}", std::process::id()))
        };
        Self {
            root,
            next: AtomicU64::new(0),
        }
    }
}

impl Place {
    /// Puts our programs where everybody may read them and only root change
    /// them, and returns where one of them is.
    pub(super) fn program(&self, name: &str) -> io::Result<String> {
        fs::create_dir_all(&self.root)?;
        for (name, text) in PROGRAMS {
            let path = self.root.join(name);
            // Root of the sandbox may have put anything there: a new file, always.
            let staged = self.root.join(format!(".{name}"));
            let _ = fs::remove_file(&staged);
            let mut file = fs::File::options()
                .write(true)
                .create_new(true)
                .mode(0o444)
                .open(&staged)?;
            file.write_all(text.as_bytes())?;
            fs::rename(&staged, &path)?;
        }
        text_of(&self.root.join(name))
    }

    /// A new directory that belongs to `user`.
    pub(super) fn directory(&self, user: &User) -> io::Result<KernelDirectory> {
        fs::create_dir_all(&self.root)?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.root.join(format!("k{number}"));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        let directory = KernelDirectory(path);
        own(&directory.0, user)?;
        Ok(directory)
    }

    /// Removes everything, where this is no sandbox that goes as a whole.
    pub(super) fn clear(&self) {
        if !is_init() {
            let _ = fs::remove_dir_all(&self.root);
        }
    }
}

impl KernelDirectory {
    /// A path in it.
    pub(super) fn path(&self, name: &str) -> io::Result<String> {
        text_of(&self.0.join(name))
    }

    /// Writes a file that only its user may read.
    pub(super) fn write(&self, name: &str, text: &[u8], user: &User) -> io::Result<()> {
        let path = self.0.join(name);
        let mut file = fs::File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        file.write_all(text)?;
        own(&path, user)
    }
}

impl Drop for KernelDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Fails where the guest is not root, and then it is the user's already.
fn own(path: &Path, user: &User) -> io::Result<()> {
    if rustix::process::geteuid().as_raw() == user.uid {
        return Ok(());
    }
    chown(path, Some(user.uid), Some(user.gid))
}

fn text_of(path: &Path) -> io::Result<String> {
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| io::Error::other("the path is not text"))
}
