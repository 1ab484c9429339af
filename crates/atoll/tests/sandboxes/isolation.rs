//! What a sandbox must not reach. Every probe is also made where it must
//! succeed, so that one which never works cannot pass for a wall.

use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{self, Finished, eventually, second_home};

/// A text that is nowhere else.
fn marker(what: &str) -> String {
    format!("atoll-{what}-{}-{:p}", std::process::id(), &raw const *what)
}

/// A file on the host that goes with the test.
fn secret_in(directory: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::Builder::new()
        .prefix("atoll-secret-")
        .tempfile_in(directory)
        .unwrap();
    file.write_all(b"the secret").unwrap();
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o644)).unwrap();
    file
}

#[test]
fn files_of_the_host_are_not_there() {
    let home = second_home();
    for directory in ["/tmp", "/root", "/var/tmp"] {
        let secret = secret_in(directory);
        assert_eq!(fs::read(secret.path()).unwrap(), b"the secret");
        let path = secret.path().display();
        let name = secret.path().file_name().unwrap().to_str().unwrap();
        let code = format!(
            "for prefix in '' /proc/1/root /proc/self/root /proc/1/cwd; do sudo cat $prefix{path} 2>/dev/null && echo read; done; \
             sudo find / -xdev -name {name} 2>/dev/null; echo searched"
        );
        assert_eq!(
            home.bash(&code),
            Finished::printed("searched\n"),
            "{directory}"
        );
    }
    // The same search finds what is there.
    let control = "echo x > /tmp/atoll-here; sudo cat /proc/self/root/tmp/atoll-here; sudo find / -xdev -name atoll-here";
    assert_eq!(
        home.bash(control),
        Finished::printed("x\n/tmp/atoll-here\n")
    );
}

#[test]
fn the_environment_of_the_host_reaches_no_process_of_the_sandbox() {
    let home = second_home();
    let secret = marker("variable");
    let mut running = home
        .atoll([
            "run",
            "-l",
            "bash",
            "-e",
            "OPEN=allowed",
            "-c",
            "env; echo ready; cat; sudo tr '\\0' '\\n' < /proc/1/environ",
        ])
        .env("ATOLL_SECRET", &secret)
        .start();
    let seen = running.wait_for("ready");
    assert!(
        seen.contains("OPEN=allowed") && !seen.contains(&secret),
        "{seen}"
    );
    let lease = home.lease();
    let has_secret = |pid: i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&secret)
    };
    let client = running.pid().as_raw_nonzero().get();
    assert!(has_secret(client), "the client has it");
    let inside = harness::processes_of(lease["sandbox"].as_str().unwrap());
    assert!(inside.len() >= 3, "{inside:?}");
    let monitor = i32::try_from(lease["owner"]["pid"].as_i64().unwrap()).unwrap();
    for pid in inside.into_iter().chain([monitor]) {
        assert!(!has_secret(pid), "process {pid} has it");
    }
    let finished = running.finish();
    assert!(
        !finished.stdout.contains(&secret) && !finished.stdout.contains("TOKEN"),
        "{finished:#?}"
    );
}

#[test]
fn processes_of_the_host_are_neither_seen_nor_reached() {
    let home = second_home();
    let marker = marker("process");
    let mut victim = Command::new("bash")
        .args(["-c", "read _; exit 0", &marker])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = victim.id();
    let looks = |arguments: &str| {
        format!("grep -las {arguments} /proc/[0-9]*/cmdline | grep -v self | wc -l")
    };
    let on_host = Command::new("bash")
        .args(["-c", &format!("{} # ", looks(&marker))])
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&on_host.stdout)
            .trim()
            .parse::<u32>()
            .unwrap()
            >= 1
    );

    // The pattern is put together inside, so that no process of ours has it on its command line.
    let (half, rest) = marker.split_at(8);
    let code = format!(
        "sudo cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -c \"^{half}\"\"{rest}$\"; \
         ls -d /proc/[0-9]* | wc -l | awk '{{print ($1 < 20)}}'; \
         sudo kill -9 {pid} 2>/dev/null || echo no such process; sudo kill -9 -- -{pid} 2>/dev/null || echo no such group; \
         sleep 1000 & kill $! && echo own process"
    );
    let expected = "0\n1\nno such process\nno such group\nown process\n";
    assert_eq!(home.bash(&code), Finished::printed(expected));
    assert_eq!(
        victim.try_wait().unwrap(),
        None,
        "the process on the host was reached"
    );
    drop(victim.stdin.take());
    victim.wait().unwrap();
}

