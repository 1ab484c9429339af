//! The bundle of the container tier.

use std::path::Path;

use libcontainer::oci_spec::OciSpecError;
use libcontainer::oci_spec::runtime::{
    Capabilities, Capability, LinuxBuilder, LinuxCapabilitiesBuilder, LinuxCpuBuilder,
    LinuxDeviceCgroupBuilder, LinuxDeviceType, LinuxMemoryBuilder, LinuxNamespaceBuilder,
    LinuxNamespaceType, LinuxPidsBuilder, LinuxResources, LinuxResourcesBuilder, Mount,
    MountBuilder, ProcessBuilder, RootBuilder, Spec, SpecBuilder, UserBuilder,
};

use super::{CAPABILITIES, GUEST_PATH, environment, id_mapping, mount};
use crate::cgroup::{Bounds, CPU_PERIOD_USEC, Cgroup};
use crate::{Limits, SandboxSpec, seccomp};

/// Pseudo terminals of one sandbox; the host's own are few and shared by all.
const TERMINALS: &str = "max=256";
/// Files of `/proc` that speak of the host.
const MASKED: [&str; 18] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/buddyinfo",
    "/proc/cmdline",
    "/proc/diskstats",
    "/proc/fs",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/pagetypeinfo",
    "/proc/partitions",
    "/proc/pressure",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/softirqs",
    "/proc/timer_list",
    "/proc/zoneinfo",
];

const READ_ONLY: [&str; 4] = ["/proc/bus", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// How the profile of system calls reaches the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SeccompBy {
    /// The runtime reads it from the bundle.
    Bundle,
    /// The built-in runtime loads a compiled one at the last moment; until
    /// then it needs `CAP_SYS_ADMIN` of the sandbox's user namespace.
    Executor,
}

/// Paths on the host that a bundle names.
pub(crate) struct BundlePaths<'a> {
    pub(crate) root: &'a Path,
    /// Descriptor of the user namespace, as a path.
    pub(crate) user_namespace: &'a Path,
    /// The uppermost layer, with `hosts`, `hostname` and `resolv.conf` in its `etc`.
    pub(crate) top: &'a Path,
}

/// Writes the configuration of `spec` for a sandbox whose uids start at `uid_base`.
pub(crate) fn config(
    spec: &SandboxSpec,
    paths: &BundlePaths<'_>,
    uid_base: u32,
    cgroup: &Cgroup,
    seccomp_by: SeccompBy,
) -> Result<Spec, Box<dyn std::error::Error + Send + Sync>> {
    let mut capabilities: Capabilities = CAPABILITIES.into_iter().collect();
    if seccomp_by == SeccompBy::Executor {
        capabilities.insert(Capability::SysAdmin);
    }
    let sets = LinuxCapabilitiesBuilder::default()
        .bounding(capabilities.clone())
        .effective(capabilities.clone())
        .permitted(capabilities)
        .inheritable(Capabilities::new())
        .ambient(Capabilities::new())
        .build()?;
    // `noNewPrivileges` stays unset: `sudo` must work inside, and an explicit
    // `false` is read by libcontainer as a wish to load seccomp later.
    let mut process = ProcessBuilder::default()
        .terminal(false)
        .user(UserBuilder::default().uid(0_u32).gid(0_u32).build()?)
        .args(vec![GUEST_PATH.to_owned()])
        .env(environment(spec))
        .cwd("/")
        .capabilities(sets)
        .build()?;
    process.set_no_new_privileges(None);
    // Inherited from the monitor, which sets them before it calls the runtime.
    process.set_rlimits(None);

    // The network namespace is inherited: the runtime is called from within it.
    let namespaces = vec![
        LinuxNamespaceBuilder::default()
            .typ(LinuxNamespaceType::User)
            .path(paths.user_namespace)
            .build()?,
        LinuxNamespaceBuilder::default()
            .typ(LinuxNamespaceType::Mount)
            .build()?,
        LinuxNamespaceBuilder::default()
            .typ(LinuxNamespaceType::Pid)
            .build()?,
        LinuxNamespaceBuilder::default()
            .typ(LinuxNamespaceType::Ipc)
            .build()?,
        LinuxNamespaceBuilder::default()
            .typ(LinuxNamespaceType::Uts)
            .build()?,
        LinuxNamespaceBuilder::default()
            .typ(LinuxNamespaceType::Cgroup)
            .build()?,
    ];
    let mut linux = LinuxBuilder::default()
        .namespaces(namespaces)
        .uid_mappings(vec![id_mapping(uid_base)?])
        .gid_mappings(vec![id_mapping(uid_base)?])
        .cgroups_path(cgroup.oci_path())
        .resources(resources(&spec.limits)?)
        .masked_paths(MASKED.map(str::to_owned).to_vec())
        .readonly_paths(READ_ONLY.map(str::to_owned).to_vec())
        .devices(Vec::new())
        .build()?;
    match seccomp_by {
        SeccompBy::Bundle => linux.set_seccomp(Some(seccomp::for_bundle()?)),
        SeccompBy::Executor => linux.set_seccomp(None),
    };

    Ok(SpecBuilder::default()
        .version("1.0.2")
        .root(
            RootBuilder::default()
                .path(paths.root)
                .readonly(false)
                .build()?,
        )
        .hostname(spec.hostname.as_str())
        .mounts(mounts(&spec.limits, paths)?)
        .process(process)
        .linux(linux)
        .build()?)
}

