//! The files of a sandbox as a template, and sandboxes that begin with them.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::server::{Reply, Server};
use crate::harness::{eventually, home_for_builds, names_below};

fn server() -> Server {
    Server::start(home_for_builds())
}

/// What a shell in a sandbox prints.
fn shell(server: &Server, id: &str, script: &str) -> String {
    let done = server.home.run(["exec", id, "--", "sh", "-c", script]);
    assert_eq!(done.code, 0, "{done:#?}");
    done.stdout
}

fn snapshot(server: &Server, id: &str, body: Value) -> Reply {
    server.ask("POST", &format!("/sandboxes/{id}/snapshots"), Some(body))
}

fn taken(server: &Server, id: &str, body: Value) -> String {
    let taken = snapshot(server, id, body).expect(201);
    taken["snapshotID"].as_str().unwrap().to_owned()
}

fn listed(server: &Server, query: &str) -> Vec<String> {
    let listed = server.ask("GET", &format!("/snapshots{query}"), None);
    let listed = listed.expect(200);
    let ids = listed.as_array().unwrap().iter();
    ids.map(|one| one["snapshotID"].as_str().unwrap().to_owned())
        .collect()
}

fn delete(server: &Server, id: &str) -> Reply {
    let encoded = id.replace('/', "%2F").replace(':', "%3A");
    server.ask("DELETE", &format!("/templates/{encoded}"), None)
}

/// Names of what is below a directory of the home.
fn entries(server: &Server, directory: &str) -> Vec<String> {
    let mut names = names_below(&server.path().join(directory));
    names.retain(|name| !name.starts_with('.'));
    names
}

#[test]
fn a_snapshot_has_the_files_of_its_moment_and_its_sandbox_runs_on() {
    let server = server();
    let id = server.create_id(json!({}));
    let script = "echo first > kept; ln -s kept link; chmod 640 kept; sudo rm /etc/hostname; \
                  mkdir -p deep/er; mkfifo pipe; truncate -s 5G sparse; sleep 1000 > /dev/null 2>&1 & echo $!";
    let sleeper = shell(&server, &id, script);
    let taken = taken(&server, &id, json!({}));
    assert!(taken.ends_with(":default"), "{taken}");
    // It runs on, with everything that ran in it.
    shell(
        &server,
        &id,
        &format!("kill -0 {}; echo second > kept", sleeper.trim()),
    );

    let other = server.create_id(json!({"templateID": taken}));
    let look = "cat kept link; stat -c %a:%U kept; stat -c %s sparse; test -p pipe; test -d deep/er; \
                test ! -e /etc/hostname; pgrep -x sleep | wc -l";
    assert_eq!(
        shell(&server, &other, look),
        "first\nfirst\n640:user\n5368709120\n0\n"
    );
    // A sandbox of a snapshot is one like any other: it has snapshots of its own.
    shell(&server, &other, "echo third > kept");
    let second = self::taken(&server, &other, json!({}));
    server.kill(&id).expect(204);
    server.kill(&other).expect(204);
    let last = server.create_id(json!({"templateID": second}));
    assert_eq!(shell(&server, &last, "cat kept"), "third\n");
    // What is listed is its snapshot, newest first, and stays without its sandbox.
    assert_eq!(listed(&server, ""), [second.clone(), taken.clone()]);
    assert_eq!(listed(&server, &format!("?sandboxID={id}")), [taken]);
    server.kill(&last).expect(204);
}

#[test]
fn snapshots_have_names_and_tags() {
    let server = server();
    let id = server.create_id(json!({}));
    shell(&server, &id, "echo 1 > number");
    let info = snapshot(&server, &id, json!({"name": "work"})).expect(201);
    assert_eq!(info["snapshotID"], "default/work:default", "{info}");
    assert_eq!(info["names"], json!(["default/work"]));
    shell(&server, &id, "echo 2 > number");
    let tagged = taken(&server, &id, json!({"name": "Work:v2"}));
    assert_eq!(tagged, "default/work:v2");
    let number = |name: &str| {
        let id = server.create_id(json!({"templateID": name}));
        let number = shell(&server, &id, "cat number");
        server.kill(&id).expect(204);
        number
    };
    assert_eq!(number("work"), "1\n");
    assert_eq!(number("default/work"), "1\n");
    assert_eq!(number("work:v2"), "2\n");
    // The same name again takes its place, and the other tag keeps its own.
    shell(&server, &id, "echo 3 > number");
    taken(&server, &id, json!({"name": "default/work"}));
    assert_eq!(number("work"), "3\n");
    assert_eq!(number("work:v2"), "2\n");
    assert_eq!(listed(&server, "?name=work").len(), 2);
    assert_eq!(listed(&server, "?name=work%3Av2"), [tagged]);
    assert_eq!(listed(&server, "?name=nobody"), Vec::<String>::new());
    let create = |template: &str| {
        let body = json!({"templateID": template});
        server.ask("POST", "/v2/sandboxes", Some(body))
    };
    create("work:v3").is_error(404);
    create("other/work").is_error(404);

    // What is not a name, or somebody else's.
    for name in ["a b", "../x", "a:b:c", "other/work", &"n".repeat(65)] {
        snapshot(&server, &id, json!({"name": name})).is_error(400);
    }
    // All tags of a name at once; the second time there is nothing.
    delete(&server, "work").expect(204);
    delete(&server, "work").is_error(404);
    assert_eq!(listed(&server, ""), Vec::<String>::new());
    // What everybody uses is not deleted over the network.
    delete(&server, "base").is_error(400);
    server.kill(&id).expect(204);
}

