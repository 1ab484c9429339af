//! The first file system of the machine: busybox and the few modules that
//! lead to the disks.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::kernel::Kernel;
use crate::failure::{Context as _, Failure, Outcome};
use crate::program::Program;

/// Modules to load before the disks appear, in this order.
const MODULES: [&str; 3] = ["virtio_pci", "virtio_blk", "ext4"];

/// Makes the image; returns its path.
pub(super) fn make(directory: &Path, kernel: &Kernel) -> Outcome<PathBuf> {
    let tree = directory.join("initramfs");
    super::remove(&tree)?;
    let mut files = vec![
        "bin".to_owned(),
        "bin/busybox".to_owned(),
        "init".to_owned(),
        "modules".to_owned(),
    ];
    fs::create_dir_all(tree.join("modules")).context(|| format!("making `{}`", tree.display()))?;
    fs::create_dir_all(tree.join("bin")).context(|| format!("making `{}`", tree.display()))?;
    copy(&kernel.busybox(), &tree.join("bin/busybox"))?;

    let dependencies = directory.join("modules.dep");
    let dependencies = fs::read_to_string(&dependencies)
        .context(|| format!("reading `{}`", dependencies.display()))?;
    let mut load = String::new();
    for module in load_order(&dependencies, &MODULES) {
        let name = Path::new(module)
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        copy(
            &kernel.modules().join(module),
            &tree.join("modules").join(&name),
        )?;
        load.push_str(&format!("insmod /modules/{name}\n"));
        files.push(format!("modules/{name}"));
    }
    let init = include_str!("first-init.sh").replace("@LOAD@", &load);
    let path = tree.join("init");
    fs::write(&path, init).context(|| format!("writing `{}`", path.display()))?;
    make_executable(&path)?;
    archive(kernel, &tree, &files, &directory.join("initramfs.img"))
}

/// Writes the archive with busybox's own `cpio`.
fn archive(kernel: &Kernel, tree: &Path, files: &[String], image: &Path) -> Outcome<PathBuf> {
    let output = fs::File::create(image).context(|| format!("making `{}`", image.display()))?;
    let program = Program::new(kernel.busybox())
        .directory(tree)
        .args(["cpio", "-o", "-H", "newc", "-R", "0:0"]);
    let mut child = program
        .command()
        .stdin(Stdio::piped())
        .stdout(output)
        .stderr(Stdio::null())
        .spawn()
        .context(|| format!("starting {program}"))?;
    if let Some(mut names) = child.stdin.take() {
        names
            .write_all(files.join("\n").as_bytes())
            .context(|| format!("writing to {program}"))?;
    }
    let status = child.wait().context(|| format!("waiting for {program}"))?;
    if status.success() {
        Ok(image.to_owned())
    } else {
        Err(Failure::new(format!("{program} ended with {status}")))
    }
}

/// Files of the modules and of all that they depend on, dependencies first. What is
/// not in the list is part of the kernel itself.
fn load_order<'a>(dependencies: &'a str, wanted: &[&str]) -> Vec<&'a str> {
    let mut order: Vec<&str> = Vec::new();
    for name in wanted {
        for line in dependencies.lines() {
            let Some((file, needs)) = line.split_once(':') else {
                continue;
            };
            if module_name(file) != *name {
                continue;
            }
            let needed: Vec<_> = needs.split_whitespace().map(module_name).collect();
            for file in load_order(dependencies, &needed).into_iter().chain([file]) {
                if !order.contains(&file) {
                    order.push(file);
                }
            }
        }
    }
    order
}

/// `kernel/drivers/block/virtio_blk.ko` is `virtio_blk`.
fn module_name(file: &str) -> &str {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.split_once('.').map_or(name, |(name, _)| name)
}

fn copy(from: &Path, to: &Path) -> Outcome<()> {
    fs::copy(from, to)
        .map(|_| ())
        .context(|| format!("copying `{}`", from.display()))
}

fn make_executable(path: &Path) -> Outcome<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .context(|| format!("changing the mode of `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_after_what_they_need_and_once() {
        let dependencies = "\
kernel/drivers/virtio/virtio_ring.ko: kernel/drivers/virtio/virtio.ko
kernel/drivers/virtio/virtio.ko:
kernel/drivers/block/virtio_blk.ko: kernel/drivers/virtio/virtio.ko kernel/drivers/virtio/virtio_ring.ko
kernel/net/tls.ko.xz:";
        let order = load_order(dependencies, &["virtio_blk", "ext4", "virtio_ring", "tls"]);
        let names: Vec<_> = order.into_iter().map(module_name).collect();
        assert_eq!(names, ["virtio", "virtio_ring", "virtio_blk", "tls"]);
    }
}
