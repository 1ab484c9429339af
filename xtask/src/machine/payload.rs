//! The second disk: a command and the files it needs, mounted at `/machine`.

use std::fs;
use std::path::{Path, PathBuf};

use super::kernel::Kernel;
use crate::failure::{Context as _, Outcome};
use crate::program::Program;

/// Room for what is copied in and for what the command writes.
const SIZE_MIB: u64 = 16 << 10;

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
