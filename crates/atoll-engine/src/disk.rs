//! The writable disk of a sandbox: a sparse ext4 image of exactly its limit,
//! made in advance and used once.
//!
//! `<home>/disks/<size>-<inodes>/template.img` is made by `mkfs.ext4` once
//! per size; `ready-*.img` beside it are copies waiting for a sandbox; the
//! disk in use is `<home>/disks/<sandbox>.img`.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{SeekFrom, copy_file_range, seek};

use crate::host::file::{self, FileLock, commit, make_dir, remove_file, remove_tree};
use crate::host::{HostObject, creates, loop_device, mount, program};
use crate::{Limits, SandboxId};

/// Ready copies kept per size.
const POOL_SIZE: usize = 2;
/// Sizes for which copies are kept; whoever asks for others does so at the cost of the one
/// that was asked for least recently.
const POOLS_MAX: usize = 8;
/// A larger journal only costs space on a disk that is thrown away.
const JOURNAL_MIB: u64 = 16;
/// Below this ext4 cannot hold even a small journal.
const JOURNAL_MINIMUM_DISK_MIB: u64 = 64;

/// Disks of one home.
pub(crate) struct Disks {
    dir: PathBuf,
}

impl Disks {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Where the disk of `sandbox` is, whether or not it exists.
    pub(crate) fn image(&self, sandbox: &SandboxId) -> PathBuf {
        self.dir.join(format!("{sandbox}.img"))
    }

