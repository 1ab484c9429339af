//! Snapshots and forks under gVisor: what is made of them goes on where their sandbox was.

use std::fs;

use atoll_engine::Tier;
use serde_json::{Value, json};

use super::serve_checkpoint::{JOB, is_elsewhere, python};
use super::serve_pause::Sandbox;
use super::serve_sessions as sessions;
use crate::harness::server::{Reply, Server};
use crate::harness::{TestHome, eventually, home_for_builds, names_below, second_home, tier};

fn snapshot(sandbox: &Sandbox<'_>, body: Value) -> Reply {
    sandbox.ask("POST", "/snapshots", Some(body))
}

fn taken(sandbox: &Sandbox<'_>) -> String {
    let taken = snapshot(sandbox, json!({})).expect(201);
    assert_eq!(taken["hasMemory"], json!(true));
    taken["snapshotID"].as_str().unwrap().to_owned()
}

fn delete(server: &Server, id: &str) -> Reply {
    let encoded = id.replace('/', "%2F").replace(':', "%3A");
    server.ask("DELETE", &format!("/templates/{encoded}"), None)
}

/// What is kept of memory, or written of it.
fn images(home: &TestHome) -> Vec<String> {
    let mut names = names_below(&home.path().join("memory"));
    names.retain(|name| !name.ends_with(".lock"));
    names
}

fn shell(sandbox: &Sandbox<'_>, script: &str) -> String {
    let home = &sandbox.server.home;
    let done = home.run(["exec", &sandbox.id, "--", "sh", "-c", script]);
    assert_eq!(done.code, 0, "{done:#?}");
    done.stdout
}

/// Lines of the job, which are its numbers without a gap.
fn progress(sandbox: &Sandbox<'_>) -> usize {
    let lines = sandbox.read("/home/user/job").body;
    let lines: Vec<usize> = lines.lines().map(|line| line.parse().unwrap()).collect();
    assert!(lines.iter().copied().eq(1..=lines.len()), "{lines:?}");
    lines.len()
}

fn works_on(sandbox: &Sandbox<'_>) {
    let before = progress(sandbox);
    eventually("the next line of the job", || {
        (progress(sandbox) > before).then_some(())
    });
    let page = sandbox.server.reach(&sandbox.id, 8000, "/", &[]);
    assert_eq!(page.status, 200, "{page:#?}");
}

#[test]
fn what_is_made_of_a_snapshot_goes_on_where_its_sandbox_was() {
    if is_elsewhere() {
        return;
    }
    let server = Server::start(second_home());
    let source = Sandbox::make(&server, json!({"envVars": {"COLOUR": "green"}}));
    source.start_ticker();
    source.write("/home/user/job.sh", JOB);
    source.start("exec sh /home/user/job.sh");
    source.write("/home/user/kept", "kept");
    let code = "import random, os; random.seed(1); kept = 42; print(random.random())";
    assert_eq!(python(&source, code), "0.13436424411240122\n");
    let hostname = shell(&source, "hostname");

    let id = taken(&source);
    works_on(&source);
    let at_least = progress(&source) / 2;
    source.write("/home/user/kept", "changed since");
    let more = || json!({"templateID": id, "envVars": {"COLOUR": "blue"}});
    let others = [
        Sandbox::make(&server, more()),
        Sandbox::make(&server, more()),
    ];
    for other in &others {
        works_on(other);
        assert!(progress(other) >= at_least);
        assert_eq!(other.read("/home/user/kept").body, "kept");
        // Its name, its tokens and its variables are its own, and its clock is right.
        let look = "hostname; echo $E2B_SANDBOX_ID $COLOUR; cat /run/e2b/.E2B_SANDBOX_ID";
        let expected = format!("{hostname}{0} blue\n{0}", other.id);
        assert_eq!(shell(other, look), expected);
        let now: i64 = shell(other, "date +%s").trim().parse().unwrap();
        assert!((now - jiff::Timestamp::now().as_second()).abs() < 30);
        for (sandbox, token) in [(other, &source.token), (&source, &other.token)] {
            let token = [("x-access-token", token.as_str())];
            let target = "/files?path=/home/user/kept&username=user";
            let refused = server.reach(&sandbox.id, 49983, target, &token);
            assert_eq!(refused.status, 401, "{refused:#?}");
        }
        assert_eq!(snapshot(other, json!({})).status, 201);
    }
    // The same memory, and not the same chance.
    let draw = "print(kept, random.random(), os.urandom(8).hex())";
    let drawn = [&source, &others[0], &others[1]].map(|one| python(one, draw));
    assert!(
        drawn.iter().all(|text| text.starts_with("42 ")),
        "{drawn:?}"
    );
    assert!(drawn[0].starts_with("42 0.8474337369372327 "), "{drawn:?}");
    let chances = drawn.map(|text| text.split(' ').nth(1).unwrap().to_owned());
    assert!(
        chances[0] != chances[1] && chances[1] != chances[2] && chances[0] != chances[2],
        "{chances:?}"
    );
    // One that was made of memory is paused as any other is.
    others[0].ask("POST", "/pause", None).expect(204);
    others[0]
        .ask("POST", "/connect", Some(json!({})))
        .expect(201);
    works_on(&others[0]);
    for id in server.listed("") {
        server.kill(&id).expect(204);
    }
}

