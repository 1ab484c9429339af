//! Every case there is. An attack program without a line here fails a test.

use crate::case::Case;
use crate::native;
use crate::program::{self, HeaderError};

/// A program and the variants it is played in; none means once, as it is.
struct Entry {
    path: &'static str,
    body: &'static str,
    variants: &'static [&'static str],
}

macro_rules! attacks {
    ($($path:literal $([$($variant:literal),+ $(,)?])?,)*) => {
        &[$(Entry {
            path: $path,
            body: include_str!(concat!("../attacks/", $path, ".py")),
            variants: &[$($($variant),+)?],
        },)*]
    };
}

const PROGRAMS: &[Entry] = attacks![
    "host-files/read-canary",
    "host-files/write-canary",
    "host-files/list-directory",
    "host-files/climb",
    "host-files/proc-roots",
    "host-files/chroot-escape",
    "host-files/by-handle",
    "host-files/mount-sources",
    "environment/any-process",
    "environment/agent",
    "processes/see",
    "processes/canary" [
        "signalling", "tracing", "memory-by-call", "memory-by-file", "descriptors", "limits",
        "oom-score", "priority", "affinity",
    ],
    "processes/namespaces-of-host",
    "processes/send" [
        "tgkill", "tkill", "its-group", "a-descriptor", "the-owner-of-a-file", "a-priority",
    ],
    "agent/grip" [
        "tracing", "memory-by-file", "memory-by-call", "stopping", "killing", "descriptors",
        "program",
    ],
    "agent/every-signal",
    "agent/orders" ["new-token", "files-of-root", "commands", "directories", "metrics"],
    "sockets/loopback",
    "sockets/loopback-ipv6",
    "sockets/unix",
    "sockets/abstract",
    "sockets/list-unix",
    "sockets/list-tcp",
    "sockets/shared-memory",
    "sockets/segment",
    "neighbours/file",
    "neighbours/process",
    "neighbours/abstract",
    "neighbours/loopback",
    "neighbours/shared-memory",
    "neighbours/segment",
    "neighbours/queue",
    "neighbours/lock",
    "neighbours/watch",
    "neighbours/token",
    "neighbours/change-layer",
    "neighbours/use-up" ["inotify-instances", "queued-signals", "timers"],
    "neighbours/kill-all",
    "devices/node" [
        "the-hosts-disk", "the-kernel-log", "kvm", "fuse", "a-tunnel", "loop-control",
        "a-virtual-console",
    ],
    "devices/listed",
    "mounts/attempt" [
        "mounting-a-tmpfs", "mounting-a-fresh-proc", "mounting-a-fresh-sysfs", "mounting-cgroups",
        "mounting-an-overlay", "binding-the-root", "making-kernel-settings-writable",
        "unmounting-masks", "opening-a-file-system", "a-detached-mount",
        "attaching-a-detached-mount", "cloning-a-tree", "changing-a-mount", "another-root",
    ],
    "mounts/binfmt",
    "proc/setting" [
        "core-pattern", "modprobe", "hotplug", "uevent-helper", "panic", "address-randomisation",
        "dmesg-restrict", "kptr-restrict", "overcommit", "swappiness", "file-max",
        "protected-links", "user-namespaces", "forwarding", "hugepages",
    ],
    "proc/sysrq",
    "proc/secrets" [
        "kernel-memory", "keys", "timers", "interrupts", "partitions", "disk-statistics",
        "command-line", "soft-interrupts", "pressure", "firmware", "block-devices", "machine",
        "slabs", "ext4", "tracing", "debugging", "backing-devices",
    ],
    "proc/detour",
    "proc/kernel-addresses",
    "proc/kernel-log",
    "proc/boot-id",
    "proc/host-name",
    "proc/core-dump",
    "cgroups/write" [
        "release-agent", "notify-on-release", "members", "memory-limit", "device-list",
    ],
    "cgroups/join-root",
    "cgroups/paths",
    "descriptors/leaked",
    "descriptors/working-directory",
    "identity/root",
    "identity/capabilities" [
        "sys-admin", "sys-ptrace", "sys-module", "sys-rawio", "sys-boot", "sys-time", "net-admin",
        "dac-read-search", "mac-admin", "syslog", "bpf", "perfmon", "checkpoint-restore",
    ],
    "identity/file-capabilities",
    "identity/setuid-owner",
    "identity/personality",
    "keyring/read",
    "keyring/call" ["adding", "asking", "joining"],
    "calls/refused" [
        "init_module", "finit_module", "delete_module", "bpf", "perf_event_open", "io_uring_setup",
        "userfaultfd", "kexec_load", "kexec_file_load", "fanotify_init", "quotactl", "swapon",
        "swapoff", "reboot", "adjtimex", "clock_adjtime", "clock_settime", "settimeofday", "acct",
        "iopl", "ioperm", "vhangup", "lookup_dcookie", "nfsservctl", "pidfd_getfd", "kcmp",
        "move_pages", "process_madvise", "sysfs", "ustat", "uselib",
    ],
    "calls/set-clock",
    "calls/other-abi",
    "calls/host-name" ["sethostname", "setdomainname"],
    "namespaces/unshare" ["user", "mount", "pid", "net", "ipc", "uts", "cgroup", "time"],
    "namespaces/clone" ["clone", "clone3"],
    "namespaces/join" ["mnt", "net", "uts", "ipc", "cgroup"],
    "packets/family" [
        "packet", "raw-icmp", "raw-ip", "raw-icmpv6", "vsock", "crypto", "xdp", "bluetooth", "can", "key",
    ],
    "packets/change" [
        "setting-an-address", "setting-the-mtu", "adding-a-route", "adding-a-firewall-table",
    ],
    "network/reach" [
        "the-metadata-service", "10.0.0.0", "172.16.0.0", "192.168.0.0", "100.64.0.0",
    ],
    "network/notation" ["decimal", "hexadecimal", "octal", "short", "ipv4-mapped"],
    "network/redirect",
    "network/resolver",
    "network/ping",
    "network/host" ["its-own-address", "loopback", "the-gateway"],
    "network/neighbour",
    "network/spoof" [
        "a-public-address", "the-hosts-address", "an-address-of-other-sandboxes",
    ],
    "network/ipv6",
    "network/inbound",
    "floods/processes",
    "floods/threads",
    "floods/memory" ["an-allocation", "a-memory-file", "shared-memory"],
    "floods/disk",
    "floods/inodes",
    "floods/open-files",
    "floods/shared-memory",
    "floods/run-directory",
    "floods/device-directory",
    "floods/terminals",
    "floods/processor",
    "floods/kernel-log",
];

