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
/// Unix, IPv4, IPv6 and packet sockets. Not the families through which a guest
/// would reach the kernel's cryptography, the hypervisor, or drivers.
const SOCKET_FAMILIES: [u64; 4] = [1, 2, 10, 17];
const NETLINK: u64 = 16;
/// Interfaces and routes, sockets, and audit, which `sudo` looks for. Not what tells
/// of devices that come and go: those of other sandboxes' disks too.
const NETLINK_PROTOCOLS: [u64; 3] = [0, 4, 9];

use calls::{ALLOWED, REFUSED};
pub(crate) use membarrier::refuse_membarrier;

/// The profile could not be expressed.
#[derive(Debug, thiserror::Error)]
#[error("the seccomp profile cannot be built: {0}")]
pub(crate) struct SeccompError(String);

/// A call that is allowed when every argument named is what it must be.
struct Conditional {
    call: &'static str,
    arguments: Vec<Argument>,
}

/// `argument & mask == value`.
struct Argument {
    index: u8,
    mask: u64,
    value: u64,
}

impl Argument {
    /// The lower half, which is all the kernel looks at, is `value`.
    fn is(index: u8, value: u64) -> Self {
        Self {
            index,
            mask: 0xffff_ffff,
            value,
        }
    }

    /// No bit of the mask is set.
    fn has_none_of(index: u8, mask: u64) -> Self {
        Self {
            index,
            mask,
            value: 0,
        }
    }
}

/// Calls that are allowed only with some arguments; one row each for alternatives.
fn conditional() -> Vec<Conditional> {
    let socket = |arguments| Conditional {
        call: "socket",
        arguments,
    };
    let clone = Conditional {
        call: "clone",
        arguments: vec![Argument::has_none_of(0, NAMESPACE_FLAGS)],
    };
    let families = SOCKET_FAMILIES.map(|family| socket(vec![Argument::is(0, family)]));
    let netlink = NETLINK_PROTOCOLS
        .map(|protocol| socket(vec![Argument::is(0, NETLINK), Argument::is(2, protocol)]));
    std::iter::once(clone)
        .chain(families)
        .chain(netlink)
        .collect()
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
    for Conditional { call, arguments } in conditional() {
        let arguments = arguments
            .iter()
            .map(|argument| {
                LinuxSeccompArgBuilder::default()
                    .index(usize::from(argument.index))
                    .op(LinuxSeccompOperator::ScmpCmpMaskedEq)
                    .value(argument.mask)
                    .value_two(argument.value)
                    .build()
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(fail)?;
        rules.push(
            LinuxSyscallBuilder::default()
                .names(vec![call.to_owned()])
                .action(LinuxSeccompAction::ScmpActAllow)
                .args(arguments)
                .build()
                .map_err(fail)?,
        );
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
    for Conditional { call, arguments } in conditional() {
        let arguments: Vec<Value> = arguments
            .iter()
            .map(|Argument { index, mask, value }| {
                json!({"index": index, "type": "qword", "op": {"masked_eq": mask}, "val": value})
            })
            .collect();
        allowed.push(json!({"syscall": call, "args": arguments}));
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
            2 + conditional().len()
        );
        assert_eq!(compiled().unwrap().len(), 2);
    }

    #[test]
    fn no_call_is_listed_twice() {
        let mut calls: Vec<&str> = ALLOWED.iter().chain(REFUSED).copied().collect();
        calls.extend(["clone", "socket"]);
        assert!(conditional().iter().all(|row| calls.contains(&row.call)));
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