#[test]
fn services_of_the_host_are_not_reached() {
    let home = second_home();
    let loopback = TcpListener::bind("127.0.0.1:0").unwrap();
    let everywhere = TcpListener::bind("0.0.0.0:0").unwrap();
    let name = marker("socket");
    let local = SocketAddr::from_abstract_name(&name).unwrap();
    let _abstract = UnixListener::bind_addr(&local).unwrap();
    let (loopback_port, port) = (
        loopback.local_addr().unwrap().port(),
        everywhere.local_addr().unwrap().port(),
    );
    let own_address = own_address();

    TcpStream::connect(("127.0.0.1", loopback_port)).unwrap();
    TcpStream::connect((own_address.as_str(), port)).unwrap();
    UnixStream::connect_addr(&local).unwrap();

    let code = format!(
        r#"
import socket, sys, threading
def connects(address, port):
    try:
        socket.create_connection((address, port), timeout=3).close()
        return True
    except OSError:
        return False
gateway = next((line.split()[2] for line in open("/proc/net/route") if line.split()[1] == "00000000"), None)
gateway = gateway and socket.inet_ntoa(bytes.fromhex(gateway)[::-1])
targets = [("127.0.0.1", {loopback_port}), ("127.0.0.1", {port}), ("{own_address}", {port}), ("{own_address}", {loopback_port})]
if gateway:
    targets += [(gateway, {port}), (gateway, {loopback_port}), (gateway, 22)]
reached = []
def probe(target):
    if connects(*target): reached.append(target)
threads = [threading.Thread(target=probe, args=(target,)) for target in targets]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("reached", reached)
local = socket.socket(socket.AF_UNIX)
try:
    local.connect("\0{name}")
    print("abstract socket reached")
except ConnectionRefusedError:
    print("no abstract socket")
server = socket.create_server(("127.0.0.1", 0))
print("own service", connects(*server.getsockname()))
print("resolver", bool(gateway) and connects(gateway, 53))
"#
    );
    for (network, resolver) in [("none", "False"), ("full", "True")] {
        let finished = home.run(["run", "--net", network, "-l", "python", "-c", &code]);
        let expected =
            format!("reached []\nno abstract socket\nown service True\nresolver {resolver}\n");
        assert_eq!(finished, Finished::printed(&expected), "{network}");
    }
}

/// The address of the host that others see.
fn own_address() -> String {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("192.0.2.1:9").unwrap(); // sends nothing
    socket.local_addr().unwrap().ip().to_string()
}

#[test]
fn devices_of_the_host_are_not_there_and_cannot_be_made() {
    let home = second_home();
    let made = home.work().join("null");
    let status = Command::new("mknod")
        .arg(&made)
        .args(["c", "1", "3"])
        .status()
        .unwrap();
    assert!(status.success(), "the host can make a device");

    let code = "ls /dev | tr '\\n' ' '; echo; \
        for node in 'b 254 0' 'b 7 0' 'b 8 0' 'c 10 232' 'c 1 1' 'c 1 3' 'c 10 237' 'c 10 200'; do \
          sudo mknod /tmp/node $node 2>/dev/null && echo made $node; \
        done; \
        sudo mknod /tmp/pipe p && echo made a pipe; \
        for device in kvm vda sda mem kmsg loop-control fuse net/tun; do sudo test -e /dev/$device && echo found $device; done; \
        sudo sh -c 'echo to null > /dev/null && head -c 2 /dev/zero | wc -c'";
    let expected = "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero \nmade a pipe\n2\n";
    assert_eq!(home.bash(code), Finished::printed(expected));
}

#[test]
fn a_setuid_file_is_harmless_on_the_host() {
    let home = second_home();
    let code = "sudo cp /bin/bash /tmp/rootshell && sudo chmod 4755 /tmp/rootshell && /tmp/rootshell -p -c 'echo inside $EUID'; cat";
    let mut running = home.atoll(["run", "-l", "bash", "-c", code]).start();
    assert_eq!(
        running.wait_for("inside"),
        "inside 0\n",
        "the control: it works inside"
    );

    let lease = home.lease();
    let id = lease["sandbox"].as_str().unwrap();
    let base = uid_base(&lease);
    let init = harness::init_of(id);
    // Root of the host can look, and sees a file of the sandbox's own uid.
    let seen = fs::metadata(format!("/proc/{init}/root/tmp/rootshell")).unwrap();
    assert_eq!((seen.uid(), seen.mode() & 0o7777), (base, 0o4755));
    // Nobody else finds a way to it.
    for path in [
        format!("/proc/{init}/root/tmp/rootshell"),
        "/run/atoll/slots".to_owned(),
    ] {
        let status = Command::new("setpriv")
            .args([
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                "ls",
                &path,
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(!status.success(), "{path} is open to everybody");
    }
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&home.path().join("disks")), 0o700);
    assert_eq!(mode(&home.path().join(format!("disks/{id}.img"))), 0o600);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(
        !mounts.contains(id) && !mounts.contains("/run/atoll"),
        "{mounts}"
    );
    running.finish();
}