/// Every case, in the order in which they are played.
///
/// # Errors
/// When a header of an attack program is not well-formed, which a test rules out.
pub fn cases() -> Result<Vec<Case>, crate::SelftestError> {
    let broken = |error: HeaderError| crate::SelftestError::Catalog(error.to_string());
    let mut cases = Vec::new();
    for entry in PROGRAMS {
        if entry.variants.is_empty() {
            cases.push(program::case(entry.path, None, entry.body).map_err(broken)?);
        }
        for variant in entry.variants {
            let case = program::case(entry.path, Some(variant), entry.body);
            cases.push(case.map_err(broken)?);
        }
    }
    cases.extend(native::cases());
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_case_is_whole_and_has_a_name_of_its_own() {
        let cases = cases().unwrap();
        assert!(cases.len() >= 80, "{}", cases.len());
        let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), cases.len());
        for case in &cases {
            assert!(
                !case.tried.is_empty() && !case.wall.is_empty() && !case.control().is_empty(),
                "{case:?}"
            );
            assert!(!case.tried.contains('{'), "{}", case.tried);
        }
    }

    #[test]
    fn no_attack_program_is_forgotten() {
        let attacks = Path::new(env!("CARGO_MANIFEST_DIR")).join("attacks");
        let mut on_disk = BTreeSet::new();
        for group in std::fs::read_dir(&attacks).unwrap().flatten() {
            let group_name = group.file_name().into_string().unwrap();
            for file in std::fs::read_dir(group.path())
                .into_iter()
                .flatten()
                .flatten()
            {
                let name = file.file_name().into_string().unwrap();
                let name = name.strip_suffix(".py").unwrap().to_owned();
                on_disk.insert(format!("{group_name}/{name}"));
            }
        }
        let listed = PROGRAMS.iter().map(|entry| entry.path.to_owned()).collect();
        assert_eq!(on_disk, listed);
    }

    #[test]
    fn every_variant_is_one_that_its_program_knows() {
        for entry in PROGRAMS {
            for variant in entry.variants {
                let quoted = format!("\"{variant}\"");
                assert!(entry.body.contains(&quoted), "{} {variant}", entry.path);
            }
        }
    }
}
