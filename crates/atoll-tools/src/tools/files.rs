//! `read_file`, `write_file`, `list_files`.

use std::io::Cursor;

use atoll_guest_client::{Entry, EntryKind, FileReader, GuestError};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::io::AsyncReadExt as _;

use super::output::keep;
use crate::definition::{Answer, Call, Image, Outcome};
use crate::error::{ErrorCode, ToolError};
use crate::workplace::Place;

/// Bytes that `read_file` returns when it is not told.
const LENGTH: u64 = 16_000;
pub(crate) const LENGTH_MAX: u64 = 100_000;
/// Largest picture that is shown as one.
const IMAGE_BYTES_MAX: u64 = 1_500_000;
/// Entries of a list.
const ENTRIES_MAX: usize = 500;
const DEPTH_MAX: u32 = 10;
/// How long one file may take.
const BOUND: Duration = Duration::from_secs(120);

/// How bytes are written in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Encoding {
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    Base64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Read {
    /// Path of the file; a relative one is below the user's home, `/home/user`.
    pub(crate) path: String,
    /// First byte to read. Default 0. Use `next_offset` of the last result to read on.
    #[serde(default)]
    pub(crate) offset: Option<u64>,
    /// Most bytes to return. Default 16000, at most 100000.
    #[serde(default)]
    pub(crate) length: Option<u64>,
    /// Which sandbox. Default: this session's own.
    #[serde(default)]
    pub(crate) sandbox_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Content {
    sandbox_id: String,
    path: String,
    /// Bytes of the whole file.
    size: u64,
    /// First byte of `content`.
    offset: u64,
    /// Where to read on; absent at the end of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_offset: Option<u64>,
    /// How `content` is written: text, or base64 for what is no text.
    encoding: Encoding,
    /// The part that was asked for. Pictures are not here but beside it, as images.
    content: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Write {
    /// Path of the file; a relative one is below the user's home, `/home/user`. Directories are made.
    pub(crate) path: String,
    /// What it is to contain. Whatever was there is replaced.
    pub(crate) content: String,
    /// How `content` is written. Default utf-8; base64 for what is no text.
    #[serde(default)]
    pub(crate) encoding: Option<Encoding>,
    /// Which sandbox. Default: this session's own, made on first use.
    #[serde(default)]
    pub(crate) sandbox_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Written {
    sandbox_id: String,
    path: String,
    /// Bytes of the file.
    size: u64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct List {
    /// The directory. Default: the user's home, `/home/user`.
    #[serde(default)]
    pub(crate) path: Option<String>,
    /// Levels below it, 1 to 10. Default 1.
    #[serde(default)]
    pub(crate) depth: Option<u32>,
    /// Which sandbox. Default: this session's own.
    #[serde(default)]
    pub(crate) sandbox_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Directory {
    sandbox_id: String,
    path: String,
    /// What is in it, in the order of paths.
    entries: Vec<Listed>,
    /// Entries that are not shown because there are too many.
    left_out: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Listed {
    path: String,
    /// file, directory, link or other.
    kind: &'static str,
    size: u64,
    permissions: String,
}

pub(crate) async fn read(call: &Call, arguments: Read) -> Answer {
    let place = call.desk.place(arguments.sandbox_id.as_deref()).await?;
    keep(call, &place, BOUND).await;
    let path = arguments.path.as_str();
    let offset = arguments.offset.unwrap_or(0);
    let length = arguments.length.unwrap_or(LENGTH);
    if !(1..=LENGTH_MAX).contains(&length) {
        return Err(ToolError::arguments(
            format!("`length` cannot be {length}"),
            format!("give 1 to {LENGTH_MAX} bytes, and read on with `offset`"),
        )
        .into());
    }
    let entry = file(call, &place, path).await?;
    if let Some(mime_type) = picture(path)
        && offset == 0
        && entry.size <= IMAGE_BYTES_MAX
    {
        let bytes = part(call, &place, path, 0, entry.size).await?;
        return Ok(shown_as_picture(&place, path, &entry, mime_type, &bytes));
    }
    let bytes = part(
        call,
        &place,
        path,
        offset,
        length.min(entry.size.saturating_sub(offset)),
    )
    .await?;
    let (content, encoding, taken) = written(&bytes, offset + (bytes.len() as u64) < entry.size);
    let next = offset + taken as u64;
    let content = Content {
        sandbox_id: place.id.clone(),
        path: path.to_owned(),
        size: entry.size,
        offset,
        next_offset: (next < entry.size).then_some(next),
        encoding,
        content,
    };
    let mut text = match encoding {
        Encoding::Utf8 => content.content.clone(),
        Encoding::Base64 => format!(
            "[{} bytes that are no text, in base64]\n{}",
            taken, content.content
        ),
    };
    if let Some(next) = content.next_offset {
        super::execute_command::separate(&mut text);
        text.push_str(&format!(
            "[{} of {} bytes; read on with offset {next}]",
            taken, entry.size
        ));
    }
    Ok(Outcome {
        text,
        structured: serde_json::to_value(&content).unwrap_or_default(),
        images: Vec::new(),
    })
}

/// Bytes as JSON can hold them, and how many of them that is: a character that
/// was cut in two is left for the next part.
fn written(bytes: &[u8], has_more: bool) -> (String, Encoding, usize) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), Encoding::Utf8, bytes.len()),
        Err(error) => {
            let valid = error.valid_up_to();
            if has_more && error.error_len().is_none() && valid > 0 {
                let text = String::from_utf8_lossy(&bytes[..valid]).into_owned();
                return (text, Encoding::Utf8, valid);
            }
            (STANDARD.encode(bytes), Encoding::Base64, bytes.len())
        }
    }
}

fn shown_as_picture(
    place: &Place,
    path: &str,
    entry: &Entry,
    mime_type: &'static str,
    bytes: &[u8],
) -> Outcome {
    let content = Content {
        sandbox_id: place.id.clone(),
        path: path.to_owned(),
        size: entry.size,
        offset: 0,
        next_offset: None,
        encoding: Encoding::Base64,
        content: String::new(),
    };
    Outcome {
        text: format!("[{path}: a picture of {} bytes]", entry.size),
        structured: serde_json::to_value(&content).unwrap_or_default(),
        images: vec![Image {
            data: STANDARD.encode(bytes),
            mime_type,
            uri: None,
        }],
    }
}

pub(crate) fn picture(path: &str) -> Option<&'static str> {
    let lower = path.to_ascii_lowercase();
    match lower.rsplit('.').next() {
        Some("png") => Some("image/png"),
        Some("jpg" | "jpeg") => Some("image/jpeg"),
        _ => None,
    }
}

/// The entry of a regular file.
pub(crate) async fn file(call: &Call, place: &Place, path: &str) -> Result<Entry, ToolError> {
    let entry = match place.guest.stat(path, None).await {
        Ok(entry) => entry,
        Err(error) => {
            return Err(call
                .desk
                .judge(place, ToolError::of_file(path, &error))
                .await);
        }
    };
    match entry.kind {
        EntryKind::Directory => Err(ToolError::arguments(
            format!("`{path}` is a directory"),
            "look into it with `list_files`",
        )),
        _ => Ok(entry),
    }
}

/// A part of a file.
pub(crate) async fn part(
    call: &Call,
    place: &Place,
    path: &str,
    offset: u64,
    length: u64,
) -> Result<Vec<u8>, ToolError> {
    if length == 0 {
        return Ok(Vec::new());
    }
    let reading = async {
        let range = offset..offset.saturating_add(length);
        let reader: FileReader = place.guest.read_file_range(path, range, None).await?;
        let mut bytes = Vec::new();
        let mut reader = reader.take(length);
        reader
            .read_to_end(&mut bytes)
            .await
            .map_err(|error| GuestError::Disconnected(error.to_string()))?;
        Ok(bytes)
    };
    match tokio::time::timeout(BOUND, reading).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(GuestError::Refused { status: 416, .. })) => Ok(Vec::new()),
        Ok(Err(error)) => Err(call
            .desk
            .judge(place, ToolError::of_file(path, &error))
            .await),
        Err(_) => Err(slow(path)),
    }
}

