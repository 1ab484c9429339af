//! What clients wrote beside a file: extended attributes of their own.

use std::collections::BTreeMap;

use rustix::fs::{lgetxattr, llistxattr};
use rustix::io::Errno;

/// Namespace of the attributes; what follows is the client's key.
pub(crate) const PREFIX: &str = "user.e2b.";

/// Keys and values of one file, in bytes together. More is not read.
const BYTES_MAX: usize = 4096;

/// Names of a file's attributes that fit without asking twice.
const NAMES_BYTES: usize = 1024;

/// The kernel has no longer list of names.
const NAMES_BYTES_MAX: usize = 64 * 1024;

/// The metadata of the file or directory at `path`, which is not followed if
/// it is a link. A file system without attributes has none.
pub(crate) fn read(path: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let names = names(path).unwrap_or_default();
    let mut bytes = 0;
    for name in names.split(|&byte| byte == 0) {
        let Some(key) = name.strip_prefix(PREFIX.as_bytes()) else {
            continue;
        };
        let mut value = [0_u8; BYTES_MAX];
        // Gone meanwhile, or longer than anything a client may write.
        let Ok(length) = lgetxattr(path, name, &mut value[..]) else {
            continue;
        };
        bytes += key.len() + length;
        if bytes > BYTES_MAX {
            break;
        }
        found.insert(
            String::from_utf8_lossy(key).into_owned(),
            String::from_utf8_lossy(&value[..length]).into_owned(),
        );
    }
    found
}

/// Names of all attributes, each ended by a zero.
fn names(path: &str) -> Result<Vec<u8>, Errno> {
    let mut few = [0_u8; NAMES_BYTES];
    match llistxattr(path, &mut few[..]) {
        Ok(length) => Ok(few[..length].to_vec()),
        Err(Errno::RANGE) => {
            let mut many = vec![0_u8; NAMES_BYTES_MAX];
            let length = llistxattr(path, &mut many[..])?;
            many.truncate(length);
            Ok(many)
        }
        Err(error) => Err(error),
    }
}
