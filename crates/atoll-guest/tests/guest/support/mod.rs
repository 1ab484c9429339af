//! A real guest as a plain child process, and a client of it.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "test code, of which each file uses its part"
)]

pub mod code;
pub mod raw;
pub mod rpc;

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command as StdCommand, Stdio};
use std::sync::Arc;

use atoll_guest_client::{
    Command, ExitStatus, GuestClient, GuestError, InitRequest, Process, ProcessEvent,
};

pub const TOKEN: &str = "token-of-the-tests";

/// A running guest that ends with the test.
pub struct Guest {
    child: Child,
    pub address: SocketAddr,
    pub client: GuestClient,
}

impl Guest {
    /// Starts a guest that nobody has initialised.
    pub fn bare() -> Self {
        Self::bare_under(&["env"])
    }

    /// The same, started by a program that becomes the guest.
    pub fn bare_under(program: &[&str]) -> Self {
        let mut child = StdCommand::new(program[0])
            .args(&program[1..])
            .arg(env!("CARGO_BIN_EXE_atoll-guest"))
            .env("ATOLL_GUEST_LISTEN", "127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.trim().parse().unwrap();
        Self {
            child,
            address,
            client: client(address, TOKEN),
        }
    }

    /// Starts a guest whose commands run as whoever runs the tests.
    pub async fn ready() -> Self {
        Self::ready_under(&["env"], &whoami()).await
    }

    /// The same, started by a program that becomes the guest, for a user.
    pub async fn ready_under(program: &[&str], user: &str) -> Self {
        let guest = Self::bare_under(program);
        guest
            .client
            .wait_ready(std::time::Duration::from_secs(10))
            .await
            .unwrap();
        let init = InitRequest {
            access_token: Some(TOKEN.to_owned()),
            default_user: Some(user.to_owned()),
            default_workdir: Some("/tmp".to_owned()),
            env_vars: Some([("SANDBOX_VARIABLE".to_owned(), "from-init".to_owned())].into()),
            ..InitRequest::default()
        };
        guest.client.init(&init).await.unwrap();
        guest
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end and waits for that.
    pub fn terminate(&mut self) -> std::process::ExitStatus {
        let killed = StdCommand::new("kill")
            .arg(self.child.id().to_string())
            .status()
            .unwrap();
        assert!(killed.success());
        self.child.wait().unwrap()
    }

    /// How many threads it has.
    pub fn threads(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/task", self.child.id()))
            .unwrap()
            .count()
    }

    /// Waits until it has just that many.
    pub async fn wait_for_threads(&self, count: usize) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while self.threads() != count {
            assert!(
                std::time::Instant::now() < deadline,
                "{} threads instead of {count}",
                self.threads()
            );
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    /// How many inotify instances it holds.
    pub fn inotify_instances(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id()))
            .unwrap()
            .filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
            .filter(|target| target.as_os_str() == "anon_inode:inotify")
            .count()
    }

    /// Most memory it ever used, in KiB.
    pub fn peak_memory_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmHWM"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    pub async fn start(&self, script: &str) -> Process {
        self.client.start(&bash(script)).await.unwrap()
    }

    pub async fn run(&self, script: &str) -> Finished {
        finish(self.start(script).await).await.unwrap()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        match self.child.try_wait() {
            Ok(None) => {
                self.terminate();
            }
            // What else a test says of it is then not to the point.
            Ok(Some(status)) => eprintln!("the guest had ended: {status}"),
            Err(error) => eprintln!("the guest cannot be waited for: {error}"),
        }
    }
}

pub fn client(address: SocketAddr, token: &str) -> GuestClient {
    GuestClient::new(
        Arc::new(move |_port| TcpStream::connect(address)),
        token.to_owned(),
    )
}

pub fn bash(script: &str) -> Command {
    Command {
        cmd: "/bin/bash".to_owned(),
        args: vec!["-c".to_owned(), script.to_owned()],
        ..Command::default()
    }
}

/// Everything a command said, and how it ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Finished {
    pub stdout: String,
    pub stderr: String,
    pub pty: String,
    pub status: ExitStatus,
}

impl Finished {
    pub fn ok(stdout: &str) -> Self {
        Self {
            stdout: stdout.to_owned(),
            stderr: String::new(),
            pty: String::new(),
            status: ExitStatus::Exited(0),
        }
    }
}

pub async fn finish(mut process: Process) -> Result<Finished, GuestError> {
    let (mut stdout, mut stderr, mut pty, mut status) = (Vec::new(), Vec::new(), Vec::new(), None);
    while let Some(event) = process.next().await? {
        assert_eq!(status, None, "events after the end");
        match event {
            ProcessEvent::Stdout(bytes) => stdout.extend_from_slice(&bytes),
            ProcessEvent::Stderr(bytes) => stderr.extend_from_slice(&bytes),
            ProcessEvent::Pty(bytes) => pty.extend_from_slice(&bytes),
            ProcessEvent::End(end) => status = Some(end),
        }
    }
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ok(Finished {
        stdout: text(stdout),
        stderr: text(stderr),
        pty: text(pty),
        status: status.unwrap(),
    })
}

/// Reads output until it holds `needle`.
pub async fn output_until(process: &mut Process, needle: &str) -> String {
    let mut seen = Vec::new();
    loop {
        match process
            .next()
            .await
            .unwrap()
            .expect("the command ended early")
        {
            ProcessEvent::Stdout(bytes)
            | ProcessEvent::Pty(bytes)
            | ProcessEvent::Stderr(bytes) => seen.extend_from_slice(&bytes),
            ProcessEvent::End(status) => panic!(
                "ended with {status:?} before {needle:?}: {}",
                String::from_utf8_lossy(&seen)
            ),
        }
        let text = String::from_utf8_lossy(&seen).into_owned();
        if text.contains(needle) {
            return text;
        }
    }
}

/// Whether a process runs; zombies do not.
pub fn runs(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .unwrap()
            .trim_start()
            // Dead, or dead and about to be forgotten by a parent that never asks.
            .starts_with(['Z', 'X'])
    })
}

/// Makes directories in directories, deeper than a path can say.
pub fn dig(at: &str, name: &str, levels: usize) {
    use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut dir = openat(CWD, at, flags, Mode::empty()).unwrap();
    for _ in 0..levels {
        mkdirat(&dir, name, Mode::RWXU).unwrap();
        dir = openat(&dir, name, flags, Mode::empty()).unwrap();
    }
}

pub fn whoami() -> String {
    String::from_utf8(StdCommand::new("id").arg("-un").output().unwrap().stdout)
        .unwrap()
        .trim()
        .to_owned()
}

/// For tests that become somebody else or mount.
pub fn require_root() {
    assert_eq!(
        whoami(),
        "root",
        "run the tests as root: `cargo xtask test` does"
    );
}

/// A directory that goes away, and its path, which everybody may enter.
pub fn place() -> (tempfile::TempDir, String) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().canonicalize().unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    (place, path.to_str().unwrap().to_owned())
}
