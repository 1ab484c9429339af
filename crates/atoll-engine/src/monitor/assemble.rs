//! Making a sandbox, step by step. Whatever step fails, everything made so far is removed.

use std::ffi::CStr;
use std::fs;
use std::io::{self, PipeWriter};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, setrlimit};

use super::dismantle::dismantle;
use super::message::{Failure, MonitorRequest, Ready};
use crate::bundle::{self, BundlePaths};
use crate::cgroup::Cgroup;
use crate::disk::{self, Disks};
use crate::host::file::{listen, make_dir};
use crate::host::mount::{self, Access, InnerMount};
use crate::host::process::{ProcessIdentity, enter, in_child, pidfd, within_network};
use crate::host::{HostObject, creates, user_namespace};
use crate::lease::{HostLock, Lease};
use crate::network::{self, SandboxNetwork};
use crate::record::{Records, SandboxRecord, now_ms};
use crate::{CgroupLayout, Limits, Outcome, SandboxSpec, Tier, oci};

/// Parts of `/sys` that speak of the host's hardware, or, through the loop
/// devices of their disks, of other sandboxes. Those a kernel lacks are skipped.
const MASKED_SYSFS: &[&CStr] = &[
    c"/sys/block",
    c"/sys/class/bdi",
    c"/sys/class/block",
    c"/sys/class/dmi",
    c"/sys/dev/block",
    c"/sys/devices/virtual/bdi",
    c"/sys/devices/virtual/block",
    c"/sys/devices/virtual/dmi",
    c"/sys/devices/virtual/powercap",
    c"/sys/firmware",
    c"/sys/fs/btrfs",
    c"/sys/fs/ext4",
    c"/sys/fs/xfs",
    c"/sys/kernel/debug",
    c"/sys/kernel/security",
    c"/sys/kernel/slab",
    c"/sys/kernel/tracing",
];

/// Bytes of a core dump. Not 0: that would still wake a host program named in
/// `core_pattern`, which 1 does not.
const CORE_LIMIT: u64 = 1;

/// A sandbox that has been started.
pub(super) struct Running {
    pub(super) lease: Lease,
    pub(super) cgroup: Cgroup,
    pub(super) init: ProcessIdentity,
    pub(super) init_fd: OwnedFd,
    pub(super) network: SandboxNetwork,
    pub(super) control: UnixListener,
    pub(super) disk: PathBuf,
    /// The guest's standard input is the other end.
    _lifeline: PipeWriter,
}

impl Running {
    pub(super) fn ready(&self) -> Ready {
        Ready {
            init: self.init.clone(),
            control: control_path(&self.lease),
        }
    }
}

fn control_path(lease: &Lease) -> PathBuf {
    lease.dir().join("control.sock")
}

/// Makes and starts the sandbox that `request` asks for.
pub(super) fn assemble(request: &MonitorRequest) -> Result<Running, Failure> {
    let MonitorRequest { config, spec } = request;
    check_cgroups()?;
    let lease = HostLock::take()
        .and_then(|lock| lock.lease(&config.home, spec, &config.slot_range))
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

fn build(request: &MonitorRequest, lease: &Lease) -> Result<Running, Failure> {
    let MonitorRequest { config, spec } = request;
    let dir = lease.dir();
    let root = dir.join("rootfs");
    let disk = dir.join("disk");
    let scratch = dir.join("scratch");

    let image = Disks::new(config.disks())
        .create(&spec.id, &spec.limits)
        .map_err(|error| disk_failure(&error, &config.home))?;
    disk::mount_image(&image, &disk)
        .map_err(|error| Failure::new("cannot mount the disk", &error))?;
    mount_root(request, lease, &disk, &root)
        .map_err(|error| Failure::new("cannot mount the root file system", &error))?;

    let network = make_network(request, lease)?;
    write_scratch(spec, lease.uid_base(), &network, &scratch)
        .map_err(|error| Failure::new("cannot write the sandbox's own files", &error))?;

    let users = user_namespace::for_sandbox(lease.uid_base())
        .map_err(|error| Failure::new("cannot make the user namespace", &error))?;
    let users_path = PathBuf::from(format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        users.as_raw_fd()
    ));
    let cgroup =
        Cgroup::of(&spec.id).map_err(|error| Failure::new("no cgroups on this host", &error))?;
    let mut runtime = oci::runtime(&config.oci_runtime);
    let paths = BundlePaths {
        root: &root,
        scratch: &scratch,
        user_namespace: &users_path,
    };
    let bundle = bundle::config(
        spec,
        &paths,
        lease.uid_base(),
        &cgroup,
        runtime.seccomp_by(),
    )
    .map_err(|error| Failure::new("cannot describe the container", &error))?;
    let state = dir.join("oci");
    creates(HostObject::Bundle, || {
        make_dir(&state, 0o700)?;
        bundle
            .save(dir.join("config.json"))
            .map_err(io::Error::other)
    })
    .map_err(|error| Failure::new("cannot write the bundle", &error))?;

    limit_own_resources(&spec.limits)
        .map_err(|error| Failure::new("cannot set the limits of processes", &error))?;
    let name = spec.id.as_str();
    // Whatever the runtime forks is born in a cgroup of the sandbox, so that it is
    // found there even if this process is killed half-way.
    let (theirs, lifeline) =
        io::pipe().map_err(|error| Failure::new("cannot make the lifeline", &error))?;
    let create = || {
        cgroup.within(|| {
            within_network(&network.namespace, || {
                runtime.create(name, &dir, &state, theirs)
            })
        })
    };
    let pid = creates(HostObject::Container, create)
        .map_err(|error| Failure::new("cannot create the container", &error))?;
    let init = ProcessIdentity::of(pid)
        .map_err(|error| Failure::new("the container ended at once", &error))?;
    let init_fd =
        pidfd(pid).map_err(|error| Failure::new("the container ended at once", &error))?;
    cgroup
        .join_unified(pid)
        .and_then(|()| cgroup.forbid_swap())
        .map_err(|error| Failure::new("cannot complete the cgroup", &error))?;
    adjust(spec, &cgroup, &init_fd, &scratch)?;

    let control = listen(&control_path(lease))
        .map_err(|error| Failure::new("cannot open the control socket", &error))?;
    Records::new(config.records())
        .write(&SandboxRecord {
            id: spec.id.clone(),
            tier: Tier::Container,
            limits: spec.limits.clone(),
            network: spec.network.clone(),
            created_ms: now_ms(),
            ended: None,
        })
        .map_err(|error| Failure::new("cannot record the sandbox", &error))?;
    creates(HostObject::GuestStart, || runtime.start(name, &state))
        .map_err(|error| Failure::new("cannot start the container", &error))?;
    Ok(Running {
        lease: lease.clone(),
        cgroup,
        init,
        init_fd,
        network,
        control,
        disk,
        _lifeline: lifeline,
    })
}

