//! Where things of this workspace are.

use std::path::{Path, PathBuf};

/// The root of the workspace.
pub(crate) fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package)
}

/// Where cargo builds to.
pub(crate) fn target() -> PathBuf {
    // A relative one counts from where cargo was called, which is what cargo itself does.
    std::env::var_os("CARGO_TARGET_DIR")
        .and_then(|directory| std::path::absolute(directory).ok())
        .unwrap_or_else(|| root().join("target"))
}

/// Where programs lie that drive a guest with clients of others.
pub(crate) fn client_programs() -> PathBuf {
    root().join("crates/atoll/tests/clients")
}

/// One of the files that `up` shows.
pub(crate) fn example(name: &str) -> PathBuf {
    root().join("examples").join(name)
}
