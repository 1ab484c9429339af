//! Many clients at once, and a server that is killed in the middle of it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod harness;

use std::collections::BTreeSet;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use harness::server::{Ask, Reply, Server};
use harness::{eventually, second_home};
use serde_json::{Value, json};

const CLIENTS: usize = 8;
const ROUNDS: usize = 4;

/// What clients were told: made, and killed.
#[derive(Default)]
struct Told {
    made: Mutex<BTreeSet<String>>,
    asked_to_kill: Mutex<BTreeSet<String>>,
    killed: Mutex<BTreeSet<String>>,
    steps: AtomicUsize,
}

fn ask(server: &Server, method: &str, target: &str, body: Option<Value>) -> std::io::Result<Reply> {
    let ask = Ask {
        method,
        target,
        headers: vec![("x-api-key", server.key.clone())],
        body: body.map(|body| body.to_string().into_bytes()),
    };
    server.send(&ask)
}

/// One client's work; an error when the server goes away.
fn work(server: &Server, told: &Told) -> std::io::Result<()> {
    let step = |reply: Reply, status: u16| {
        assert_eq!(reply.status, status, "{reply:#?}");
        told.steps.fetch_add(1, Ordering::Relaxed);
        reply
    };
    for _ in 0..ROUNDS {
        let body = json!({"templateID": "base", "allow_internet_access": false});
        let made = step(ask(server, "POST", "/v2/sandboxes", Some(body))?, 201).json();
        let id = made["sandboxID"].as_str().unwrap().to_owned();
        told.made.lock().unwrap().insert(id.clone());
        let target = format!("/sandboxes/{id}");
        step(ask(server, "GET", &target, None)?, 200);
        let timeout = Some(json!({"timeout": 500}));
        step(
            ask(server, "POST", &format!("{target}/timeout"), timeout)?,
            204,
        );
        step(ask(server, "GET", "/v2/sandboxes", None)?, 200);
        told.asked_to_kill.lock().unwrap().insert(id.clone());
        step(ask(server, "DELETE", &target, None)?, 204);
        told.killed.lock().unwrap().insert(id.clone());
        step(ask(server, "GET", &target, None)?, 404);
    }
    Ok(())
}

#[test]
fn many_clients_at_once_lose_nothing() {
    let server = Server::start(second_home());
    let told = Told::default();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| scope.spawn(|| work(&server, &told).unwrap()))
            .collect();
        clients
            .into_iter()
            .for_each(|client| client.join().unwrap());
    });
    assert_eq!(told.killed.lock().unwrap().len(), CLIENTS * ROUNDS);
    assert_eq!(server.listed(""), Vec::<String>::new());
    assert_eq!(server.leased(), Vec::<String>::new());
}

/// Open files of the server.
fn descriptors(server: &Server) -> usize {
    let pid = server.announced["pid"].as_u64().unwrap();
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Children of the server that have ended, or have not.
fn children(server: &Server) -> usize {
    let pid = server.announced["pid"].as_u64().unwrap();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let children = threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .map(|children| children.split_whitespace().count());
    children.sum()
}

#[test]
fn sandboxes_that_came_and_went_leave_no_descriptor_and_no_child() {
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
    cycle(8); // pools of connections and threads fill up
    let before = descriptors(&server);
    cycle(24);
    eventually("as many open files as before", || {
        (descriptors(&server) <= before).then_some(())
    });
    eventually("no child", || (children(&server) == 0).then_some(()));
}

#[test]
fn a_server_killed_under_load_keeps_its_word() {
    let mut server = Server::start(second_home());
    let told = Told::default();
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            // Whoever is cut off has no more to say.
            scope.spawn(|| drop(work(&server, &told)));
        }
        eventually("half of the work", || {
            (told.steps.load(Ordering::Relaxed) > CLIENTS * ROUNDS * 3).then_some(())
        });
        server.signal(rustix::process::Signal::KILL);
    });
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
    for id in &listed {
        server.get(id).expect(200);
        server.kill(id).expect(204);
    }
    assert_eq!(server.leased(), Vec::<String>::new());
    println!(
        "{} made, {} killed, {} left at the crash",
        made.len(),
        killed.len(),
        listed.len()
    );
}