#[test]
fn forks_go_on_beside_their_source_and_leave_no_memory_behind() {
    if is_elsewhere() {
        return;
    }
    let server = Server::start(second_home());
    let source = Sandbox::make(&server, json!({"metadata": {"a": "b"}}));
    source.start_ticker();
    source.write("/home/user/job.sh", JOB);
    source.start("exec sh /home/user/job.sh");
    let forks = source.ask("POST", "/fork", Some(json!({"count": 3, "timeout": 60})));
    let forks = forks.expect(201);
    let forks: Vec<Sandbox<'_>> = forks
        .as_array()
        .unwrap()
        .iter()
        .map(|fork| Sandbox::of(&server, &fork["sandbox"]))
        .collect();
    assert_eq!(forks.len(), 3);
    for sandbox in forks.iter().chain([&source]) {
        works_on(sandbox);
        assert_eq!(
            server.get(&sandbox.id).expect(200)["metadata"],
            json!({"a": "b"})
        );
    }
    eventually("the end of the memory", || {
        images(&server.home).is_empty().then_some(())
    });
    for id in server.listed("") {
        server.kill(&id).expect(204);
    }
    assert_eq!(server.leased(), Vec::<String>::new());
}

#[test]
fn deleting_a_snapshot_frees_its_memory_and_takes_nothing_from_who_has_it() {
    if is_elsewhere() {
        return;
    }
    let mut server = Server::start(home_for_builds());
    let source = Sandbox::make(&server, json!({}));
    source.write("/home/user/kept", "kept");
    let first = taken(&source);
    assert_eq!(images(&server.home).len(), 1);
    server.kill(&source.id).expect(204);
    // It outlives its sandbox, its server and a collection of garbage.
    server.crash();
    server.start_again();
    assert_eq!(server.home.run(["gc"]).code, 0);
    let other = Sandbox::make(&server, json!({"templateID": first}));
    delete(&server, &first).expect(204);
    eventually("the end of the memory", || {
        images(&server.home).is_empty().then_some(())
    });
    assert_eq!(other.read("/home/user/kept").body, "kept");
    delete(&server, &first).is_error(404);
    // What nobody has a record of is nobody's.
    fs::create_dir_all(server.path().join("memory/left/over")).unwrap();
    let id = taken(&other);
    delete(&server, &id).expect(204);
    eventually("the end of what was left", || {
        images(&server.home).is_empty().then_some(())
    });
    server.kill(&other.id).expect(204);
}

#[test]
fn memory_that_does_not_fit_is_refused_with_the_reason() {
    if is_elsewhere() {
        return;
    }
    let mut server = Server::start(home_for_builds());
    let source = Sandbox::make(&server, json!({}));
    let refused = snapshot(&source, json!({"memory": false})).is_error(400);
    assert!(refused.contains("hold memory and files"), "{refused}");
    snapshot(&source, json!({"memory": true, "name": "kept"})).expect(201);
    let id = source.id.clone();
    let create = |server: &Server| {
        let wish = json!({"templateID": "kept"});
        server.ask("POST", "/v2/sandboxes", Some(wish))
    };
    for (limits, said) in [
        (json!({"memory_mib": 512}), "MiB of memory"),
        (json!({"pids": 100}), "which stay as they are"),
    ] {
        let wish = json!({"template": "kept", "limits": limits});
        let refused = server.ask("POST", "/api/v1/sandboxes", Some(wish));
        assert_eq!(refused.status, 400, "{refused:#?}");
        assert!(refused.body.contains(said), "{refused:#?}");
    }

    server.crash();
    server.start_again_with(&[("ATOLL_ISOLATION", "container")]);
    let refused = create(&server).is_error(400);
    assert!(refused.contains("the container tier cannot"), "{refused}");
    server.crash();
    server.start_again();
    // Another release of what wrote it.
    let runsc = server.work().join("another/runsc");
    fs::create_dir(runsc.parent().unwrap()).unwrap();
    fs::copy("/usr/bin/runsc", &runsc).unwrap();
    run("chmod", &["755", runsc.to_str().unwrap()]);
    server.crash();
    server.start_again_with(&[("ATOLL_RUNSC", runsc.to_str().unwrap())]);
    let refused = create(&server).is_error(400);
    assert!(refused.contains("another release of gVisor"), "{refused}");
    server.crash();
    server.start_again();

    let other = create(&server).expect(201);
    server
        .kill(other["sandboxID"].as_str().unwrap())
        .expect(204);
    let image = server.path().join("memory").join(&images(&server.home)[0]);
    let pages = fs::read_dir(&image).unwrap().flatten().next().unwrap();
    fs::write(pages.path(), "something else").unwrap();
    let refused = create(&server).is_error(400);
    assert!(refused.contains("is damaged"), "{refused}");
    assert_eq!(server.leased(), [id.as_str()]);
    server.kill(&id).expect(204);
}

