//! What the container tier adds: the root with the disk above the layers, the
//! user namespace, and a container made by an OCI runtime.

use std::ffi::CStr;
use std::fs;
use std::io::{self, PipeReader};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, setpriority_process, setrlimit};

use super::{Foundation, Started, save_bundle, write_top_layer};
use crate::bundle::{BundlePaths, container};
use crate::cgroup::{Bounds, Cgroup};
use crate::host::file::make_dir;
use crate::host::mount::{self, Access, InnerMount};
use crate::host::process::{ProcessIdentity, enter, in_child, pidfd, within_network};
use crate::host::{HostObject, creates, user_namespace};
use crate::lease::Lease;
use crate::monitor::message::{Entrance, Failure, MonitorRequest};
use crate::oci::{self, OciRuntime};
use crate::{Limits, SandboxSpec};

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
const CORE_PATTERN: &str = "/proc/sys/kernel/core_pattern";

/// The highest priority that there is.
const FIRST_PRIORITY: i32 = -20;

/// A container that waits for its start.
pub(super) struct Created {
    runtime: Box<dyn OciRuntime>,
    name: String,
    state: PathBuf,
    init: ProcessIdentity,
    init_fd: OwnedFd,
}

/// Makes the container.
pub(super) fn create(
    request: &MonitorRequest,
    lease: &Lease,
    foundation: &Foundation,
    guest_input: PipeReader,
) -> Result<Created, Failure> {
    let MonitorRequest { config, spec, .. } = request;
    let Foundation {
        disk,
        scratch,
        cgroup,
        network,
        ..
    } = foundation;
    let dir = lease.dir();
    let root = dir.join("rootfs");
    let top = write_files(lease.uid_base(), foundation)
        .map_err(|error| Failure::new("cannot write the sandbox's own files", &error))?;
    mount_root(request, lease, &top, disk, &root)
        .map_err(|error| Failure::new("cannot mount the root file system", &error))?;
    let users = user_namespace::for_sandbox(lease.uid_base())
        .map_err(|error| Failure::new("cannot make the user namespace", &error))?;
    let users_path = PathBuf::from(format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        users.as_raw_fd()
    ));
    let mut runtime = oci::runtime(&config.oci_runtime);
    let paths = BundlePaths {
        root: &root,
        top: &top,
        user_namespace: &users_path,
    };
    let bundle = container::config(spec, &paths, lease.uid_base(), cgroup, runtime.seccomp_by())
        .map_err(|error| Failure::new("cannot describe the container", &error))?;
    let state = save_bundle(&bundle, &dir)?;

    limit_own_resources(&spec.limits)?;
    let name = spec.id.as_str().to_owned();
    // Whatever the runtime forks is born in a cgroup of the sandbox, so that it is
    // found there even if this process is killed half-way.
    let create = || {
        cgroup.within(|| {
            within_network(&network.namespace, || {
                runtime.create(&name, &dir, &state, guest_input)
            })
        })
    };
    let pid = creates(HostObject::Container, create)
        .map_err(|error| Failure::new("cannot create the container", &error))?;
    let ended = |error: io::Error| Failure::new("the container ended at once", &error);
    let init = ProcessIdentity::of(pid).map_err(ended)?;
    let init_fd = pidfd(pid).map_err(ended)?;
    cgroup
        .join_unified(pid)
        .and_then(|()| cgroup.forbid_swap())
        .map_err(|error| Failure::new("cannot complete the cgroup", &error))?;
    adjust(spec, cgroup, &init_fd, scratch)?;
    prefer(pid);
    Ok(Created {
        runtime,
        name,
        state,
        init,
        init_fd,
    })
}

