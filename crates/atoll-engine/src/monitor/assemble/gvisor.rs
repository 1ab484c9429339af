//! What the gVisor tier adds: one read-only tree of all layers as root, above
//! which gVisor keeps changes in a file on the sandbox's disk, and the keeper
//! to which gVisor's processes are tied.
//!
//! ```text
//! monitor ──▶ keeper (PID 1 of a pid namespace) ──▶ runsc run, once
//!                 │                                    ├─▶ sentry: the sandbox's kernel
//!                 └── ends when either of them does ◀──┴─▶ gofer: its file server
//! ```
//!
//! Sentry and gofer have the ids of the slot in a user namespace of their own,
//! besides gVisor's own chroot, empty capabilities on the host and seccomp.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::WaitOptions;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{Foundation, Started, directory, save_bundle, write_file, write_top_layer};
use crate::bundle::gvisor::{self, Way};
use crate::cgroup::Bounds;
use crate::host::file::{make_dir, remove_tree};
use crate::host::keeper::{self, Keeper};
use crate::host::mount::{self, Access};
use crate::host::process::{ProcessIdentity, pidfd, within_network};
use crate::host::{HostObject, creates, program, user_namespace};
use crate::lease::Lease;
use crate::memory::Written;
use crate::monitor::checkpoint;
use crate::monitor::exhaustion::Exhaustion;
use crate::monitor::message::{Entrance, Failure, MonitorRequest};
use crate::network::{self, enclosed};
use crate::seccomp::refuse_membarrier;

/// How long gVisor may take until the guest is started.
const START_BOUND: Duration = Duration::from_secs(45);
/// The same where its memory is read from disk first, beyond the time for that.
const RESTORE_BOUND: Duration = Duration::from_secs(90);
/// Longest word of the keeper.
const REPORT_LIMIT: u64 = 64 * 1024;
/// What root must find executable for there to be a `sudo` at all.
const SUDO: &str = "usr/bin/sudo";
/// Seen from the sandbox's root.
const GUEST: &str = "/.atoll/guest";

/// A sandbox that lacks only its processes.
pub(super) struct Created {
    bounds: Bounds,
    exhaustion: Exhaustion,
    address: Ipv4Addr,
    /// Where the guest says that it can be called.
    guest_output: PipeReader,
    plan: Plan,
}

/// Where the processes of a sandbox come from.
#[derive(Debug, Clone)]
pub(super) enum Origin {
    /// The guest is started.
    Boot,
    /// They go on where they were, with the memory in this directory.
    Image(PathBuf),
}

/// How the `runsc` of one sandbox is called, each time in the same way: what one
/// binary with some flags wrote down can be read only by the same with the same.
#[derive(Debug, Clone)]
pub(in crate::monitor) struct Runsc {
    id: String,
    path: PathBuf,
    /// Opened once, so that it stays the same whatever is installed meanwhile. A script
    /// cannot be started this way, and is found by its path.
    binary: Option<Arc<File>>,
    state: PathBuf,
    upper: PathBuf,
    keeper: Option<Arc<OwnedFd>>,
}

/// How a program begins that the kernel starts by itself.
const PROGRAM_SIGN: [u8; 4] = *b"\x7fELF";

impl Runsc {
    pub(in crate::monitor) fn id(&self) -> &str {
        &self.id
    }

    pub(in crate::monitor) fn program(&self) -> PathBuf {
        match &self.binary {
            Some(binary) => PathBuf::from(format!("/proc/self/fd/{}", binary.as_raw_fd())),
            None => self.path.clone(),
        }
    }

    pub(in crate::monitor) fn path(&self) -> &Path {
        &self.path
    }

    /// What tells it from another release.
    pub(in crate::monitor) fn mark(&self) -> io::Result<Written> {
        match &self.binary {
            Some(binary) => Ok(Written::of_metadata(&self.path, &binary.metadata()?)),
            None => Written::of(&self.path),
        }
    }

    /// Where it says what goes wrong with `verb`.
    pub(in crate::monitor) fn log(&self, verb: &str) -> PathBuf {
        self.state.join(format!("runsc-{verb}.log"))
    }

