//! `cargo xtask bench net`: the way through a sandbox's slot beside a bare
//! veth pair, and beside the same way without Atoll.
//!
//! ```text
//! bare     namespace ── namespace
//! routed   namespace ── router ── namespace      (forwarding, no rules)
//! nat      namespace ── router ── namespace      (one rule: masquerade)
//! slot     sandbox ──── host ──── namespace      (all of Atoll's rules, NAT)
//! ```
//!
//! What a sandbox speaks with is beyond the host, so `routed` is the least that
//! any network of sandboxes costs, and `nat` the least with one address for all.
//!
//! Each measurement takes turns, so that whatever else the machine does hits
//! all. Throughput is that of two threads, as programs have them, and that of
//! one thread that has both ends: the first varies with the scheduler, the
//! second says what the way costs. Everything happens in network namespaces of
//! this process: nothing is sent anywhere, and the host's network is not touched.

mod support;

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use atoll_engine::{Attachment, Limits, NetworkPolicy, Sandbox, SandboxId, SandboxSpec};
use rustix::net::sockopt::set_tcp_congestion;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use support::{Bench, Lease, Result, children, percentile};

/// Where all servers are.
const SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
/// What the slot should keep of the bare pair.
const OF_BARE_PERCENT: f64 = 90.0;
/// What it must keep of the kernel's own NAT.
const OF_NAT_PERCENT: f64 = 75.0;
/// What a new connection may cost more than on the pair: tracking it, NAT, one more hop.
const CONNECT_MORE: Duration = Duration::from_micros(20);
/// Connections in a row before another path has its turn.
const TURN: usize = 20;
/// Without pacing, whatever this machine prefers: its timers are not the way.
const CONGESTION_CONTROL: &str = "reno";
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
    let (mut rounds, mut mib, mut count) = (21, 64, 200);
    support::options(&mut [
        ("--rounds", &mut rounds),
        ("--mib", &mut mib),
        ("--count", &mut count),
    ])?;
    let bench = Bench::prepare()?;
    let bare = bare()?;
    let routed = routed("routed", "")?;
    let nat = routed_by_nat()?;
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
        measure(&[bare, routed, nat, slot], rounds, mib, count)
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

/// The same with the one rule that gives all of a network one address.
fn routed_by_nat() -> Result<Path> {
    routed(
        "nat",
        "nft add table ip nat
        nft 'add chain ip nat departure { type nat hook postrouting priority srcnat; }'
        nft 'add rule ip nat departure oifname up0 masquerade'",
    )
}

