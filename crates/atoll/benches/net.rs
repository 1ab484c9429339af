//! `cargo xtask bench net`: the way through a sandbox's slot beside a bare
//! veth pair, and beside the same way without Atoll.
//!
//! ```text
//! bare     namespace ── namespace
//! routed   namespace ── router ── namespace      (forwarding, no rules)
//! slot     sandbox ──── host ──── namespace      (all of Atoll's rules, NAT)
//! ```
//!
//! Each measurement takes turns, so that whatever else the machine does hits
//! all. Everything happens in network namespaces of this process: nothing is
//! sent anywhere, and the host's network is not touched.

mod support;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use atoll_engine::{Attachment, Limits, NetworkPolicy, Sandbox, SandboxId, SandboxSpec};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use support::{Bench, Lease, Result, children, percentile};

/// Where all servers are.
const SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
/// What the slot must keep of the bare pair's throughput.
const THROUGHPUT_PERCENT: f64 = 90.0;
/// What a new connection may cost more: tracking it, NAT, one more hop.
const CONNECT_MORE: Duration = Duration::from_micros(20);
const CHUNK: usize = 256 * 1024;

/// From where to where.
struct Path {
    name: &'static str,
    client: File,
    server: File,
    /// Keeps what lies between them.
    _router: Option<File>,
}

fn main() -> Result<()> {
    let (mut rounds, mut mib, mut count) = (9, 512, 500);
    support::options(&mut [
        ("--rounds", &mut rounds),
        ("--mib", &mut mib),
        ("--count", &mut count),
    ])?;
    let bench = Bench::prepare()?;
    let bare = bare()?;
    let routed = routed()?;
    let (internet, host) = (new_network()?, new_network()?);
    // From here on this thread, and what it starts, is on a host of its own.
    enter(&host)?;
    connect_pair("up0", &internet, "eth0")?;
    shell(
        "ip addr add 203.0.113.1/24 dev up0; ip link set up0 up; ip route add default via 203.0.113.2",
    )?;
    far_end(&internet)?;
    enter(&host)?;
    let sandbox = create(&bench)?;
    let result = (|| {
        let slot = Path {
            name: "slot",
            client: network_of(sandbox.id())?,
            server: internet,
            _router: None,
        };
        measure(&[bare, routed, slot], rounds, mib, count)
    })();
    sandbox.destroy()?;
    result
}

fn new_network() -> Result<File> {
    let made = thread::spawn(|| {
        // SAFETY: only the network namespace of this thread changes.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
        shell("ip link set lo up")?;
        Ok(File::open("/proc/thread-self/ns/net")?)
    });
    made.join().map_err(|_| "the thread panicked")?
}

fn enter(network: &File) -> Result<()> {
    Ok(move_into_link_name_space(
        network.as_fd(),
        Some(LinkNameSpaceType::Network),
    )?)
}

/// Runs a line of shell in the thread's network namespace.
fn shell(line: &str) -> Result<()> {
    if Command::new("sh").args(["-ec", line]).status()?.success() {
        Ok(())
    } else {
        Err(format!("`{line}` failed").into())
    }
}

fn connect_pair(name: &str, other: &File, other_name: &str) -> Result<()> {
    let path = format!("/proc/{}/fd/{}", std::process::id(), other.as_raw_fd());
    shell(&format!(
        "ip link add {name} type veth peer name {other_name} netns {path}"
    ))
}

/// The side of the server, behind a router.
fn far_end(network: &File) -> Result<()> {
    enter(network)?;
    shell(&format!(
        "ip addr add 203.0.113.2/24 dev eth0; ip addr add {SERVER}/32 dev eth0
        ip link set eth0 up; ip route add default via 203.0.113.1"
    ))
}

fn bare() -> Result<Path> {
    let (client, server) = (new_network()?, new_network()?);
    enter(&client)?;
    connect_pair("eth0", &server, "eth0")?;
    shell("ip addr add 198.51.100.1/24 dev eth0; ip link set eth0 up")?;
    enter(&server)?;
    shell(&format!(
        "ip addr add {SERVER}/24 dev eth0; ip link set eth0 up"
    ))?;
    Ok(Path {
        name: "bare",
        client,
        server,
        _router: None,
    })
}

fn routed() -> Result<Path> {
    let (client, router, server) = (new_network()?, new_network()?, new_network()?);
    enter(&router)?;
    connect_pair("down0", &client, "eth0")?;
    connect_pair("up0", &server, "eth0")?;
    shell(
        "ip addr add 192.0.2.1/24 dev down0; ip link set down0 up
        ip addr add 203.0.113.1/24 dev up0; ip link set up0 up
        ip route add default via 203.0.113.2; echo 1 > /proc/sys/net/ipv4/ip_forward",
    )?;
    enter(&client)?;
    shell(
        "ip addr add 192.0.2.2/24 dev eth0; ip link set eth0 up; ip route add default via 192.0.2.1",
    )?;
    far_end(&server)?;
    Ok(Path {
        name: "routed",
        client,
        server,
        _router: Some(router),
    })
}

fn create(bench: &Bench) -> Result<Arc<dyn Sandbox>> {
    let id = SandboxId::random()?;
    let spec = SandboxSpec {
        hostname: id.to_string(),
        id,
        layers: bench.layers.clone(),
        limits: Limits::default(),
        network: NetworkPolicy::full(),
        env: bench.env.clone(),
        lifetime: Some(Duration::from_secs(600)),
        attachment: Attachment::Client,
    };
    Ok(Arc::from(bench.atoll.create(&spec)?))
}

fn network_of(id: &SandboxId) -> Result<File> {
    let monitor = Lease::of(id)?.monitor;
    let init = children(monitor)?.first().copied().ok_or("no PID 1")?;
    Ok(File::open(format!("/proc/{init}/ns/net"))?)
}