    /// Makes the disk of `sandbox`, from the pool if it has one.
    pub(crate) fn create(&self, sandbox: &SandboxId, limits: &Limits) -> io::Result<PathBuf> {
        // A pool that is drained at this moment is made again.
        match self.try_create(sandbox, limits) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.dir.exists() => {
                self.try_create(sandbox, limits)
            }
            other => other,
        }
    }

    fn try_create(&self, sandbox: &SandboxId, limits: &Limits) -> io::Result<PathBuf> {
        make_dir(&self.dir, 0o700)?;
        let image = self.image(sandbox);
        let pool = Pool::open(&self.dir, limits)?;
        for ready in pool.ready()? {
            // Another monitor may have taken it; then the next one will do.
            if commit(HostObject::PooledDiskTaken, &ready, &image).is_ok() {
                return Ok(image);
            }
        }
        let template = match pool.existing_template() {
            Some(template) => template,
            None => pool.template(limits, &file::lock(&pool.lock_path())?)?,
        };
        creates(HostObject::DiskImage, || sparse_copy(&template, &image))?;
        Ok(image)
    }

    /// Fills the pool for `limits` again. Called when nobody waits.
    pub(crate) fn refill(&self, limits: &Limits) -> io::Result<()> {
        let pool = Pool::open(&self.dir, limits)?;
        let Some(lock) = file::try_lock(&pool.lock_path())? else {
            return Ok(()); // somebody else is filling it
        };
        // Under the lock, an unfinished copy has no author any more.
        pool.remove_unfinished()?;
        let template = pool.template(limits, &lock)?;
        for _ in pool.ready()?.len()..POOL_SIZE {
            let name = SandboxId::random()?;
            let unfinished = pool.dir.join(format!("unfinished-{name}.img"));
            or_nothing(&unfinished, sparse_copy(&template, &unfinished))?;
            commit(
                HostObject::PooledDisk,
                &unfinished,
                &pool.dir.join(format!("ready-{name}.img")),
            )?;
        }
        self.evict(&pool.dir)
    }

    /// Removes the pools that were used least recently, beyond a number; not the one at `kept`.
    fn evict(&self, kept: &Path) -> io::Result<()> {
        let mut pools = self.pools()?;
        let surplus = pools.len().saturating_sub(POOLS_MAX);
        pools.retain(|pool| pool != kept);
        // One that is gone by now is the first to go.
        pools.sort_by_key(|pool| fs::metadata(pool).and_then(|found| found.modified()).ok());
        for pool in pools.iter().take(surplus) {
            // Somebody fills one that is locked.
            if let Some(_lock) = file::try_lock(&pool.join("lock"))? {
                remove_tree(pool)?;
            }
        }
        Ok(())
    }

    /// Removes disks of sandboxes that are not among `known`, and returns how many.
    pub(crate) fn remove_unknown(&self, known: &BTreeSet<SandboxId>) -> io::Result<usize> {
        let mut removed = 0;
        for entry in fs::read_dir(&self.dir).into_iter().flatten() {
            let path = entry?.path();
            let name = path
                .file_stem()
                .and_then(|name| name.to_str()?.parse().ok());
            let is_image = path.extension().is_some_and(|extension| extension == "img");
            if is_image && name.is_some_and(|name: SandboxId| !known.contains(&name)) {
                remove_file(&path)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Directories of disks made in advance.
    fn pools(&self) -> io::Result<Vec<PathBuf>> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let directories = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        Ok(directories.map(|entry| entry.path()).collect())
    }

    /// Directories of disks made in advance, and the space that each takes.
    pub(crate) fn pooled(&self) -> io::Result<Vec<(PathBuf, u64)>> {
        let mut pooled = Vec::new();
        for pool in self.pools()? {
            let files = fs::read_dir(&pool)?.flatten();
            let bytes = files.map(|file| space_of(&file.path())).sum();
            pooled.push((pool, bytes));
        }
        Ok(pooled)
    }

    /// Removes every disk made in advance.
    pub(crate) fn drain(&self) -> io::Result<()> {
        for pool in self.pools()? {
            let _lock = file::lock(&pool.join("lock"))?;
            remove_tree(&pool)?;
        }
        Ok(())
    }

    /// Space that the disk of a sandbox takes.
    pub(crate) fn bytes_of(&self, id: &SandboxId) -> u64 {
        space_of(&self.image(id))
    }
}

/// Space that a file takes on disk; none if it is not there.
pub(crate) fn space_of(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    fs::symlink_metadata(path).map_or(0, |metadata| metadata.blocks() * 512)
}

/// Binds `image` to a loop device and mounts it at `target`.
pub(crate) fn mount_image(image: &Path, target: &Path) -> io::Result<()> {
    make_dir(target, 0o700)?;
    let device = loop_device::attach(image)?;
    mount::ext4(&device.path, target)
}

struct Pool {
    dir: PathBuf,
}

impl Pool {
    fn open(disks: &Path, limits: &Limits) -> io::Result<Self> {
        let inodes = limits
            .inodes
            .map_or_else(|| "auto".to_owned(), |inodes| inodes.to_string());
        let dir = disks.join(format!("{}m-{inodes}", limits.disk_mib));
        make_dir(&dir, 0o700)?;
        Ok(Self { dir })
    }

    /// Whoever makes files here holds this lock.
    fn lock_path(&self) -> PathBuf {
        self.dir.join("lock")
    }

    fn named(&self, prefix: &str) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(prefix) {
                found.push(entry.path());
            }
        }
        Ok(found)
    }

    fn ready(&self) -> io::Result<Vec<PathBuf>> {
        self.named("ready-")
    }

    fn remove_unfinished(&self) -> io::Result<()> {
        self.named("unfinished-")?.iter().try_for_each(|path| {
            if path.is_dir() {
                remove_tree(path)
            } else {
                remove_file(path)
            }
        })
    }

    fn existing_template(&self) -> Option<PathBuf> {
        let template = self.dir.join("template.img");
        template.exists().then_some(template)
    }

    /// The empty file system of this size, made on first use.
    fn template(&self, limits: &Limits, _lock: &FileLock) -> io::Result<PathBuf> {
        if let Some(template) = self.existing_template() {
            return Ok(template);
        }
        let template = self.dir.join("template.img");
        let unfinished = self
            .dir
            .join(format!("unfinished-{}.img", SandboxId::random()?));
        or_nothing(&unfinished, format(&unfinished, limits))?;
        commit(HostObject::DiskTemplate, &unfinished, &template)?;
        Ok(template)
    }
}

