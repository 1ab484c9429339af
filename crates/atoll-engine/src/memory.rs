//! The memory of a sandbox as files, with which any number of others can begin.
//!
//! Written by the monitor of a sandbox that runs on ([`Sandbox::write_memory`]), and given to
//! the monitors of others in their [`SandboxSpec`](crate::SandboxSpec). It fits only what it
//! was written by: the same program with the same guest. What does not fit is refused before
//! anything is made.
//!
//! [`Sandbox::write_memory`]: crate::Sandbox::write_memory

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::monitor::checkpoint;
use crate::{EngineConfig, Limits, SandboxSpec, Tier};

/// The memory of a sandbox at one moment, with the files it had written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    directory: PathBuf,
    files: Vec<Written>,
    /// What wrote it, and alone can read it.
    program: Written,
    /// The layer of the guest, whose program is not part of it.
    guest: PathBuf,
    /// What it stands on, the top one first.
    layers: Vec<PathBuf>,
    hostname: String,
    /// What its sandbox was allowed. Some of it gVisor keeps itself, in its memory.
    limits: Limits,
    /// Whether it had a network: names are resolved in another way without.
    has_network: bool,
}

/// What tells a file from another one of its name, also after it was moved to another disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Written {
    name: PathBuf,
    bytes: u64,
    modified: (i64, i64),
}

impl Written {
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        Ok(Self::of_metadata(path, &fs::metadata(path)?))
    }

    pub(crate) fn of_metadata(path: &Path, found: &Metadata) -> Self {
        Self {
            name: path.file_name().map(PathBuf::from).unwrap_or_default(),
            bytes: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
        }
    }
}

/// Why a sandbox cannot begin with some memory, and what to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unfit {
    pub(crate) what: String,
    pub(crate) hint: &'static str,
}

const TAKE_ANOTHER: &str = "take another snapshot, or start from a template";

impl Memory {
    /// What `program` wrote into `directory` for a sandbox of `spec`.
    pub(crate) fn of(
        directory: &Path,
        program: Written,
        config: &EngineConfig,
        spec: &SandboxSpec,
    ) -> io::Result<Self> {
        Ok(Self {
            files: written(directory)?,
            directory: directory.to_owned(),
            program,
            guest: spec.guest(config).to_owned(),
            layers: spec.layers.clone(),
            hostname: spec.hostname.clone(),
            limits: spec.limits.clone(),
            has_network: spec.network.has_interface(),
        })
    }

    /// Where its files are.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The layers that its sandbox stands on, the top one first.
    #[must_use]
    pub fn layers(&self) -> &[PathBuf] {
        &self.layers
    }

    /// The layer of the guest that runs in it; it is needed for as long as this is.
    #[must_use]
    pub fn guest(&self) -> &Path {
        &self.guest
    }

    /// What its sandbox was called inside, which programs in it may have noted.
    #[must_use]
    pub fn hostname(&self) -> &str {
        &self.hostname
    }

    /// Space that its files take.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Waits until it is on disk, for as long as that takes.
    ///
    /// # Errors
    /// When the disk fails, or somebody removed it.
    pub fn sync(&self) -> io::Result<()> {
        checkpoint::sync(&self.directory)
    }

