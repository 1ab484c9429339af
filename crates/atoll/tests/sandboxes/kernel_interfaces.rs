//! What the kernel offers to the host and refuses to a sandbox, also to its root.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Finished, second_home};

const EPERM: i64 = 1;
const ENOSYS: i64 = 38;

/// Calls with arguments that do no harm where they are allowed: they fail
/// there, too, but because of the arguments. (Numbers of x86-64.)
const CALLS: &str = r#"
CALLS = {
    "mount": (165, 0, 0, 0, 0, 0), "umount2": (166, 0, 0), "pivot_root": (155, 0, 0), "unshare": (272, 0),
    "setns": (308, -1, 0), "fsopen": (430, 0, 0), "open_tree": (428, -1, 0, 0xffff), "move_mount": (429, -1, 0, -1, 0, 0xffff),
    "mount_setattr": (442, -1, 0, 0xffff, 0, 0), "bpf": (321, 999, 0, 0), "perf_event_open": (298, 0, 0, 0, -1, 0),
    "keyctl": (250, 999), "add_key": (248, 0, 0, 0, 0, 0), "request_key": (249, 0, 0, 0, 0), "io_uring_setup": (425, 0, 0),
    "userfaultfd": (323, 0xffff), "open_by_handle_at": (304, -1, 0, 0), "init_module": (175, 0, 0, 0),
    "finit_module": (313, -1, 0, 0), "kexec_load": (246, 0, 0, 0, 0xffff), "reboot": (169, 0, 0, 0, 0), "swapon": (167, 0, 0),
    "settimeofday": (164, 1, 0), "acct": (163, 1), "quotactl": (179, -1, 0, 0, 0), "iopl": (172, 9), "ioperm": (173, -1, 1, 1),
    "fanotify_init": (300, 0xffff, 0), "pidfd_getfd": (438, -1, 0, 0), "sethostname": (170, 1, 4),
}
"#;

const PROBE: &str = r#"
import ctypes, json, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(*[ctypes.c_long(word) for word in (number, *arguments)])
    return ctypes.get_errno() if result < 0 else 0
"#;

/// Errors by call, as a program of `python3` started with `words` sees them.
fn errors(output: &str) -> BTreeMap<String, i64> {
    serde_json::from_str(output).unwrap_or_else(|error| panic!("{error}: {output}"))
}

#[test]
fn calls_that_open_the_kernel_are_refused_to_user_and_root() {
    let home = second_home();
    let code = format!(
        "{PROBE}{CALLS}print(json.dumps({{name: call(*words) for name, words in CALLS.items()}}))"
    );
    let host = Command::new("python3")
        .args(["-c", &code])
        .output()
        .unwrap();
    let host = errors(&String::from_utf8_lossy(&host.stdout));
    let offered: Vec<&String> = host
        .iter()
        .filter(|(_, error)| ![EPERM, ENOSYS].contains(*error))
        .map(|(name, _)| name)
        .collect();
    assert!(
        offered.len() >= 20,
        "the control: the host offers only {offered:?}"
    );

    let expected: BTreeMap<String, i64> = host.into_keys().map(|name| (name, EPERM)).collect();
    let script = home.file("probe.py", &code);
    let file = format!("{}:/tmp/probe.py", script.display());
    for user in ["", "sudo "] {
        let finished = home.run([
            "run",
            "-f",
            &file,
            "-l",
            "bash",
            "-c",
            &format!("{user}python3 /tmp/probe.py"),
        ]);
        assert_eq!(errors(&finished.succeeded()), expected, "{user}");
    }
}