#[test]
fn pages_of_snapshots_have_each_once() {
    let server = server();
    let id = server.create_id(json!({}));
    let all: Vec<String> = (0..5).map(|_| taken(&server, &id, json!({}))).collect();
    let (mut found, mut next) = (Vec::new(), String::new());
    loop {
        let reply = server.ask("GET", &format!("/snapshots?limit=2{next}"), None);
        let page = reply.expect(200);
        let page = page.as_array().unwrap();
        assert!(page.len() <= 2);
        found.extend(
            page.iter()
                .map(|one| one["snapshotID"].as_str().unwrap().to_owned()),
        );
        match reply.header("x-next-token") {
            Some(token) => next = format!("&nextToken={}", token.replace(':', "%3A")),
            None => break,
        }
    }
    found.sort_unstable();
    let mut expected = all;
    expected.sort_unstable();
    assert_eq!(found, expected);
    for query in ["?limit=0", "?limit=101", "?nextToken=x", "?name=a%20b"] {
        server
            .ask("GET", &format!("/snapshots{query}"), None)
            .is_error(400);
    }
    server.kill(&id).expect(204);
}

#[test]
fn deleting_frees_what_nobody_stands_on() {
    let server = server();
    let (layers, blobs) = (entries(&server, "layers"), entries(&server, "blobs/sha256"));
    let id = server.create_id(json!({}));
    shell(&server, &id, "head -c 5000000 /dev/urandom > noise");
    let taken = taken(&server, &id, json!({}));
    assert!(entries(&server, "layers").len() > layers.len());
    let user = server.create_id(json!({"templateID": taken}));
    delete(&server, &taken).expect(204);
    delete(&server, &taken).is_error(404);
    // A sandbox keeps what it stands on, also through a collection of garbage.
    let swept = server.home.run(["gc"]);
    assert_eq!(swept.code, 0, "{swept:#?}");
    assert_eq!(shell(&server, &user, "stat -c %s noise"), "5000000\n");
    server.kill(&user).expect(204);
    // With the next deletion at the latest.
    let last = self::taken(&server, &id, json!({}));
    delete(&server, &last).expect(204);
    eventually("layers and blobs as before", || {
        let is_as_before = entries(&server, "layers") == layers
            && entries(&server, "blobs/sha256") == blobs
            && entries(&server, "snapshots").is_empty();
        is_as_before.then_some(())
    });
    server.kill(&id).expect(204);
}

#[test]
fn snapshots_of_somebody_else_look_like_none() {
    let server = server();
    let other = server.key_of("other");
    let id = server.create_id(json!({}));
    let taken = taken(&server, &id, json!({"name": "mine"}));
    let ask = |method: &str, target: &str, body: Option<Value>| {
        server.ask_as(&other, method, target, body)
    };
    ask(
        "POST",
        &format!("/sandboxes/{id}/snapshots"),
        Some(json!({})),
    )
    .is_error(404);
    ask("POST", &format!("/sandboxes/{id}/fork"), Some(json!({}))).is_error(404);
    assert_eq!(ask("GET", "/snapshots", None).expect(200), json!([]));
    let build = fs::read_dir(server.path().join("snapshots")).unwrap();
    let build = build.flatten().next().unwrap().path();
    let build: Value = serde_json::from_slice(&fs::read(build).unwrap()).unwrap();
    let by_id = build["template"]["id"].as_str().unwrap();
    for name in [taken.as_str(), "mine", by_id, "default/mine"] {
        let body = json!({"templateID": name});
        ask("POST", "/v2/sandboxes", Some(body)).is_error(404);
        let encoded = name.replace('/', "%2F").replace(':', "%3A");
        ask("DELETE", &format!("/templates/{encoded}"), None).is_error(404);
    }
    // The positive control: all of these names are good for their owner.
    for name in [taken.as_str(), "mine", by_id, "default/mine"] {
        let id = server.create_id(json!({"templateID": name}));
        server.kill(&id).expect(204);
    }
    server.kill(&id).expect(204);
}

