//! Archives that want to write beside the directory they are unpacked to.

use std::io::Cursor;
use std::path::Path;

use atoll_store::{Blobs, Layers, no_progress};
use serde_json::Value;
use tar::{EntryType, Header};

use super::workspace;
use crate::program::{self, Report};
use crate::runner::Scene;
use crate::runner::scene::Pair;

/// Unpacks an archive as if everybody could be trusted.
const CARELESS: &str = include_str!("../../attacks/careless_unpacker.py");

/// More steps up than any directory is deep.
const CLIMB: usize = 24;
/// Longer names need an entry of their own.
const FIELD_BYTES: usize = 100;

/// What an archive does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trick {
    ParentPath,
    AbsolutePath,
    ThroughLink,
    ThroughDirectoryLink,
    HardLink,
    DeviceNode,
}

impl Trick {
    pub(crate) const ALL: [Self; 6] = [
        Self::ParentPath,
        Self::AbsolutePath,
        Self::ThroughLink,
        Self::ThroughDirectoryLink,
        Self::HardLink,
        Self::DeviceNode,
    ];

    pub(crate) fn describe(self) -> (&'static str, &'static str) {
        match self {
            Self::ParentPath => (
                "parent-path",
                "a layer with an entry whose name climbs out by `../`",
            ),
            Self::AbsolutePath => (
                "absolute-path",
                "a layer with an entry whose name is a path of the host",
            ),
            Self::ThroughLink => (
                "through-link",
                "a layer with a symbolic link to a file of the host, and a file of the same name",
            ),
            Self::ThroughDirectoryLink => (
                "through-directory-link",
                "a layer with a symbolic link to a directory of the host, and a file below it",
            ),
            Self::HardLink => (
                "hard-link",
                "a layer with a hard link to a file of the host, and new content for it",
            ),
            Self::DeviceNode => (
                "device-node",
                "a layer with the node of a block device of the host",
            ),
        }
    }

    /// The archive, aimed at the canary `scratch`.
    fn archive(self, scratch: &Path) -> std::io::Result<Vec<u8>> {
        let absolute = scratch.to_string_lossy().into_owned();
        let directory = scratch
            .parent()
            .unwrap_or(scratch)
            .to_string_lossy()
            .into_owned();
        let up = format!(
            "{}{}",
            "../".repeat(CLIMB),
            absolute.trim_start_matches('/')
        );
        let mut builder = tar::Builder::new(Vec::new());
        let mut add = |kind: EntryType, name: &str, link: &str, data: &[u8]| {
            for (kind, text) in [
                (EntryType::GNULongName, name),
                (EntryType::GNULongLink, link),
            ] {
                if text.len() >= FIELD_BYTES {
                    let text = format!("{text}\0");
                    builder.append(&header(kind, "", "", text.len()), text.as_bytes())?;
                }
            }
            builder.append(&header(kind, name, link, data.len()), data)
        };
        let owned = b"owned\n";
        match self {
            Self::ParentPath => add(EntryType::Regular, &up, "", owned)?,
            Self::AbsolutePath => add(EntryType::Regular, &absolute, "", owned)?,
            Self::ThroughLink => {
                add(EntryType::Symlink, "link", &absolute, b"")?;
                add(EntryType::Regular, "link", "", owned)?;
            }
            Self::ThroughDirectoryLink => {
                add(EntryType::Symlink, "link", &directory, b"")?;
                add(EntryType::Regular, "link/owned", "", owned)?;
            }
            Self::HardLink => {
                add(EntryType::Link, "link", &absolute, b"")?;
                add(EntryType::Regular, "link", "", owned)?;
            }
            Self::DeviceNode => add(EntryType::Block, "device", "", b"")?,
        }
        builder.into_inner()
    }
}

/// A header whose names are taken as they are: the `tar` crate would refuse them.
fn header(kind: EntryType, name: &str, link: &str, size: usize) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size as u64);
    if kind == EntryType::Block {
        // The first virtual disk, on most hosts; nobody opens it.
        let _ = header.set_device_major(254);
        let _ = header.set_device_minor(0);
    }
    if let Some(fields) = header.as_gnu_mut() {
        let copy = |field: &mut [u8], text: &str| {
            let length = text.len().min(field.len());
            field[..length].copy_from_slice(&text.as_bytes()[..length]);
        };
        copy(&mut fields.name, name);
        copy(&mut fields.linkname, link);
    }
    header.set_cksum();
    header
}

/// Gives the archive to the layer store, and to a careless unpacker.
pub(crate) async fn play(trick: Trick, scene: &mut Scene) -> Result<Pair, String> {
    let words = |error: std::io::Error| error.to_string();
    let archive = trick.archive(&scene.keeper.scratch()).map_err(words)?;
    let home = workspace(scene, "archive")?;
    let store = Blobs::open(&home)
        .map_err(|error| error.to_string())
        .and_then(|blobs| Layers::open(&home, blobs).map_err(|error| error.to_string()))?;
    let imported = store
        .import_tar(Cursor::new(archive.clone()), no_progress())
        .await;
    let damage = scene.keeper.take_damage().map_err(words)?;
    let device = imported
        .as_ref()
        .is_ok_and(|info| has_device(&store.path(&info.digest)));
    let attack = match (damage, imported) {
        (Some(damage), _) => Report::succeeded(damage),
        (None, _) if device => Report::succeeded("a device node in the layer"),
        (None, Ok(_)) => Report::failed("unpacked, and nothing beside the layer changed"),
        (None, Err(error)) => Report::failed(chain(&error)),
    };
    let control = careless(&archive, scene).await;
    let damage = scene.keeper.take_damage().map_err(words)?;
    let control = control.map(|report| match damage {
        Some(damage) => Report::succeeded(damage),
        None => report,
    });
    Ok((Ok(attack), control))
}

async fn careless(archive: &[u8], scene: &Scene) -> Result<Report, String> {
    let hex: String = archive.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut target = scene.target(&[], "");
    target.insert("archive".to_owned(), Value::from(hex));
    let text = program::text(CARELESS, &target);
    scene.in_room(&scene.order(&text)).await
}

fn has_device(layer: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    std::fs::symlink_metadata(layer.join("device"))
        .is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