#[test]
fn namespaces_other_abis_and_odd_sockets_are_refused() {
    let home = second_home();
    let code = format!(
        r#"{PROBE}
import mmap, os, socket
NEWUSER, NEWNET = 0x10000000, 0x40000000
def odd_socket(family, kind):
    try:
        socket.socket(family, kind)
        return 0
    except OSError as error:
        return error.errno
def other_abi():
    # mov eax, 20 (getpid of i386); int 0x80; ret
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
    child = os.fork()
    if child == 0:
        address = ctypes.addressof(ctypes.c_char.from_buffer(code))
        os._exit(0 if ctypes.CFUNCTYPE(ctypes.c_int)(address)() > 0 else 1)
    status = os.waitpid(child, 0)[1]
    return "worked" if status == 0 else "failed"
print(json.dumps({{
    "clone NEWUSER": call(56, NEWUSER | 17, 0, 0, 0, 0),
    "clone NEWNET": call(56, NEWNET | 17, 0, 0, 0, 0),
    "clone3": call(435, 0, 0),
    "x32 getpid": call(39 | 0x40000000),
    "AF_ALG with high bits": call(41, 0x100000026, 5, 0),
    "AF_INET with high bits": call(41, 0x100000002, 1, 0),
    "AF_BLUETOOTH": odd_socket(31, socket.SOCK_RAW),
    "AF_TIPC": odd_socket(30, socket.SOCK_RAW),
    "AF_XDP": odd_socket(44, socket.SOCK_RAW),
    "AF_VSOCK": odd_socket(40, socket.SOCK_STREAM),
    "AF_ALG": odd_socket(38, socket.SOCK_SEQPACKET),
    "AF_PACKET": odd_socket(17, socket.SOCK_RAW),
    "NETLINK_ROUTE": call(41, 16, 3, 0), "NETLINK_SOCK_DIAG": call(41, 16, 3, 4),
    "NETLINK_KOBJECT_UEVENT": call(41, 16, 3, 15), "NETLINK_GENERIC": call(41, 16, 3, 16),
    "NETLINK_CONNECTOR": call(41, 16, 3, 11), "uevent with high bits": call(41, 16, 3, 0x10000000f),
    "getpid": call(39), "AF_INET": odd_socket(2, socket.SOCK_STREAM), "AF_UNIX": odd_socket(1, socket.SOCK_STREAM),
    "int 0x80": other_abi(),
}}))"#
    );
    let finished = home.python(&code);
    let expected = json!({
        "clone NEWUSER": ENOSYS, "clone NEWNET": ENOSYS, "clone3": ENOSYS, "x32 getpid": ENOSYS,
        "AF_VSOCK": ENOSYS, "AF_ALG": ENOSYS, "AF_ALG with high bits": ENOSYS, "AF_BLUETOOTH": ENOSYS,
        "AF_TIPC": ENOSYS, "AF_XDP": ENOSYS, "AF_PACKET": EPERM, "int 0x80": "failed",
        "NETLINK_ROUTE": 0, "NETLINK_SOCK_DIAG": 0, "NETLINK_KOBJECT_UEVENT": ENOSYS,
        "NETLINK_GENERIC": ENOSYS, "NETLINK_CONNECTOR": ENOSYS, "uevent with high bits": ENOSYS,
        "getpid": 0, "AF_INET": 0, "AF_INET with high bits": 0, "AF_UNIX": 0,
    });
    assert_eq!(finished.json(), expected, "{finished:#?}");
}

#[test]
fn settings_of_the_kernel_cannot_be_written_by_root_inside() {
    let home = second_home();
    let code = r#"
import errno, json, os
def attempt(path, text):
    try:
        descriptor = os.open(path, os.O_WRONLY)
        os.write(descriptor, text.encode())
        return "written"
    except OSError as error:
        return errno.errorcode[error.errno]
print(json.dumps({path: attempt(path, text) for path, text in [
    ("/proc/sys/kernel/core_pattern", "|/bin/false"), ("/proc/sys/kernel/hostname", "other"),
    ("/proc/sys/vm/drop_caches", "1"), ("/proc/sys/kernel/random/boot_id", "x"),
    ("/proc/sys/user/max_user_namespaces", "100"), ("/proc/sys/net/ipv4/ip_forward", "1"),
    ("/sys/kernel/uevent_helper", "/bin/false"), ("/sys/kernel/mm/transparent_hugepage/enabled", "never"),
    ("/sys/class/net/lo/mtu", "1000"), ("/proc/sysrq-trigger", "h"), ("/proc/1/oom_score_adj", "-1000"),
    ("/proc/self/comm", "fine"),
]}))"#;
    let script = home.file("write.py", code);
    let file = format!("{}:/tmp/write.py", script.display());
    let finished = home.run([
        "run",
        "-f",
        &file,
        "-l",
        "bash",
        "-c",
        "sudo python3 /tmp/write.py",
    ]);
    let seen = finished.json();
    for (path, result) in seen.as_object().unwrap() {
        let result = result.as_str().unwrap();
        if path == "/proc/self/comm" {
            assert_eq!(result, "written", "the control");
        } else {
            // What this kernel does not have cannot be written either.
            assert!(
                ["EROFS", "EACCES", "EPERM", "ENOENT"].contains(&result),
                "{path}: {result}"
            );
        }
    }
    // And where the owner of a file would let root inside write, the mount does not.
    let mounts = "awk '$6 ~ /^ro/ {print $5}' /proc/self/mountinfo";
    let read_only = home.bash(mounts).succeeded();
    for path in [
        "/proc/sys",
        "/proc/bus",
        "/proc/irq",
        "/sys",
        "/proc/sys/kernel/random/boot_id",
    ] {
        assert!(
            read_only.lines().any(|line| line == path),
            "{path}: {read_only}"
        );
    }
}

