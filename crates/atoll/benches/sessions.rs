//! `cargo xtask bench sessions`: what a session costs an agent, beside the same
//! call straight to a sandbox of the same server: finding the session and its
//! sandbox, measuring, judging and writing the history are in it. Then many
//! sessions at once, of which no call may fail.
//!
//! Each pair takes turns, so that whatever else the machine does hits both.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use atoll_client::{CodeOptions, CreateOptions, Sandbox};
use serde_json::{Value, json};
use support::connection::{Connection, connect};
use support::server::Server;
use support::{Result, kept, percentile, row};

/// What a session may add to a call.
const ADDED_MAX: Duration = Duration::from_micros(500);
/// Sessions that are used at the same time: more would measure the machine.
const AT_ONCE: usize = 16;
/// Sessions of one agent, at most.
const PER_AGENT: usize = 10;

/// What was asked on the command line.
struct Options {
    count: usize,
    sessions: usize,
    calls: usize,
}

fn main() -> Result<()> {
    let mut options = Options {
        count: 300,
        sessions: 100,
        calls: 20,
    };
    support::options(&mut [
        ("--count", &mut options.count),
        ("--sessions", &mut options.sessions),
        ("--calls", &mut options.calls),
    ])?;
    let server = Server::start("container")?;
    let runtime = support::runtime()?;
    println!("container tier, template `base`\n");
    runtime.block_on(pairs(&server, options.count))?;
    many(&server, &options)
}

/// A session, and how it is asked to run something.
struct Session {
    id: String,
    connection: Connection,
}

impl Session {
    fn make(server: &Server, body: &Value) -> Result<Self> {
        let mut connection = Connection::new(connect(&server.address)?)?;
        let made = connection.ask_for_text(&post(server, "/api/v1/sessions", body))?;
        let made: Value = serde_json::from_str(&made)?;
        let id = made["session_id"].as_str().ok_or("a session without id")?;
        Ok(Self {
            id: id.to_owned(),
            connection,
        })
    }

    /// Runs something that succeeds, and says how it ended.
    fn run(&mut self, server: &Server, what: &Value) -> Result<Value> {
        let target = format!("/api/v1/sessions/{}/execute", self.id);
        let ran = self.connection.ask_for_text(&post(server, &target, what))?;
        let ran: Value = serde_json::from_str(&ran)?;
        if ran["outcome"] == "COMPLETED" {
            Ok(ran)
        } else {
            Err(format!("a call did not succeed: {ran:#}").into())
        }
    }

    /// Ends it, and its sandbox.
    fn end(mut self, server: &Server) -> Result<()> {
        let target = format!("/api/v1/sessions/{}", self.id);
        Ok(self.connection.ask(&head(server, "DELETE", &target, ""))?)
    }
}

fn post(server: &Server, target: &str, body: &Value) -> String {
    head(server, "POST", target, &body.to_string())
}

fn head(server: &Server, method: &str, target: &str, body: &str) -> String {
    let [(_, key), ..] = server.variables();
    format!(
        "{method} {target} HTTP/1.1\r\nhost: {}\r\nx-api-key: {key}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        server.address,
        body.len()
    )
}

/// The same in a session and straight in a sandbox.
async fn pairs(server: &Server, count: usize) -> Result<()> {
    let sandbox = server.client()?.create(&CreateOptions::default()).await?;
    let mut session = Session::make(server, &json!({"agent_id": "bench"}))?;
    let command = json!({"command": "/bin/true"});
    let (mut within, mut raw) = (Vec::new(), Vec::new());
    for round in 0..=count {
        let start = Instant::now();
        session.run(server, &command)?;
        let took = start.elapsed();
        let start = Instant::now();
        sandbox.commands().run("/bin/true").await?;
        // The first round warms caches and is not counted.
        if round > 0 {
            within.push(took);
            raw.push(start.elapsed());
        }
    }
    compare("command", &within, &raw);
    let code = json!({"code": "1 + 1"});
    let (mut within, mut raw) = (Vec::new(), Vec::new());
    for round in 0..=count {
        let start = Instant::now();
        session.run(server, &code)?;
        let took = start.elapsed();
        let start = Instant::now();
        run_code(&sandbox).await?;
        if round > 0 {
            within.push(took);
            raw.push(start.elapsed());
        }
    }
    compare("code", &within, &raw);
    session.end(server)?;
    sandbox.kill().await?;
    Ok(())
}

async fn run_code(sandbox: &Sandbox) -> Result<()> {
    let options = CodeOptions::default();
    let ran = sandbox.code().run("1 + 1", &options, |_| {}).await?;
    match ran.error {
        None => Ok(()),
        Some(error) => Err(format!("a cell failed: {}", error.name).into()),
    }
}

fn compare(name: &str, within: &[Duration], raw: &[Duration]) {
    let more = percentile(within, 50).saturating_sub(percentile(raw, 50));
    row(&format!("{name} in a session"), within);
    row("  straight", raw);
    println!(
        "  p50 {more:.2?} more; promise: at most {ADDED_MAX:?} more ({})\n",
        kept(more <= ADDED_MAX)
    );
}

/// Many sessions, each with its calls; all of them are in the history then.
fn many(server: &Server, options: &Options) -> Result<()> {
    let (next, calls) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Instant::now();
    let worker = || -> Result<(Vec<Duration>, Vec<Session>)> {
        let (mut times, mut sessions) = (Vec::new(), Vec::new());
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= options.sessions {
                return Ok((times, sessions));
            }
            let agent = format!("agent-{}", number / PER_AGENT);
            let body = json!({"agent_id": agent, "task_id": number.to_string()});
            let mut session = Session::make(server, &body)?;
            for call in 0..options.calls {
                let start = Instant::now();
                let what = json!({"command": format!("echo {number} {call}")});
                let ran = session.run(server, &what)?;
                times.push(start.elapsed());
                if ran["stdout"] != format!("{number} {call}\n") {
                    return Err(format!("a call said something else: {ran:#}").into());
                }
                calls.fetch_add(1, Ordering::Relaxed);
            }
            sessions.push(session);
        }
    };
    let (times, sessions) = std::thread::scope(|scope| -> Result<(Vec<Duration>, Vec<Session>)> {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(worker)).collect();
        let (mut times, mut sessions) = (Vec::new(), Vec::new());
        for worker in workers {
            let (its, of_it) = worker.join().map_err(|_| "a worker panicked")??;
            times.extend(its);
            sessions.extend(of_it);
        }
        Ok((times, sessions))
    })?;
    let took = start.elapsed();
    let expected = options.sessions * options.calls;
    let done = calls.load(Ordering::Relaxed);
    row("calls of all sessions", &times);
    println!(
        "  {} sessions, {AT_ONCE} at a time, {done} calls in {:.1?}; promise: {expected} without a failure ({})",
        options.sessions,
        took,
        kept(done == expected)
    );
    sessions
        .into_iter()
        .try_for_each(|session| session.end(server))
}
