//! The keeper: a process of its own with everything that attacks aim at.
//!
//! It makes canaries (files, sockets, a listener, shared memory, a key, a
//! variable, a process, which is itself), says in one line of JSON where they
//! are, and removes them when its standard input ends: when the selftest is
//! over, was interrupted, or was killed. If both are killed, [`sweep`] of the
//! next start finds the directory by its free lock, and shared memory of any
//! home by the keeper's absence.

mod objects;
mod orphans;

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde_json::{Map, Value};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::part::{PART_ARGUMENT, Part};

/// The variable that no sandbox may see, and with it the secret itself.
const SECRET_VARIABLE: &str = "ATOLL_SELFTEST_SECRET";
/// A keeper has nothing to wait for.
const READY_BOUND: Duration = Duration::from_secs(10);
/// What the canary that must not be changed holds.
pub(crate) const UNTOUCHED: &str = "untouched\n";

/// Directory of the canaries of all selftests of a home.
fn directory(home: &Path) -> PathBuf {
    home.join("selftest")
}

fn shared_memory(name: &str) -> PathBuf {
    Path::new(orphans::SHARED_MEMORY).join(format!("{}{name}", orphans::PREFIX))
}

/// Removes the canaries of selftests that were killed together with their keepers.
///
/// # Errors
/// When something cannot be read or removed.
pub fn sweep(home: &Path) -> io::Result<()> {
    orphans::sweep(Path::new(orphans::SHARED_MEMORY))?;
    let entries = match fs::read_dir(directory(home)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries.flatten() {
        let lock = match fs::File::open(entry.path().join("lock")) {
            Ok(lock) => lock,
            // One that is being made or removed right now.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            remove(&entry.path())?;
        }
    }
    // Not empty while another one runs.
    let _ = fs::remove_dir(directory(home));
    Ok(())
}

/// The lock goes last, so that what is left after a crash half-way is still found.
fn remove(base: &Path) -> io::Result<()> {
    let absent_is_fine = |result: io::Result<()>| match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    };
    let name = base.file_name().unwrap_or_default().to_string_lossy();
    absent_is_fine(fs::remove_file(shared_memory(&name)))?;
    absent_is_fine(fs::remove_dir_all(base.join("open")))?;
    absent_is_fine(fs::remove_file(base.join("outside")))?;
    absent_is_fine(fs::remove_dir_all(base.join("room")))?;
    absent_is_fine(fs::remove_dir_all(base.join("native")))?;
    absent_is_fine(fs::remove_dir_all(base))
}

/// A running keeper, as the selftest sees it.
#[derive(Debug)]
pub(crate) struct Keeper {
    /// Everything that programs may aim at.
    pub(crate) target: Map<String, Value>,
    /// What every canary holds. Whoever has it has crossed a wall.
    pub(crate) secret: String,
    base: PathBuf,
    child: Child,
}

impl Keeper {
    /// Starts one, with its canaries below `home`.
    pub(crate) async fn start(home: &Path, program: &Path) -> io::Result<Self> {
        sweep(home)?;
        let secret = random_text()?;
        let base = directory(home).join(random_text()?);
        let mut child = Command::new(program)
            .args([PART_ARGUMENT, Part::Keeper.name()])
            .arg(&base)
            .env_clear()
            .envs(crate::part::counting())
            .env(SECRET_VARIABLE, &secret)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or_else(no_pipe)?;
        let mut line = String::new();
        let mut output = BufReader::new(output);
        tokio::time::timeout(READY_BOUND, output.read_line(&mut line))
            .await
            .map_err(|_| io::Error::other("the keeper of the canaries does not come up"))??;
        let target: Map<String, Value> = serde_json::from_str(&line)
            .map_err(|error| io::Error::other(format!("the keeper failed: {error}")))?;
        Ok(Self {
            target,
            secret,
            base,
            child,
        })
    }

    /// The directory with canaries that controls may reach.
    pub(crate) fn open_directory(&self) -> PathBuf {
        self.base.join("open")
    }

    /// An empty directory to mount on.
    pub(crate) fn room_directory(&self) -> PathBuf {
        self.base.join("room")
    }

    /// A directory for what attacks on the host's side need.
    pub(crate) fn native_directory(&self) -> PathBuf {
        self.base.join("native")
    }

    /// The canary that writers must not touch.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.open_directory().join("scratch")
    }

    /// Whether somebody changed the scratch canary or left a file beside it; puts it in order.
    pub(crate) fn take_damage(&self) -> io::Result<Option<String>> {
        let path = self.scratch();
        let text = fs::read_to_string(&path).unwrap_or_else(|error| error.to_string());
        if text != UNTOUCHED {
            let _ = fs::remove_file(&path);
            fs::write(&path, UNTOUCHED)?;
            return Ok(Some(format!("the canary says {:?}", text.trim())));
        }
        let owned = self.open_directory().join("owned");
        if fs::symlink_metadata(&owned).is_ok() {
            fs::remove_file(&owned)?;
            return Ok(Some("a new file beside the canary".to_owned()));
        }
        Ok(None)
    }

    /// Lets it remove its canaries and waits for that.
    pub(crate) async fn finish(mut self) -> io::Result<()> {
        drop(self.child.stdin.take());
        let ended = tokio::time::timeout(READY_BOUND, self.child.wait()).await;
        match ended {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(io::Error::other(format!("the keeper ended with {status}"))),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::Error::other("the keeper does not end")),
        }
    }
}

fn no_pipe() -> io::Error {
    io::Error::other("the keeper has no pipes")
}

/// 16 random bytes as text.
pub(crate) fn random_text() -> io::Result<String> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The keeper's own life.
pub(crate) fn keep() -> io::Result<ExitCode> {
    // Ctrl-C is for the selftest; the keeper notices its end and cleans up.
    rustix::process::setsid()?;
    let base = PathBuf::from(std::env::args_os().nth(3).unwrap_or_default());
    let secret = std::env::var(SECRET_VARIABLE).map_err(io::Error::other)?;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&base)?;
    let lock = fs::File::create(base.join("lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let kept = make(&base, &secret).and_then(|(target, held)| {
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, &target)?;
        writeln!(out)?;
        out.flush()?;
        io::stdin().lock().read_to_end(&mut Vec::new())?;
        drop(held);
        Ok(())
    });
    remove(&base)?;
    // Gone with the last selftest; not empty while another one runs.
    if let Some(parent) = base.parent() {
        let _ = fs::remove_dir(parent);
    }
    kept.map(|()| ExitCode::SUCCESS)
}

/// Makes every canary; they live as long as what is returned beside their description.
fn make(base: &Path, secret: &str) -> io::Result<(Map<String, Value>, objects::Held)> {
    let open = base.join("open");
    for directory in ["open", "room", "native"] {
        fs::create_dir(base.join(directory))?;
    }
    // The way there is closed by the base; below it, only walls should be in the way.
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755))?;
    for path in [open.join("secret"), base.join("outside")] {
        fs::write(path, format!("{secret}\n"))?;
    }
    fs::write(open.join("scratch"), UNTOUCHED)?;
    let name = base.file_name().unwrap_or_default().to_string_lossy();
    fs::write(shared_memory(&name), format!("{secret}\n"))?;
    objects::make(base, secret, &shared_memory(&name))
}