/// Sets the limits that processes inherit. A runtime could set them only on
/// hosts whose root has `CAP_SYS_RESOURCE`, because the sandbox's user
/// namespace does not belong to root.
fn limit_own_resources(limits: &Limits) -> io::Result<()> {
    let exactly = |value| Rlimit {
        current: Some(value),
        maximum: Some(value),
    };
    setrlimit(Resource::Nofile, exactly(limits.open_files))?;
    setrlimit(Resource::Core, exactly(CORE_LIMIT))?;
    Ok(())
}

/// Layers below, the disk above, owners translated on both.
fn mount_root(request: &MonitorRequest, lease: &Lease, disk: &Path, root: &Path) -> io::Result<()> {
    make_dir(root, 0o711)?;
    let ids = user_namespace::for_mounts(lease.uid_base())?;
    // The guest's layer goes on top: no template can put another guest in its place.
    let layers = std::iter::once(&request.config.guest)
        .chain(&request.spec.layers)
        .map(|layer| {
            mount::cloned_tree(layer, Access::ReadOnly, Some(ids.as_fd())).map_err(|error| {
                io::Error::new(error.kind(), format!("layer {}: {error}", layer.display()))
            })
        })
        .collect::<io::Result<Vec<_>>>()?;
    let writable = mount::cloned_tree(disk, Access::ReadWrite, Some(ids.as_fd()))?;
    mount::overlay(&layers, &writable, &lease.dir().join("l"), root)
}

fn make_network(request: &MonitorRequest, lease: &Lease) -> Result<SandboxNetwork, Failure> {
    let range = &request.config.slot_range;
    if lease.network.is_some() {
        let lock = HostLock::take()
            .map_err(|error| Failure::new("cannot lock the host's network", &error))?;
        let live = lock
            .live_networks(lease)
            .map_err(|error| Failure::new("cannot list the sandboxes of this host", &error))?;
        network::ensure_host(range, &live).map_err(|error| Failure::from_network(&error))?;
    }
    network::create(&request.spec.network, lease.slot, range)
        .map_err(|error| Failure::from_network(&error))
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

/// Files inside that the host decides on: names, resolver, identity of the boot.
fn write_scratch(
    spec: &SandboxSpec,
    uid_base: u32,
    network: &SandboxNetwork,
    scratch: &Path,
) -> io::Result<()> {
    make_dir(scratch, 0o711)?;
    mount::small_tmpfs(scratch)?;
    let hosts = format!(
        "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t{}\n",
        spec.hostname
    );
    let resolver = network.resolver.map_or_else(
        || "# This sandbox has no network.\n".to_owned(),
        |address| format!("nameserver {address}\noptions timeout:5 attempts:2\n"),
    );
    for (name, text) in [
        ("hosts", hosts),
        ("resolv.conf", resolver),
        ("hostname", format!("{}\n", spec.hostname)),
    ] {
        let path = scratch.join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
        std::os::unix::fs::chown(&path, Some(uid_base), Some(uid_base))?;
    }
    fs::write(scratch.join("boot_id"), format!("{}\n", random_uuid()?))
}

/// A random (version 4) UUID.
fn random_uuid() -> io::Result<String> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    ))
}

/// What no runtime does for us, between creation and start.
fn adjust(
    spec: &SandboxSpec,
    cgroup: &Cgroup,
    init: &OwnedFd,
    scratch: &Path,
) -> Result<(), Failure> {
    cgroup.verify(&spec.limits).map_err(|error| {
        Failure::new("the kernel does not enforce the limits", &error)
            .with_hint("`atoll doctor` lists the cgroup controllers that this host lacks")
    })?;
    let boot_id = scratch.join("boot_id");
    let mut mounts = vec![
        InnerMount::File {
            source: &boot_id,
            target: c"/proc/sys/kernel/random/boot_id",
        },
        InnerMount::Sysfs { target: c"/sys" },
    ];
    if !atoll_failpoint::is_missing("masks") {
        mounts.extend(
            MASKED_SYSFS
                .iter()
                .map(|&target| InnerMount::Mask { target }),
        );
    }
    mount::into_container(init.as_fd(), &mounts)
        .map_err(|error| Failure::new("cannot place mounts into the container", &error))?;
    in_child(|| {
        enter(init, rustix::thread::ThreadNameSpaceType::USER)?;
        fs::write("/proc/sys/user/max_user_namespaces", "0")
    })
    .map_err(|error| Failure::new("cannot close nested user namespaces", &error))
}