#[test]
fn a_snapshot_that_fails_costs_no_sandbox_and_leaves_nothing() {
    if is_elsewhere() {
        return;
    }
    let home = second_home();
    let room = super::serve_checkpoint::SmallRoom::over(&home, "memory");
    let server = Server::start(home);
    let source = Sandbox::make(&server, json!({}));
    source.write("/home/user/kept", "kept");
    for _ in 0..2 {
        let refused = snapshot(&source, json!({})).is_error(503);
        assert!(refused.contains("runs on"), "{refused}");
        assert_eq!(source.read("/home/user/kept").body, "kept");
        assert_eq!(images(&server.home), Vec::<String>::new());
    }
    room.grow();
    taken(&source);
    assert_eq!(source.read("/home/user/kept").body, "kept");
    server.kill(&source.id).expect(204);
}

#[test]
fn who_comes_while_memory_is_written_waits_and_is_answered() {
    if is_elsewhere() {
        return;
    }
    let server = Server::start(second_home());
    let source = Sandbox::make(&server, json!({}));
    source.write("/home/user/kept", "kept");
    shell(&source, "head -c 100000000 /dev/urandom > noise");
    std::thread::scope(|scope| {
        let taking = scope.spawn(|| snapshot(&source, json!({})));
        let mut asked = 0;
        while !taking.is_finished() {
            // What was under way when it began breaks; what begins after that does not.
            if images(&server.home).is_empty() {
                continue;
            }
            let read = source.read("/home/user/kept");
            assert_eq!((read.status, read.body.as_str()), (200, "kept"));
            asked += 1;
        }
        taking.join().unwrap().expect(201);
        assert!(asked > 0);
    });
    server.kill(&source.id).expect(204);
}

#[test]
fn a_session_keeps_its_sandbox_while_memory_is_written() {
    if is_elsewhere() {
        return;
    }
    let server = Server::start(second_home());
    let wish = json!({"agent_id": "agent", "task_id": "task", "template": "base"});
    let session = sessions::session(&server, wish);
    let execute =
        |command: &str| sessions::run(&server, sessions::id(&session), json!({"command": command}));
    let first = execute("head -c 100000000 /dev/urandom > noise; echo kept > state");
    let id = first["sandbox_id"].as_str().unwrap().to_owned();
    let target = format!("/sandboxes/{id}/snapshots");
    std::thread::scope(|scope| {
        // The second begins in the moment in which the first has ended.
        let take = || server.ask("POST", &target, Some(json!({})));
        let taking = [scope.spawn(take), scope.spawn(take)];
        let is_being_written = || taking.iter().any(|one| !one.is_finished());
        eventually("memory that is being written", || {
            assert!(is_being_written(), "nothing was written meanwhile");
            (!images(&server.home).is_empty()).then_some(())
        });
        while is_being_written() {
            // What runs when a write begins breaks off; nobody gets another sandbox for it.
            let target = format!("/api/v1/sessions/{}/execute", sessions::id(&session));
            let done = server.ask("POST", &target, Some(json!({"command": "cat state"})));
            let broke_off = done.status == 503 && done.body.contains("broke off");
            assert!(
                broke_off || done.expect(200)["sandbox_id"] == json!(id),
                "another sandbox"
            );
        }
        for one in taking {
            one.join().unwrap().expect(201);
        }
    });
    let done = execute("cat state");
    assert_eq!(done["sandbox_id"], json!(id), "{done}");
    assert_eq!(done["stdout"], json!("kept\n"), "{done}");
    server.kill(&id).expect(204);
}

fn run(program: &str, arguments: &[&str]) {
    let status = std::process::Command::new(program)
        .args(arguments)
        .status()
        .unwrap();
    assert!(status.success(), "{program} {arguments:?}: {status}");
}

#[test]
fn a_list_says_which_snapshots_have_memory() {
    let server = Server::start(home_for_builds());
    let source = Sandbox::make(&server, json!({}));
    snapshot(&source, json!({"name": "one"})).expect(201);
    let has_memory = tier() == Tier::Gvisor;
    let listed = server.ask("GET", "/snapshots", None).expect(200);
    assert_eq!(listed[0]["hasMemory"], json!(has_memory), "{listed}");
    let table = server.home.run(["snapshot", "list"]).stdout;
    assert_eq!(table.contains("memory, files"), has_memory, "{table}");
    server.kill(&source.id).expect(204);
}
