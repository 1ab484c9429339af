//! Making a sandbox, step by step. Whatever step fails, everything made so far is removed.
//!
//! Here is what all tiers share: lease, disk, network, files that the host
//! decides on, control socket, record. `container` and `gvisor` add the root
//! and the processes.

mod container;
mod gvisor;

use std::fs::{self, File};
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use libcontainer::oci_spec::runtime::Spec;
use rustix::fs::OFlags;

pub(super) use gvisor::Runsc;

use super::checkpoint::Image;
use super::dismantle::dismantle;
use super::message::{Entrance, Failure, MonitorRequest, Ready};
use super::suspension::Phase;
use crate::cgroup::Cgroup;
use crate::disk::{self, Disks};
use crate::host::file::{listen, make_dir, remove_tree};
use crate::host::mount;
use crate::host::process::ProcessIdentity;
use crate::host::{HostObject, creates};
use crate::lease::{HostLock, Lease};
use crate::monitor::exhaustion::Exhaustion;
use crate::network::{self, SandboxNetwork};
use crate::record::{Records, SandboxRecord, now_ms};
use crate::{CgroupLayout, Outcome, SandboxSpec, Tier};

/// What the guest understands as the news that its memory was on disk.
const RESTORED: &[u8] = b"r";

/// Name of the uppermost layer below the place for the sandbox's files.
const TOP_LAYER: &str = "top";

/// A sandbox that has been started.
pub(super) struct Running {
    pub(super) lease: Lease,
    pub(super) foundation: Foundation,
    pub(super) started: Started,
    pub(super) control: UnixListener,
    /// The guest's standard input is the other end: it learns there that this
    /// process is gone, and what it is asked for.
    pub(super) lifeline: PipeWriter,
    pub(super) phase: Phase,
    /// Its memory on disk, until it runs on as it should.
    pub(super) image: Option<Image>,
}

/// What a tier says of a sandbox that it has started.
pub(super) struct Started {
    /// The process with which the sandbox ends.
    pub(super) init: ProcessIdentity,
    pub(super) init_fd: OwnedFd,
    pub(super) entrance: Entrance,
    /// Where the tier must act itself when memory or processes run out.
    pub(super) exhaustion: Option<Exhaustion>,
    /// How gVisor is called, where it is gVisor.
    pub(super) runsc: Option<Runsc>,
}

