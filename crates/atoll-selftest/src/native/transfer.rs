//! Files of a sandbox that the host writes and reads with root's rights:
//! uploads, downloads, and what becomes a layer after a step of a build.

use std::io::Cursor;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use atoll_engine::SandboxError;
use atoll_store::{Blobs, Layers, no_progress};
use rustix::fs::{Access, StatVfsMountFlags};
use tokio::io::AsyncReadExt as _;

use super::workspace;
use crate::case::{Numbers, Target, User};
use crate::program::{self, Report};
use crate::runner::Scene;
use crate::runner::scene::Pair;
use crate::stage::{Actor, StageError};

/// Plants a link or a file, or uses it as a careless host would.
const TRAP: &str = include_str!("../../attacks/trap.py");
/// The user and group `nobody`.
const NOBODY: u32 = 65534;
/// The bit of a mode with which a program has the rights of its owner.
const SET_USER_ID: u32 = 0o4000;
const DOWNLOAD_LIMIT: u64 = 4096;

/// Which privileged reader or writer is trapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writer {
    UploadThroughLink,
    UploadBelowLink,
    DownloadThroughLink,
    LayerOfLinks,
    SetuidOnTheHost,
}

impl Writer {
    pub(crate) const ALL: [Self; 5] = [
        Self::UploadThroughLink,
        Self::UploadBelowLink,
        Self::DownloadThroughLink,
        Self::LayerOfLinks,
        Self::SetuidOnTheHost,
    ];

    /// Name, what is tried, the wall, and the control.
    pub(crate) fn describe(self) -> (&'static str, &'static str, &'static str, &'static str) {
        let inside = "files are written and read by PID 1, inside: a link there ends there";
        match self {
            Self::UploadThroughLink => (
                "transfers.upload-through-link",
                "a link in the home directory to a file of the host, in wait for an upload",
                inside,
                "a writer on the host follows the same link",
            ),
            Self::UploadBelowLink => (
                "transfers.upload-below-link",
                "a link in the home directory to a directory of the host, in wait for an upload below it",
                inside,
                "a writer on the host follows the same link",
            ),
            Self::DownloadThroughLink => (
                "transfers.download-through-link",
                "a link in the home directory to a file of the host, in wait for a download",
                inside,
                "a reader on the host follows the same link",
            ),
            Self::LayerOfLinks => (
                "transfers.layer-of-links",
                "links to files of the host, left behind for the step builder to make a layer of",
                "trees are archived without following links",
                "a reader on the host follows the same link",
            ),
            Self::SetuidOnTheHost => (
                "setuid.on-the-host",
                "a set-user-id program of root made inside, within reach of an ordinary user of the host",
                "closed directories, and `nosuid` on the host's mount of the disk",
                "the same file in an open directory, run by the same user",
            ),
        }
    }

    fn step(self) -> &'static str {
        match self {
            Self::UploadThroughLink | Self::DownloadThroughLink | Self::LayerOfLinks => "link",
            Self::UploadBelowLink => "directory",
            Self::SetuidOnTheHost => "setuid",
        }
    }
}

/// Sets the trap inside, and lets the host walk into it.
pub(crate) async fn play(writer: Writer, scene: &mut Scene) -> Result<Pair, String> {
    let actor = scene.open_plain(&Numbers::new()).await?;
    let planted = actor
        .perform(&text(scene, writer, "plant"), User::Root, "/")
        .await
        .report();
    let attack = match planted {
        Ok(report) if report.success => spring(writer, scene, &actor).await,
        Ok(report) => Err(format!("the trap could not be set: {}", report.got)),
        Err(why) => Err(why),
    };
    actor.close().await;
    let attack = damaged(attack, scene)?;
    let control = scene
        .in_room(&scene.order(&text(scene, writer, "walk-in")))
        .await;
    let control = damaged(control, scene)?;
    Ok((attack, control))
}

fn text(scene: &Scene, writer: Writer, step: &str) -> String {
    let mut aim = Target::new();
    aim.insert("kind".to_owned(), writer.step().to_owned());
    aim.insert("step".to_owned(), step.to_owned());
    let reads = matches!(writer, Writer::DownloadThroughLink | Writer::LayerOfLinks);
    let file = if reads { "read" } else { "write" };
    aim.insert("use".to_owned(), file.to_owned());
    program::text(TRAP, &scene.target(&[&aim], ""))
}

fn damaged(
    report: Result<Report, String>,
    scene: &Scene,
) -> Result<Result<Report, String>, String> {
    let damage = scene
        .keeper
        .take_damage()
        .map_err(|error| error.to_string())?;
    Ok(damage.map_or(report, |damage| Ok(Report::succeeded(damage))))
}

/// What the host does with what is inside.
async fn spring(writer: Writer, scene: &Scene, actor: &Actor) -> Result<Report, String> {
    let secret = &scene.keeper.secret;
    match writer {
        Writer::UploadThroughLink => Ok(upload(actor, "/home/trap").await),
        Writer::UploadBelowLink => Ok(upload(actor, "/home/trap/owned").await),
        Writer::DownloadThroughLink => download(actor, secret).await,
        Writer::LayerOfLinks => match halted(actor).await? {
            Ok(tree) => import(scene, &tree).await,
            Err(refused) => Ok(refused),
        },
        Writer::SetuidOnTheHost => Ok(match halted(actor).await? {
            Ok(tree) => within_reach_of_nobody(&tree.join("home/trap")),
            Err(refused) => refused,
        }),
    }
}

