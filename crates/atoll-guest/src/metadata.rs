//! What clients say about a file, kept in its extended attributes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;

use axum::http::HeaderMap;
use rustix::fs::{XattrFlags, flistxattr, fremovexattr, fsetxattr, lgetxattr, llistxattr};
use rustix::io::Errno;

/// What the names of our attributes start with.
pub(crate) const PREFIX: &str = "user.e2b.";

/// What the names of their headers start with.
const HEADER_PREFIX: &str = "x-metadata-";

/// Longest name of an attribute: the kernel's `XATTR_NAME_MAX`.
const NAME_BYTES_MAX: usize = 255;

/// Names and values of one file together: ext4 has one block for them.
const TOTAL_BYTES_MAX: usize = 4096;

/// Longest list of names: the kernel's `XATTR_LIST_MAX`.
const LIST_BYTES_MAX: usize = 64 * 1024;

/// Names of a file's attributes that fit without asking twice.
const NAMES_BYTES: usize = 1024;

/// Keys in lower case and their values.
pub(crate) type Metadata = BTreeMap<String, String>;

/// Metadata that cannot be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MetadataError {
    /// The name of the attribute would be too long.
    #[error("metadata key of {length} bytes exceeds {limit}")]
    Key {
        /// Its length.
        length: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// Headers carry nothing else safely.
    #[error("metadata value of '{0}' is not printable ASCII")]
    Value(String),
    /// The file system has less room for it than we allow.
    #[error("the file system has no room for that much metadata")]
    NoRoom,
    /// All of it together.
    #[error("metadata of {length} bytes exceeds {limit}")]
    Total {
        /// Its length.
        length: usize,
        /// Bytes allowed.
        limit: usize,
    },
}

/// What the headers of an upload say. Of a repeated one the first counts, as
/// for E2B's own envd; one without a key says nothing.
pub(crate) fn from_headers(headers: &HeaderMap) -> Result<Metadata, MetadataError> {
    let mut metadata = Metadata::new();
    let mut total = 0;
    for name in headers.keys() {
        // Names of headers come in lower case and in ASCII.
        let key = name.as_str().strip_prefix(HEADER_PREFIX);
        let Some(key) = key.filter(|key| !key.is_empty()) else {
            continue;
        };
        let limit = NAME_BYTES_MAX - PREFIX.len();
        if key.len() > limit {
            let length = key.len();
            return Err(MetadataError::Key { length, limit });
        }
        let value = headers
            .get(name)
            .and_then(|value| std::str::from_utf8(value.as_bytes()).ok())
            .filter(|value| value.bytes().all(|byte| matches!(byte, b' '..=b'~')))
            .ok_or_else(|| MetadataError::Value(key.to_owned()))?;
        total += PREFIX.len() + key.len() + value.len();
        metadata.insert(key.to_owned(), value.to_owned());
    }
    if total > TOTAL_BYTES_MAX {
        return Err(MetadataError::Total {
            length: total,
            limit: TOTAL_BYTES_MAX,
        });
    }
    Ok(metadata)
}

/// The metadata of the file or directory at `path`, which is not followed if
/// it is a link. A file system without attributes has none.
pub(crate) fn read(path: &str) -> Metadata {
    let mut found = Metadata::new();
    let names = names(path).unwrap_or_default();
    let mut bytes = 0;
    for name in names.split(|&byte| byte == 0) {
        let Some(key) = name.strip_prefix(PREFIX.as_bytes()) else {
            continue;
        };
        let mut value = [0_u8; TOTAL_BYTES_MAX];
        // Gone meanwhile, or longer than anything a client may write.
        let Ok(length) = lgetxattr(path, name, &mut value[..]) else {
            continue;
        };
        bytes += name.len() + length;
        if bytes > TOTAL_BYTES_MAX {
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
            let mut many = vec![0_u8; LIST_BYTES_MAX];
            let length = llistxattr(path, &mut many[..])?;
            many.truncate(length);
            Ok(many)
        }
        Err(error) => Err(error),
    }
}

/// Makes `metadata` all that clients said about a file.
pub(crate) fn replace(file: &File, metadata: &Metadata) -> io::Result<()> {
    for name in ours(file)? {
        if !metadata.contains_key(&name[PREFIX.len()..]) {
            match fremovexattr(file, &name) {
                Ok(()) | Err(Errno::NODATA) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    for (key, value) in metadata {
        let name = format!("{PREFIX}{key}");
        fsetxattr(file, &name, value.as_bytes(), XattrFlags::empty())?;
    }
    Ok(())
}

/// Names of the attributes that are ours. Where a file system has none,
/// there are none.
fn ours(file: &File) -> io::Result<Vec<String>> {
    let mut list = vec![0; LIST_BYTES_MAX];
    let length = match flistxattr(file, &mut list[..]) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => 0,
        Err(error) => return Err(error.into()),
    };
    Ok(list[..length]
        .split(|byte| *byte == 0)
        .filter_map(|name| std::str::from_utf8(name).ok())
        .filter(|name| name.starts_with(PREFIX))
        .map(str::to_owned)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(headers: &[(&str, &[u8])]) -> Result<Metadata, MetadataError> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(
                axum::http::HeaderName::from_bytes(name.as_bytes()).unwrap(),
                axum::http::HeaderValue::from_bytes(value).unwrap(),
            );
        }
        from_headers(&map)
    }

    fn metadata(pairs: &[(&str, &str)]) -> Metadata {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn headers_become_lower_case_keys_and_the_first_value_counts() {
        assert_eq!(
            parse(&[
                ("X-Metadata-Author", b"first"),
                ("x-metadata-author", b"second"),
                ("X-Metadata-Empty", b""),
                ("X-Metadata-", b"nothing"),
                ("X-Access-Token", b"secret"),
            ]),
            Ok(metadata(&[("author", "first"), ("empty", "")]))
        );
        assert_eq!(parse(&[]), Ok(Metadata::new()));
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        let long = |length| format!("x-metadata-{}", "k".repeat(length));
        assert_eq!(parse(&[(&long(246), b"")]).map(|found| found.len()), Ok(1));
        assert_eq!(
            parse(&[(&long(247), b"")]),
            Err(MetadataError::Key {
                length: 247,
                limit: 246
            })
        );
        for value in ["caf\u{e9}".as_bytes(), b"a\tb", b"\xff"] {
            assert_eq!(
                parse(&[("x-metadata-a", value)]),
                Err(MetadataError::Value("a".to_owned()))
            );
        }
        let fits = vec![b'v'; 4096 - PREFIX.len() - 1];
        assert!(parse(&[("x-metadata-a", &fits)]).is_ok());
        assert_eq!(
            parse(&[("x-metadata-ab", &fits)]),
            Err(MetadataError::Total {
                length: 4097,
                limit: 4096
            })
        );
    }
}