/// What is there before a tier adds its own.
pub(super) struct Foundation {
    /// The writable file system.
    pub(super) disk: PathBuf,
    /// A small tmpfs for files that the host decides on.
    scratch: PathBuf,
    pub(super) cgroup: Cgroup,
    pub(super) network: SandboxNetwork,
    /// Where the host's end of the network is, if not in the host's namespace.
    pub(super) far: Option<OwnedFd>,
    /// Files of `/etc` inside and their texts.
    files: [(&'static str, String); 3],
}

/// A sandbox that lacks only its start.
enum Created {
    Container(container::Created),
    Gvisor(Box<gvisor::Created>),
}

impl Running {
    pub(super) fn ready(&self) -> Ready {
        let (init, entrance) = match &self.phase {
            Phase::Awake | Phase::Halted => (&self.started.init, self.started.entrance),
            Phase::Suspended(watcher) => (watcher, Entrance::None),
        };
        Ready {
            init: init.clone(),
            control: control_path(&self.lease),
            entrance,
        }
    }
}

/// Where the monitor of `lease` listens.
pub(crate) fn control_path(lease: &Lease) -> PathBuf {
    lease.dir().join("control.sock")
}

/// Makes and starts the sandbox that `request` asks for.
pub(super) fn assemble(request: &MonitorRequest) -> Result<Running, Failure> {
    let MonitorRequest { config, tier, spec } = request;
    check_cgroups()?;
    let lease = HostLock::take()
        .and_then(|lock| lock.lease(&config.home, *tier, spec, &config.slot_range))
        .map_err(|error| Failure::new("cannot lease a sandbox slot", &error))?;
    build(request, &lease).inspect_err(|failure| {
        let outcome = Outcome::Crashed {
            detail: failure.what.clone(),
        };
        // What cannot be removed now still has its lease and is removed by the next start.
        let _ = dismantle(config, &lease, &outcome);
    })
}

/// Without these controllers limits would be words.
fn check_cgroups() -> Result<(), Failure> {
    let hint = "`atoll doctor` says which controllers are missing and how to get them";
    let failed = |error: &dyn std::fmt::Display| {
        Failure::new("this host has no usable cgroups", error).with_hint(hint)
    };
    let missing = CgroupLayout::detect()
        .and_then(CgroupLayout::missing_controllers)
        .map_err(|error| failed(&error))?;
    if missing.is_empty() {
        Ok(())
    } else {
        Err(failed(&format!("no controller for {}", missing.join(", "))))
    }
}

fn disk_failure(error: &io::Error, home: &Path) -> Failure {
    let failure = Failure::new("cannot make the disk", error);
    match error.kind() {
        io::ErrorKind::NotFound => failure.with_hint("apt-get install e2fsprogs"),
        io::ErrorKind::StorageFull => failure.with_hint(&format!(
            "free space on the file system of `{}`; `atoll gc` may help",
            home.display()
        )),
        _ => failure,
    }
}

/// Where something of the host's is mounted. A template's link there would lead
/// the mount elsewhere, so each must be a directory, or nothing.
const MOUNT_POINTS: [&str; 5] = ["dev", "etc", "proc", "run", "sys"];

fn check_mount_points(layers: &[PathBuf]) -> Result<(), Failure> {
    for name in MOUNT_POINTS {
        // As in the overlay of them all, the uppermost decides.
        let found = layers
            .iter()
            .find_map(|layer| fs::symlink_metadata(layer.join(name)).ok());
        let Some(kind) = found.map(|metadata| metadata.file_type()) else {
            continue;
        };
        // A character device is how a layer says that what is below is gone.
        if kind.is_dir() || kind.is_char_device() {
            continue;
        }
        let what = if kind.is_symlink() {
            "a link"
        } else {
            "a file"
        };
        let failure = Failure::new(
            "cannot use the template",
            &format!("its `/{name}` is {what}, where a directory must be"),
        );
        return Err(failure.with_hint(&format!(
            "rebuild the template with `/{name}` as an empty directory, for example by a step \
             `rm /{name} && mkdir /{name}` where it was made"
        )));
    }
    Ok(())
}

fn build(request: &MonitorRequest, lease: &Lease) -> Result<Running, Failure> {
    let MonitorRequest { config, tier, spec } = request;
    check_mount_points(&spec.layers)?;
    let foundation = lay_foundation(request, lease)?;
    let (guest_input, lifeline) =
        make_lifeline().map_err(|error| Failure::new("cannot make the lifeline", &error))?;
    let created = match tier {
        Tier::Container => {
            Created::Container(container::create(request, lease, &foundation, guest_input)?)
        }
        Tier::Gvisor => {
            let created = gvisor::create(request, lease, &foundation, guest_input)?;
            Created::Gvisor(Box::new(created))
        }
        Tier::Microvm => {
            return Err(Failure::new(
                "cannot create the sandbox",
                &"this version of Atoll has no microvm tier",
            ));
        }
    };
    let control = listen(&control_path(lease))
        .map_err(|error| Failure::new("cannot open the control socket", &error))?;
    Records::new(config.records())
        .write(&SandboxRecord {
            id: spec.id.clone(),
            tier: *tier,
            limits: spec.limits.clone(),
            network: spec.network.clone(),
            created_ms: now_ms(),
            ended: None,
        })
        .map_err(|error| Failure::new("cannot record the sandbox", &error))?;
    let started = match created {
        Created::Container(created) => created.start()?,
        Created::Gvisor(created) => created.start(&foundation)?,
    };
    if spec.memory.is_some() {
        tell_restored(&lifeline);
    }
    Ok(Running {
        lease: lease.clone(),
        foundation,
        started,
        control,
        lifeline,
        phase: Phase::Awake,
        image: None,
    })
}

/// Starts a container again on the disk that it had, after its processes have ended.
pub(super) fn boot_again(
    request: &MonitorRequest,
    lease: &Lease,
    foundation: &Foundation,
    guest_input: PipeReader,
) -> Result<Started, Failure> {
    let cleared = mount::remove(&lease.dir().join("rootfs"))
        .and_then(|()| remove_tree(&lease.dir().join("oci")));
    cleared.map_err(|error| Failure::new("cannot remove what is left of the last boot", &error))?;
    container::create(request, lease, foundation, guest_input)?.start()
}

/// Lets the processes of `earlier`, which have ended, go on with the memory in `image`.
pub(super) fn restore(
    request: &MonitorRequest,
    lease: &Lease,
    foundation: &Foundation,
    earlier: &Started,
    image: &Image,
    guest_input: PipeReader,
) -> Result<Started, Failure> {
    let image = image.directory().to_owned();
    gvisor::restore(request, lease, foundation, earlier, image, guest_input)?.start(foundation)
}

/// Tells the guest that its memory was on disk. One that does not hear it draws the same random
/// numbers as others with that memory, at worst.
pub(super) fn tell_restored(lifeline: &PipeWriter) {
    let _ = rustix::io::write(lifeline, RESTORED);
}

/// A pipe to the guest. Nothing waits for it to be read: a guest that stops
/// reading must not stop the monitor.
pub(super) fn make_lifeline() -> io::Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = io::pipe()?;
    rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK)?;
    Ok((reader, writer))
}