    /// Whether a sandbox of `tier` and `spec` can begin with it.
    pub(crate) fn check(
        &self,
        tier: Tier,
        config: &EngineConfig,
        spec: &SandboxSpec,
    ) -> Result<(), Unfit> {
        let unfit = |what: String, hint| Err(Unfit { what, hint });
        if tier != Tier::Gvisor {
            return unfit(
                format!("the {tier} tier cannot begin with the memory of another sandbox"),
                "serve with `--isolation gvisor`, or start from a template",
            );
        }
        if Written::of(&config.runsc).ok().as_ref() != Some(&self.program) {
            return unfit(
                format!(
                    "its memory was written by another release of gVisor than `{}`",
                    config.runsc.display()
                ),
                "take another snapshot, or set `runsc` in `config.toml` to the release of then",
            );
        }
        if !self.guest.is_dir() {
            let what = "the guest that runs in its memory was removed".to_owned();
            return unfit(what, TAKE_ANOTHER);
        }
        if spec.network.has_interface() != self.has_network {
            let what = "its memory was written by a sandbox with another kind of network";
            return unfit(what.to_owned(), "open or close addresses instead");
        }
        let (wanted, had) = (&spec.limits, &self.limits);
        if wanted.memory_mib < had.memory_mib || wanted.disk_mib < had.disk_mib {
            return unfit(
                format!(
                    "its memory was written by a sandbox with {} MiB of memory and {} MiB of disk",
                    had.memory_mib, had.disk_mib
                ),
                "ask for no less, or leave both out",
            );
        }
        let kept_inside = |limits: &Limits| (limits.pids, limits.open_files, limits.shm_mib);
        if kept_inside(wanted) != kept_inside(had) {
            return unfit(
                format!(
                    "its memory was written by a sandbox with {} processes, {} open files and {} MiB of `/dev/shm`, which stay as they are",
                    had.pids, had.open_files, had.shm_mib
                ),
                "leave them out",
            );
        }
        match written(&self.directory) {
            Ok(found) if found == self.files => Ok(()),
            Ok(_) => unfit("its memory on disk is damaged".to_owned(), TAKE_ANOTHER),
            Err(error) => unfit(
                format!("its memory on disk cannot be read: {error}"),
                TAKE_ANOTHER,
            ),
        }
    }
}

fn written(directory: &Path) -> io::Result<Vec<Written>> {
    let mut files = fs::read_dir(directory)?
        .map(|entry| Written::of(&entry?.path()))
        .collect::<io::Result<Vec<_>>>()?;
    files.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::file::{make_dir, remove_tree};
    use crate::{Attachment, NetworkPolicy, OciRuntimeChoice, SandboxId, SlotRange};

    #[test]
    fn memory_is_given_only_to_what_it_fits() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        make_dir(&path("image"), 0o700).unwrap();
        make_dir(&path("guest"), 0o700).unwrap();
        fs::write(path("image/checkpoint.img"), "state").unwrap();
        fs::write(path("image/pages.img"), "pages").unwrap();
        fs::write(path("runsc"), "program").unwrap();
        let config = EngineConfig {
            home: place.path().to_owned(),
            guest: path("guest"),
            program: PathBuf::new(),
            oci_runtime: OciRuntimeChoice::Builtin,
            runsc: path("runsc"),
            slot_range: SlotRange::default(),
        };
        let spec = SandboxSpec {
            id: SandboxId::random().unwrap(),
            layers: Vec::new(),
            limits: Limits::default(),
            network: NetworkPolicy::None,
            hostname: "first".to_owned(),
            env: std::collections::BTreeMap::new(),
            lifetime: None,
            attachment: Attachment::Client,
            memory: None,
        };
        let program = Written::of(&config.runsc).unwrap();
        let memory = Memory::of(&path("image"), program, &config, &spec).unwrap();
        assert_eq!((memory.bytes(), memory.hostname()), (10, "first"));
        let check = |tier, spec| memory.check(tier, &config, spec);
        let usual = &spec;
        let why = |spec| check(Tier::Gvisor, spec).unwrap_err().what;
        assert_eq!(check(Tier::Gvisor, usual), Ok(()));
        assert!(check(Tier::Container, usual).is_err());
        let with = |limits| SandboxSpec {
            limits,
            ..spec.clone()
        };
        let less = with(Limits {
            memory_mib: spec.limits.memory_mib - 1,
            ..spec.limits.clone()
        });
        assert!(why(&less).contains("MiB of memory"));
        let fewer = with(Limits {
            pids: spec.limits.pids - 1,
            ..spec.limits.clone()
        });
        assert!(why(&fewer).contains("processes"));
        let open = SandboxSpec {
            network: NetworkPolicy::full(),
            ..spec.clone()
        };
        assert!(why(&open).contains("network"));

        remove_tree(&path("guest")).unwrap();
        assert!(why(usual).contains("the guest"));
        make_dir(&path("guest"), 0o700).unwrap();
        fs::write(path("image/pages.img"), "other pages").unwrap();
        assert!(why(usual).contains("damaged"));
        fs::remove_dir_all(path("image")).unwrap();
        assert!(why(usual).contains("cannot be read"));
        fs::write(path("runsc"), "another program").unwrap();
        assert!(why(usual).contains("another release"));
    }
}