#[test]
fn forks_begin_with_the_files_and_the_settings_of_their_source() {
    let server = server();
    let more = json!({"metadata": {"a": "b"}, "envVars": {"COLOUR": "green"},
        "network": {"denyOut": ["192.0.2.0/24"]}, "timeout": 900});
    let id = server.create_id(more);
    shell(&server, &id, "echo here > place");
    let fork = |body: Value| server.ask("POST", &format!("/sandboxes/{id}/fork"), Some(body));
    let forks = fork(json!({"count": 3, "timeout": 60})).expect(201);
    let forks: Vec<String> = forks
        .as_array()
        .unwrap()
        .iter()
        .map(|fork| fork["sandbox"]["sandboxID"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(forks.len(), 3);
    let source = server.get(&id).expect(200);
    for fork in &forks {
        assert_eq!(
            shell(&server, fork, "cat place; echo $COLOUR"),
            "here\ngreen\n"
        );
        let detail = server.get(fork).expect(200);
        for field in ["metadata", "templateID", "network", "cpuCount", "memoryMB"] {
            assert_eq!(detail[field], source[field], "{field}");
        }
        shell(&server, fork, &format!("echo {fork} > place"));
    }
    // Nobody sees what another one writes.
    assert_eq!(shell(&server, &id, "cat place"), "here\n");
    assert_eq!(
        shell(&server, &forks[0], "cat place"),
        format!("{}\n", forks[0])
    );
    assert_eq!(listed(&server, ""), Vec::<String>::new());
    fork(json!({})).expect(201);

    for body in [
        json!({"count": 0}),
        json!({"count": 101}),
        json!({"count": -1}),
        json!({"timeout": 0}),
        json!({"timeout": 1_000_000_000}),
    ] {
        fork(body).is_error(400);
    }
    server
        .ask("POST", &format!("/sandboxes/{id}/pause"), None)
        .expect(204);
    fork(json!({})).is_error(409);
    snapshot(&server, &id, json!({})).is_error(409);
    for id in server.listed("") {
        server.kill(&id).expect(204);
    }
}

#[test]
fn what_cannot_be_a_snapshot_is_refused_and_the_sandbox_runs_on() {
    let home = home_for_builds();
    fs::write(home.path().join("config.toml"), "max_snapshots = 1\n").unwrap();
    let server = Server::start(home);
    let id = server.create_id(json!({}));
    snapshot(&server, &id, json!({"memory": true})).is_error(400);
    // A sparse file of any size takes no room, and for ever to read.
    shell(
        &server,
        &id,
        "truncate -s 1E huge 2>/dev/null || truncate -s 15T huge; echo made",
    );
    snapshot(&server, &id, json!({})).is_error(400);
    assert_eq!(shell(&server, &id, "rm huge; echo on"), "on\n");
    assert_eq!(entries(&server, "snapshots"), Vec::<String>::new());
    let taken = taken(&server, &id, json!({}));
    snapshot(&server, &id, json!({})).is_error(429);
    delete(&server, &taken).expect(204);
    self::taken(&server, &id, json!({"memory": false}));
    server.kill(&id).expect(204);
    snapshot(&server, &id, json!({})).is_error(404);
}

#[test]
fn an_end_in_the_middle_is_no_snapshot_and_does_not_wait() {
    let server = server();
    let id = server.create_id(json!({}));
    shell(&server, &id, "head -c 300000000 /dev/urandom > noise");
    std::thread::scope(|scope| {
        let snapshot = scope.spawn(|| snapshot(&server, &id, json!({})));
        eventually("a layer that is being made", || {
            is_being_made(server.path()).then_some(())
        });
        server.kill(&id).expect(204);
        snapshot.join().unwrap().is_error(404);
    });
    assert_eq!(listed(&server, ""), Vec::<String>::new());
    assert_eq!(server.leased(), Vec::<String>::new());
}

#[test]
fn its_time_can_be_extended_while_its_files_are_read() {
    let server = server();
    let id = server.create_id(json!({}));
    shell(&server, &id, "head -c 400000000 /dev/urandom > noise");
    std::thread::scope(|scope| {
        let snapshot = scope.spawn(|| snapshot(&server, &id, json!({})));
        eventually("a layer that is being made", || {
            is_being_made(server.path()).then_some(())
        });
        let timeout = Some(json!({"timeout": 3000}));
        server
            .ask("POST", &format!("/sandboxes/{id}/timeout"), timeout)
            .expect(204);
        assert!(!snapshot.is_finished(), "it waited for the snapshot");
        snapshot.join().unwrap().expect(201);
    });
    server.kill(&id).expect(204);
}

#[test]
fn a_tenant_has_only_so_many_made_at_once() {
    let server = server();
    let other = server.key_of("other");
    let ids = [server.create_id(json!({})), server.create_id(json!({}))];
    for id in &ids {
        shell(&server, id, "head -c 100000000 /dev/urandom > noise");
    }
    let taken = std::thread::scope(|scope| {
        let requests: Vec<_> = (0..14)
            .map(|number| {
                let (server, id) = (&server, &ids[number % 2]);
                scope.spawn(move || snapshot(server, id, json!({})))
            })
            .collect();
        requests
            .into_iter()
            .map(|request| request.join().unwrap().status)
            .collect::<Vec<u16>>()
    });
    let refused = taken.iter().filter(|status| **status == 429).count();
    let made = taken.iter().filter(|status| **status == 201).count();
    assert!(
        refused >= 1 && made >= 1 && made + refused == 14,
        "{taken:?}"
    );
    // Places are given back, and were never those of somebody else.
    let id = server.ask_as(
        &other,
        "POST",
        "/v2/sandboxes",
        Some(json!({"templateID": "base"})),
    );
    let id = id.expect(201)["sandboxID"].as_str().unwrap().to_owned();
    let target = format!("/sandboxes/{id}/snapshots");
    server
        .ask_as(&other, "POST", &target, Some(json!({})))
        .expect(201);
    snapshot(&server, &ids[0], json!({})).expect(201);
    server
        .ask_as(&other, "DELETE", &format!("/sandboxes/{id}"), None)
        .expect(204);
    for id in &ids {
        server.kill(id).expect(204);
    }
}

#[test]
fn a_person_takes_lists_and_deletes_them_and_forks() {
    let server = server();
    let home = &server.home;
    let id = server.create_id(json!({}));
    shell(&server, &id, "echo here > place");
    let empty = home.run(["snapshot", "list"]);
    assert!(
        empty.code == 0 && empty.stdout.is_empty() && empty.stderr.contains("hint: "),
        "{empty:#?}"
    );
    let taken = home.run(["snapshot", "create", &id, "--name", "work:v1"]);
    assert_eq!(
        (taken.code, taken.stdout.as_str()),
        (0, "default/work:v1\n")
    );
    let listed = home.run(["snapshot", "list", "--name", "work", "--json"]);
    let expected =
        json!([{"snapshotID": "default/work:v1", "names": ["default/work"], "hasMemory": false}]);
    assert_eq!(listed.json(), expected);
    let table = home.run(["snapshot", "list", "--sandbox", &id]).stdout;
    assert!(table.contains("default/work:v1"), "{table}");

    let created = home.run(["create", "work:v1"]);
    let other = created.stdout.trim();
    assert_eq!(shell(&server, other, "cat place"), "here\n");
    let forks = home.run(["fork", &id, "--count", "2", "--timeout", "1m"]);
    assert_eq!(forks.code, 0, "{forks:#?}");
    let forks: Vec<&str> = forks.stdout.lines().collect();
    assert_eq!(forks.len(), 2);
    for fork in &forks {
        assert_eq!(shell(&server, fork, "cat place"), "here\n");
    }

    let gone = home.run(["snapshot", "rm", "nothing", "work"]);
    assert_eq!(
        (gone.code, gone.stdout.as_str()),
        (125, "work\n"),
        "{gone:#?}"
    );
    assert!(
        gone.stderr.contains("there is no snapshot `nothing`"),
        "{gone:#?}"
    );
    let nobody = home.run(["fork", "inobody"]);
    assert!(
        nobody.code != 0 && nobody.stderr.contains("hint: `atoll ps`"),
        "{nobody:#?}"
    );
    for id in server.listed("") {
        server.kill(&id).expect(204);
    }
}

/// Whether a layer is on its way into the home.
fn is_being_made(home: &Path) -> bool {
    let entries = fs::read_dir(home.join("layers")).into_iter().flatten();
    let mut names = entries.flatten().map(|entry| entry.file_name());
    names.any(|name| name.to_string_lossy().starts_with('.'))
}