    /// The first of the processes among which it has to be called.
    pub(in crate::monitor) fn keeper(&self) -> io::Result<BorrowedFd<'_>> {
        let keeper = self.keeper.as_deref().map(OwnedFd::as_fd);
        keeper.ok_or_else(|| io::Error::other("its processes have not been started"))
    }

    pub(in crate::monitor) fn flags(&self) -> Vec<OsString> {
        let mut root = OsString::from("--root=");
        root.push(&self.state);
        let mut overlay = OsString::from("--overlay2=root:dir=");
        overlay.push(&self.upper);
        let fixed = [
            "--platform=systrap",
            "--network=sandbox",
            // Or a connection to the outside would make a checkpoint fail.
            "--net-disconnect-ok=true",
            // The cgroup is ours, and joined before.
            "--ignore-cgroups",
        ];
        [root, overlay]
            .into_iter()
            .chain(fixed.map(OsString::from))
            .collect()
    }
}

/// One call of `runsc` that starts processes.
struct Plan {
    runsc: Runsc,
    origin: Origin,
    bundle: PathBuf,
    guest_input: PipeReader,
    guest_output: PipeWriter,
}

/// Makes everything but the processes.
pub(super) fn create(
    request: &MonitorRequest,
    lease: &Lease,
    foundation: &Foundation,
    guest_input: PipeReader,
) -> Result<Created, Failure> {
    let MonitorRequest { config, spec, .. } = request;
    let origin = spec.memory.as_ref().map_or(Origin::Boot, |memory| {
        Origin::Image(memory.directory().to_owned())
    });
    let (dir, base) = (lease.dir(), lease.uid_base());
    let root = dir.join("rootfs");
    let has_sudo = has_sudo(&spec.layers)
        .map_err(|error| Failure::new("cannot look for `sudo` in the template", &error))?;
    mount_root(request, lease, foundation, has_sudo, &root)
        .map_err(|error| Failure::new("cannot mount the root file system", &error))?;
    let (Some(inside), Some(address)) = (foundation.network.inside, foundation.network.outside)
    else {
        return Err(Failure::new(
            "cannot reach the sandbox",
            &"it has no address",
        ));
    };
    let gateway = foundation.network.resolver.unwrap_or(enclosed::GATEWAY);
    let way = Way {
        address: inside,
        gateway,
        has_sudo,
    };
    let bundle = gvisor::config(spec, &root, base, way)
        .map_err(|error| Failure::new("cannot describe the sandbox", &error))?;
    let state = save_bundle(&bundle, &dir)?;
    let runsc = Runsc {
        id: spec.id.to_string(),
        path: config.runsc.clone(),
        binary: open_program(&config.runsc).map(Arc::new),
        state,
        upper: foundation.disk.join("upper"),
        keeper: None,
    };
    plan(
        request,
        lease,
        foundation,
        (runsc, address),
        (origin, guest_input),
    )
}

/// Prepares the processes of a sandbox whose memory is in `image` and whose other
/// processes, those of `earlier`, have ended.
pub(super) fn restore(
    request: &MonitorRequest,
    lease: &Lease,
    foundation: &Foundation,
    earlier: &Started,
    image: PathBuf,
    guest_input: PipeReader,
) -> Result<Created, Failure> {
    let failed =
        |error: &dyn std::fmt::Display| Failure::new("cannot prepare the sandbox to run on", error);
    let (Some(runsc), Entrance::Guest(address)) = (&earlier.runsc, earlier.entrance) else {
        return Err(failed(&"it was not started by gVisor"));
    };
    remove_tree(&runsc.state)
        .and_then(|()| make_dir(&runsc.state, 0o700))
        .map_err(|error| failed(&error))?;
    network::address_again(&foundation.network).map_err(|error| Failure::from_network(&error))?;
    let way = (runsc.clone(), address);
    plan(
        request,
        lease,
        foundation,
        way,
        (Origin::Image(image), guest_input),
    )
}

fn open_program(path: &Path) -> Option<File> {
    let file = File::open(path).ok()?;
    let mut sign = [0; PROGRAM_SIGN.len()];
    file.read_exact_at(&mut sign, 0).ok()?;
    (sign == PROGRAM_SIGN).then_some(file)
}

fn plan(
    MonitorRequest { spec, .. }: &MonitorRequest,
    lease: &Lease,
    foundation: &Foundation,
    (runsc, address): (Runsc, Ipv4Addr),
    (origin, guest_input): (Origin, PipeReader),
) -> Result<Created, Failure> {
    let (guest_output, output) =
        io::pipe().map_err(|error| Failure::new("cannot make the guest's output", &error))?;
    let bounds = Bounds::gvisor(&spec.limits);
    let cgroup = &foundation.cgroup;
    let exhaustion = creates(HostObject::Cgroup, || cgroup.make(&bounds))
        .and_then(|()| Exhaustion::of(cgroup, &bounds, &spec.limits))
        .map_err(|error| Failure::new("cannot make the cgroup", &error))?;
    Ok(Created {
        bounds,
        exhaustion,
        address,
        guest_output,
        plan: Plan {
            bundle: lease.dir(),
            runsc,
            origin,
            guest_input,
            guest_output: output,
        },
    })
}