/// Removes what was half made at `path`: it takes room where there was not enough.
fn or_nothing(path: &Path, made: io::Result<()>) -> io::Result<()> {
    made.inspect_err(|_| {
        // The next one who has the lock tries again.
        let _ = fs::remove_file(path);
    })
}

/// An ext4 file system in a new file at `path`, with the two directories of an overlay.
fn format(path: &Path, limits: &Limits) -> io::Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.set_len(limits.disk_mib * 1024 * 1024)?;
    drop(file);
    let root = path.with_extension("root");
    let result = (|| {
        for name in ["upper", "work"] {
            make_dir(&root.join(name), 0o755)?;
        }
        let mut arguments: Vec<String> = ["-q", "-F", "-m", "0", "-b", "4096", "-E"]
            .map(str::to_owned)
            .to_vec();
        arguments
            .push("lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0".to_owned());
        if limits.disk_mib >= JOURNAL_MINIMUM_DISK_MIB {
            arguments.extend([
                "-J".to_owned(),
                format!("size={}", JOURNAL_MIB.min(limits.disk_mib / 8).max(4)),
            ]);
        } else {
            arguments.extend(["-O".to_owned(), "^has_journal".to_owned()]);
        }
        if let Some(inodes) = limits.inodes {
            arguments.extend(["-N".to_owned(), inodes.to_string()]);
        }
        arguments.extend([
            "-d".to_owned(),
            root.display().to_string(),
            path.display().to_string(),
        ]);
        program::run("mkfs.ext4", "e2fsprogs", &arguments)
    })();
    remove_tree(&root)?;
    result
}

/// Copies the data of a sparse file and leaves its holes holes.
fn sparse_copy(source: &Path, target: &Path) -> io::Result<()> {
    let from = File::open(source)?;
    let to = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(target)?;
    let length = from.metadata()?.len();
    to.set_len(length)?;
    let mut position = 0;
    while position < length {
        let start = match seek(&from, SeekFrom::Data(position)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => break, // only holes are left
            Err(error) => return Err(error.into()),
        };
        let end = seek(&from, SeekFrom::Hole(start))?;
        let (mut read, mut written) = (start, start);
        while read < end {
            let wanted = usize::try_from(end - read).unwrap_or(usize::MAX);
            if copy_file_range(
                from.as_fd(),
                Some(&mut read),
                to.as_fd(),
                Some(&mut written),
                wanted,
            )? == 0
            {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the disk template shrank while it was copied",
                ));
            }
        }
        position = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek as _, Write as _};
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn only_so_many_sizes_are_kept_and_the_oldest_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        let disks = Disks::new(dir.path().to_owned());
        let names: Vec<PathBuf> = (0..POOLS_MAX + 2)
            .map(|number| dir.path().join(format!("{number}m-auto")))
            .collect();
        for (number, pool) in names.iter().enumerate() {
            make_dir(pool, 0o700).unwrap();
            let at = std::time::SystemTime::UNIX_EPOCH
                + std::time::Duration::from_secs(1_000 + number as u64);
            File::open(pool).unwrap().set_modified(at).unwrap();
        }
        disks.evict(&names[0]).unwrap();
        let mut left = disks.pools().unwrap();
        left.sort();
        let mut expected = names.clone();
        expected.drain(1..3);
        expected.sort();
        assert_eq!(left, expected);
    }

    #[test]
    fn a_sparse_copy_is_equal_and_stays_sparse() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("source");
        let mut file = File::create(&source).unwrap();
        file.set_len(64 << 20).unwrap();
        for place in [0_u64, 5 << 20, (64 << 20) - 4] {
            file.seek(io::SeekFrom::Start(place)).unwrap();
            file.write_all(b"data").unwrap();
        }
        let target = dir.path().join("target");
        sparse_copy(&source, &target).unwrap();
        assert!(fs::read(&source).unwrap() == fs::read(&target).unwrap());
        assert!(target.metadata().unwrap().blocks() * 512 < 1 << 20);
    }
}
