//! The bundle of the gVisor tier.
//!
//! What it says of processes, capabilities and files is kept by gVisor's own
//! kernel; only the ids are the host's. There are no bind mounts: what the host
//! decides on is a layer of the root (see `monitor::assemble::gvisor`), because
//! whatever is not part of the root would be missing in a checkpoint.

use std::net::Ipv4Addr;
use std::path::Path;

use libcontainer::oci_spec::OciSpecError;
use libcontainer::oci_spec::runtime::{
    Capabilities, LinuxBuilder, LinuxCapabilitiesBuilder, LinuxNamespaceBuilder,
    LinuxNamespaceType, PosixRlimit, PosixRlimitBuilder, PosixRlimitType, ProcessBuilder,
    RootBuilder, Spec, SpecBuilder, UserBuilder,
};

use super::{CAPABILITIES, GUEST_PATH, environment, id_mapping, mount};
use crate::SandboxSpec;

/// What the guest is told of its surroundings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    /// Its own address, at which only `gateway` may call.
    pub(crate) address: Ipv4Addr,
    pub(crate) gateway: Ipv4Addr,
    /// Whether the template lets its user become root.
    pub(crate) has_sudo: bool,
}

/// Writes the configuration of `spec` for a sandbox whose uids start at
/// `uid_base` and whose root is the tree `root`.
pub(crate) fn config(
    spec: &SandboxSpec,
    root: &Path,
    uid_base: u32,
    way: Way,
) -> Result<Spec, OciSpecError> {
    let mut arguments = vec![
        GUEST_PATH.to_owned(),
        "--network".to_owned(),
        way.address.to_string(),
        way.gateway.to_string(),
    ];
    arguments.extend(way.has_sudo.then(|| "--sudo".to_owned()));
    let capabilities: Capabilities = CAPABILITIES.into_iter().collect();
    let sets = LinuxCapabilitiesBuilder::default()
        .bounding(capabilities.clone())
        .effective(capabilities.clone())
        .permitted(capabilities)
        .inheritable(Capabilities::new())
        .ambient(Capabilities::new())
        .build()?;
    let process = ProcessBuilder::default()
        .terminal(false)
        .user(UserBuilder::default().uid(0_u32).gid(0_u32).build()?)
        .args(arguments)
        .env(environment(spec))
        .cwd("/")
        .capabilities(sets)
        .no_new_privileges(false)
        .rlimits(vec![
            exactly(PosixRlimitType::RlimitNofile, spec.limits.open_files)?,
            exactly(PosixRlimitType::RlimitNproc, spec.limits.pids)?,
            exactly(PosixRlimitType::RlimitCore, 0)?,
        ])
        .build()?;
    let mut namespaces = [
        LinuxNamespaceType::User,
        LinuxNamespaceType::Mount,
        LinuxNamespaceType::Pid,
        LinuxNamespaceType::Ipc,
        LinuxNamespaceType::Uts,
    ]
    .into_iter()
    .map(|kind| LinuxNamespaceBuilder::default().typ(kind).build())
    .collect::<Result<Vec<_>, _>>()?;
    // gVisor takes over the interfaces of the namespace in which it is called.
    namespaces.push(
        LinuxNamespaceBuilder::default()
            .typ(LinuxNamespaceType::Network)
            .path("/proc/self/ns/net")
            .build()?,
    );
    let mut linux = LinuxBuilder::default()
        .namespaces(namespaces)
        .uid_mappings(vec![id_mapping(uid_base)?])
        .gid_mappings(vec![id_mapping(uid_base)?])
        .devices(Vec::new())
        .build()?;
    linux.set_seccomp(None);
    linux.set_resources(None);
    let shm = format!("size={}m", spec.limits.shm_mib);
    SpecBuilder::default()
        .version("1.0.2")
        .root(RootBuilder::default().path(root).readonly(false).build()?)
        .hostname(spec.hostname.as_str())
        .mounts(vec![
            mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"])?,
            mount(
                "/sys",
                "sysfs",
                "sysfs",
                &["nosuid", "noexec", "nodev", "ro"],
            )?,
            mount("/dev", "tmpfs", "tmpfs", &["nosuid", "mode=755"])?,
            mount(
                "/dev/shm",
                "tmpfs",
                "shm",
                &["nosuid", "noexec", "nodev", "mode=1777", &shm],
            )?,
            mount(
                "/run",
                "tmpfs",
                "tmpfs",
                &["nosuid", "nodev", "mode=755", "size=16m"],
            )?,
        ])
        .process(process)
        .linux(linux)
        .build()
}

fn exactly(kind: PosixRlimitType, value: u64) -> Result<PosixRlimit, OciSpecError> {
    PosixRlimitBuilder::default()
        .typ(kind)
        .soft(value)
        .hard(value)
        .build()
}
