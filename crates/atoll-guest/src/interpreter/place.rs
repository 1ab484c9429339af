//! Where kernels find what they need: our programs, and a directory for each
//! with its sockets, which only its user may enter.
//!
//! Root works in the user's directories, where the user may put anything in
//! the place of anything: what root writes it writes before the user gets the
//! directory, and what it reads there later has to be a file of the user.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::boot::is_init;
use crate::filesystem::removal;
use crate::users::User;

/// Everything that Python reads, by name.
const PROGRAMS: [(&str, &str); 6] = [
    ("charts.py", include_str!("../../kernels/charts.py")),
    ("figures.py", include_str!("../../kernels/figures.py")),
    ("forkserver.py", include_str!("../../kernels/forkserver.py")),
    ("hooks.py", include_str!("../../kernels/hooks.py")),
    ("plain.py", include_str!("../../kernels/plain.py")),
    ("streams.py", include_str!("../../kernels/streams.py")),
];

/// In a sandbox; a guest under test has a directory of its own.
const ROOT: &str = "/run/atoll/kernels";

/// Most that is read of a file of the user.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Stack of the thread that removes directories.
const STACK_BYTES: usize = 256 * 1024;

/// Directories of all kernels.
#[derive(Debug)]
pub(super) struct Place {
    root: PathBuf,
    next: AtomicU64,
    leftovers: Leftovers,
}

/// Directories that nobody needs any more and that are still there.
type Leftovers = Arc<Mutex<Vec<PathBuf>>>;

/// A kernel's own directory, which goes with it.
#[derive(Debug)]
pub(super) struct KernelDirectory {
    path: PathBuf,
    leftovers: Leftovers,
}

impl Default for Place {
    fn default() -> Self {
        Self::at(if is_init() {
            PathBuf::from(ROOT)
        } else {
            std::env::temp_dir().join(format!("atoll-guest-{}", std::process::id()))
        })
    }
}

impl Place {
    fn at(root: PathBuf) -> Self {
        Self {
            root,
            next: AtomicU64::new(0),
            leftovers: Leftovers::default(),
        }
    }

    /// Puts our programs where everybody may read them and only root change
    /// them, and returns where one of them is.
    pub(super) fn program(&self, name: &str) -> io::Result<String> {
        fs::create_dir_all(&self.root)?;
        for (name, text) in PROGRAMS {
            let path = self.root.join(name);
            // Root of the sandbox may have put anything there: a new file, always.
            let staged = self.root.join(format!(".{name}"));
            let _ = fs::remove_file(&staged);
            let mut file = File::options()
                .write(true)
                .create_new(true)
                .mode(0o444)
                .open(&staged)?;
            file.write_all(text.as_bytes())?;
            fs::rename(&staged, &path)?;
        }
        text_of(&self.root.join(name))
    }

    /// A new directory, which is ours until it is given away.
    pub(super) fn directory(&self) -> io::Result<KernelDirectory> {
        fs::create_dir_all(&self.root)?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.root.join(format!("k{number}"));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(KernelDirectory {
            path,
            leftovers: Arc::clone(&self.leftovers),
        })
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
        text_of(&self.path.join(name))
    }

