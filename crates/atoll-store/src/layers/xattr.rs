//! Which extended attributes a layer keeps.

use std::io;
use std::path::Path;

use rustix::io::Errno;

/// Longest list or value the kernel allows.
const XATTR_BYTES: usize = 64 * 1024;

/// Whether an attribute is part of a layer. What is not is bound to one disk
/// (file handles of the overlay) or to one host (labels of its policy).
pub(crate) fn is_kept(name: &str) -> bool {
    if let Some(overlay) = name.strip_prefix("trusted.overlay.") {
        return overlay.starts_with("overlay.")
            || matches!(overlay, "opaque" | "redirect" | "whiteout" | "metacopy");
    }
    name.starts_with("user.")
        || matches!(
            name,
            "security.capability" | "system.posix_acl_access" | "system.posix_acl_default"
        )
}

/// The attributes of `path` (of itself, when it is a symbolic link) that a
/// layer keeps, by name.
pub(crate) fn kept(path: &Path) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut list = vec![0_u8; XATTR_BYTES];
    let length = match rustix::fs::llistxattr(path, &mut list[..]) {
        Ok(0) | Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Ok(length) => length,
        Err(error) => return Err(error.into()),
    };
    let mut found = Vec::new();
    for name in list[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        let Ok(name) = std::str::from_utf8(name) else {
            continue;
        };
        if !is_kept(name) {
            continue;
        }
        let mut value = vec![0_u8; XATTR_BYTES];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..])?;
        value.truncate(length);
        found.push((name.to_owned(), value));
    }
    found.sort();
    Ok(found)
}
