//! The server is killed with SIGKILL before and after every step of a
//! sandbox's life, and started again: what was acknowledged holds, what was
//! not is there or not, and the API and the kernel say the same.
//!
//! The steps are not listed here: they come from [`Step::ALL`], and a step
//! that the scenario does not reach fails the test.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]
#![cfg(feature = "failpoints")]

mod harness;

use atoll_control::lifecycle::Step;
use atoll_engine::Tier;
use atoll_engine::host::HostObject;
use atoll_failpoint::Moment;
use atoll_store::StateWrite;
use harness::server::{Ask, Reply, Server};
use harness::{TestHome, eventually, home_for_builds, second_home};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A home that has found out which tiers work: that takes a sandbox of its own.
fn prepared_home() -> TestHome {
    let home = second_home();
    assert_eq!(home.bash("true").code, 0);
    home
}

/// The same, with layers of its own.
fn prepared_home_for_snapshots() -> TestHome {
    let home = home_for_builds();
    assert_eq!(home.bash("true").code, 0);
    home
}

/// Steps that only a server with a pool comes to.
const POOL_STEPS: [Step; 3] = [Step::MakeMember, Step::ClaimMember, Step::EndMember];

/// Steps that no snapshot of the tier comes to: it has files, or memory.
fn steps_of_others() -> &'static [Step] {
    match harness::tier() {
        Tier::Gvisor => &[Step::HoldStill, Step::ReadFiles],
        Tier::Container | Tier::Microvm => &[Step::WriteMemory],
    }
}

/// One in which `step` is reached.
fn home_for(step: Step) -> TestHome {
    let home = prepared_home_for_snapshots();
    if POOL_STEPS.contains(&step) {
        let pool = "[[pool]]\ntemplate = \"base\"\nsize = 1\n";
        std::fs::write(home.path().join("config.toml"), pool).unwrap();
    }
    home
}

