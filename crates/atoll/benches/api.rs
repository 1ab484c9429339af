//! `cargo xtask bench api`: what the server costs beside the same work
//! without it: a command and files beside the client of the guest alone, a
//! port of a sandbox beside a connection straight into it and beside haproxy.
//!
//! Each pair takes turns, so that whatever else the machine does hits both.

mod support;

use std::fs::{self, File};
use std::io;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use atoll_client::{CreateOptions, ProcessEvent, Sandbox};
use atoll_control::LiveSandbox;
use atoll_guest_client::{GuestClient, Lanes, LocalFile};
use support::connection::{Connection, connect};
use support::server::Server;
use support::{Bench, Lease, Rates, Result, children, kept, percentile, row};
use tokio::io::AsyncReadExt as _;

const MIB: usize = 1024 * 1024;

/// A port that services inside listen on.
const SERVICE_PORT: u16 = 3000;
/// Where haproxy listens, in the network of the same sandbox.
const HAPROXY_PORT: u16 = 3001;

/// The simplest service that `base` can run.
const SERVICE: &str =
    "require('http').createServer((_, answer) => answer.end('well')).listen(3000, '127.0.0.1')";

/// What was asked on the command line.
struct Options {
    count: usize,
    mib: usize,
    rounds: usize,
    connections: usize,
    seconds: usize,
}

fn main() -> Result<()> {
    let mut options = Options {
        count: 200,
        mib: 256,
        rounds: 9,
        connections: 32,
        seconds: 4,
    };
    support::options(&mut [
        ("--count", &mut options.count),
        ("--mib", &mut options.mib),
        ("--rounds", &mut options.rounds),
        ("--connections", &mut options.connections),
        ("--seconds", &mut options.seconds),
    ])?;
    let bench = Bench::prepare()?;
    let runtime = support::runtime()?;
    println!("container tier, template `base`\n");
    {
        let server = Server::start("container")?;
        runtime.block_on(measure(&bench, &server, &options))?;
    }
    println!("\ngvisor tier, template `base`\n");
    let server = Server::start("gvisor")?;
    runtime.block_on(starts(&bench, &server, Alone::Not, options.count / 10))
}

async fn measure(bench: &Bench, server: &Server, options: &Options) -> Result<()> {
    starts(bench, server, Alone::Too, options.count / 5).await?;
    let live = bench.open(&bench.atoll).await?;
    let sandbox = server.client()?.create(&CreateOptions::default()).await?;
    let result = async {
        commands(&live, &sandbox, options.count).await?;
        files(&live, &sandbox, options).await?;
        ports(server, &sandbox, options).await
    }
    .await;
    sandbox.kill().await?;
    live.destroy().await?;
    result
}

/// Whether the same is measured without the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Alone {
    Too,
    Not,
}

/// From the wish for a sandbox to the end of its first command.
async fn starts(bench: &Bench, server: &Server, alone: Alone, count: usize) -> Result<()> {
    let client = server.client()?;
    let (mut served, mut direct) = (Vec::new(), Vec::new());
    for round in 0..=count {
        let start = Instant::now();
        let sandbox = client.create(&CreateOptions::default()).await?;
        run_true(&sandbox).await?;
        let took = start.elapsed();
        sandbox.kill().await?;
        // The first round warms caches and is not counted.
        if round > 0 {
            served.push(took);
        }
        if alone == Alone::Too {
            let start = Instant::now();
            let live = bench.open(&bench.atoll).await?;
            support::first_command(&live).await?;
            let took = start.elapsed();
            live.destroy().await?;
            if round > 0 {
                direct.push(took);
            }
        }
    }
    row("create, first command", &served);
    if alone == Alone::Too {
        row("  without the server", &direct);
    }
    println!();
    Ok(())
}

async fn run_true(sandbox: &Sandbox) -> Result<()> {
    let command = atoll_client::Command {
        cmd: "/bin/true".to_owned(),
        ..atoll_client::Command::default()
    };
    let mut process = sandbox.commands().start(&command).await?;
    while let Some(event) = process.next().await? {
        if matches!(event, ProcessEvent::End(_)) {
            return Ok(());
        }
    }
    Err("a command gave no exit status".into())
}