fn routed(name: &'static str, rules: &str) -> Result<Path> {
    let (client, router, server) = (new_network()?, new_network()?, new_network()?);
    enter(&router)?;
    connect_pair("down0", &client, "eth0")?;
    connect_pair("up0", &server, "eth0")?;
    shell(
        "ip addr add 192.0.2.1/24 dev down0; ip link set down0 up
        ip addr add 203.0.113.1/24 dev up0; ip link set up0 up
        ip route add default via 203.0.113.2; echo 1 > /proc/sys/net/ipv4/ip_forward",
    )?;
    shell(rules)?;
    enter(&client)?;
    shell(
        "ip addr add 192.0.2.2/24 dev eth0; ip link set eth0 up; ip route add default via 192.0.2.1",
    )?;
    far_end(&server)?;
    Ok(Path {
        name,
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
        memory: None,
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
    alone: Vec<Duration>,
    connect: Vec<Duration>,
    round_trip: Vec<Duration>,
}

fn measure(paths: &[Path], rounds: usize, mib: usize, count: usize) -> Result<()> {
    println!("{rounds} rounds of {mib} MiB and {count} connections, medians; paths take turns\n");
    let mut all: Vec<Times> = paths.iter().map(|_| Times::default()).collect();
    let listeners: Vec<TcpListener> = paths.iter().map(listen).collect::<Result<_>>()?;
    for round in 0..=rounds {
        for ((path, listener), times) in paths.iter().zip(&listeners).zip(&mut all) {
            times.up.push(transfer(path, listener, mib, Direction::Up)?);
            let down = transfer(path, listener, mib, Direction::Down)?;
            times.down.push(down);
            times.alone.push(transfer_alone(path, listener, mib)?);
        }
        for _ in 0..count / TURN {
            for ((path, listener), times) in paths.iter().zip(&listeners).zip(&mut all) {
                connections(path, listener, times)?;
            }
        }
        if round == 0 {
            // It warms caches and is not counted.
            all.fill_with(Times::default);
        }
    }
    println!("path    up MiB/s  down MiB/s  one thread  connect    round trip");
    for (path, times) in paths.iter().zip(&all) {
        println!(
            "{:7} {:8.0}  {:10.0}  {:10.0}  {:9.1?}  {:9.1?}",
            path.name,
            rate(mib, median(&times.up)),
            rate(mib, median(&times.down)),
            rate(mib, median(&times.alone)),
            median(&times.connect),
            median(&times.round_trip)
        );
    }
    println!();
    let [bare, routed, nat, slot] = all.as_slice() else {
        return Err("four paths are measured".into());
    };
    compare("slot", "bare", slot, bare, Some(OF_BARE_PERCENT));
    compare("slot", "nat", slot, nat, Some(OF_NAT_PERCENT));
    compare("routed", "bare", routed, bare, None);
    compare("nat", "bare", nat, bare, None);
    let more = median(&slot.connect).saturating_sub(median(&bare.connect));
    println!(
        "\nconnect: {more:.1?} more than the bare pair; promise: at most {CONNECT_MORE:?} more ({})",
        kept(more <= CONNECT_MORE)
    );
    Ok(())
}

/// Says how much `one` keeps of `other`, and whether that is what was promised.
fn compare(name: &str, of: &str, one: &Times, other: &Times, promise: Option<f64>) {
    let share = |times: fn(&Times) -> &[Duration]| {
        100.0 * median(times(other)).as_secs_f64() / median(times(one)).as_secs_f64()
    };
    let shares = [
        share(|times| &times.up),
        share(|times| &times.down),
        share(|times| &times.alone),
        share(|times| &times.connect),
        share(|times| &times.round_trip),
    ];
    let verdict = promise.map_or_else(String::new, |promise| {
        let worst = shares.iter().take(4).copied().fold(f64::INFINITY, f64::min);
        format!(
            "; at least {promise:.0} % but for round trips: {}",
            kept(worst >= promise)
        )
    });
    let [up, down, alone, connect, round_trip] = shares;
    println!(
        "{name:6} keeps of {of:4}  up {up:3.0} %, down {down:3.0} %, one thread {alone:3.0} %, connect {connect:3.0} %, round trip {round_trip:3.0} %{verdict}"
    );
}

fn median(times: &[Duration]) -> Duration {
    percentile(times, 50)
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
    within(&path.server, || {
        let listener = TcpListener::bind((SERVER, 0))?;
        // Connections inherit it.
        set_tcp_congestion(&listener, CONGESTION_CONTROL)?;
        Ok(listener)
    })
    .map_err(|error| format!("{}: {error}", path.name).into())
}

/// Both ends of a new connection, the client's first.
fn connected(path: &Path, listener: &TcpListener) -> Result<(TcpStream, TcpStream)> {
    let port = listener.local_addr()?.port();
    let near = within(&path.client, || {
        let near = TcpStream::connect((SERVER, port))?;
        set_tcp_congestion(&near, CONGESTION_CONTROL)?;
        Ok(near)
    })?;
    Ok((near, listener.accept()?.0))
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
    let (near, far) = connected(path, listener)?;
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

/// How long `mib` MiB take up when one thread sends and reads them.
fn transfer_alone(path: &Path, listener: &TcpListener, mib: usize) -> Result<Duration> {
    let (mut near, mut far) = connected(path, listener)?;
    near.set_nonblocking(true)?;
    far.set_nonblocking(true)?;
    let (sent_chunk, mut read_chunk) = (vec![0; CHUNK], vec![0; CHUNK]);
    let bytes = mib * 1024 * 1024;
    let (mut sent, mut received) = (0, 0);
    let start = Instant::now();
    while received < bytes {
        let rest = CHUNK.min(bytes - sent);
        if rest > 0 {
            sent += as_far_as_it_goes(near.write(&sent_chunk[..rest]))?;
        }
        received += as_far_as_it_goes(far.read(&mut read_chunk))?;
    }
    Ok(start.elapsed())
}

fn as_far_as_it_goes(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}

/// New connections, and one byte there and back on each. One thread has both
/// ends, so that no scheduler is measured.
fn connections(path: &Path, listener: &TcpListener, times: &mut Times) -> Result<()> {
    let port = listener.local_addr()?.port();
    within(&path.client, || {
        for turn in 0..=TURN {
            let start = Instant::now();
            let mut near = TcpStream::connect((SERVER, port))?;
            let connect = start.elapsed();
            let (mut far, _) = listener.accept()?;
            near.set_nodelay(true)?;
            far.set_nodelay(true)?;
            let mut byte = [0];
            let start = Instant::now();
            near.write_all(&byte)?;
            far.read_exact(&mut byte)?;
            far.write_all(&byte)?;
            near.read_exact(&mut byte)?;
            // The first one after a change of path is not counted.
            if turn > 0 {
                times.connect.push(connect);
                times.round_trip.push(start.elapsed());
            }
            // Closed at once on both sides: thousands of waiting ports would be measured too.
            rustix::net::sockopt::set_socket_linger(&near, Some(Duration::ZERO))?;
        }
        Ok(())
    })
}