/// What was measured on one path.
#[derive(Default)]
struct Times {
    up: Vec<Duration>,
    down: Vec<Duration>,
    connect: Vec<Duration>,
    round_trip: Vec<Duration>,
}

fn measure(paths: &[Path], rounds: usize, mib: usize, count: usize) -> Result<()> {
    println!("{rounds} rounds of {mib} MiB and {count} connections, medians; paths take turns\n");
    let mut all: Vec<Times> = paths.iter().map(|_| Times::default()).collect();
    for round in 0..=rounds {
        for (path, times) in paths.iter().zip(&mut all) {
            let listener = listen(path).map_err(|error| format!("{}: {error}", path.name))?;
            let up = transfer(path, &listener, mib, Direction::Up)?;
            let down = transfer(path, &listener, mib, Direction::Down)?;
            let (connect, round_trip) = connections(path, &listener, count)?;
            // The first round warms caches and is not counted.
            if round > 0 {
                times.up.push(up);
                times.down.push(down);
                times.connect.push(connect);
                times.round_trip.push(round_trip);
            }
        }
    }
    let median = |times: &[Duration]| percentile(times, 50);
    println!("path    up MiB/s  down MiB/s  connect    round trip");
    for (path, times) in paths.iter().zip(&all) {
        println!(
            "{:7} {:8.0}  {:10.0}  {:9.1?}  {:9.1?}",
            path.name,
            rate(mib, median(&times.up)),
            rate(mib, median(&times.down)),
            median(&times.connect),
            median(&times.round_trip)
        );
    }
    let [bare, _, slot] = all.as_slice() else {
        return Err("three paths are measured".into());
    };
    let share = |of: &[Duration], to: &[Duration]| {
        100.0 * median(to).as_secs_f64() / median(of).as_secs_f64()
    };
    let (up, down) = (share(&slot.up, &bare.up), share(&slot.down, &bare.down));
    let more = median(&slot.connect).saturating_sub(median(&bare.connect));
    println!(
        "\nthroughput   {up:.0} % up, {down:.0} % down of the bare pair; promise: at least {THROUGHPUT_PERCENT:.0} % ({})",
        kept(up >= THROUGHPUT_PERCENT && down >= THROUGHPUT_PERCENT)
    );
    println!(
        "connect      {more:.1?} more than the bare pair ({:.0} %); promise: at most {CONNECT_MORE:?} more ({})",
        share(&slot.connect, &bare.connect),
        kept(more <= CONNECT_MORE)
    );
    println!(
        "round trip   {:.0} % of the bare pair, no promise",
        share(&slot.round_trip, &bare.round_trip)
    );
    Ok(())
}

fn kept(kept: bool) -> &'static str {
    if kept { "kept" } else { "BROKEN" }
}

#[expect(clippy::cast_precision_loss, reason = "a few hundred")]
fn rate(mib: usize, time: Duration) -> f64 {
    mib as f64 / time.as_secs_f64()
}

/// Runs `call` on a thread in `network`.
fn within<T: Send>(network: &File, call: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            enter(network)?;
            call()
        });
        worker.join().map_err(|_| "a thread panicked")?
    })
}

fn listen(path: &Path) -> Result<TcpListener> {
    within(&path.server, || Ok(TcpListener::bind((SERVER, 0))?))
}

#[derive(Clone, Copy)]
enum Direction {
    Up,
    Down,
}

/// How long `mib` MiB take from the first byte sent to the last one read.
fn transfer(
    path: &Path,
    listener: &TcpListener,
    mib: usize,
    direction: Direction,
) -> Result<Duration> {
    let port = listener.local_addr()?.port();
    let near = within(&path.client, || Ok(TcpStream::connect((SERVER, port))?))?;
    let (far, _) = listener.accept()?;
    let (mut sender, mut receiver) = match direction {
        Direction::Up => (near, far),
        Direction::Down => (far, near),
    };
    let bytes = mib * 1024 * 1024;
    thread::scope(|scope| {
        let start = Instant::now();
        let sending = scope.spawn(move || -> Result<()> {
            let chunk = vec![0; CHUNK];
            for _ in 0..bytes / CHUNK {
                sender.write_all(&chunk)?;
            }
            Ok(())
        });
        let mut chunk = vec![0; CHUNK];
        let mut received = 0;
        loop {
            match receiver.read(&mut chunk)? {
                0 => break,
                length => received += length,
            }
        }
        let took = start.elapsed();
        sending.join().map_err(|_| "the sender panicked")??;
        if received == bytes / CHUNK * CHUNK {
            Ok(took)
        } else {
            Err("bytes were lost".into())
        }
    })
}

/// Medians of `count` new connections, and of one byte there and back on each.
/// One thread has both ends, so that no scheduler is measured.
fn connections(path: &Path, listener: &TcpListener, count: usize) -> Result<(Duration, Duration)> {
    let port = listener.local_addr()?.port();
    within(&path.client, || {
        let (mut connect, mut round_trip) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let start = Instant::now();
            let mut near = TcpStream::connect((SERVER, port))?;
            connect.push(start.elapsed());
            let (mut far, _) = listener.accept()?;
            near.set_nodelay(true)?;
            far.set_nodelay(true)?;
            let mut byte = [0];
            let start = Instant::now();
            near.write_all(&byte)?;
            far.read_exact(&mut byte)?;
            far.write_all(&byte)?;
            near.read_exact(&mut byte)?;
            round_trip.push(start.elapsed());
            // Closed at once on both sides: thousands of waiting ports would be measured too.
            rustix::net::sockopt::set_socket_linger(&near, Some(Duration::ZERO))?;
        }
        Ok((percentile(&connect, 50), percentile(&round_trip, 50)))
    })
}