/// `/bin/true` from the wish to its exit status.
async fn commands(live: &LiveSandbox, sandbox: &Sandbox, count: usize) -> Result<()> {
    let (mut served, mut direct) = (Vec::new(), Vec::new());
    for round in 0..=count {
        let start = Instant::now();
        run_true(sandbox).await?;
        let took = start.elapsed();
        let start = Instant::now();
        support::first_command(live).await?;
        if round > 0 {
            served.push(took);
            direct.push(start.elapsed());
        }
    }
    let more = percentile(&served, 50).saturating_sub(percentile(&direct, 50));
    row("command", &served);
    row("  without the server", &direct);
    println!(
        "  p50 {more:.2?} more; promise: at most 1 ms more ({})\n",
        kept(more <= Duration::from_millis(1))
    );
    Ok(())
}

/// A file in and out of a sandbox: as our own client moves it, and as others do in plain
/// HTTP, each beside the same without the server. What comes out is read and dropped.
async fn files(live: &LiveSandbox, sandbox: &Sandbox, options: &Options) -> Result<()> {
    let directory = tempfile::tempdir_in(support::home()?)?;
    let source = directory.path().join("source");
    let bytes = options.mib * MIB;
    fs::write(&source, vec![7; bytes])?;
    File::open(&source)?.sync_all()?;
    let plain = |guest: &GuestClient| guest.clone().with_lanes(Lanes::Never);
    let ways = [
        sandbox.guest().clone(),
        live.guest().clone(),
        plain(sandbox.guest()),
        plain(live.guest()),
    ];
    let (mut up, mut down): ([Vec<Duration>; 4], [Vec<Duration>; 4]) = Default::default();
    for round in 0..=options.rounds {
        for way in support::in_turn::<4>(round) {
            let guest = &ways[way];
            let start = Instant::now();
            let content = LocalFile(File::open(&source)?);
            guest.write_file("bench", None, content).await?;
            let upload = start.elapsed();
            let start = Instant::now();
            let mut reader = guest.read_file("bench", None).await?;
            let mut buffer = vec![0; 256 * 1024];
            while reader.read(&mut buffer).await? > 0 {}
            let download = start.elapsed();
            guest.remove("bench", None).await?;
            // The first round warms caches and is not counted.
            if round > 0 {
                up[way].push(upload);
                down[way].push(download);
            }
        }
    }
    for (name, times) in [("upload", up), ("download", down)] {
        let [lane, lane_alone, plain, plain_alone] = times.map(|times| Rates::of(&times, bytes));
        for (by, rates, alone) in [
            ("our client", lane, lane_alone),
            ("plain HTTP", plain, plain_alone),
        ] {
            let part = rates.median / alone.median;
            let name = format!("{name}, {by}");
            println!("{name:<22} {rates}");
            println!("  without the server   {alone}");
            println!(
                "  {:.0} %; promise: at least 70 % ({})",
                100.0 * part,
                kept(part >= 0.7)
            );
        }
    }
    println!();
    Ok(())
}

/// A service inside: straight into its sandbox, through haproxy there, and through the server.
async fn ports(server: &Server, sandbox: &Sandbox, options: &Options) -> Result<()> {
    sandbox.files().write("service.js", SERVICE).await?;
    let service = atoll_client::Command {
        cmd: "node".to_owned(),
        args: vec!["service.js".to_owned()],
        ..atoll_client::Command::default()
    };
    let _service = sandbox.commands().start(&service).await?;
    let inside = Inside::of(sandbox.id())?;
    let _haproxy = inside.haproxy()?;
    let inside = Arc::new(inside);
    let head = format!(
        "GET / HTTP/1.1\r\nhost: 127.0.0.1\r\ne2b-sandbox-id: {}\r\ne2b-sandbox-port: {SERVICE_PORT}\r\n\r\n",
        sandbox.id()
    );
    let address = server.address.clone();
    let ways: [(&str, Way); 3] = [
        ("port, straight", {
            let inside = Arc::clone(&inside);
            Arc::new(move || inside.connect(SERVICE_PORT))
        }),
        ("port, haproxy", {
            let inside = Arc::clone(&inside);
            Arc::new(move || inside.connect(HAPROXY_PORT))
        }),
        ("port, server", Arc::new(move || connect(&address))),
    ];
    for (name, way) in &ways {
        wait_for(way, &head).map_err(|error| format!("{name}: {error}"))?;
    }
    let mut latencies: [Vec<Duration>; 3] = Default::default();
    let mut connections = Vec::new();
    for (_, way) in &ways {
        connections.push(Connection::new(way()?)?);
    }
    for round in 0..options.count * 5 {
        for (connection, times) in connections.iter_mut().zip(&mut latencies) {
            let start = Instant::now();
            connection.ask(&head)?;
            if round > 0 {
                times.push(start.elapsed());
            }
        }
    }
    drop(connections);
    for ((name, _), times) in ways.iter().zip(&latencies) {
        row(name, times);
    }
    let more = percentile(&latencies[2], 50).saturating_sub(percentile(&latencies[0], 50));
    println!(
        "  p50 {more:.2?} more than straight; promise: at most 0.3 ms more ({})",
        kept(more <= Duration::from_micros(300))
    );
    let mut best = [0.0_f64; 3];
    for _ in 0..options.rounds.min(3) {
        for ((_, way), best) in ways.iter().zip(&mut best) {
            *best = best.max(flood(way, &head, options)?);
        }
    }
    println!(
        "requests               straight {:.0}/s, haproxy {:.0}/s, server {:.0}/s ({:.0} % of haproxy); promise: at least 80 % ({})",
        best[0],
        best[1],
        best[2],
        100.0 * best[2] / best[1],
        kept(best[2] >= 0.8 * best[1])
    );
    Ok(())
}