fn slow(path: &str) -> ToolError {
    ToolError::new(
        ErrorCode::Timeout,
        format!("`{path}` took longer than {BOUND:?}"),
        "try again, with less at once",
    )
}

pub(crate) async fn write(call: &Call, arguments: Write) -> Answer {
    let bytes = match arguments.encoding.unwrap_or_default() {
        Encoding::Utf8 => arguments.content.into_bytes(),
        Encoding::Base64 => STANDARD.decode(arguments.content.trim()).map_err(|error| {
            ToolError::arguments(
                format!("`content` is no base64: {error}"),
                "leave `encoding` out for plain text",
            )
        })?,
    };
    let place = call.desk.place(arguments.sandbox_id.as_deref()).await?;
    keep(call, &place, BOUND).await;
    let size = bytes.len() as u64;
    let path = arguments.path;
    let guest = place.plain();
    let writing = guest.write_file(&path, None, Cursor::new(bytes));
    match tokio::time::timeout(BOUND, writing).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            let error = ToolError::of_file(&path, &error);
            return Err(call.desk.judge(&place, error).await.into());
        }
        Err(_) => return Err(slow(&path).into()),
    }
    let written = Written {
        sandbox_id: place.id.clone(),
        path,
        size,
    };
    Ok(Outcome {
        text: format!("wrote {size} bytes to `{}`", written.path),
        structured: serde_json::to_value(&written).unwrap_or_default(),
        images: Vec::new(),
    })
}

