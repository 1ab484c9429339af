//! A real server on a free port, and plain HTTP to talk to it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{BOUND, Finished, Running, TestHome};

/// A home and its server. Dropped, both and all sandboxes are gone.
pub struct Server {
    running: Option<Running>,
    address: SocketAddr,
    /// What it said when it was ready.
    pub announced: Value,
    /// The first key of the home.
    pub key: String,
    /// What it is started with besides.
    options: Vec<String>,
    /// Last, for it looks at what is left.
    pub home: TestHome,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:#?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let found = headers.find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Fails unless it is an error with this status and the body that clients need.
    pub fn is_error(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{self:#?}");
        let body = self.json();
        if let Some(code) = body["code"].as_str() {
            // The form of `/api/v1`: a word, and what can be done about it.
            let is_word = |one: u8| one.is_ascii_uppercase() || one == b'_';
            assert!(code.bytes().all(is_word), "{self:#?}");
            assert!(!body["remediation"].as_str().unwrap().is_empty());
            assert!(!body["request_id"].as_str().unwrap().is_empty());
        } else {
            assert_eq!(body["code"], status, "{self:#?}");
        }
        let message = body["message"].as_str();
        message
            .unwrap_or_else(|| panic!("no message in {self:#?}"))
            .to_owned()
    }

    /// The body of a success with this status.
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:#?}");
        if self.body.is_empty() {
            Value::Null
        } else {
            self.json()
        }
    }
}

/// What is asked.
#[derive(Debug, Clone)]
pub struct Ask<'a> {
    pub method: &'a str,
    pub target: &'a str,
    pub headers: Vec<(&'a str, String)>,
    pub body: Option<Vec<u8>>,
}

impl Server {
    /// The server of `home`, for the first time.
    pub fn start(home: TestHome) -> Self {
        Self::start_with(home, &[])
    }

    /// The same with variables of its environment.
    pub fn start_with(home: TestHome, variables: &[(&str, &str)]) -> Self {
        let mut server = Self::unstarted(home);
        server.start_again_with(variables);
        server
    }

    /// The server of `home` with a domain, whose names lead to `tls_listen`.
    pub fn start_named(home: TestHome, domain: &str, tls_listen: &str) -> Self {
        let mut server = Self::unstarted(home);
        let options = ["--domain", domain, "--tls-listen", tls_listen];
        server.options = options.map(str::to_owned).to_vec();
        server.start_again();
        server
    }

    fn unstarted(home: TestHome) -> Self {
        let key = home.run(["key", "create", "--name", "test", "--json"]);
        let key = key.json()["key"].as_str().unwrap().to_owned();
        Self {
            running: None,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            announced: Value::Null,
            key,
            options: Vec::new(),
            home,
        }
    }

    /// Starts a server on the same home after the one before has ended.
    pub fn start_again(&mut self) {
        self.start_again_with(&[]);
    }

    pub fn start_again_with(&mut self, variables: &[(&str, &str)]) {
        // A free port the first time, and then the same: clients know it.
        let listen = self.address.to_string();
        let arguments = ["serve", "--listen", &listen, "--json"];
        let mut invocation = self.home.atoll(arguments).and(&self.options);
        for (name, value) in variables {
            invocation = invocation.env(name, value);
        }
        let mut running = invocation.start();
        let line = running.wait_for("\n");
        let announced: Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
        let url = announced["url"].as_str().unwrap();
        self.address = url.strip_prefix("http://").unwrap().parse().unwrap();
        self.announced = announced;
        self.running = Some(running);
    }

