//! Copies files of the host, each with its mode, owner and time.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};

use super::{DPKG, SourceError, is_wanted, trust};

/// A copy under way.
pub(super) struct Copy<'root> {
    pub(super) root: &'root Path,
    pub(super) count: u64,
}

impl Copy<'_> {
    /// Directories every system has, and the links of a merged `/usr`.
    pub(super) fn skeleton(&mut self) -> Result<(), SourceError> {
        let directories = [
            "dev",
            "etc",
            "home",
            "mnt",
            "opt",
            "proc",
            "root",
            "run",
            "srv",
            "sys",
            "tmp",
            "usr",
            "usr/local/bin",
            "var/tmp",
            "var/lib",
            "var/cache",
            "var/log",
        ];
        for name in directories {
            self.directory(&self.root.join(name))?;
        }
        let modes = [
            ("", 0o755),
            ("root", 0o700),
            ("tmp", 0o1777),
            ("var/tmp", 0o1777),
        ];
        for (name, mode) in modes {
            let path = self.root.join(name);
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))
                .map_err(|source| failure(&path, source))?;
        }
        for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
            let host = Path::new("/").join(name);
            if fs::symlink_metadata(&host).is_ok_and(|data| data.is_symlink()) {
                let target = fs::read_link(&host).map_err(|source| failure(&host, source))?;
                self.directory(&self.root.join("usr").join(name))?;
                let link = self.root.join(name);
                symlink(target, &link).map_err(|source| failure(&link, source))?;
            }
        }
        self.write("etc/machine-id", "", 0o444)?;
        self.write("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n", 0o644)
    }

    /// Copies one path of the host with its mode, owner and time.
    pub(super) fn path(&mut self, path: &Path) -> Result<(), SourceError> {
        // Lists may name a path through a link of the merged /usr.
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(());
        };
        let Ok(parent) = parent.canonicalize() else {
            return Ok(());
        };
        let from = parent.join(name);
        let to = self.inside(&from);
        let Ok(data) = fs::symlink_metadata(&from) else {
            return Ok(());
        };
        if !is_wanted(&from.to_string_lossy()) {
            return Ok(());
        }
        let failed = |source| failure(&from, source);
        if let Some(above) = to.parent() {
            self.directory(above)?;
        }
        if data.is_dir() {
            self.directory(&to)?;
        } else if fs::symlink_metadata(&to).is_ok() {
            return Ok(());
        } else if data.is_symlink() {
            symlink(fs::read_link(&from).map_err(failed)?, &to).map_err(failed)?;
        } else if data.is_file() {
            fs::copy(&from, &to).map_err(failed)?;
            let time = data.modified().map_err(failed)?;
            fs::File::options()
                .write(true)
                .open(&to)
                .and_then(|file| file.set_modified(time))
                .map_err(failed)?;
        } else {
            return Ok(());
        }
        self.count += 1;
        lchown(&to, Some(data.uid()), Some(data.gid())).map_err(failed)?;
        if !data.is_symlink() {
            fs::set_permissions(&to, fs::Permissions::from_mode(data.mode() & 0o7777))
                .map_err(failed)?;
        }
        Ok(())
    }

    /// Compiled modules are in no list, but starting without them is slow.
    pub(super) fn python_caches(&mut self, lists: &BTreeSet<String>) -> Result<(), SourceError> {
        let sources = lists
            .iter()
            .filter(|path| path.ends_with(".py") && is_wanted(path));
        let directories: BTreeSet<PathBuf> = sources
            .filter_map(|path| Some(Path::new(path).parent()?.join("__pycache__")))
            .collect();
        for directory in directories {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                let name = entry.file_name();
                let module = name
                    .to_str()
                    .and_then(|name| name.split('.').next())
                    .unwrap_or_default();
                let source = directory.with_file_name(format!("{module}.py"));
                if lists.contains(&*source.to_string_lossy()) {
                    self.path(&entry.path())?;
                }
            }
        }
        Ok(())
    }

    /// `/usr/bin/awk` and the like, where what they lead to was copied.
    pub(super) fn alternatives(&mut self) -> Result<(), SourceError> {
        for entry in fs::read_dir("/etc/alternatives")
            .into_iter()
            .flatten()
            .flatten()
        {
            let Ok(target) = fs::read_link(entry.path()) else {
                continue;
            };
            if fs::symlink_metadata(self.inside(&target)).is_err() {
                continue;
            }
            self.path(&entry.path())?;
            let record = Path::new(DPKG).join("alternatives").join(entry.file_name());
            let text = fs::read_to_string(record).unwrap_or_default();
            if let Some(link) = text.lines().nth(1).filter(|link| link.starts_with('/')) {
                self.path(Path::new(link))?;
            }
        }
        Ok(())
    }

    /// Accounts of the distribution, none of this host.
    pub(super) fn accounts(&mut self) -> Result<(), SourceError> {
        let read = |path: &str| {
            fs::read_to_string(path).map_err(|source| failure(Path::new(path), source))
        };
        let passwd = read("/usr/share/base-passwd/passwd.master")?;
        let group = read("/usr/share/base-passwd/group.master")?;
        let lines = |text: &str, tail: &str| -> String {
            text.lines()
                .filter_map(|line| Some(format!("{}:{tail}\n", line.split(':').next()?)))
                .collect()
        };
        self.write("etc/passwd", &passwd.replace(":*:", ":x:"), 0o644)?;
        self.write("etc/group", &group.replace(":*:", ":x:"), 0o644)?;
        self.write("etc/shadow", &lines(&passwd, "*:19000:0:99999:7:::"), 0o640)?;
        self.write("etc/gshadow", &lines(&group, "*::"), 0o640)
    }

    /// The bundle of the host as one file; private keys are never near it.
    pub(super) fn certificates(&mut self) -> Result<(), SourceError> {
        let Some(bundle) = trust::bundle() else {
            return Ok(());
        };
        let text = fs::read_to_string(&bundle).map_err(|source| failure(&bundle, source))?;
        self.directory(&self.root.join("etc/ssl/certs"))?;
        self.write("etc/ssl/certs/ca-certificates.crt", &text, 0o644)
    }

    fn inside(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn directory(&self, path: &Path) -> Result<(), SourceError> {
        fs::create_dir_all(path).map_err(|source| failure(path, source))
    }

    fn write(&self, name: &str, text: &str, mode: u32) -> Result<(), SourceError> {
        let path = self.root.join(name);
        fs::write(&path, text)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
            .map_err(|source| failure(&path, source))
    }
}

fn failure(path: &Path, source: io::Error) -> SourceError {
    SourceError::File {
        path: path.to_owned(),
        source,
    }
}

/// Gives what was made here, rather than copied, the time 0: the same
/// packages then make the same layer.
pub(super) fn forget_times(root: &Path, begun: SystemTime) -> Result<(), SourceError> {
    let zero = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: zero,
        last_modification: zero,
    };
    // The clock of a file system lags behind by a tick.
    let begun = begun - Duration::from_secs(1);
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let data = fs::symlink_metadata(&path).map_err(|source| failure(&path, source))?;
        if data.is_dir() {
            for entry in fs::read_dir(&path).map_err(|source| failure(&path, source))? {
                pending.push(entry.map_err(|source| failure(&path, source))?.path());
            }
        }
        if data.is_dir() || data.is_symlink() || data.modified().is_ok_and(|time| time >= begun) {
            rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|error| failure(&path, error.into()))?;
        }
    }
    Ok(())
}