/// Waits until the pool of a server is full; an error where the server dies.
fn fill(server: &Server) -> std::io::Result<()> {
    loop {
        let ask = Ask {
            method: "GET",
            target: "/pools",
            headers: vec![("x-api-key", server.key.clone())],
            body: None,
        };
        let pools = server.send(&ask)?.expect(200);
        if pools[0]["ready"] == json!(1) {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Asks for all that leads to `step`.
fn reach(server: &Server, step: Step, known: &mut Acknowledged) -> std::io::Result<()> {
    if !POOL_STEPS.contains(&step) {
        return live(server, known);
    }
    fill(server)?;
    live(server, known)?;
    // Another one waits by now; it ends with the server.
    fill(server)?;
    server.signal(Signal::TERM);
    Err(std::io::Error::other("the server was asked to stop"))
}

/// What a client was told before the server died.
#[derive(Debug, Default)]
struct Acknowledged {
    made: Option<Value>,
    end: Option<Value>,
    closed: bool,
    snapshot: Option<String>,
    paused: bool,
    resumed: bool,
    killed: bool,
}

/// Asks for a whole life; an error ends it where the server dies.
fn live(server: &Server, known: &mut Acknowledged) -> std::io::Result<()> {
    let ask = |method: &str, target: &str, body: Option<Value>| {
        let ask = Ask {
            method,
            target,
            headers: vec![
                ("x-api-key", server.key.clone()),
                ("idempotency-key", "crash".to_owned()),
            ],
            body: body.map(|body| body.to_string().into_bytes()),
        };
        server.send(&ask)
    };
    let made = ask("POST", "/v2/sandboxes", Some(json!({"templateID": "base"})))?;
    let made = made.expect(201);
    let id = made["sandboxID"].as_str().unwrap().to_owned();
    known.made = Some(made);
    let target = format!("/sandboxes/{id}");
    let timeout = json!({"timeout": 1000});
    ask("POST", &format!("{target}/timeout"), Some(timeout))?.expect(204);
    known.end = Some(ask("GET", &target, None)?.expect(200)["endAt"].clone());
    let network = json!({"allow_internet_access": false});
    ask("PUT", &format!("{target}/network"), Some(network))?.expect(204);
    known.closed = true;
    let name = json!({"name": "kept"});
    let taken = ask("POST", &format!("{target}/snapshots"), Some(name))?.expect(201);
    known.snapshot = Some(taken["snapshotID"].as_str().unwrap().to_owned());
    ask("POST", &format!("{target}/pause"), None)?.expect(204);
    known.paused = true;
    let timeout = json!({"timeout": 500});
    ask("POST", &format!("/v2{target}/connect"), Some(timeout))?.expect(201);
    known.resumed = true;
    ask("DELETE", &target, None)?.expect(204);
    known.killed = true;
    Ok(())
}

fn policy(server: &Server, id: &str) -> Value {
    let record = server.path().join("sandboxes").join(format!("{id}.json"));
    let record: Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
    record["network"].clone()
}

#[test]
fn a_kill_at_any_step_loses_nothing_that_was_acknowledged_and_leaves_nothing_else() {
    for step in Step::ALL {
        if steps_of_others().contains(step) {
            continue;
        }
        for moment in Moment::ALL {
            let point = format!("{}:{}", step.name(), moment.name());
            println!("{point}");
            let mut server = Server::start_with(home_for(*step), &[("ATOLL_FAILPOINT", &point)]);
            let mut known = Acknowledged::default();
            let lived = reach(&server, *step, &mut known);
            assert!(lived.is_err(), "{point} is not reached");
            assert_eq!(server.ended().code, -9, "{point}");
            // Members of the server that died, and no others.
            let _ = std::fs::remove_file(server.path().join("config.toml"));
            server.start_again();

            let listed = server.listed("");
            assert_eq!(
                server.leased(),
                listed,
                "{point}: the API and the kernel differ"
            );
            match (&known.made, known.killed) {
                (Some(made), false) => {
                    let id = made["sandboxID"].as_str().unwrap();
                    check_acknowledged(&server, id, &known, &listed, *step, &point);
                }
                (Some(_), true) => assert!(listed.is_empty(), "{point}: killed and still there"),
                // Not acknowledged: one that can be asked for again, or none.
                (None, _) => assert!(listed.len() <= 1, "{point}"),
            }
            check_snapshots(&server, known.snapshot.as_deref(), *step, &point);
            // Whatever there is can be seen, and ends.
            for id in &listed {
                server.get(id).expect(200);
            }
            if known.made.is_none() {
                let ask = Ask {
                    method: "POST",
                    target: "/v2/sandboxes",
                    headers: vec![
                        ("x-api-key", server.key.clone()),
                        ("idempotency-key", "crash".to_owned()),
                    ],
                    body: Some(json!({"templateID": "base"}).to_string().into_bytes()),
                };
                let again = server.send(&ask).unwrap().expect(201);
                let id = again["sandboxID"].as_str().unwrap().to_owned();
                assert_eq!(server.listed(""), [id], "{point}: the request again");
            }
            for id in server.listed("") {
                server.kill(&id).expect(204);
            }
            assert_eq!(server.leased(), Vec::<String>::new(), "{point}");
        }
    }
}

/// Writes a file into `made`, or reads it.
fn file(server: &Server, made: &Value, body: Option<&str>) -> std::io::Result<Reply> {
    let text = |name: &str| made[name].as_str().unwrap().to_owned();
    server.send(&Ask {
        method: if body.is_some() { "POST" } else { "GET" },
        target: "/files?path=/home/user/kept&username=user",
        headers: vec![
            ("e2b-sandbox-id", text("sandboxID")),
            ("e2b-sandbox-port", "49983".to_owned()),
            ("x-access-token", text("envdAccessToken")),
            ("content-type", "application/octet-stream".to_owned()),
        ],
        body: body.map(|body| body.as_bytes().to_vec()),
    })
}

#[test]
fn a_kill_at_any_step_of_a_pause_without_memory_loses_no_file() {
    if harness::tier() == Tier::Gvisor {
        return; // it has no such pause
    }
    let steps = [
        Step::WritePausing,
        Step::Freeze,
        Step::WritePaused,
        Step::WriteResuming,
        Step::Thaw,
        Step::WriteResumed,
    ];
    for (step, moment) in steps
        .iter()
        .flat_map(|step| Moment::ALL.iter().map(move |moment| (step, moment)))
    {
        let point = format!("{}:{}", step.name(), moment.name());
        println!("{point}");
        let mut server = Server::start_with(prepared_home(), &[("ATOLL_FAILPOINT", &point)]);
        let made = server.create(json!({}));
        let id = made["sandboxID"].as_str().unwrap().to_owned();
        assert_eq!(file(&server, &made, Some("kept")).unwrap().status, 200);
        let ask = |target: String, body: Value| {
            server.send(&Ask {
                method: "POST",
                target: &target,
                headers: vec![("x-api-key", server.key.clone())],
                body: Some(body.to_string().into_bytes()),
            })
        };
        let lived =
            ask(format!("/sandboxes/{id}/pause"), json!({"memory": false})).and_then(|paused| {
                paused.expect(204);
                ask(format!("/v2/sandboxes/{id}/connect"), json!({}))
            });
        assert!(lived.is_err(), "{point} is not reached");
        assert_eq!(server.ended().code, -9, "{point}");
        server.start_again();

        assert_eq!(server.listed(""), [id.as_str()], "{point}");
        assert_eq!(server.leased(), [id.as_str()], "{point}");
        let target = format!("/v2/sandboxes/{id}/connect");
        let connected = server.ask("POST", &target, Some(json!({})));
        assert!(
            [200, 201].contains(&connected.status),
            "{point}: {connected:#?}"
        );
        let again = connected.json();
        assert_eq!(again["envdAccessToken"], made["envdAccessToken"], "{point}");
        assert_eq!(file(&server, &made, None).unwrap().body, "kept", "{point}");
        server.kill(&id).expect(204);
        assert_eq!(server.leased(), Vec::<String>::new(), "{point}");
    }
}

/// Parts of a sandbox whose making is followed by something else that a crash could forget.
const PARTS: [HostObject; 6] = [
    HostObject::SlotDirectory,
    HostObject::Lease,
    HostObject::ControlSocket,
    HostObject::SandboxRecord,
    HostObject::GuestStart,
    HostObject::MonitorProcess,
];

#[test]
fn a_monitor_that_dies_half_way_is_an_error_and_leaves_no_row_and_no_sandbox() {
    for part in PARTS {
        for moment in Moment::ALL {
            let point = format!("{}:{}", part.name(), moment.name());
            println!("{point}");
            let mut server = Server::start_with(prepared_home(), &[("ATOLL_FAILPOINT", &point)]);
            let ask = Ask {
                method: "POST",
                target: "/v2/sandboxes",
                headers: vec![("x-api-key", server.key.clone())],
                body: Some(json!({"templateID": "base"}).to_string().into_bytes()),
            };
            match server.send(&ask) {
                Ok(reply) => {
                    let message = reply.is_error(500);
                    assert_eq!(message, "the server could not do that; its log says why");
                }
                // The server reaches it too: it starts the monitor, and claims its lease.
                Err(_) => {
                    assert_eq!(server.ended().code, -9, "{point}");
                    server.start_again();
                }
            }
            assert_eq!(server.listed(""), Vec::<String>::new(), "{point}");
            eventually("what it left is removed", || {
                server.leased().is_empty().then_some(())
            });
        }
    }
}

#[test]
fn a_server_and_a_monitor_that_die_together_leave_no_row_and_no_sandbox() {
    for part in PARTS {
        if part == HostObject::MonitorProcess {
            continue; // there is no monitor yet
        }
        for moment in Moment::ALL {
            let point = format!("{}:{}", part.name(), moment.name());
            println!("{point}");
            let variables = [
                ("ATOLL_FAILPOINT", point.as_str()),
                ("ATOLL_FAILPOINT_SCOPE", "family"),
            ];
            let mut server = Server::start_with(prepared_home(), &variables);
            let ask = Ask {
                method: "POST",
                target: "/v2/sandboxes",
                headers: vec![
                    ("x-api-key", server.key.clone()),
                    ("idempotency-key", "again".to_owned()),
                ],
                body: Some(json!({"templateID": "base"}).to_string().into_bytes()),
            };
            assert!(server.send(&ask).is_err(), "{point} is not reached");
            assert_eq!(server.ended().code, -9, "{point}");
            // They are killed one after the other, and nobody can clean up after a
            // monitor that has not died yet.
            eventually("the end of the monitor", || {
                let owners = server.home.leases().into_iter();
                let mut owners = owners.map(|lease| format!("/proc/{}", lease["owner"]["pid"]));
                (!owners.any(|owner| std::path::Path::new(&owner).exists())).then_some(())
            });
            server.start_again();
            assert_eq!(server.listed(""), Vec::<String>::new(), "{point}");
            assert_eq!(server.leased(), Vec::<String>::new(), "{point}");
            // The request was not acknowledged, and can be made again.
            server.send(&ask).unwrap().expect(201);
        }
    }
}

#[test]
fn a_server_that_dies_while_it_fills_a_pool_leaves_no_sandbox() {
    for part in PARTS {
        if part == HostObject::MonitorProcess {
            continue; // there is no monitor yet
        }
        let point = format!("{}:{}", part.name(), Moment::After.name());
        println!("{point}");
        let variables = [
            ("ATOLL_FAILPOINT", point.as_str()),
            ("ATOLL_FAILPOINT_SCOPE", "family"),
        ];
        // Nobody asks for anything: the pool alone comes there.
        let home = home_for(Step::MakeMember);
        let mut server = Server::start_with(home, &variables);
        assert_eq!(server.ended().code, -9, "{point}");
        eventually("the end of the monitor", || {
            let owners = server.home.leases().into_iter();
            let mut owners = owners.map(|lease| format!("/proc/{}", lease["owner"]["pid"]));
            (!owners.any(|owner| std::path::Path::new(&owner).exists())).then_some(())
        });
        // With its pool: what comes is another member.
        server.start_again();
        fill(&server).unwrap();
        assert_eq!(server.listed(""), Vec::<String>::new(), "{point}");
        eventually("the member alone", || {
            (server.leased().len() == 1).then_some(())
        });
    }
}

/// What was told of a sandbox holds, unless its end was under way.
fn check_acknowledged(
    server: &Server,
    id: &str,
    known: &Acknowledged,
    listed: &[String],
    step: Step,
    point: &str,
) {
    let was_ending = matches!(step, Step::WriteKilling | Step::Destroy | Step::Bury);
    if listed.is_empty() {
        assert!(was_ending, "{point}: it was acknowledged and is gone");
        return;
    }
    assert_eq!(listed, [id], "{point}");
    // What was under way is finished or undone, soon after the start; waking up is finished once
    // it is written that it begins.
    let begins = format!("{}:{}", Step::WriteResuming.name(), Moment::Before.name());
    let is_waking = known.paused && !known.resumed && point != begins;
    let detail = eventually("what is told and what is so agree", || {
        let detail = server.get(id).expect(200);
        let is_paused = detail["state"] == json!("paused");
        let is_reached = server.health(id).status == 204;
        (is_paused != is_reached && !(is_paused && is_waking)).then_some(detail)
    });
    let made = known.made.as_ref().unwrap();
    assert_eq!(
        detail["envdAccessToken"], made["envdAccessToken"],
        "{point}"
    );
    let is_paused = detail["state"] == json!("paused");
    match (known.paused, known.resumed) {
        // Pausing may have been under way, and is finished or undone.
        (false, _) if !is_paused => {
            if let Some(end) = &known.end {
                assert_eq!(detail["endAt"], *end, "{point}");
            }
        }
        (false, _) => assert!(known.closed, "{point}: nobody asked for a pause"),
        // Waking up may have been under way.
        (true, false) => {}
        (true, true) => assert!(!is_paused, "{point}: it was woken up"),
    }
    check_reach(server, id, is_paused, point);
    // What it may reach is what is told, also when the crash came in between.
    let is_closed = detail["allowInternetAccess"] == json!(false);
    assert!(is_closed || !known.closed, "{point}");
    let expected = if is_closed {
        json!({"mode": "full", "deny": ["0.0.0.0/0"]})
    } else {
        json!({"mode": "full"})
    };
    assert_eq!(policy(server, id), expected, "{point}");
}

/// A snapshot that was acknowledged is there and is good for a sandbox; one that was not is
/// there or not, and nothing is left of one that is not.
fn check_snapshots(server: &Server, known: Option<&str>, step: Step, point: &str) {
    let found = server.ask("GET", "/snapshots", None).expect(200);
    let found: Vec<&str> = found
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["snapshotID"].as_str().unwrap())
        .collect();
    match known {
        Some(id) => assert_eq!(found, [id], "{point}"),
        None => assert!(
            found.is_empty() || step == Step::WriteSnapshot,
            "{point}: {found:?} was not acknowledged"
        ),
    }
    for id in found {
        let id = server.create_id(json!({"templateID": id}));
        assert_eq!(server.health(&id).status, 204, "{point}");
        server.kill(&id).expect(204);
    }
    eventually("what is unfinished is removed", || {
        let mut left = harness::names_below(&server.path().join("snapshots"));
        let records = left.len();
        left.retain(|name| !name.ends_with(".json"));
        let mut memory = harness::names_below(&server.path().join("memory"));
        // Each has its lock beside it.
        memory.retain(|name| !name.ends_with(".lock"));
        (left.is_empty() && memory.len() <= records).then_some(())
    });
}

/// Whether it can be reached is what is told, and what holds still can be woken up.
fn check_reach(server: &Server, id: &str, is_paused: bool, point: &str) {
    let health = || server.health(id).status;
    if is_paused {
        assert_eq!(health(), 502, "{point}");
        let target = format!("/v2/sandboxes/{id}/connect");
        server.ask("POST", &target, Some(json!({}))).expect(201);
    }
    assert_eq!(health(), 204, "{point}");
}

#[test]
fn a_kill_at_a_write_of_a_snapshot_leaves_the_old_or_the_new() {
    let writes: &[StateWrite] = match harness::tier() {
        // Its memory is no layer.
        Tier::Gvisor => &[StateWrite::SnapshotRecord],
        Tier::Container | Tier::Microvm => &[
            StateWrite::Blob,
            StateWrite::LayerRecord,
            StateWrite::LayerTree,
            StateWrite::SnapshotRecord,
        ],
    };
    for write in writes.iter().copied() {
        for moment in Moment::ALL {
            let point = format!("{}:{}", write.name(), moment.name());
            println!("{point}");
            let mut server = Server::start(prepared_home_for_snapshots());
            let id = server.create_id(json!({}));
            let take = |server: &Server, number: u8| {
                let script = format!("echo {number} > /home/user/number");
                let done = server.home.run(["exec", &id, "--", "sh", "-c", &script]);
                assert_eq!(done.code, 0, "{done:#?}");
                server.send(&Ask {
                    method: "POST",
                    target: &format!("/sandboxes/{id}/snapshots"),
                    headers: vec![("x-api-key", server.key.clone())],
                    body: Some(json!({"name": "number"}).to_string().into_bytes()),
                })
            };
            take(&server, 1).unwrap().expect(201);
            server.crash();
            server.start_again_with(&[("ATOLL_FAILPOINT", &point)]);
            assert!(take(&server, 2).is_err(), "{point} is not reached");
            assert_eq!(server.ended().code, -9, "{point}");
            server.start_again();

            // Its sandbox runs on, and the name has the old files or the new ones.
            assert_eq!(server.health(&id).status, 204, "{point}");
            let of_name = server.create_id(json!({"templateID": "number"}));
            let read = server
                .home
                .run(["exec", &of_name, "--", "cat", "/home/user/number"]);
            let expected = match (write, moment) {
                (StateWrite::SnapshotRecord, Moment::After) => "2\n",
                _ => "1\n",
            };
            assert_eq!(read.stdout, expected, "{point}");
            server.kill(&of_name).expect(204);
            // The next one takes the place of whatever there is, and deleting it frees all.
            take(&server, 3).unwrap().expect(201);
            server.kill(&id).expect(204);
            server.ask("DELETE", "/templates/number", None).expect(204);
            eventually("nothing is left of it", || {
                let left = |name: &str| harness::names_below(&server.path().join(name));
                (left("snapshots").is_empty() && left("memory").is_empty()).then_some(())
            });
            assert_eq!(server.leased(), Vec::<String>::new(), "{point}");
        }
    }
}