/// Where the changes of a sandbox are; a tier that never shows them as files has no trap to offer.
async fn halted(actor: &Actor) -> Result<Result<PathBuf, Report>, String> {
    match actor.halt().await {
        Ok(tree) => Ok(Ok(tree)),
        Err(StageError::Sandbox(error @ SandboxError::Unsupported { .. })) => {
            Ok(Err(Report::failed(error.to_string())))
        }
        Err(error) => Err(error.to_string()),
    }
}

async fn upload(actor: &Actor, path: &str) -> Report {
    let content = Cursor::new(b"owned\n".to_vec());
    match actor.guest.write_file(path, Some("root"), content).await {
        Ok(()) => Report::failed("written inside of the sandbox"),
        Err(error) => Report::failed(error.to_string()),
    }
}

async fn download(actor: &Actor, secret: &str) -> Result<Report, String> {
    let reader = match actor.guest.read_file("/home/trap", Some("root")).await {
        Ok(reader) => reader,
        Err(error) => return Ok(Report::failed(error.to_string())),
    };
    let mut read = Vec::new();
    reader
        .take(DOWNLOAD_LIMIT)
        .read_to_end(&mut read)
        .await
        .map_err(|error| error.to_string())?;
    let read = String::from_utf8_lossy(&read).into_owned();
    Ok(Report {
        success: read.contains(secret),
        ..Report::failed(format!("{read:?}"))
    })
}

/// Makes a layer of what a sandbox left, as a build does, and looks for the secret in it.
async fn import(scene: &Scene, tree: &Path) -> Result<Report, String> {
    let home = workspace(scene, "import")?;
    let layers = Blobs::open(&home)
        .map_err(|error| error.to_string())
        .and_then(|blobs| Layers::open(&home, blobs).map_err(|error| error.to_string()))?;
    let info = match layers.import_tree(tree, no_progress()).await {
        Ok(info) => info,
        Err(error) => return Ok(Report::failed(error.to_string())),
    };
    let copy = layers.path(&info.digest).join("home/trap");
    let metadata = std::fs::symlink_metadata(&copy).map_err(|error| error.to_string())?;
    if metadata.is_symlink() {
        return Ok(Report::failed("the link was kept as a link"));
    }
    let content = std::fs::read_to_string(&copy).unwrap_or_default();
    Ok(Report {
        success: content.contains(&scene.keeper.secret),
        ..Report::failed(content)
    })
}

/// Whether an ordinary user of the host could run a program with the rights of its
/// owner. It is the attacker's program, so it is never run: the kernel is asked.
fn within_reach_of_nobody(program: &Path) -> Report {
    let mode = match std::fs::symlink_metadata(program) {
        Ok(metadata) => metadata.permissions().mode(),
        Err(error) => {
            return Report::failed(format!("the file is not there for root either: {error}"));
        }
    };
    let honoured = match rustix::fs::statvfs(program) {
        Ok(mount) => !mount.f_flag.contains(StatVfsMountFlags::NOSUID),
        Err(error) => return Report::failed(format!("its mount cannot be looked at: {error}")),
    };
    match asked_by_nobody(program) {
        Err(error) => Report::failed(error.to_string()),
        Ok(()) => Report {
            success: honoured && mode & SET_USER_ID != 0,
            ..Report::failed(format!(
                "within reach, mode {mode:o}, set-user-id is {}",
                if honoured { "honoured" } else { "ignored" }
            ))
        },
    }
}

/// Asks the kernel, in the name of `nobody`, whether `program` may be run.
fn asked_by_nobody(program: &Path) -> std::io::Result<()> {
    let path = std::ffi::CString::new(program.as_os_str().as_bytes())?;
    // What is run in the end is the host's own.
    let mut command = Command::new("/bin/true");
    command.uid(NOBODY).gid(NOBODY).env_clear();
    let ask = move || Ok(rustix::fs::access(path.as_c_str(), Access::EXEC_OK)?);
    // SAFETY: one system call, on memory that was allocated before the fork.
    unsafe { command.pre_exec(ask) };
    command.status().map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    #[test]
    fn what_nobody_can_reach_is_told_apart_without_running_it() {
        let directory = tempfile::tempdir().unwrap();
        let (program, marker) = (directory.path().join("trap"), directory.path().join("ran"));
        fs::write(&program, format!("#!/bin/sh\n: > {}\n", marker.display())).unwrap();
        let closed = |mode: u32| {
            fs::set_permissions(directory.path(), Permissions::from_mode(mode)).unwrap();
            within_reach_of_nobody(&program)
        };
        fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
        assert!(!closed(0o700).success, "{:?}", closed(0o700));
        // Many hosts have their temporary directory on a mount that ignores the bit.
        let mount = rustix::fs::statvfs(directory.path()).unwrap();
        let honoured = !mount.f_flag.contains(StatVfsMountFlags::NOSUID);
        let open = closed(0o777);
        assert!(open.got.starts_with("within reach"), "{open:?}");
        assert_eq!(open.success, honoured, "{open:?}");
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        assert!(!closed(0o777).success, "without the bit");
        assert!(!marker.exists(), "it was run");
    }
}