    /// Writes a file that only `user` may read, and gives all of it away.
    pub(super) fn give_with(&self, name: &str, text: &[u8], user: &User) -> io::Result<()> {
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.path.join(name))?;
        file.write_all(text)?;
        give(&file, user)?;
        let directory = File::options()
            .read(true)
            .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
            .open(&self.path)?;
        give(&directory, user)
    }

    /// What `user` wrote to a file in it, as far as anybody wants to know.
    pub(super) fn read_of(&self, name: &str, user: &User) -> Option<String> {
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(self.path.join(name))
            .ok()?;
        let stat = file.metadata().ok()?;
        if !stat.is_file() || stat.uid() != user.uid {
            return None;
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Drop for KernelDirectory {
    /// On a thread: what a user put there may be as much as fits. Where none
    /// can be made, the next one removes this as well.
    fn drop(&mut self) {
        let leftovers = Arc::clone(&self.leftovers);
        let take = |leftovers: &Leftovers| {
            std::mem::take(&mut *leftovers.lock().unwrap_or_else(PoisonError::into_inner))
        };
        let put = |path| {
            leftovers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(path);
        };
        put(std::mem::take(&mut self.path));
        let swept = Arc::clone(&leftovers);
        // Not joined: nobody waits for it, and a process that ends takes it along.
        let _ = std::thread::Builder::new()
            .name("sweeper".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                for path in take(&swept) {
                    if let Some(path) = path.to_str() {
                        let _ = removal::remove(path);
                    }
                }
            });
    }
}

/// Fails where the guest is not root, and then it is the user's already.
fn give(file: &File, user: &User) -> io::Result<()> {
    if rustix::process::geteuid().as_raw() == user.uid {
        return Ok(());
    }
    fchown(file, Some(user.uid), Some(user.gid))
}

fn text_of(path: &Path) -> io::Result<String> {
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| io::Error::other("the path is not text"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::time::{Duration, Instant};

    use super::*;

    /// Not who runs the tests.
    fn somebody() -> User {
        User {
            name: "somebody".to_owned(),
            uid: 54321,
            gid: 54321,
            groups: vec![54321],
            home: "/".to_owned(),
        }
    }

    fn owner(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().uid()
    }

    #[test]
    fn a_directory_is_given_away_with_what_is_in_it_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("kernels");
        let directory = Place::at(root.clone()).directory().unwrap();
        let inside = root.join("k0");
        let us = rustix::process::geteuid().as_raw();
        assert_eq!(us, 0, "run as root, as `cargo xtask test` does");
        let mode = fs::metadata(&inside).unwrap().permissions().mode();
        assert_eq!((owner(&inside), mode & 0o777), (us, 0o700));
        directory.give_with("a", b"text", &somebody()).unwrap();
        let mode = fs::metadata(inside.join("a")).unwrap().permissions().mode();
        assert_eq!(
            (owner(&inside), owner(&inside.join("a")), mode & 0o777),
            (54321, 54321, 0o600)
        );
        assert_eq!(fs::read(inside.join("a")).unwrap(), b"text");

        // A link in the place of either leads nowhere.
        let victim = place.path().join("victim");
        fs::create_dir(&victim).unwrap();
        fs::remove_dir_all(&inside).unwrap();
        symlink(&victim, &inside).unwrap();
        directory.give_with("b", b"text", &somebody()).unwrap_err();
        assert_eq!(owner(&victim), us);
        fs::remove_file(&inside).unwrap();
        fs::create_dir(&inside).unwrap();
        fs::write(place.path().join("file"), "kept").unwrap();
        symlink(place.path().join("file"), inside.join("c")).unwrap();
        directory.give_with("c", b"text", &somebody()).unwrap_err();
        assert_eq!(owner(&place.path().join("file")), us);
        assert_eq!(fs::read(place.path().join("file")).unwrap(), b"kept");
    }

    #[test]
    fn only_files_of_the_user_are_read() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("kernels");
        let directory = Place::at(root.clone()).directory().unwrap();
        let inside = root.join("k0");
        let user = somebody();
        directory.give_with("own", b"said", &user).unwrap();
        assert_eq!(directory.read_of("own", &user).as_deref(), Some("said"));
        let secret = place.path().join("secret");
        fs::write(&secret, "of root").unwrap();
        symlink(&secret, inside.join("link")).unwrap();
        fs::hard_link(&secret, inside.join("hard")).unwrap();
        fs::create_dir(inside.join("directory")).unwrap();
        let mode = rustix::fs::Mode::RWXU;
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, inside.join("pipe"), fifo, mode, 0).unwrap();
        chown(inside.join("pipe"), Some(user.uid), None).unwrap();
        chown(inside.join("directory"), Some(user.uid), None).unwrap();
        for name in ["link", "hard", "directory", "pipe", "missing"] {
            assert_eq!(directory.read_of(name, &user), None, "{name}");
        }
        fs::write(inside.join("own"), vec![b'x'; 1 << 20]).unwrap();
        let read = directory.read_of("own", &user).unwrap();
        assert_eq!(read.len() as u64, FILE_BYTES_MAX);
    }

    #[test]
    fn what_a_kernel_leaves_is_removed_however_deep_it_is() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("kernels");
        let directory = Place::at(root.clone()).directory().unwrap();
        let inside = root.join("k0");
        // Deeper than a path can be long, and than a stack.
        let mut at = rustix::fs::open(
            &inside,
            rustix::fs::OFlags::DIRECTORY,
            rustix::fs::Mode::empty(),
        )
        .unwrap();
        for _ in 0..5000 {
            rustix::fs::mkdirat(&at, "d", rustix::fs::Mode::RWXU).unwrap();
            at = rustix::fs::openat(
                &at,
                "d",
                rustix::fs::OFlags::DIRECTORY,
                rustix::fs::Mode::empty(),
            )
            .unwrap();
        }
        drop(directory);
        let deadline = Instant::now() + Duration::from_secs(60);
        while inside.exists() {
            assert!(Instant::now() < deadline, "still there");
            std::thread::yield_now();
        }
    }
}
