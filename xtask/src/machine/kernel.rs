//! The kernel and busybox, downloaded and unpacked but never installed.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::{Context as _, Failure, Outcome};
use crate::program::Program;
use crate::progress::step;

/// Names whichever kernel is current.
const META_PACKAGE: &str = "linux-image-cloud-amd64";

/// Unpacked packages.
pub(super) struct Kernel {
    directory: PathBuf,
    /// As `uname -r` says it.
    pub(super) release: String,
}

impl Kernel {
    /// Downloads and unpacks, unless that was done before.
    pub(super) fn fetch(directory: &Path) -> Outcome<Self> {
        if let Some(release) = release_in(directory) {
            return Ok(Self {
                directory: directory.to_owned(),
                release,
            });
        }
        let package = match current_package()? {
            Some(package) => package,
            None => {
                // The lists may be there, old or empty: only the update tells.
                Program::root("apt-get").args(["--quiet", "update"]).run()?;
                current_package()?.ok_or_else(|| {
                    Failure::new(format!("apt knows no package `{META_PACKAGE}`"))
                        .hint("the machine needs the `main` component of Debian in the host's apt sources")
                })?
            }
        };
        step(format_args!("downloading {package}"));
        let fresh = directory.with_extension("new");
        super::remove(&fresh)?;
        fs::create_dir_all(&fresh).context(|| format!("making `{}`", fresh.display()))?;
        Program::new("apt-get")
            .directory(&fresh)
            .args(["--quiet", "download", &package, "busybox-static"])
            .run()?;
        let downloads =
            fs::read_dir(&fresh).context(|| format!("reading `{}`", fresh.display()))?;
        for file in downloads
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == "deb"))
        {
            Program::new("dpkg-deb")
                .arg("--extract")
                .arg(&file)
                .arg(&fresh)
                .run()?;
            fs::remove_file(&file).context(|| format!("removing `{}`", file.display()))?;
        }
        super::remove(directory)?;
        fs::rename(&fresh, directory).context(|| format!("naming `{}`", directory.display()))?;
        let release = release_in(directory).ok_or_else(|| {
            Failure::new(format!("there is no kernel in the package `{package}`"))
        })?;
        Ok(Self {
            directory: directory.to_owned(),
            release,
        })
    }

    pub(super) fn image(&self) -> PathBuf {
        self.directory
            .join(format!("boot/vmlinuz-{}", self.release))
    }

    pub(super) fn modules(&self) -> PathBuf {
        modules_in(&self.directory).join(&self.release)
    }

    pub(super) fn busybox(&self) -> PathBuf {
        ["usr/bin/busybox", "bin/busybox"]
            .map(|path| self.directory.join(path))
            .into_iter()
            .find(|path| path.exists())
            .unwrap_or_else(|| self.directory.join("bin/busybox"))
    }
}

/// Where the modules lie: newer releases of Debian have them below `usr`.
fn modules_in(directory: &Path) -> PathBuf {
    let merged = directory.join("usr/lib/modules");
    if merged.exists() {
        merged
    } else {
        directory.join("lib/modules")
    }
}

fn release_in(directory: &Path) -> Option<String> {
    let entry = fs::read_dir(modules_in(directory)).ok()?.flatten().next()?;
    entry.file_name().into_string().ok()
}

fn current_package() -> Outcome<Option<String>> {
    let depends = Program::new("apt-cache")
        .args(["depends", META_PACKAGE])
        .command()
        .output();
    let depends = depends.context(|| "asking apt for the kernel".to_owned())?;
    Ok(String::from_utf8_lossy(&depends.stdout)
        .lines()
        .find_map(dependency)
        .map(str::to_owned))
}

/// The kernel that a line of `apt-cache depends` names.
fn dependency(line: &str) -> Option<&str> {
    line.trim()
        .strip_prefix("Depends: ")
        .filter(|name| name.starts_with("linux-image-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_what_the_meta_package_depends_on() {
        assert_eq!(
            dependency("  Depends: linux-image-6.1.0-54-cloud-amd64"),
            Some("linux-image-6.1.0-54-cloud-amd64")
        );
        assert_eq!(dependency("linux-image-cloud-amd64"), None);
    }
}
