//! The root file system: a small Debian with what Atoll calls, and the
//! kernel's modules so that the kernel can load what it is asked for.

use std::fs;
use std::path::{Path, PathBuf};

use super::kernel::Kernel;
use crate::failure::{Context as _, Failure, Outcome};
use crate::program::Program;
use crate::progress::step;

/// What tests and sandboxes find inside.
const PACKAGES: &str = "ca-certificates,e2fsprogs,git,iproute2,kmod,nftables,procps,python3,runc";

const SIZE_MIB: u64 = 4096;

/// Makes the image unless it is there; returns its path.
pub(super) fn make(directory: &Path, kernel: &Kernel) -> Outcome<PathBuf> {
    let image = directory.join("root.img");
    let stamp = directory.join("root.stamp");
    let wanted = format!("{}\n{PACKAGES}\n{SIZE_MIB}\n", kernel.release);
    if image.exists() && fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(image);
    }
    step("making the machine's root file system (about a minute)");
    let tree = directory.join("root");
    super::remove(&tree)?;
    Program::root("mmdebstrap")
        .args([
            "--quiet",
            "--variant=minbase",
            "--include",
            PACKAGES,
            &codename()?,
        ])
        .arg(&tree)
        .args(sources())
        .run()?;
    Program::root("mkdir")
        .args(["--parents"])
        .arg(tree.join("usr/lib/modules"))
        .arg(tree.join(relative(super::INSIDE)))
        .run()?;
    Program::root("cp")
        .arg("--archive")
        .arg("--no-preserve=ownership")
        .arg(kernel.modules())
        .arg(tree.join("usr/lib/modules"))
        .run()?;
    Program::root("chroot")
        .arg(&tree)
        .args(["/sbin/depmod", &kernel.release])
        .run()?;
    super::pack(&tree, &image, SIZE_MIB)?;
    // The initramfs takes the list of dependencies between modules from here.
    Program::root("cp")
        .arg(tree.join(format!("usr/lib/modules/{}/modules.dep", kernel.release)))
        .arg(directory)
        .run()?;
    super::remove(&tree)?;
    fs::write(&stamp, wanted).context(|| format!("writing `{}`", stamp.display()))?;
    Ok(image)
}

/// An absolute path as one below a tree.
fn relative(path: &str) -> &str {
    path.trim_start_matches('/')
}

/// The release of the host, so that what is built here runs there.
fn codename() -> Outcome<String> {
    let text =
        fs::read_to_string("/etc/os-release").context(|| "reading `/etc/os-release`".to_owned())?;
    text.lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .map(|name| name.trim_matches('"').to_owned())
        .ok_or_else(|| {
            Failure::new("`/etc/os-release` names no release")
                .hint("the machine can be made on Debian only")
        })
}

/// The host's own sources of Debian packages; none means mmdebstrap's default.
fn sources() -> Vec<PathBuf> {
    let files = [
        "/etc/apt/sources.list.d/debian.sources",
        "/etc/apt/sources.list",
    ];
    files
        .map(PathBuf::from)
        .into_iter()
        .filter(|file| fs::metadata(file).is_ok_and(|metadata| metadata.len() > 0))
        .take(1)
        .collect()
}