/// First uid of the sandbox of a lease.
fn uid_base(lease: &serde_json::Value) -> u32 {
    0x7000_0000 + u32::try_from(lease["slot"].as_u64().unwrap()).unwrap() * 0x1_0000
}

#[test]
fn two_sandboxes_do_not_see_each_other() {
    let homes = [second_home(), second_home()];
    let secret = marker("neighbour");
    let code = "cat /proc/sys/kernel/random/boot_id; hostname; cat /etc/hostname; echo $SECRET > /tmp/secret; \
        sudo chmod 666 /tmp/secret; (exec -a neighbour-$SECRET sleep 1000) & echo ready; cat > /dev/null";
    let mut running = homes.each_ref().map(|home| {
        home.atoll([
            "run",
            "--net",
            "full",
            "-l",
            "bash",
            "-e",
            &format!("SECRET={secret}"),
            "-c",
            code,
        ])
        .start()
    });
    let said = running.each_mut().map(|running| running.wait_for("ready"));
    let leases = homes.each_ref().map(harness::TestHome::lease);
    let ids = leases
        .each_ref()
        .map(|lease| lease["sandbox"].as_str().unwrap().to_owned());

    let lines = said.each_ref().map(|text| text.lines().collect::<Vec<_>>());
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert!(
        lines[0][0] != lines[1][0] && !boot.contains(lines[0][0]),
        "{lines:?}"
    );
    for (line, id) in lines.iter().zip(&ids) {
        assert_eq!(line[1..3], [id.as_str(), id.as_str()], "hostname");
    }
    for (lease, id) in leases.iter().zip(&ids) {
        for map in ["uid_map", "gid_map"] {
            let map = fs::read_to_string(format!("/proc/{}/{map}", harness::init_of(id))).unwrap();
            let fields: Vec<u32> = map
                .split_whitespace()
                .map(|field| field.parse().unwrap())
                .collect();
            assert_eq!(fields, [0, uid_base(lease), 0x1_0000]);
        }
    }
    assert_ne!(uid_base(&leases[0]), uid_base(&leases[1]));

    // A third one looks everywhere for the two.
    let third = second_home();
    let (half, rest) = secret.split_at(8);
    let look = format!(
        "secret=\"{half}\"\"{rest}\"; sudo cat /tmp/secret 2>/dev/null; \
         sudo cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -c \"^neighbour\"; \
         sudo grep -rls -e {} -e {} /proc/mounts /proc/self/mountinfo /proc/locks /proc/partitions /proc/diskstats \
           /proc/net /sys/block/*/ /sys/devices/virtual/block /sys/fs /sys/class/net 2>/dev/null; echo looked",
        ids[0], ids[1]
    );
    let finished = third.run(["run", "--net", "full", "-l", "bash", "-c", &look]);
    assert_eq!(finished, Finished::printed("0\nlooked\n"));
    for running in running {
        running.finish();
    }
    eventually("both ends", || {
        homes
            .iter()
            .all(|home| home.leases().is_empty())
            .then_some(())
    });
}

#[test]
fn what_the_kernel_counts_per_user_is_counted_for_each_sandbox_alone() {
    let home = second_home();
    let greedy = "import ctypes, sys\nlibc = ctypes.CDLL(None)\ncount = 0\n\
        while libc.inotify_init() >= 0: count += 1\n\
        print(count, flush=True)\nsys.stdin.read()";
    let mut first = home
        .atoll(["run", "--lang", "python", "-c", greedy])
        .start();
    let count: u64 = first.wait_for("\n").trim().parse().unwrap();
    assert!(count > 0);
    let second = "import ctypes; print(ctypes.CDLL(None).inotify_init() >= 0)";
    assert_eq!(home.python(second), Finished::printed("True\n"));
    let on_the_host = Command::new("python3")
        .args(["-c", second])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&on_the_host.stdout), "True\n");
    assert_eq!(first.finish().code, 0);
}
