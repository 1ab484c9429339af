//! Many clients at once, and a server that is killed in the middle of it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod harness;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use atoll_client::{
    Client, ClientError, CreateOptions, Endpoint, ExitStatus, GuestError, ListOptions, LogOptions,
    RunError,
};
use harness::server::Server;
use harness::{eventually, second_home};
use rustix::process::Signal;
use serde_json::json;

/// How much is asked for at once.
#[derive(Debug, Clone, Copy)]
struct Load {
    clients: usize,
    rounds: usize,
}

/// Operations of one round.
const OPERATIONS: usize = 10;

const SMALL: Load = Load {
    clients: 8,
    rounds: 2,
};

/// A hundred clients with fifty operations each.
const LARGE: Load = Load {
    clients: 100,
    rounds: 5,
};

/// What clients were told.
#[derive(Default)]
struct Told {
    made: Mutex<BTreeSet<String>>,
    /// Content of the file that a sandbox acknowledged.
    written: Mutex<BTreeMap<String, String>>,
    asked_to_kill: Mutex<BTreeSet<String>>,
    killed: Mutex<BTreeSet<String>>,
    operations: AtomicUsize,
}

impl Told {
    fn count(&self) {
        self.operations.fetch_add(1, Ordering::Relaxed);
    }
}

/// An operation that failed.
#[derive(Debug)]
struct Failed(String);

impl fmt::Display for Failed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

macro_rules! fails_with {
    ($($error:ty),*) => {
        $(impl From<$error> for Failed {
            fn from(error: $error) -> Self {
                Self(format!("{error:?}"))
            }
        })*
    };
}
fails_with!(ClientError, GuestError, RunError);

fn client(server: &Server) -> Client {
    let url = format!("http://{}", server.address());
    Client::new(Endpoint::new(&url, &server.key).unwrap()).unwrap()
}

fn closed() -> CreateOptions {
    CreateOptions {
        allow_internet_access: Some(false),
        ..CreateOptions::default()
    }
}

