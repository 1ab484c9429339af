//! Released clients of E2B, old and new, unchanged, against a server that has
//! a domain: by name with TLS, and by address.
//!
//! Names are answered by a DNS server of the test; clients run where
//! `/etc/resolv.conf` leads to it, in a mount namespace of their own.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::harness::server::Server;
use crate::harness::{installed_clients, second_home};

const DOMAIN: &str = "atoll.test";

/// Puts another `resolv.conf` in place and goes on as the rest of the line.
const WITH_RESOLVER: &str = "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"";

/// A server with a domain, and who answers for its names.
struct Stand {
    server: Server,
    address: Ipv4Addr,
    dns: Option<Arc<UdpSocket>>,
}

impl Stand {
    fn new() -> Self {
        let address = own_address();
        let server = Server::start_named(second_home(), DOMAIN, &format!("{address}:443"));
        let authority = server.home.run(["ca", "--domain", DOMAIN]);
        assert_eq!(authority.code, 0, "{authority:#?}");
        let work = server.work();
        fs::write(work.join("ca.pem"), authority.stdout).unwrap();
        fs::write(work.join("resolv.conf"), format!("nameserver {address}\n")).unwrap();
        let dns = Arc::new(UdpSocket::bind((address, 53)).unwrap());
        let answering = Arc::clone(&dns);
        std::thread::spawn(move || answer_names(&answering, address));
        Self {
            server,
            address,
            dns: Some(dns),
        }
    }

    /// A program that finds the server by `E2B_DOMAIN`.
    fn by_name(&self, program: &Path) -> Command {
        let work = self.server.work();
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", WITH_RESOLVER])
            .arg(work.join("resolv.conf"))
            .arg(program);
        self.furnish(&mut command);
        command
            .env("E2B_DOMAIN", DOMAIN)
            .env("SSL_CERT_FILE", work.join("ca.pem"))
            .env("NODE_EXTRA_CA_CERTS", work.join("ca.pem"));
        command
    }

    /// A program that finds the server by its address.
    fn by_address(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        self.furnish(&mut command);
        let url = format!("http://{}", self.server.address());
        command
            .env("E2B_API_URL", &url)
            .env("E2B_SANDBOX_URL", &url);
        command
    }

    fn furnish(&self, command: &mut Command) {
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.server.work())
            .env("LANG", "C.UTF-8")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("NO_UPDATE_NOTIFIER", "1")
            .env("E2B_API_KEY", &self.server.key);
    }

    /// A program of Node, which looks for packages where it lies and nowhere else.
    fn node_program(&self, name: &str) -> PathBuf {
        let directory = self.server.work().join("node");
        if !directory.exists() {
            fs::create_dir(&directory).unwrap();
            let modules = installed_clients().join("node/node_modules");
            symlink(modules, directory.join("node_modules")).unwrap();
        }
        let target = directory.join(name);
        fs::copy(source(name), &target).unwrap();
        target
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        // A word that is no question ends its thread.
        if let Some(dns) = self.dns.take() {
            let _ = dns.send_to(b"", (self.address, 53));
        }
    }
}

/// An address of the loopback that no other test of this host uses.
fn own_address() -> Ipv4Addr {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let number = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes()[1];
    Ipv4Addr::new(127, 77 ^ number, high, low.max(1))
}

/// Answers every question for an address with `address`.
fn answer_names(socket: &UdpSocket, address: Ipv4Addr) {
    const HEAD: usize = 12;
    let mut buffer = [0; 512];
    loop {
        let (length, client) = socket.recv_from(&mut buffer).unwrap();
        let Some(name) = buffer[..length].get(HEAD..) else {
            return;
        };
        let end = HEAD + name.iter().position(|byte| *byte == 0).unwrap() + 5;
        let asks_for_ipv4 = buffer[end - 4..end - 2] == [0, 1];
        let mut answer = buffer[..2].to_vec();
        answer.extend([0x81, 0x80, 0, 1, 0, u8::from(asks_for_ipv4), 0, 0, 0, 0]);
        answer.extend(&buffer[HEAD..end]);
        if asks_for_ipv4 {
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
            answer.extend(address.octets());
        }
        socket.send_to(&answer, client).unwrap();
    }
}

fn python(version: &str) -> PathBuf {
    installed_clients().join(version).join("bin/python")
}

fn source(name: &str) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/versions");
    sources.join(name)
}

