//! A PostgreSQL server for tests: in a directory of its own, on a Unix socket,
//! as an unprivileged user, and gone with the tests however they end.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use sqlx::{Connection as _, PgConnection};

/// `nobody`: PostgreSQL refuses to run as root.
const UNPRIVILEGED: u32 = 65534;

/// How long a start may take on a machine that is busy.
const START_BOUND: Duration = Duration::from_secs(60);

static SHARED: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
static DATABASES: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Postgres {
    directory: tempfile::TempDir,
    /// Dropped to stop the server.
    stop: Option<Sender<()>>,
    keeper: Option<JoinHandle<()>>,
}

impl Postgres {
    /// The server of all tests that run right now; the last one stops it.
    pub(crate) fn shared() -> Arc<Self> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = shared.upgrade() {
            return server;
        }
        let server = Arc::new(Self::start());
        *shared = Arc::downgrade(&server);
        server
    }

    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let programs = programs();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(directory.path(), Some(UNPRIVILEGED), Some(UNPRIVILEGED))
                .unwrap();
        }
        let data = directory.path().join("data");
        let made = as_unprivileged(&programs.join("initdb"))
            .args(["--username=atoll", "--auth=trust", "--no-sync"])
            .args(["--encoding=UTF8", "--locale=C", "--pgdata"])
            .arg(&data)
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "initdb: {}",
            String::from_utf8_lossy(&made.stderr)
        );
        let (stop, stopped) = channel();
        let path = directory.path().to_owned();
        // The kernel ends the server with the thread that started it.
        let keeper = thread::spawn(move || keep(&programs, &path, &stopped));
        let server = Self {
            directory,
            stop: Some(stop),
            keeper: Some(keeper),
        };
        server.wait();
        server
    }

    fn wait(&self) {
        let socket = self.directory.path().join(".s.PGSQL.5432");
        let end = Instant::now() + START_BOUND;
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            assert!(
                Instant::now() < end,
                "PostgreSQL did not come up in {START_BOUND:?}: {log}"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn url(&self, database: &str) -> String {
        let socket = self.directory.path().to_str().unwrap();
        format!(
            "postgres://atoll@localhost/{database}?host={}",
            socket.replace('/', "%2F")
        )
    }

    /// An empty database, by its URL.
    pub(crate) async fn fresh_database(&self) -> String {
        let name = format!("test_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
        let url = self.url("postgres");
        let end = Instant::now() + START_BOUND;
        let mut connection = loop {
            // It listens a moment before it answers.
            match PgConnection::connect(&url).await {
                Ok(connection) => break connection,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let statement = format!("CREATE DATABASE {name}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement))
            .execute(&mut connection)
            .await
            .unwrap();
        connection.close().await.unwrap();
        self.url(&name)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

/// Runs the server until told to stop.
fn keep(programs: &Path, directory: &Path, stopped: &Receiver<()>) {
    let log = fs::File::create(directory.join("log")).unwrap();
    let mut command = as_unprivileged(&programs.join("postgres"));
    command
        .arg("-D")
        .arg(directory.join("data"))
        .arg("-k")
        .arg(directory)
        .args(["-c", "listen_addresses=", "-c", "fsync=off"])
        .args(["-c", "max_connections=400", "-c", "shared_buffers=16MB"])
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    // SAFETY: one system call, which allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::QUIT))?));
    }
    let mut child = command.spawn().unwrap();
    // Nothing is ever sent: this ends when the other side is dropped.
    let _ = stopped.recv();
    end(&mut child);
}

fn end(child: &mut Child) {
    // "Immediate": the server ends its processes and does not save anything.
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::QUIT);
    }
    let _ = child.wait();
}

fn as_unprivileged(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .stdin(Stdio::null())
        .env_clear()
        .env("PATH", "/usr/bin:/bin");
    command.current_dir("/");
    if rustix::process::geteuid().is_root() {
        command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
    }
    command
}

/// The directory with `initdb` and `postgres`: Debian has them outside of `PATH`.
fn programs() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let debian = fs::read_dir("/usr/lib/postgresql");
    let debian = debian
        .into_iter()
        .flatten()
        .flatten()
        .map(|version| version.path().join("bin"));
    let mut found: Vec<PathBuf> = std::env::split_paths(&path)
        .chain(debian)
        .filter(|directory| {
            ["initdb", "postgres"]
                .iter()
                .all(|program| directory.join(program).is_file())
        })
        .collect();
    found.sort();
    found.pop().expect(
        "PostgreSQL is not installed, and the tests start a server of their own. \
         hint: `apt-get install postgresql`, or put `initdb` and `postgres` into PATH",
    )
}
