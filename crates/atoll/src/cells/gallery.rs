//! Pictures that code showed, as files beside the user.
//!
//! The sandbox is hostile. It chooses none of the names (`chart-1.png`, …),
//! reaches no directory but the one that the user chose, and cannot follow or
//! replace anything there: each file is new (`O_EXCL`, which no link gets
//! past), below a directory that was opened once. What does not look like the
//! picture that it claims to be is not written, and sizes and counts have
//! bounds.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use atoll_guest_client::CodeResult;
use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::owner::give_to_caller;
use crate::failure::Hinted;

/// Largest picture.
const FILE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// All pictures of one sandbox together.
const TOTAL_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// Most pictures of one sandbox.
const FILES_MAX: u32 = 1000;
/// Highest number in a name: a directory that has them all has too many.
const NUMBER_MAX: u32 = 100_000;

/// What people and programs agree to call base64, with or without its end.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A kind of picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Png,
    Jpeg,
    Svg,
    Pdf,
}

impl Kind {
    fn extension(self) -> &'static str {
        match self {
            Self::Png => "png",
            Self::Jpeg => "jpg",
            Self::Svg => "svg",
            Self::Pdf => "pdf",
        }
    }

    /// Whether these bytes begin like such a picture.
    fn begins(self, bytes: &[u8]) -> bool {
        match self {
            Self::Png => bytes.starts_with(b"\x89PNG\r\n\x1a\n"),
            Self::Jpeg => bytes.starts_with(b"\xff\xd8\xff"),
            Self::Pdf => bytes.starts_with(b"%PDF-"),
            Self::Svg => {
                let start = bytes.trim_ascii_start();
                start.starts_with(b"<?xml")
                    || start.starts_with(b"<svg")
                    || start.starts_with(b"<!")
            }
        }
    }
}

/// A picture in the form in which it came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Picture<'a> {
    kind: Kind,
    text: &'a str,
}

/// The pictures of a result.
pub(crate) fn pictures(result: &CodeResult) -> impl Iterator<Item = Picture<'_>> {
    [
        (Kind::Png, &result.png),
        (Kind::Jpeg, &result.jpeg),
        (Kind::Svg, &result.svg),
        (Kind::Pdf, &result.pdf),
    ]
    .into_iter()
    .filter_map(|(kind, text)| text.as_deref().map(|text| Picture { kind, text }))
}

/// A file that was written.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Saved {
    pub(crate) kind: Kind,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
}

/// Why a picture is no file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SaveError {
    #[error("a result says it is {0:?} and is not")]
    NotWhatItSays(Kind),
    #[error("a picture has more than {} MiB", FILE_BYTES_MAX >> 20)]
    TooLarge,
    #[error("there are more than {FILES_MAX} pictures, or more than {} MiB of them", TOTAL_BYTES_MAX >> 20)]
    TooMany,
    #[error("there is no free name in the directory")]
    NoName,
    #[error("cannot write to the directory")]
    Write(#[from] io::Error),
}

/// The directory that pictures go to.
#[derive(Debug)]
pub(crate) struct Gallery {
    directory: OwnedFd,
    /// As the user named it; for showing.
    path: PathBuf,
    /// The number that is tried next.
    next: u32,
    files: u32,
    bytes: u64,
}

impl Gallery {
    /// The directory `path`, made if it is not there; without one, where the user is.
    pub(crate) fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        let path = path.unwrap_or(Path::new("")).to_owned();
        let place = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            std::fs::create_dir_all(&path).map_err(|error| {
                Hinted::error(
                    format!("cannot make the directory `{}`: {error}", path.display()),
                    "with --rich, --output names a directory for pictures",
                )
            })?;
            &path
        };
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(place, flags, Mode::empty())
            .map_err(io::Error::from)
            .with_context(|| format!("cannot open the directory `{}`", place.display()))?;
        Ok(Self {
            directory,
            path,
            next: 1,
            files: 0,
            bytes: 0,
        })
    }

    /// Writes a picture to a file of its own.
    ///
    /// # Errors
    /// When it is none, is too large or too many, or cannot be written; then
    /// there is no file.
    pub(crate) fn save(&mut self, picture: Picture<'_>) -> Result<Saved, SaveError> {
        let Picture { kind, text } = picture;
        let bytes = decoded(kind, text)?;
        let total = self.bytes + bytes.len() as u64;
        if self.files >= FILES_MAX || total > TOTAL_BYTES_MAX {
            return Err(SaveError::TooMany);
        }
        let (name, mut file) = self.create(kind)?;
        give_to_caller(&file);
        if let Err(error) = file.write_all(&bytes) {
            // Half a picture is none.
            let _ = rustix::fs::unlinkat(&self.directory, &name, AtFlags::empty());
            return Err(error.into());
        }
        self.files += 1;
        self.bytes = total;
        Ok(Saved {
            kind,
            path: self.path.join(name),
            bytes: bytes.len() as u64,
        })
    }

    /// A new file under the next name that is free.
    fn create(&mut self, kind: Kind) -> Result<(String, File), SaveError> {
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o666);
        while self.next <= NUMBER_MAX {
            let name = format!("chart-{}.{}", self.next, kind.extension());
            self.next += 1;
            match rustix::fs::openat(&self.directory, &name, flags, mode) {
                Ok(file) => return Ok((name, File::from(file))),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        Err(SaveError::NoName)
    }
}

