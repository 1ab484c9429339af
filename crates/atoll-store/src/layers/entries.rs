//! Reads the entries of a tar stream that may be hostile.
//!
//! The `tar` crate splits the archive; names, links and PAX records are read
//! here, because values may hold any byte (the crate splits them at line
//! ends) and because the size of what is held in memory must be bounded.

use std::io::{self, Read};

use tar::{Archive, Entry, EntryType, Header};

use super::UnpackError;
use super::sparse::Claim;

/// Most bytes of PAX records or of a GNU long name before one entry.
const RECORDS_BYTES: u64 = 1024 * 1024;

/// One entry as its headers describe it; names are still unchecked.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) name: Vec<u8>,
    pub(crate) link: Vec<u8>,
    pub(crate) kind: EntryType,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: i64,
    pub(crate) size: u64,
    /// Bytes of a file with holes, of which the archive has only those that are none.
    pub(crate) sparse_size: Option<u64>,
    pub(crate) device: (u32, u32),
    pub(crate) xattrs: Vec<(String, Vec<u8>)>,
}

/// Calls `each` for every entry, with its data to read.
pub(crate) fn for_each(
    reader: &mut dyn Read,
    each: &mut dyn FnMut(Described, &mut dyn Read) -> Result<(), UnpackError>,
) -> Result<(), UnpackError> {
    let mut archive = Archive::new(reader);
    let mut records = Records::default();
    for entry in archive.entries().map_err(UnpackError::Archive)?.raw(true) {
        let mut entry = entry.map_err(UnpackError::Archive)?;
        match entry.header().entry_type() {
            EntryType::XHeader => records.pax(&body(&mut entry)?)?,
            EntryType::GNULongName => records.name = Some(without_zero(body(&mut entry)?)),
            EntryType::GNULongLink => records.link = Some(without_zero(body(&mut entry)?)),
            // Defaults for the whole archive: comments in practice.
            EntryType::XGlobalHeader => {}
            _ => {
                let described = std::mem::take(&mut records).describe(entry.header())?;
                each(described, &mut entry)?;
            }
        }
    }
    Ok(())
}

/// What precedes an entry and overrides its header.
#[derive(Debug, Default)]
struct Records {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    uid: Option<u32>,
    gid: Option<u32>,
    mtime: Option<i64>,
    size: Option<u64>,
    sparse: Option<Claim>,
    xattrs: Vec<(String, Vec<u8>)>,
}

impl Records {
    fn pax(&mut self, mut body: &[u8]) -> Result<(), UnpackError> {
        while !body.is_empty() {
            let (key, value, rest) =
                split_record(body).ok_or(UnpackError::Malformed("a PAX record"))?;
            body = rest;
            let number = || {
                std::str::from_utf8(value)
                    .ok()
                    .and_then(|text| text.parse().ok())
            };
            let invalid = UnpackError::Malformed("a number in a PAX record");
            match key {
                "path" => self.name = Some(value.to_vec()),
                "linkpath" => self.link = Some(value.to_vec()),
                "uid" => self.uid = Some(number().ok_or(invalid)?),
                "gid" => self.gid = Some(number().ok_or(invalid)?),
                "size" => self.size = Some(large(value)?),
                "GNU.sparse.major" => self.sparse().major = Some(large(value)?),
                "GNU.sparse.minor" => self.sparse().minor = Some(large(value)?),
                "GNU.sparse.realsize" => self.sparse().size = Some(large(value)?),
                "GNU.sparse.name" => self.name = Some(value.to_vec()),
                "mtime" => {
                    // Whole seconds; the fraction is dropped.
                    let text = std::str::from_utf8(value).unwrap_or_default();
                    let whole = text.split('.').next().and_then(|whole| whole.parse().ok());
                    self.mtime = Some(whole.ok_or(invalid)?);
                }
                _ => {
                    if let Some(name) = key.strip_prefix("SCHILY.xattr.") {
                        self.xattrs.push((name.to_owned(), value.to_vec()));
                    } else if key.starts_with("GNU.sparse.") {
                        // Another format of the same: its version is not the one that is known.
                        self.sparse();
                    }
                }
            }
        }
        Ok(())
    }

    fn sparse(&mut self) -> &mut Claim {
        self.sparse.get_or_insert_default()
    }

    fn describe(self, header: &Header) -> Result<Described, UnpackError> {
        let size = header.entry_size().map_err(UnpackError::Archive)?;
        if self.size.is_some_and(|claimed| claimed != size) {
            // The archive was split by the header's size.
            return Err(UnpackError::Malformed("an entry whose two sizes differ:"));
        }
        let narrow = |number: io::Result<u64>| {
            let number = number.map_err(UnpackError::Archive)?;
            u32::try_from(number).map_err(|_| UnpackError::Malformed("an owner above 2^32"))
        };
        let link = header.link_name_bytes().map(std::borrow::Cow::into_owned);
        let mtime = header.mtime().map_err(UnpackError::Archive)?;
        Ok(Described {
            name: self
                .name
                .unwrap_or_else(|| header.path_bytes().into_owned()),
            link: self.link.or(link).unwrap_or_default(),
            kind: header.entry_type(),
            mode: header.mode().map_err(UnpackError::Archive)? & 0o7777,
            uid: self.uid.map_or_else(|| narrow(header.uid()), Ok)?,
            gid: self.gid.map_or_else(|| narrow(header.gid()), Ok)?,
            mtime: self
                .mtime
                .unwrap_or_else(|| i64::try_from(mtime).unwrap_or(0)),
            size,
            sparse_size: self.sparse.map(|claim| claim.size()).transpose()?,
            device: (device(header.device_major()), device(header.device_minor())),
            xattrs: self.xattrs,
        })
    }
}

fn large(value: &[u8]) -> Result<u64, UnpackError> {
    let text = std::str::from_utf8(value).ok();
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or(UnpackError::Malformed("a number in a PAX record"))
}

/// A device number; an unreadable one is not 0:0 and so refused later.
fn device(number: io::Result<Option<u32>>) -> u32 {
    number.ok().flatten().unwrap_or(u32::MAX)
}

/// Splits `<length> <key>=<value>\n` off the front.
fn split_record(body: &[u8]) -> Option<(&str, &[u8], &[u8])> {
    let space = body.iter().position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&body[..space]).ok()?.parse().ok()?;
    let record = body.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    let key = std::str::from_utf8(&record[..equals]).ok()?;
    Some((key, &record[equals + 1..], &body[length..]))
}

fn body(entry: &mut Entry<'_, &mut dyn Read>) -> Result<Vec<u8>, UnpackError> {
    let size = entry.header().entry_size().map_err(UnpackError::Archive)?;
    if size > RECORDS_BYTES {
        return Err(UnpackError::Malformed("a header of more than 1 MiB"));
    }
    let mut bytes = Vec::new();
    entry
        .read_to_end(&mut bytes)
        .map_err(UnpackError::Archive)?;
    Ok(bytes)
}

fn without_zero(mut bytes: Vec<u8>) -> Vec<u8> {
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    bytes
}