#[test]
fn what_speaks_of_the_host_is_empty() {
    let home = second_home();
    let code = "for path in /proc/acpi /proc/scsi /proc/asound /sys/firmware /sys/devices/virtual/dmi /sys/devices/virtual/powercap; do \
          sudo ls -A $path 2>/dev/null; \
        done; \
        for path in /proc/kcore /proc/keys /proc/timer_list /proc/interrupts /proc/sched_debug /proc/latency_stats; do \
          sudo head -c 10 $path 2>/dev/null; \
        done; \
        sudo dmesg 2>/dev/null; sudo cat /proc/kmsg 2>/dev/null; \
        sudo grep -v '^0\\{8,16\\} ' /proc/kallsyms 2>/dev/null | head -n 1; \
        ls -A /sys/fs/cgroup; sudo head -n 1 /proc/uptime > /dev/null && echo readable";
    assert_eq!(home.bash(code), Finished::printed("readable\n"));
}

#[test]
fn rights_are_exactly_the_bounded_ones() {
    let home = second_home();
    let code = "status() { grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status | tr -s '\\t\\n' '  '; echo; }; \
        status; sudo bash -c \"$(declare -f status); status\"; cat /proc/self/loginuid 2>/dev/null | head -c 0; \
        sudo grep -E '^CapEff' /proc/1/status";
    let none = "0000000000000000";
    let all = "00000000a80425fb";
    let expected = format!(
        "CapInh: {none} CapPrm: {none} CapEff: {none} CapBnd: {all} CapAmb: {none} NoNewPrivs: 0 Seccomp: 2 \n\
         CapInh: {none} CapPrm: {all} CapEff: {all} CapBnd: {all} CapAmb: {none} NoNewPrivs: 0 Seccomp: 2 \n\
         CapEff:\t{all}\n"
    );
    assert_eq!(home.bash(code), Finished::printed(&expected));
}

#[test]
fn pid_1_tells_nothing_and_cannot_be_touched() {
    let home = second_home();
    let code = "for name in environ exe root cwd mem maps fd/0 fd/1; do \
          sudo sh -c \"cat /proc/1/$name || ls /proc/1/$name/ || readlink /proc/1/$name\" > /tmp/out 2>/dev/null && echo $name is readable; \
        done; \
        sudo cat /proc/1/cmdline | tr '\\0' ' '; echo; \
        sudo kill -9 1; sudo kill -STOP 1; \
        sudo sh -c 'echo x > /.atoll/guest' 2>/dev/null; sudo rm -rf /.atoll; echo alive";
    let expected = "/.atoll/guest \nalive\n";
    assert_eq!(home.bash(code), Finished::printed(expected));
    // What one sandbox did to its copy of the guest, no other one sees.
    assert_eq!(home.bash("echo next"), Finished::printed("next\n"));
}

#[test]
fn the_guest_takes_no_orders_from_inside() {
    let home = second_home();
    let code = r#"
import json, os, urllib.request, urllib.error
ports = set()
for table in ("/proc/net/tcp", "/proc/net/tcp6"):
    for line in open(table).read().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A":
            ports.add(int(fields[1].split(":")[1], 16))
answers = []
for port in sorted(ports):
    for path in ("/files?path=/etc/shadow&username=root", "/init"):
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=b"{}" if path == "/init" else None)
        try:
            answers.append(urllib.request.urlopen(request, timeout=10).status)
        except urllib.error.HTTPError as error:
            answers.append(error.code)
print(json.dumps([len(ports), answers]))"#;
    let seen: Value = home.python(code).json();
    assert_eq!(seen, json!([1, [401, 401]]));
}

/// Disks of other sandboxes are file systems of the same kernel.
#[test]
fn file_systems_of_others_are_not_listed() {
    let listed = std::fs::read_dir("/proc/fs/ext4").map_or(0, Iterator::count);
    assert!(
        listed > 0,
        "the control needs an ext4 file system on this host"
    );
    let home = second_home();
    let finished = home.bash("ls -A /proc/fs | wc -l; head -c 10 /proc/zoneinfo | wc -c");
    assert_eq!(finished, Finished::printed("0\n0\n"));
}