fn resources(limits: &Limits) -> Result<LinuxResources, OciSpecError> {
    let bounds = Bounds::container(limits);
    let memory = i64::try_from(bounds.memory_bytes).unwrap_or(i64::MAX);
    let mut memory_builder = LinuxMemoryBuilder::default().limit(memory);
    if swap_is_accounted() {
        memory_builder = memory_builder.swap(memory);
    }
    let allow = |kind, major: i64, minor: i64| {
        LinuxDeviceCgroupBuilder::default()
            .allow(true)
            .typ(kind)
            .major(major)
            .minor(minor)
            .access("rwm")
            .build()
    };
    let character = LinuxDeviceType::C;
    let mut devices = vec![
        LinuxDeviceCgroupBuilder::default()
            .allow(false)
            .access("rwm")
            .build()?,
    ];
    // null, zero, full, random, urandom, tty, ptmx, and the pseudo terminals.
    for (major, minor) in [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2)] {
        devices.push(allow(character, major, minor)?);
    }
    devices.push(
        LinuxDeviceCgroupBuilder::default()
            .allow(true)
            .typ(character)
            .major(136_i64)
            .access("rwm")
            .build()?,
    );
    LinuxResourcesBuilder::default()
        .devices(devices)
        .memory(memory_builder.build()?)
        .cpu(
            LinuxCpuBuilder::default()
                .quota(i64::try_from(bounds.cpu_quota_usec).unwrap_or(i64::MAX))
                .period(CPU_PERIOD_USEC)
                .build()?,
        )
        .pids(
            LinuxPidsBuilder::default()
                .limit(i64::try_from(bounds.pids).unwrap_or(i64::MAX))
                .build()?,
        )
        .build()
}

/// Version 1 kernels may be built without swap accounting; writing its limit would then fail.
fn swap_is_accounted() -> bool {
    let version1 = Path::new("/sys/fs/cgroup/memory");
    !version1.exists() || version1.join("memory.memsw.limit_in_bytes").exists()
}

fn mounts(limits: &Limits, paths: &BundlePaths<'_>) -> Result<Vec<Mount>, OciSpecError> {
    let shm = format!("size={}m", limits.shm_mib);
    // No cgroup mount: libcontainer makes it writable on version 1 hosts.
    // `/sys` is placed later, from inside the sandbox's network namespace.
    let bind = |source: &Path, target: &str, options: &[&str]| {
        let options: Vec<String> = ["bind", "nosuid", "nodev"]
            .iter()
            .chain(options)
            .map(|&option| option.to_owned())
            .collect();
        MountBuilder::default()
            .destination(target)
            .typ("bind")
            .source(source)
            .options(options)
            .build()
    };
    Ok(vec![
        mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"])?,
        mount(
            "/dev",
            "tmpfs",
            "tmpfs",
            &["nosuid", "strictatime", "mode=755", "size=64k"],
        )?,
        mount(
            "/dev/pts",
            "devpts",
            "devpts",
            &[
                "nosuid",
                "noexec",
                "newinstance",
                "ptmxmode=0666",
                "mode=0620",
                "gid=5",
                TERMINALS,
            ],
        )?,
        mount(
            "/dev/shm",
            "tmpfs",
            "shm",
            &["nosuid", "noexec", "nodev", "mode=1777", &shm],
        )?,
        mount(
            "/dev/mqueue",
            "mqueue",
            "mqueue",
            &["nosuid", "noexec", "nodev"],
        )?,
        mount(
            "/run",
            "tmpfs",
            "tmpfs",
            &["nosuid", "nodev", "mode=755", "size=16m"],
        )?,
        bind(
            &paths.top.join("etc/hosts"),
            "/etc/hosts",
            &["rw", "noexec"],
        )?,
        bind(
            &paths.top.join("etc/hostname"),
            "/etc/hostname",
            &["rw", "noexec"],
        )?,
        bind(
            &paths.top.join("etc/resolv.conf"),
            "/etc/resolv.conf",
            &["rw", "noexec"],
        )?,
    ])
}