impl Created {
    /// Lets its first process go.
    pub(super) fn start(mut self) -> Result<Started, Failure> {
        creates(HostObject::GuestStart, || {
            self.runtime.start(&self.name, &self.state)
        })
        .map_err(|error| Failure::new("cannot start the container", &error))?;
        Ok(Started {
            init: self.init,
            init_fd: self.init_fd,
            entrance: Entrance::Loopback,
            exhaustion: None,
            runsc: None,
        })
    }
}

/// Lets PID 1 come first at the processors of its sandbox: it is the one that ends what
/// forks without end, and would otherwise get a thousandth of them. Only within the
/// sandbox, whose share is its cgroup's, and not for what PID 1 starts: it takes this
/// away, and nobody inside can give it to himself (`limit_own_resources`).
fn prefer(init: i32) {
    if let Some(init) = Pid::from_raw(init) {
        // A host whose root may not do that has sandboxes that recover slower.
        let _ = setpriority_process(Some(init), FIRST_PRIORITY);
    }
}

/// The files that the host decides on, and the identity of the container's boot.
fn write_files(uid_base: u32, foundation: &Foundation) -> io::Result<PathBuf> {
    fs::write(
        foundation.scratch.join("boot_id"),
        format!("{}\n", random_uuid()?),
    )?;
    write_top_layer(foundation, uid_base)
}

/// Sets the limits that processes inherit. A runtime could set them only on
/// hosts whose root has `CAP_SYS_RESOURCE`, because the sandbox's user
/// namespace does not belong to root.
fn limit_own_resources(limits: &Limits) -> Result<(), Failure> {
    let set = |resource, value| {
        let exactly = Rlimit {
            current: Some(value),
            maximum: Some(value),
        };
        setrlimit(resource, exactly)
    };
    let failed =
        |error: &dyn std::fmt::Display| Failure::new("cannot set the limits of processes", error);
    set(Resource::Nofile, limits.open_files).map_err(|error| failed(&error))?;
    set(Resource::Nice, 0).map_err(|error| failed(&error))?;
    match set(Resource::Core, CORE_LIMIT) {
        // `sudo` lowers the hard limit to 0, and a root without `CAP_SYS_RESOURCE`
        // cannot raise it. Where dumps are files, 0 is as good.
        Err(Errno::PERM) => {
            let pattern = fs::read_to_string(CORE_PATTERN).map_err(|error| failed(&error))?;
            if let Some(program) = pattern.strip_prefix('|') {
                let what = format!(
                    "the hard limit of core dumps is 0, with which they would wake `{}` on the host",
                    program.trim()
                );
                return Err(failed(&what).with_hint(
                    "start Atoll with CAP_SYS_RESOURCE; under sudo, \
                     `Defaults rlimit_core=default` in sudoers keeps the limit as it was",
                ));
            }
            set(Resource::Core, 0)
        }
        other => other,
    }
    .map_err(|error| failed(&error))
}

/// Layers below, the disk above, owners translated on both.
fn mount_root(
    request: &MonitorRequest,
    lease: &Lease,
    top: &Path,
    disk: &Path,
    root: &Path,
) -> io::Result<()> {
    make_dir(root, 0o711)?;
    let ids = user_namespace::for_mounts(lease.uid_base())?;
    // What is bound over its files later finds files there, whatever the template has.
    let mut layers = vec![mount::cloned_tree(top, Access::ReadOnly, None)?];
    // The guest's layer goes above those of the template: none can put another guest in its place.
    for layer in std::iter::once(&request.config.guest).chain(&request.spec.layers) {
        layers.push(
            mount::cloned_tree(layer, Access::ReadOnly, Some(ids.as_fd())).map_err(|error| {
                io::Error::new(error.kind(), format!("layer {}: {error}", layer.display()))
            })?,
        );
    }
    let writable = mount::cloned_tree(disk, Access::ReadWrite, Some(ids.as_fd()))?;
    mount::overlay(&layers, Some(&writable), &lease.dir().join("l"), root)
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
    cgroup
        .verify(&Bounds::container(&spec.limits))
        .map_err(|error| {
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
