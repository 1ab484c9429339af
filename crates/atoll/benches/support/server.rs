//! A server on the home of the benchmark, that ends with its owner.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use atoll_client::{Client, Endpoint};

use super::Result;
use super::connection::{Connection, connect};

/// A server on the home of the benchmark.
pub struct Server {
    home: PathBuf,
    pub address: String,
    key: String,
    child: Child,
}

impl Server {
    /// Starts one whose sandboxes have this isolation.
    pub fn start(isolation: &str) -> Result<Self> {
        Self::start_in(&super::home()?, isolation)
    }

    /// The same in another home.
    pub fn start_in(home: &Path, isolation: &str) -> Result<Self> {
        let home = home.to_owned();
        let key = atoll(&home)
            .args(["key", "create", "--name", "bench"])
            .output()?;
        let key = String::from_utf8(key.stdout)?.trim().to_owned();
        let mut child = atoll(&home)
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--json",
                "--isolation",
                isolation,
            ])
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("the server has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let announced: serde_json::Value = serde_json::from_str(&line)?;
        let url = announced["url"]
            .as_str()
            .ok_or("the server has no address")?;
        Ok(Self {
            home,
            address: url.trim_start_matches("http://").to_owned(),
            key,
            child,
        })
    }

    /// The variables that lead E2B's clients to it.
    pub fn variables(&self) -> [(&'static str, String); 3] {
        let url = format!("http://{}", self.address);
        [
            ("E2B_API_KEY", self.key.clone()),
            ("E2B_API_URL", url.clone()),
            ("E2B_SANDBOX_URL", url),
        ]
    }

    /// A connection on which this request is answered: services take a moment to start.
    pub fn wait_for(&self, head: &str) -> Result<Connection> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let asked = connect(&self.address).and_then(|stream| {
                let mut connection = Connection::new(stream)?;
                connection.ask(head)?;
                Ok(connection)
            });
            match asked {
                Ok(connection) => return Ok(connection),
                Err(error) if Instant::now() > end => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// The number of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Our own client of it.
    pub fn client(&self) -> Result<Client> {
        let url = format!("http://{}", self.address);
        Ok(Client::new(Endpoint::new(&url, &self.key)?)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = atoll(&self.home).args(["stop", "--kill"]).status();
        let _ = atoll(&self.home).args(["key", "revoke", "bench"]).status();
        let _ = self.child.wait();
    }
}

fn atoll(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_atoll"));
    command.arg("--home").arg(home);
    command
}