/// Runs a program, which must say that all of these cases hold, and leave no sandbox.
fn holds(stand: &Stand, mut command: Command, cases: &[&str]) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let held: Vec<&str> = said
        .lines()
        .filter_map(|line| line.strip_prefix("ok "))
        .collect();
    assert!(
        output.status.success() && held == cases,
        "{} of {command:?}: {said}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(stand.server.leased(), Vec::<String>::new());
}

#[test]
fn sdks_of_version_1_work_by_name() {
    let stand = Stand::new();
    let mut command = stand.by_name(&python("python-1"));
    command.arg(source("version_1.py"));
    let cases = ["create", "commands", "files", "ports", "connect", "kill"];
    holds(&stand, command, &cases);
    let mut command = stand.by_name(&installed_clients().join("node/node"));
    command.arg(stand.node_program("version_1.mjs"));
    holds(&stand, command, &["create", "commands", "files", "kill"]);
}

/// They send no token to where code runs.
#[test]
fn code_interpreters_of_version_1_work_by_name() {
    let stand = Stand::new();
    let template = ("INTERPRETER_TEMPLATE", "code-interpreter-v1-tiny");
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/interpreter");
    let mut command = stand.by_name(&python("python-1"));
    command.arg(programs.join("version_1.py"));
    command.env(template.0, template.1);
    let cases = [
        "state",
        "output and errors",
        "charts",
        "contexts",
        "variables",
        "javascript",
        "asynchronous",
    ];
    holds(&stand, command, &cases);

    let directory = stand.server.work().join("interpreter");
    fs::create_dir(&directory).unwrap();
    for entry in fs::read_dir(programs.join("node")).unwrap().flatten() {
        fs::copy(entry.path(), directory.join(entry.file_name())).unwrap();
    }
    let modules = installed_clients().join("node/node_modules");
    symlink(modules, directory.join("node_modules")).unwrap();
    let mut command = stand.by_name(&installed_clients().join("node/node"));
    command
        .arg(directory.join("run.mjs"))
        .env(template.0, template.1)
        .env("INTERPRETER_KIND", "tiny")
        .env("INTERPRETER_PACKAGE", "code-interpreter-1");
    let cases = [
        "an expression has a result",
        "names stay and executions are counted",
        "output and complaints are apart and told",
        "output is told while the cell runs",
        "every character arrives",
        "a lot of output arrives whole",
        "errors say what, why and where",
        "every kind arrives alone",
        "what is displayed is not the main result",
        "other kinds are extra",
        "dictionaries are json and frames are data",
        "images are shown",
        "the sine plot",
        "charts of every type",
        "contexts do not know each other",
        "variables of the sandbox stay and those of a cell do not",
        "a cell that takes too long is interrupted",
        "a kernel that ends is an error and another one is there",
        "javascript",
        "typescript",
        "bash",
    ];
    holds(&stand, command, &cases);
}

#[test]
fn python_sdks_of_version_2_work_by_name_and_by_address() {
    let stand = Stand::new();
    let cases = ["commands", "files", "terminals", "life", "asynchronous"];
    for version in ["python-2.31", "python"] {
        let mut command = stand.by_name(&python(version));
        command.arg(source("version_2.py"));
        holds(&stand, command, &cases);
        let mut command = stand.by_address(&python(version));
        command.arg(source("version_2.py"));
        holds(&stand, command, &cases);
    }
}

#[test]
fn git_works_inside() {
    let stand = Stand::new();
    let mut command = stand.by_address(&python("python"));
    command.arg(source("git.py"));
    holds(&stand, command, &["git"]);
}

#[test]
fn ports_have_names_for_http_websockets_and_events() {
    let stand = Stand::new();
    let mut command = stand.by_name(&installed_clients().join("node/node"));
    command.arg(stand.node_program("sockets.mjs"));
    holds(&stand, command, &["http", "websocket", "events", "gone"]);
}

#[test]
fn the_command_line_of_e2b_works() {
    let stand = Stand::new();
    let programs = stand.server.work().join("programs");
    let node = installed_clients().join("node");
    let start = format!(
        "#!/bin/sh\nexec {} {} \"$@\"\n",
        node.join("node").display(),
        node.join("node_modules/@e2b/cli/dist/index.js").display()
    );
    let program = stand.server.home.file("programs/e2b", &start);
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = stand.by_address(Path::new("sh"));
    command.arg(source("cli.sh"));
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", programs.display()));
    holds(&stand, command, &["create", "exec", "info", "kill"]);
}
