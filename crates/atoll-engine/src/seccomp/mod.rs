//! The system calls a sandbox may make: one table, in two forms.
//!
//! The built-in runtime loads it as a compiled filter, `runc` gets it as the
//! `seccomp` section of the bundle. What is not listed fails with `ENOSYS`, so
//! that programs fall back as on an older kernel; what is listed in [`REFUSED`]
//! fails with `EPERM`, because pretending it does not exist would confuse more.
//! `membarrier` is for gVisor's own processes.

mod calls;
mod membarrier;

use std::collections::BTreeMap;

use libcontainer::oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArgBuilder, LinuxSeccompBuilder,
    LinuxSeccompOperator, LinuxSyscall, LinuxSyscallBuilder,
};
use serde_json::{Value, json};

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

/// Flags of `clone` that make namespaces: all but `CLONE_NEWTIME`, which shares a bit with the exit signal.
const NAMESPACE_FLAGS: u64 = 0x7E02_0000;
/// Unix, IPv4, IPv6, netlink and packet sockets. Not the families through which
/// a guest would reach the kernel's cryptography, the hypervisor, or drivers.
const SOCKET_FAMILIES: [u64; 5] = [1, 2, 10, 16, 17];

use calls::{ALLOWED, REFUSED};
pub(crate) use membarrier::refuse_membarrier;

/// The profile could not be expressed.
#[derive(Debug, thiserror::Error)]
#[error("the seccomp profile cannot be built: {0}")]
pub(crate) struct SeccompError(String);

/// Calls that are allowed only with some arguments: (call, argument, what it must be).
fn conditional() -> Vec<(&'static str, u8, Comparison)> {
    vec![
        ("clone", 0, Comparison::NoneOf(NAMESPACE_FLAGS)),
        ("socket", 0, Comparison::OneOf(&SOCKET_FAMILIES)),
    ]
}

enum Comparison {
    /// Allowed when no bit of the mask is set.
    NoneOf(u64),
    /// Allowed when the lower half, which is all the kernel looks at, is one of these.
    OneOf(&'static [u64]),
}

impl Comparison {
    /// The same as alternatives of `argument & mask == value`.
    fn alternatives(&self) -> Vec<(u64, u64)> {
        match self {
            Self::NoneOf(mask) => vec![(*mask, 0)],
            Self::OneOf(values) => values.iter().map(|&value| (0xffff_ffff, value)).collect(),
        }
    }
}

/// The profile as the `seccomp` section of an OCI bundle.
pub(crate) fn for_bundle() -> Result<LinuxSeccomp, SeccompError> {
    let fail = |error: libcontainer::oci_spec::OciSpecError| SeccompError(error.to_string());
    let names = |calls: &[&str]| {
        calls
            .iter()
            .map(|&name| name.to_owned())
            .collect::<Vec<_>>()
    };
    let mut rules: Vec<LinuxSyscall> = Vec::new();
    rules.push(
        LinuxSyscallBuilder::default()
            .names(names(ALLOWED))
            .action(LinuxSeccompAction::ScmpActAllow)
            .build()
            .map_err(fail)?,
    );
    rules.push(
        LinuxSyscallBuilder::default()
            .names(names(REFUSED))
            .action(LinuxSeccompAction::ScmpActErrno)
            .errno_ret(EPERM)
            .build()
            .map_err(fail)?,
    );
    for (call, index, comparison) in conditional() {
        for (mask, value) in comparison.alternatives() {
            let argument = LinuxSeccompArgBuilder::default()
                .index(usize::from(index))
                .op(LinuxSeccompOperator::ScmpCmpMaskedEq)
                .value(mask)
                .value_two(value)
                .build()
                .map_err(fail)?;
            rules.push(
                LinuxSyscallBuilder::default()
                    .names(vec![call.to_owned()])
                    .action(LinuxSeccompAction::ScmpActAllow)
                    .args(vec![argument])
                    .build()
                    .map_err(fail)?,
            );
        }
    }
    LinuxSeccompBuilder::default()
        .default_action(LinuxSeccompAction::ScmpActErrno)
        .default_errno_ret(ENOSYS)
        .architectures(vec![Arch::ScmpArchX86_64])
        .syscalls(rules)
        .build()
        .map_err(fail)
}

/// The profile as programs for the kernel. Both are loaded; the stricter answer of the two counts.
pub(crate) fn compiled() -> Result<Vec<seccompiler::BpfProgram>, SeccompError> {
    let allow = |call: &str| json!({ "syscall": call });
    let mut allowed: Vec<Value> = ALLOWED
        .iter()
        .chain(REFUSED)
        .map(|call| allow(call))
        .collect();
    for (call, index, comparison) in conditional() {
        for (mask, value) in comparison.alternatives() {
            let argument =
                json!({"index": index, "type": "qword", "op": {"masked_eq": mask}, "val": value});
            allowed.push(json!({"syscall": call, "args": [argument]}));
        }
    }
    let refused: Vec<Value> = REFUSED.iter().map(|call| allow(call)).collect();
    let profile = json!({
        "allowed": { "mismatch_action": {"errno": ENOSYS}, "match_action": "allow", "filter": allowed },
        "refused": { "mismatch_action": "allow", "match_action": {"errno": EPERM}, "filter": refused },
    });
    let arch = std::env::consts::ARCH
        .try_into()
        .map_err(|error| SeccompError(format!("{error}")))?;
    let programs: BTreeMap<_, _> =
        seccompiler::compile_from_json(profile.to_string().as_bytes(), arch)
            .map_err(|error| SeccompError(error.to_string()))?
            .into_iter()
            .collect();
    Ok(programs.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_can_be_built() {
        assert_eq!(
            for_bundle().unwrap().syscalls().as_ref().unwrap().len(),
            2 + conditional()
                .iter()
                .map(|row| row.2.alternatives().len())
                .sum::<usize>()
        );
        assert_eq!(compiled().unwrap().len(), 2);
    }

    #[test]
    fn no_call_is_listed_twice() {
        let mut calls: Vec<&str> = ALLOWED.iter().chain(REFUSED).copied().collect();
        calls.extend(conditional().iter().map(|row| row.0));
        let all = calls.len();
        calls.sort_unstable();
        calls.dedup();
        assert_eq!(calls.len(), all);
    }

    #[test]
    fn what_opens_the_kernel_is_not_allowed() {
        for call in [
            "bpf",
            "perf_event_open",
            "io_uring_setup",
            "userfaultfd",
            "keyctl",
            "add_key",
            "request_key",
            "init_module",
            "finit_module",
            "kexec_load",
            "reboot",
            "swapon",
            "mount",
            "umount2",
            "pivot_root",
            "setns",
            "unshare",
            "open_by_handle_at",
            "iopl",
            "ioperm",
            "quotactl",
            "fsopen",
            "move_mount",
            "open_tree",
            "mount_setattr",
            "clone3",
            "lookup_dcookie",
            "nfsservctl",
            "settimeofday",
            "clock_settime",
            "acct",
            "syslog",
        ] {
            assert!(!ALLOWED.contains(&call), "{call}");
        }
    }
}