/// The bytes of a picture.
fn decoded(kind: Kind, text: &str) -> Result<Vec<u8>, SaveError> {
    let bytes = match kind {
        Kind::Svg => {
            if text.len() > FILE_BYTES_MAX {
                return Err(SaveError::TooLarge);
            }
            text.as_bytes().to_vec()
        }
        Kind::Png | Kind::Jpeg | Kind::Pdf => {
            if text.len() / 4 * 3 > FILE_BYTES_MAX {
                return Err(SaveError::TooLarge);
            }
            // Kernels break it into lines, or end it with one.
            let text: Vec<u8> = text
                .bytes()
                .filter(|byte| !byte.is_ascii_whitespace())
                .collect();
            let decoded = BASE64.decode(text);
            decoded.map_err(|_| SaveError::NotWhatItSays(kind))?
        }
    };
    if kind.begins(&bytes) {
        Ok(bytes)
    } else {
        Err(SaveError::NotWhatItSays(kind))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\nthe rest";

    fn encoded(bytes: &[u8]) -> String {
        base64::engine::general_purpose::STANDARD.encode(bytes)
    }

    fn png(text: &str) -> Picture<'_> {
        Picture {
            kind: Kind::Png,
            text,
        }
    }

    #[test]
    fn pictures_get_names_that_were_free() {
        let here = tempfile::tempdir().unwrap();
        fs::write(here.path().join("chart-1.png"), "mine").unwrap();
        fs::create_dir(here.path().join("chart-2.png")).unwrap();
        let mut gallery = Gallery::open(Some(here.path())).unwrap();
        let text = format!("{}\n", encoded(PNG));
        let saved = gallery.save(png(&text)).unwrap();
        let path = here.path().join("chart-3.png");
        assert_eq!(fs::read(&path).unwrap(), PNG);
        let expected = Saved {
            kind: Kind::Png,
            path,
            bytes: PNG.len() as u64,
        };
        assert_eq!(saved, expected);
        let saved = gallery.save(png(&text)).unwrap();
        assert_eq!(saved.path, here.path().join("chart-4.png"));
        assert_eq!(
            fs::read_to_string(here.path().join("chart-1.png")).unwrap(),
            "mine"
        );
    }

    #[test]
    fn a_link_is_not_followed_wherever_it_leads() {
        let (here, away) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (theirs, new) = (away.path().join("theirs"), away.path().join("new"));
        fs::write(&theirs, "theirs").unwrap();
        symlink(&theirs, here.path().join("chart-1.png")).unwrap();
        symlink(&new, here.path().join("chart-2.png")).unwrap();
        let mut gallery = Gallery::open(Some(here.path())).unwrap();
        let saved = gallery.save(png(&encoded(PNG))).unwrap();
        assert_eq!(saved.path, here.path().join("chart-3.png"));
        assert_eq!(fs::read_to_string(&theirs).unwrap(), "theirs");
        assert!(!new.exists());
    }

    #[test]
    fn a_directory_that_is_swapped_for_a_link_is_not_left() {
        let (here, away) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let chosen = here.path().join("plots");
        let mut gallery = Gallery::open(Some(&chosen)).unwrap();
        fs::rename(&chosen, here.path().join("moved")).unwrap();
        symlink(away.path(), &chosen).unwrap();
        gallery.save(png(&encoded(PNG))).unwrap();
        assert!(here.path().join("moved/chart-1.png").exists());
        assert_eq!(fs::read_dir(away.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_no_picture_is_no_file() {
        let here = tempfile::tempdir().unwrap();
        let mut gallery = Gallery::open(Some(here.path())).unwrap();
        for text in [
            "not base64!".to_owned(),
            encoded(b"#!/bin/sh\n"),
            encoded(b"\x89PN"),
            String::new(),
        ] {
            let error = gallery.save(png(&text)).unwrap_err();
            assert!(
                matches!(error, SaveError::NotWhatItSays(Kind::Png)),
                "{text}"
            );
        }
        let script = Picture {
            kind: Kind::Svg,
            text: "#!/bin/sh",
        };
        assert!(gallery.save(script).is_err());
        assert_eq!(fs::read_dir(here.path()).unwrap().count(), 0);
        let svg = Picture {
            kind: Kind::Svg,
            text: "\n<svg/>",
        };
        gallery.save(svg).unwrap();
        assert!(here.path().join("chart-1.svg").exists(), "the control");
    }

    #[test]
    fn there_is_an_end_to_size_and_number() {
        let here = tempfile::tempdir().unwrap();
        let mut gallery = Gallery::open(Some(here.path())).unwrap();
        let huge = "A".repeat(FILE_BYTES_MAX / 3 * 4 + 8);
        assert!(matches!(gallery.save(png(&huge)), Err(SaveError::TooLarge)));
        let text = encoded(PNG);
        gallery.files = FILES_MAX - 1;
        gallery.save(png(&text)).unwrap();
        assert!(matches!(gallery.save(png(&text)), Err(SaveError::TooMany)));
        gallery.files = 0;
        gallery.bytes = TOTAL_BYTES_MAX - PNG.len() as u64;
        gallery.save(png(&text)).unwrap();
        assert!(matches!(gallery.save(png(&text)), Err(SaveError::TooMany)));
        gallery.bytes = 0;
        gallery.next = NUMBER_MAX + 1;
        assert!(matches!(gallery.save(png(&text)), Err(SaveError::NoName)));
        assert_eq!(fs::read_dir(here.path()).unwrap().count(), 2);
    }
}
