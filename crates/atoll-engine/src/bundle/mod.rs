//! The OCI bundle of a sandbox: everything a runtime needs, in one
//! `config.json`. One file per tier; here what both say alike.

pub(crate) mod container;
pub(crate) mod gvisor;

use libcontainer::oci_spec::OciSpecError;
use libcontainer::oci_spec::runtime::{
    Capability, LinuxIdMapping, LinuxIdMappingBuilder, Mount, MountBuilder,
};

use crate::SandboxSpec;

pub(crate) use container::{BundlePaths, SeccompBy};

/// Where the guest's binary is seen inside, put there by a layer of its own.
const GUEST_PATH: &str = "/.atoll/guest";
/// Uids and gids of a sandbox.
const IDS: u32 = 65536;
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What root inside may do, all of it bounded by its user namespace.
const CAPABILITIES: [Capability; 14] = [
    Capability::AuditWrite,
    Capability::Chown,
    Capability::DacOverride,
    Capability::Fowner,
    Capability::Fsetid,
    Capability::Kill,
    Capability::Mknod,
    Capability::NetBindService,
    Capability::NetRaw,
    Capability::Setfcap,
    Capability::Setgid,
    Capability::Setpcap,
    Capability::Setuid,
    Capability::SysChroot,
];

/// Environment of the guest.
fn environment(spec: &SandboxSpec) -> Vec<String> {
    let mut environment = vec![format!("PATH={PATH}")];
    environment.extend(spec.env.iter().map(|(key, value)| format!("{key}={value}")));
    environment
}

/// Ids inside are those of the slot outside.
fn id_mapping(base: u32) -> Result<LinuxIdMapping, OciSpecError> {
    LinuxIdMappingBuilder::default()
        .container_id(0_u32)
        .host_id(base)
        .size(IDS)
        .build()
}

fn mount(target: &str, kind: &str, source: &str, options: &[&str]) -> Result<Mount, OciSpecError> {
    MountBuilder::default()
        .destination(target)
        .typ(kind)
        .source(source)
        .options(
            options
                .iter()
                .map(|&option| option.to_owned())
                .collect::<Vec<_>>(),
        )
        .build()
}