pub(crate) async fn list(call: &Call, arguments: List) -> Answer {
    let depth = arguments.depth.unwrap_or(1);
    if !(1..=DEPTH_MAX).contains(&depth) {
        return Err(ToolError::arguments(
            format!("`depth` cannot be {depth}"),
            format!("give 1 to {DEPTH_MAX}"),
        )
        .into());
    }
    let place = call.desk.place(arguments.sandbox_id.as_deref()).await?;
    keep(call, &place, BOUND).await;
    let path = arguments.path.unwrap_or_else(|| "/home/user".to_owned());
    let mut entries = match place.guest.list_dir(&path, depth, None).await {
        Ok(entries) => entries,
        Err(error) => {
            let error = ToolError::of_file(&path, &error);
            return Err(call.desk.judge(&place, error).await.into());
        }
    };
    entries.sort_by(|one, other| one.path.as_given().cmp(other.path.as_given()));
    let left_out = entries.len().saturating_sub(ENTRIES_MAX);
    entries.truncate(ENTRIES_MAX);
    let entries: Vec<Listed> = entries.iter().map(Listed::of).collect();
    let mut text = String::new();
    for entry in &entries {
        let slash = if entry.kind == "directory" { "/" } else { "" };
        text.push_str(&format!("{:>10}  {}{slash}\n", entry.size, entry.path));
    }
    if left_out > 0 {
        text.push_str(&format!(
            "[… {left_out} more; list a directory below, or use `search_files` …]"
        ));
    }
    if text.is_empty() {
        text = format!("[`{path}` is empty]");
    }
    let directory = Directory {
        sandbox_id: place.id.clone(),
        path,
        entries,
        left_out,
    };
    Ok(Outcome {
        text,
        structured: serde_json::to_value(&directory).unwrap_or_default(),
        images: Vec::new(),
    })
}

impl Listed {
    fn of(entry: &Entry) -> Self {
        let kind = match entry.kind {
            _ if entry.is_symlink => "link",
            EntryKind::File => "file",
            EntryKind::Directory => "directory",
            EntryKind::Symlink => "link",
            EntryKind::Other => "other",
        };
        Self {
            path: entry.path.harmless(),
            kind,
            size: entry.size,
            permissions: entry.permissions.harmless(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_that_was_cut_in_two_comes_with_the_next_part() {
        let bytes = "aé".as_bytes();
        assert_eq!(
            written(&bytes[..2], true),
            ("a".to_owned(), Encoding::Utf8, 1)
        );
        assert_eq!(written(bytes, false), ("aé".to_owned(), Encoding::Utf8, 3));
        let (_, encoding, taken) = written(&[0xff, 0xfe, 0x00], true);
        assert_eq!((encoding, taken), (Encoding::Base64, 3));
        let (_, encoding, _) = written(&bytes[..2], false);
        assert_eq!(encoding, Encoding::Base64);
    }
}