/// One client's work; an error when an operation fails, as when the server goes away.
async fn work(client: &Client, number: usize, load: Load, told: &Told) -> Result<(), Failed> {
    for round in 0..load.rounds {
        let sandbox = client.create(&closed()).await?;
        let id = sandbox.id().to_owned();
        told.made.lock().unwrap().insert(id.clone());
        told.count();
        assert_eq!(sandbox.info().await?.listed.sandbox_id, id);
        told.count();
        sandbox.set_timeout(Duration::from_secs(500)).await?;
        told.count();
        let content = format!("client {number}, round {round}");
        sandbox.files().write("note", content.clone()).await?;
        told.written
            .lock()
            .unwrap()
            .insert(id.clone(), content.clone());
        told.count();
        let read = sandbox.files().read("note", 1024).await?;
        assert_eq!(read, content.as_bytes());
        told.count();
        let output = sandbox.commands().run("cat note; exit 7").await?;
        assert_eq!(output.status, ExitStatus::Exited(7));
        assert_eq!(output.stdout_text(), content);
        told.count();
        let entries = sandbox.files().list(".", 1).await?;
        assert!(entries.iter().any(|entry| entry.name.to_string() == "note"));
        told.count();
        let listed = client.list(&ListOptions::default()).all().await?;
        assert!(listed.iter().any(|one| one.sandbox_id == id));
        told.count();
        client.logs(&id, LogOptions::default()).await?;
        told.count();
        told.asked_to_kill.lock().unwrap().insert(id.clone());
        sandbox.kill().await?;
        told.killed.lock().unwrap().insert(id.clone());
        told.count();
        match client.get(&id).await {
            Err(ClientError::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
            Ok(found) => panic!("killed and there: {found:?}"),
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_at_once_lose_nothing() {
    nothing_is_lost(SMALL).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: a hundred clients with fifty operations each"]
async fn a_hundred_clients_at_once_lose_nothing() {
    nothing_is_lost(LARGE).await;
}

async fn nothing_is_lost(load: Load) {
    let server = Server::start(second_home());
    let (told, client) = (Told::default(), client(&server));
    let clients = (0..load.clients).map(|number| work(&client, number, load, &told));
    for result in futures_util::future::join_all(clients).await {
        if let Err(failed) = result {
            panic!("an operation failed: {failed}");
        }
    }
    let rounds = load.clients * load.rounds;
    assert_eq!(told.operations.into_inner(), rounds * OPERATIONS);
    assert_eq!(told.killed.lock().unwrap().len(), rounds);
    assert_eq!(server.listed(""), Vec::<String>::new());
    assert_eq!(server.leased(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_creations_meets_no_failure() {
    burst(16).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: a hundred sandboxes at once"]
async fn a_burst_of_a_hundred_creations_meets_no_failure() {
    burst(100).await;
}

/// All at once, by a server as it comes, with a pool that is soon empty.
async fn burst(count: usize) {
    let home = second_home();
    let pool = "[[pool]]\ntemplate = \"base\"\nsize = 4\n";
    fs::write(home.path().join("config.toml"), pool).unwrap();
    let server = Server::start(home);
    let client = client(&server);
    eventually("a full pool", || {
        let pools = server.ask("GET", "/pools", None).expect(200);
        (pools[0]["ready"] == json!(4)).then_some(())
    });
    let creations = (0..count).map(|number| {
        let client = &client;
        async move {
            let sandbox = client.create(&CreateOptions::default()).await?;
            let output = sandbox.commands().run(&format!("echo {number}")).await?;
            assert_eq!(output.stdout_text(), format!("{number}\n"));
            Ok::<_, Failed>(sandbox.id().to_owned())
        }
    });
    let made = futures_util::future::join_all(creations).await;
    let made: Result<BTreeSet<String>, Failed> = made.into_iter().collect();
    let made = made.unwrap_or_else(|failed| panic!("a creation failed: {failed}"));
    assert_eq!(made.len(), count);
    let listed = client.list(&ListOptions::default()).all().await.unwrap();
    let listed: BTreeSet<String> = listed.into_iter().map(|one| one.sandbox_id).collect();
    assert_eq!(listed, made);
    let pools = server.ask("GET", "/pools", None).expect(200);
    assert_eq!(
        pools[0]["claimed"].as_u64().unwrap() + pools[0]["misses"].as_u64().unwrap(),
        count as u64
    );
    assert!(pools[0]["claimed"].as_u64().unwrap() >= 4, "{pools}");
}

/// What a server and its host hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Footprint {
    descriptors: usize,
    children: usize,
    mounts: usize,
    links: usize,
    loop_devices: usize,
}

impl Footprint {
    fn of(server: &Server) -> Self {
        let process = format!("/proc/{}", pid(server));
        let count = |directory: &str| fs::read_dir(directory).unwrap().count();
        let threads = fs::read_dir(format!("{process}/task")).unwrap().flatten();
        let children = threads
            .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
            .map(|children| children.split_whitespace().count());
        let mounts = fs::read_to_string(format!("{process}/mountinfo")).unwrap();
        let loops = fs::read_dir("/sys/block").unwrap().flatten();
        Self {
            descriptors: count(&format!("{process}/fd")),
            children: children.sum(),
            mounts: mounts.lines().count(),
            links: count("/sys/class/net"),
            loop_devices: loops
                .filter(|device| device.path().join("loop/backing_file").exists())
                .count(),
        }
    }

    fn is_within(self, bound: Self) -> bool {
        self.descriptors <= bound.descriptors
            && self.children <= bound.children
            && self.mounts <= bound.mounts
            && self.links <= bound.links
            && self.loop_devices <= bound.loop_devices
    }
}

fn pid(server: &Server) -> u64 {
    server.announced["pid"].as_u64().unwrap()
}

/// Memory of the server that is its own.
fn anonymous_kib(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", pid(server))).unwrap();
    let field = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let number = field.unwrap().trim().trim_end_matches(" kB");
    number.parse().unwrap()
}

#[test]
fn sandboxes_that_came_and_went_leave_nothing() {
    came_and_went(8, 24);
}

#[test]
#[ignore = "long: a thousand sandboxes"]
fn a_thousand_sandboxes_that_came_and_went_leave_nothing() {
    came_and_went(200, 1000);
}

/// What a server may have grown by after all of its caches were filled.
const GROWTH_KIB_MAX: u64 = 8 * 1024;

fn came_and_went(first: usize, then: usize) {
    let server = Server::start(second_home());
    let cycle = |count: usize| {
        for _ in 0..count {
            let id = server.create_id(json!({"allow_internet_access": false}));
            server.kill(&id).expect(204);
        }
        // Of both kinds of end.
        let id = server.create_id(json!({"timeout": 1}));
        eventually("the end of its time", || {
            (server.get(&id).status == 404 && server.leased().is_empty()).then_some(())
        });
    };
    cycle(first); // pools of connections and threads fill up
    let (before, memory_before) = (Footprint::of(&server), anonymous_kib(&server));
    cycle(then);
    eventually("as much as before, and no child", || {
        let now = Footprint::of(&server);
        (now.is_within(before) && now.children == 0).then_some(())
    });
    let memory = anonymous_kib(&server);
    println!("{then} sandboxes: {before:?}; memory {memory_before} KiB, then {memory} KiB");
    assert!(
        memory <= memory_before + GROWTH_KIB_MAX,
        "the server grew from {memory_before} KiB to {memory} KiB"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_under_load_keeps_its_word() {
    its_word_is_kept(SMALL).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: a server killed under a hundred clients"]
async fn a_server_killed_under_a_hundred_clients_keeps_its_word() {
    its_word_is_kept(LARGE).await;
}

async fn its_word_is_kept(load: Load) {
    let mut server = Server::start(second_home());
    let (told, asking) = (Told::default(), client(&server));
    // In the middle of a round: clients of the same kind go in step.
    let some = load.clients * OPERATIONS * load.rounds.div_ceil(2) + load.clients * OPERATIONS / 2;
    let clients = (0..load.clients).map(|number| work(&asking, number, load, &told));
    let killed = async {
        while told.operations.load(Ordering::Relaxed) < some {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        server.signal(Signal::KILL);
    };
    // Whoever is cut off has no more to say.
    let _ = futures_util::future::join(futures_util::future::join_all(clients), killed).await;
    assert_eq!(server.ended().code, -9);
    server.start_again();
    let listed: BTreeSet<String> = server.listed("").into_iter().collect();
    let leased: BTreeSet<String> = server.leased().into_iter().collect();
    assert_eq!(listed, leased, "the API and the kernel differ");
    let (made, killed) = (
        told.made.into_inner().unwrap(),
        told.killed.into_inner().unwrap(),
    );
    let asked_to_kill = told.asked_to_kill.into_inner().unwrap();
    let back: Vec<_> = listed.intersection(&killed).collect();
    assert!(back.is_empty(), "killed and there: {back:?}");
    let lost: Vec<_> = made
        .difference(&asked_to_kill)
        .filter(|id| !listed.contains(*id))
        .collect();
    assert!(lost.is_empty(), "acknowledged and gone: {lost:?}");
    let written = told.written.into_inner().unwrap();
    let client = client(&server);
    let mut found = 0;
    for id in &listed {
        server.get(id).expect(200);
        if let Some(content) = written.get(id) {
            let sandbox = client.connect(id, None).await.unwrap();
            let read = sandbox.files().read("note", 1024).await.unwrap();
            assert_eq!(read, content.as_bytes(), "acknowledged and lost");
            found += 1;
        }
        server.kill(id).expect(204);
    }
    assert_eq!(server.leased(), Vec::<String>::new());
    println!(
        "{} made, {} killed, {} left at the crash, {found} of them with a file",
        made.len(),
        killed.len(),
        listed.len()
    );
}
