//! The second disk: a command and the files it needs, mounted at `/machine`.

use std::fs;
use std::path::{Path, PathBuf};

use super::kernel::Kernel;
use crate::failure::{Context as _, Outcome};
use crate::program::Program;
use crate::test;

/// Room for what is copied in and for what the command writes.
const SIZE_MIB: u64 = 16 << 10;

/// Parts of a home that mean nothing on another machine, or are not needed to run.
const OF_THIS_HOST: [&str; 4] = ["disks", "sandboxes", "build-cache", "build-logs"];

/// What to run and what to bring.
pub(crate) struct Payload {
    script: String,
    files: Vec<(PathBuf, String)>,
}

impl Payload {
    /// A shell script and nothing else.
    pub(crate) fn new(script: impl Into<String>) -> Self {
        Self {
            script: script.into(),
            files: Vec::new(),
        }
    }

    /// Adds a file or tree of the host, at a path below `/machine`.
    pub(crate) fn file(&mut self, from: impl Into<PathBuf>, to: impl Into<String>) {
        self.files.push((from.into(), to.into()));
    }

    /// Adds the `atoll` that tests drive, and their home.
    pub(crate) fn atoll(&mut self, home: &Path) -> Outcome<()> {
        self.file(test::binary(), "atoll");
        let entries = fs::read_dir(home).context(|| format!("reading `{}`", home.display()))?;
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !OF_THIS_HOST.contains(&name.as_str()) {
                self.file(entry.path(), format!("home/{name}"));
            }
        }
        Ok(())
    }

    /// Makes the image.
    pub(super) fn pack(&self, directory: &Path, kernel: &Kernel) -> Outcome<PathBuf> {
        let tree = directory.join("payload");
        super::remove(&tree)?;
        fs::create_dir_all(&tree).context(|| format!("making `{}`", tree.display()))?;
        for (name, text) in [
            ("init", include_str!("second-init.sh")),
            ("command", self.script.as_str()),
        ] {
            let path = tree.join(name);
            fs::write(&path, format!("{text}\n"))
                .context(|| format!("writing `{}`", path.display()))?;
        }
        copy(&kernel.busybox(), &tree.join("busybox"))?;
        for (from, to) in &self.files {
            copy(from, &tree.join(to))?;
        }
        let image = directory.join("payload.img");
        super::pack(&tree, &image, SIZE_MIB)?;
        super::remove(&tree)?;
        Ok(image)
    }
}

fn copy(from: &Path, to: &Path) -> Outcome<()> {
    if let Some(parent) = to.parent() {
        Program::root("mkdir").arg("--parents").arg(parent).run()?;
    }
    Program::root("cp")
        .args(["--archive", "--sparse=always", "--no-target-directory"])
        .arg(from)
        .arg(to)
        .run()
}