/// Disk, network and a place for files.
fn lay_foundation(request: &MonitorRequest, lease: &Lease) -> Result<Foundation, Failure> {
    let MonitorRequest { config, spec, .. } = request;
    let (disk, scratch) = (lease.dir().join("disk"), lease.dir().join("scratch"));
    let image = Disks::new(config.disks())
        .create(&spec.id, &spec.limits)
        .map_err(|error| disk_failure(&error, &config.home))?;
    disk::mount_image(&image, &disk)
        .map_err(|error| Failure::new("cannot mount the disk", &error))?;
    make_dir(&scratch, 0o711)
        .and_then(|()| mount::small_tmpfs(&scratch))
        .map_err(|error| Failure::new("cannot mount a place for the sandbox's files", &error))?;
    let (network, far) = make_network(request, lease)?;
    let cgroup =
        Cgroup::of(&spec.id).map_err(|error| Failure::new("no cgroups on this host", &error))?;
    Ok(Foundation {
        disk,
        scratch,
        cgroup,
        files: files(spec, &network),
        network,
        far,
    })
}

fn make_network(
    request: &MonitorRequest,
    lease: &Lease,
) -> Result<(SandboxNetwork, Option<OwnedFd>), Failure> {
    let range = &request.config.slot_range;
    let failed = |error: network::NetworkError| Failure::from_network(&error);
    if lease.network.is_some() {
        let lock = HostLock::take()
            .map_err(|error| Failure::new("cannot lock the host's network", &error))?;
        network::ensure_host(range, || lock.live_networks(lease)).map_err(failed)?;
    } else if lease.tier == Tier::Gvisor {
        let made = network::enclosed::create().map_err(failed)?;
        return Ok((made.network, Some(made.far)));
    }
    let made = network::create(&request.spec.network, lease.slot, range).map_err(failed)?;
    Ok((made, None))
}

impl Failure {
    fn from_network(error: &network::NetworkError) -> Self {
        let failure = Self::new("cannot make the network", error);
        match error.hint() {
            Some(hint) => failure.with_hint(hint),
            None => failure,
        }
    }
}

/// Files of `/etc` that the host decides on: names and resolver.
fn files(spec: &SandboxSpec, network: &SandboxNetwork) -> [(&'static str, String); 3] {
    let hosts = format!(
        "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t{}\n",
        spec.hostname
    );
    let resolver = network.resolver.map_or_else(
        || "# This sandbox has no network.\n".to_owned(),
        |address| format!("nameserver {address}\noptions timeout:5 attempts:2\n"),
    );
    [
        ("hosts", hosts),
        ("resolv.conf", resolver),
        ("hostname", format!("{}\n", spec.hostname)),
    ]
}

/// A file that root inside may change.
fn write_file(path: &Path, text: &str, uid_base: u32) -> io::Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))?;
    std::os::unix::fs::chown(path, Some(uid_base), Some(uid_base))
}

/// A directory as the sandbox's root would have made it.
fn directory(path: &Path, mode: u32, uid_base: u32) -> io::Result<()> {
    make_dir(path, mode)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    std::os::unix::fs::chown(path, Some(uid_base), Some(uid_base))
}

/// Makes the layer that lies above all others, with the files that the host
/// decides on: whatever a template has in their places, also a link, is hidden by them.
fn write_top_layer(foundation: &Foundation, uid_base: u32) -> io::Result<PathBuf> {
    let top = foundation.scratch.join(TOP_LAYER);
    directory(&top, 0o755, uid_base)?;
    directory(&top.join("etc"), 0o755, uid_base)?;
    for (name, text) in &foundation.files {
        write_file(&top.join("etc").join(name), text, uid_base)?;
    }
    Ok(top)
}

/// Writes the bundle into `dir`, and makes a directory beside it for the state of its runtime.
fn save_bundle(bundle: &Spec, dir: &Path) -> Result<PathBuf, Failure> {
    let state = dir.join("oci");
    creates(HostObject::Bundle, || {
        make_dir(&state, 0o700)?;
        let path = dir.join("config.json");
        // Variables of the sandbox are in it.
        File::options()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&path)?;
        bundle.save(path).map_err(io::Error::other)
    })
    .map_err(|error| Failure::new("cannot write the bundle", &error))?;
    Ok(state)
}