/// Whether the layers, the top one first, make up a tree with a `sudo` that can
/// become root: what a layer removed is not there, whatever lies below.
fn has_sudo(layers: &[PathBuf]) -> io::Result<bool> {
    for layer in layers {
        for part in Path::new(SUDO).ancestors().collect::<Vec<_>>().iter().rev() {
            // The whole path comes last.
            let path = layer.join(part);
            let found = match fs::symlink_metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                other => other?,
            };
            if found.is_dir() {
                if is_opaque(&path)? {
                    // Nothing below this layer shows through; this layer itself still may have it.
                    return Ok(is_set_user_id(&layer.join(SUDO)));
                }
                continue;
            }
            // A program, or something in its way: a removal, a link.
            return Ok(*part == Path::new(SUDO) && is_set_user_id(&path));
        }
    }
    Ok(false)
}

fn is_set_user_id(path: &Path) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o4000 != 0)
}

/// Whether a directory hides those of its name in the layers below.
fn is_opaque(path: &Path) -> io::Result<bool> {
    let mut value = [0; 1];
    match rustix::fs::lgetxattr(path, "trusted.overlay.opaque", &mut value) {
        Ok(length) => Ok(&value[..length] == b"y"),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// All layers as one read-only tree, the host's own files on top.
fn mount_root(
    request: &MonitorRequest,
    lease: &Lease,
    foundation: &Foundation,
    has_sudo: bool,
    root: &Path,
) -> io::Result<()> {
    make_dir(root, 0o711)?;
    let top = write_top_layer(foundation, lease.uid_base())?;
    add_to_top_layer(&top, lease.uid_base(), has_sudo)?;
    let ids = user_namespace::for_mounts(lease.uid_base())?;
    let mut layers = vec![mount::cloned_tree(&top, Access::ReadOnly, None)?];
    // The guest's layer goes above those of the template: none can put another guest in its place.
    let layers_of_template = request.spec.layers.iter().map(PathBuf::as_path);
    let guest = request.spec.guest(&request.config);
    for layer in std::iter::once(guest).chain(layers_of_template) {
        layers.push(
            mount::cloned_tree(layer, Access::ReadOnly, Some(ids.as_fd())).map_err(|error| {
                io::Error::new(error.kind(), format!("layer {}: {error}", layer.display()))
            })?,
        );
    }
    mount::overlay(&layers, None, &lease.dir().join("l"), root)
}

/// A file in `/tmp`, because gVisor lays memory over one that is empty (the
/// guest removes it); and the guest in place of `sudo`, whose bit to become root
/// gVisor ignores.
fn add_to_top_layer(top: &Path, uid_base: u32, has_sudo: bool) -> io::Result<()> {
    directory(&top.join("tmp"), 0o1777, uid_base)?;
    write_file(&top.join("tmp/.atoll"), "", uid_base)?;
    if has_sudo {
        directory(&top.join("usr"), 0o755, uid_base)?;
        directory(&top.join("usr/bin"), 0o755, uid_base)?;
        std::os::unix::fs::symlink(GUEST, top.join(SUDO))?;
        std::os::unix::fs::lchown(top.join(SUDO), Some(uid_base), Some(uid_base))?;
    }
    Ok(())
}

impl Created {
    /// Starts the keeper and waits until the guest can be called.
    pub(super) fn start(self, foundation: &Foundation) -> Result<Started, Failure> {
        let failed =
            |error: io::Error| Failure::new("cannot start the process that keeps gVisor", &error);
        let Self {
            bounds,
            exhaustion,
            address,
            guest_output,
            plan,
        } = self;
        if let Origin::Image(_) = plan.origin {
            exhaustion.lend().map_err(failed)?;
        }
        let doors = foundation.cgroup.doors();
        let whole_proc = plan.bundle.join("proc");
        let origin = plan.origin.clone();
        let runsc = plan.runsc.clone();
        // The keeper is born in a cgroup of the sandbox, so that it is found there
        // even if this process is killed half-way.
        let Keeper { pid, said } = foundation
            .cgroup
            .within(|| keeper::start(&whole_proc, |report| plan.keep(foundation, doors, report)))
            .map_err(failed)?;
        let init = ProcessIdentity::of(pid).map_err(failed)?;
        let init_fd = pidfd(pid).map_err(failed)?;
        creates(HostObject::GuestStart, || {
            match origin {
                Origin::Boot => {
                    hear(said, &init_fd, START_BOUND)?;
                    hear_guest(guest_output, &init_fd)
                }
                // It said that it can be called when it was started.
                Origin::Image(directory) => {
                    let bound = RESTORE_BOUND + checkpoint::bound(bytes_in(&directory)?);
                    hear(said, &init_fd, bound)
                }
            }
        })
        .map_err(|error| Failure::new("cannot start gVisor", &error))?;
        exhaustion.take_back();
        // Nobody has been able to ask the guest for anything yet.
        let cgroup = &foundation.cgroup;
        cgroup
            .bound_cpu(&bounds)
            .and_then(|()| cgroup.verify(&exhaustion.in_force(&bounds)))
            .map_err(|error| {
                Failure::new("the kernel does not enforce the limits", &error)
                    .with_hint("`atoll doctor` lists the cgroup controllers that this host lacks")
            })?;
        let keeper = init_fd.try_clone().map_err(failed)?;
        Ok(Started {
            init,
            init_fd,
            entrance: Entrance::Guest(address),
            exhaustion: Some(exhaustion),
            runsc: Some(Runsc {
                keeper: Some(Arc::new(keeper)),
                ..runsc
            }),
        })
    }
}

impl Plan {
    /// Life of the keeper: `runsc` once, then waiting for the end of what it started.
    fn keep(
        self,
        foundation: &Foundation,
        doors: Vec<PathBuf>,
        mut report: PipeWriter,
    ) -> io::Result<i32> {
        let state = self.runsc.state.clone();
        let id = self.runsc.id.clone();
        let started = within_network(&foundation.network.namespace, || {
            mount::hide_host_network_sign()?;
            self.run(doors)
        })
        .and_then(|()| processes(&state, &id));
        // From here on this process is in the namespace from which the sandbox is dialed.
        let started = started.and_then(|pids| {
            if let Some(far) = &foundation.far {
                move_into_link_name_space(far.as_fd(), Some(LinkNameSpaceType::Network))?;
            }
            Ok(pids)
        });
        let pids = match started {
            Ok(pids) => pids,
            Err(error) => {
                report.write_all(error.to_string().as_bytes())?;
                return Ok(1);
            }
        };
        report.write_all(STARTED)?;
        drop(report);
        loop {
            match rustix::process::wait(WaitOptions::empty()) {
                Ok(Some((ended, status)))
                    if pids.contains(&i64::from(ended.as_raw_nonzero().get())) =>
                {
                    return Ok(status.exit_status().unwrap_or(1));
                }
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return Ok(1),
            }
        }
    }

    /// Calls `runsc`, which ends when the guest has been started or goes on.
    fn run(self, doors: Vec<PathBuf>) -> io::Result<()> {
        let Self {
            runsc,
            origin,
            bundle,
            guest_input,
            guest_output,
        } = self;
        let (verb, image) = match &origin {
            Origin::Boot => ("run", None),
            Origin::Image(directory) => ("restore", Some(directory)),
        };
        let log = runsc.log(verb);
        let output = File::create(&log)?;
        let mut command = Command::new(runsc.program());
        command.args(runsc.flags()).args([verb, "--detach"]);
        if let Some(directory) = image {
            command.arg("--image-path").arg(directory);
        }
        command
            .arg("--bundle")
            .arg(&bundle)
            .arg(&runsc.id)
            .env_clear()
            // Nobody waits for the end of these: gVisor's processes keep them open.
            .stdin(guest_input)
            .stdout(guest_output)
            .stderr(output);
        let join = move || {
            doors.iter().try_for_each(|door| fs::write(door, "0"))?;
            refuse_membarrier()
        };
        // SAFETY: this process has one thread, so the child of its fork may
        // allocate and open files as it likes.
        unsafe { command.pre_exec(join) };
        let status = program::status(&mut command).map_err(|error| {
            let path = runsc.path.display();
            io::Error::new(error.kind(), format!("`{path}`: {error}"))
        })?;
        if status.success() {
            return Ok(());
        }
        let text = fs::read_to_string(&log).unwrap_or_default();
        Err(io::Error::other(format!(
            "`{} {verb}` failed ({status}): {}",
            runsc.path.display(),
            text.trim()
        )))
    }
}

/// What the keeper says when all is well.
const STARTED: &[u8] = b"started";

/// Waits for the keeper's word.
fn hear(said: PipeReader, keeper: &OwnedFd, bound: Duration) -> io::Result<()> {
    await_word(&said, keeper, bound)?;
    let mut word = Vec::new();
    said.take(REPORT_LIMIT).read_to_end(&mut word)?;
    match word.as_slice() {
        STARTED => Ok(()),
        [] => Err(io::Error::other("its keeper ended without a word")),
        text => Err(io::Error::other(String::from_utf8_lossy(text).into_owned())),
    }
}

/// Waits for a word of the guest. Whatever it is, the guest is up.
fn hear_guest(mut guest: PipeReader, keeper: &OwnedFd) -> io::Result<()> {
    await_word(&guest, keeper, START_BOUND)?;
    // Whoever ends closes the pipe, so this does not wait for one that has.
    match guest.read(&mut [0_u8])? {
        0 => Err(io::Error::other("the guest ended without a word")),
        _ => Ok(()),
    }
}

/// Waits until `said` has something or the keeper has ended.
fn await_word(said: &PipeReader, keeper: &OwnedFd, bound: Duration) -> io::Result<()> {
    let mut sources = [
        PollFd::new(said, PollFlags::IN),
        PollFd::new(keeper, PollFlags::IN),
    ];
    let timeout = Timespec {
        tv_sec: i64::try_from(bound.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: 0,
    };
    if poll(&mut sources, Some(&timeout))? > 0 {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::TimedOut,
        format!("it did not come up within {} s", bound.as_secs()),
    ))
}

/// What the files in an image take.
fn bytes_in(image: &Path) -> io::Result<u64> {
    fs::read_dir(image)?.try_fold(0, |sum, entry| Ok(sum + entry?.metadata()?.len()))
}

/// Sentry and gofer, as `runsc` wrote them down.
fn processes(state: &Path, id: &str) -> io::Result<[i64; 2]> {
    let path = state.join(format!("{id}_sandbox:{id}.state"));
    let text = fs::read(&path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    let value: serde_json::Value = serde_json::from_slice(&text).map_err(io::Error::other)?;
    match (value["sandbox"]["pid"].as_i64(), value["goferPid"].as_i64()) {
        (Some(sentry), Some(gofer)) => Ok([sentry, gofer]),
        _ => Err(io::Error::other(format!(
            "{} names no processes",
            path.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer_with(entries: &[(&str, u32)]) -> tempfile::TempDir {
        let layer = tempfile::tempdir().unwrap();
        for (path, mode) in entries {
            let path = layer.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).unwrap();
        }
        layer
    }

    #[test]
    fn sudo_is_there_only_where_the_merged_tree_has_it() {
        let debian = layer_with(&[(SUDO, 0o4755)]);
        let other = layer_with(&[("usr/bin/true", 0o755)]);
        let tamed = layer_with(&[(SUDO, 0o755)]);
        let removed = layer_with(&[("usr/bin/true", 0o755)]);
        // Any kind of thing in its place hides what is below; a removal is a device 0:0.
        rustix::fs::mknodat(
            rustix::fs::CWD,
            removed.path().join(SUDO),
            rustix::fs::FileType::CharacterDevice,
            rustix::fs::Mode::empty(),
            0,
        )
        .unwrap();
        let linked = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(debian.path().join("usr"), linked.path().join("usr")).unwrap();
        let opaque = layer_with(&[("usr/bin/true", 0o755)]);
        rustix::fs::setxattr(
            opaque.path().join("usr/bin"),
            "trusted.overlay.opaque",
            b"y",
            rustix::fs::XattrFlags::empty(),
        )
        .unwrap();
        let found = |layers: &[&tempfile::TempDir]| {
            let layers: Vec<PathBuf> = layers.iter().map(|layer| layer.path().into()).collect();
            has_sudo(&layers).unwrap()
        };
        assert!(found(&[&debian]) && found(&[&other, &debian]));
        for top in [&tamed, &removed, &linked, &opaque] {
            assert!(!found(&[top, &debian]));
        }
        assert!(found(&[&debian, &removed]));
        assert!(!found(&[]) && !found(&[&other]));
    }
}