/// Opens a connection to a service.
type Way = Arc<dyn Fn() -> io::Result<TcpStream> + Send + Sync>;

/// Asks until an answer comes: services take a moment to start.
fn wait_for(way: &Way, head: &str) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let asked = way().and_then(|stream| Connection::new(stream)?.ask(head));
        match asked {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > end => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Requests per second of many connections at once.
fn flood(way: &Way, head: &str, options: &Options) -> Result<f64> {
    let over = AtomicBool::new(false);
    let answered = AtomicU64::new(0);
    let time = Duration::from_secs(options.seconds as u64);
    let start = Instant::now();
    std::thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = (0..options.connections)
            .map(|_| {
                scope.spawn(|| -> io::Result<()> {
                    let mut connection = Connection::new(way()?)?;
                    while !over.load(Ordering::Relaxed) {
                        connection.ask(head)?;
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        std::thread::sleep(time);
        over.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| "a client panicked")??;
        }
        Ok(())
    })?;
    let answered = u32::try_from(answered.into_inner())?;
    Ok(f64::from(answered) / start.elapsed().as_secs_f64())
}

/// The network of a sandbox, entered by its first process.
struct Inside {
    pid: i32,
}

impl Inside {
    fn of(sandbox: &str) -> Result<Self> {
        let lease = Lease::of(&sandbox.parse()?)?;
        let pid = children(lease.monitor)?.first().copied();
        Ok(Self {
            pid: pid.ok_or("the sandbox has no process")?,
        })
    }

    /// Connects from inside, on a thread that stays there.
    fn connect(&self, port: u16) -> io::Result<TcpStream> {
        let namespace = File::open(format!("/proc/{}/ns/net", self.pid))?;
        let thread = std::thread::spawn(move || {
            let kind = rustix::thread::LinkNameSpaceType::Network;
            rustix::thread::move_into_link_name_space(
                std::os::fd::AsFd::as_fd(&namespace),
                Some(kind),
            )?;
            connect(&format!("127.0.0.1:{port}"))
        });
        thread
            .join()
            .map_err(|_| io::Error::other("the connecting thread panicked"))?
    }

    fn haproxy(&self) -> Result<Killed> {
        let directory = tempfile::tempdir()?;
        let config = directory.path().join("haproxy.cfg");
        fs::write(
            &config,
            format!(
                "global\n  maxconn 4096\ndefaults\n  mode http\n  timeout client 60s\n  timeout server 60s\n  timeout connect 5s\n  http-reuse always\nlisten proxy\n  bind 127.0.0.1:{HAPROXY_PORT}\n  server service 127.0.0.1:{SERVICE_PORT}\n"
            ),
        )?;
        let child = Command::new("nsenter")
            .args([
                "--target",
                &self.pid.to_string(),
                "--net",
                "haproxy",
                "-db",
                "-f",
            ])
            .arg(&config)
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| {
                format!("`haproxy` does not start ({error}): apt-get install haproxy")
            })?;
        Ok(Killed {
            child,
            _files: Some(directory),
        })
    }
}

/// A process that ends with this.
struct Killed {
    child: Child,
    _files: Option<tempfile::TempDir>,
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