    /// Another key of the same home, for another tenant.
    pub fn key_of(&self, tenant: &str) -> String {
        let made = self
            .home
            .run(["key", "create", "--tenant", tenant, "--json"]);
        made.json()["key"].as_str().unwrap().to_owned()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn signal(&self, signal: Signal) {
        self.running.as_ref().unwrap().signal(signal);
    }

    /// Waits for its end, whatever brings it.
    pub fn ended(&mut self) -> Finished {
        self.running.take().unwrap().finish()
    }

    /// Kills it as a crash would.
    pub fn crash(&mut self) {
        self.signal(Signal::KILL);
        assert_eq!(self.ended().code, -9);
    }

    /// Asks with the server's own key.
    pub fn ask(&self, method: &str, target: &str, body: Option<Value>) -> Reply {
        self.ask_as(&self.key, method, target, body)
    }

    pub fn ask_as(&self, key: &str, method: &str, target: &str, body: Option<Value>) -> Reply {
        let headers = vec![("x-api-key", key.to_owned())];
        let body = body.map(|body| body.to_string().into_bytes());
        let ask = Ask {
            method,
            target,
            headers,
            body,
        };
        self.send(&ask).unwrap()
    }

    /// Sends anything; an error when no whole answer comes back.
    pub fn send(&self, ask: &Ask<'_>) -> std::io::Result<Reply> {
        let mut stream = self.open(ask)?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        parse(&bytes).ok_or_else(|| {
            let what = String::from_utf8_lossy(&bytes).into_owned();
            std::io::Error::other(format!("no whole answer: {what}"))
        })
    }

    /// Sends it as the last thing on its connection, and does not wait.
    pub fn open(&self, ask: &Ask<'_>) -> std::io::Result<TcpStream> {
        self.write(ask, "close")
    }

    /// Sends it as clients do that have more to ask, and does not wait.
    pub fn open_to_stay(&self, ask: &Ask<'_>) -> std::io::Result<TcpStream> {
        self.write(ask, "keep-alive")
    }

    fn write(&self, ask: &Ask<'_>, connection: &str) -> std::io::Result<TcpStream> {
        let Ask {
            method,
            target,
            headers,
            body,
        } = ask;
        let mut head =
            format!("{method} {target} HTTP/1.1\r\nhost: test\r\nconnection: {connection}\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = body {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(*BOUND))?;
        stream.set_write_timeout(Some(*BOUND))?;
        stream.write_all(head.as_bytes())?;
        // A server that refuses by the head alone may not want the rest.
        let _ = stream.write_all(body.as_deref().unwrap_or_default());
        Ok(stream)
    }

    /// Makes a sandbox and returns the answer.
    pub fn create(&self, more: Value) -> Value {
        let mut body = json!({"templateID": "base", "timeout": 300});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        self.ask("POST", "/v2/sandboxes", Some(body)).expect(201)
    }

    /// Makes a sandbox and returns its name.
    pub fn create_id(&self, more: Value) -> String {
        let made = self.create(more);
        made["sandboxID"].as_str().unwrap().to_owned()
    }

    pub fn get(&self, id: &str) -> Reply {
        self.ask("GET", &format!("/sandboxes/{id}"), None)
    }

    pub fn kill(&self, id: &str) -> Reply {
        self.ask("DELETE", &format!("/sandboxes/{id}"), None)
    }

    /// What the guest of a sandbox says of itself.
    pub fn health(&self, id: &str) -> Reply {
        self.reach(id, 49983, "/health", &[])
    }

    /// Asks a port of a sandbox.
    pub fn reach(&self, id: &str, port: u16, target: &str, headers: &[(&str, &str)]) -> Reply {
        let mut all = vec![
            ("e2b-sandbox-id", id.to_owned()),
            ("e2b-sandbox-port", port.to_string()),
        ];
        all.extend(
            headers
                .iter()
                .map(|(name, value)| (*name, (*value).to_owned())),
        );
        let ask = Ask {
            method: "GET",
            target,
            headers: all,
            body: None,
        };
        self.send(&ask).unwrap()
    }

    /// Names of all sandboxes in a list, in its order.
    pub fn listed(&self, query: &str) -> Vec<String> {
        let listed = self.ask("GET", &format!("/v2/sandboxes{query}"), None);
        let listed = listed.expect(200);
        let names = listed.as_array().unwrap().iter();
        names
            .map(|one| one["sandboxID"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Names of all sandboxes of this home that have a monitor.
    pub fn leased(&self) -> Vec<String> {
        let leases = self.home.leases().into_iter();
        let mut names: Vec<String> = leases
            .map(|lease| lease["sandbox"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    }
}

impl Deref for Server {
    type Target = TestHome;

    fn deref(&self) -> &TestHome {
        &self.home
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let stopped = self.home.run(["stop", "--kill"]);
        if !std::thread::panicking() {
            assert_eq!(stopped.code, 0, "{stopped:#?}");
            if let Some(running) = self.running.take() {
                assert_eq!(running.finish().code, 0);
            }
        }
    }
}

fn parse(bytes: &[u8]) -> Option<Reply> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let length = headers
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map_or(Some(0), |(_, length)| length.parse::<usize>().ok())?;
    // What was cut short is no answer.
    (body.len() == length).then(|| Reply {
        status,
        headers,
        body: body.to_owned(),
    })
}
