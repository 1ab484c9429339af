//! Roles of keys: what each may, tried on every route.

use atoll_control::identity::Role;
use atoll_server::control_plane::{ErrorCode, ROUTES, Rule};
use serde_json::{Value, json};

use super::serve_api::{at, fails, sandbox, text};
use crate::harness::second_home;
use crate::harness::server::{Ask, Server};

fn key(server: &Server, role: &str) -> String {
    let made = server
        .home
        .run(["key", "create", "--role", role, "--json"])
        .json();
    assert_eq!(made["role"], role);
    text(&made, "key").to_owned()
}

#[test]
fn a_key_may_what_its_role_may_on_every_route_and_no_more() {
    let server = Server::start(second_home());
    let keys: Vec<(Role, String)> = Role::ALL
        .into_iter()
        .map(|role| (role, key(&server, role.as_str())))
        .collect();
    for route in ROUTES.iter().filter(|route| route.rule != Rule::Open) {
        // A name that nobody has: what is let through finds nothing.
        let target = route.path_with("i0000000000000000000");
        if target == "/events" {
            continue; // has an answer without an end
        }
        for (role, key) in &keys {
            let reply = server.ask_as(key, route.method.as_str(), &target, Some(json!({})));
            let is_refused = reply.status == 403 && reply.body.contains("is for the role");
            let what = format!("{role} {} {target}: {reply:#?}", route.method);
            assert_eq!(is_refused, *role < route.role, "{what}");
            assert_ne!(reply.status, 401, "{what}");
        }
    }
    assert!(server.listed("").iter().all(|id| !id.is_empty()));
}

#[test]
fn a_viewer_looks_and_changes_nothing_by_any_way() {
    let server = Server::start(second_home());
    let viewer = key(&server, "viewer");
    let id = sandbox(&server, json!({"agent_id": "a"}));
    let see = |target: &str| server.ask_as(&viewer, "GET", target, None);
    assert_eq!(
        see(&format!("/api/v1/sandboxes/{id}")).expect(200)["status"],
        "running"
    );
    let listed = see("/sandboxes").expect(200);
    assert_eq!(listed[0]["sandboxID"], *id);
    see(&at(&id, "files?path=/")).expect(200);
    see("/api/v1/usage").expect(200);

    let refused = |method: &str, target: &str, body: Value| {
        let reply = server.ask_as(&viewer, method, target, Some(body));
        assert_eq!(reply.status, 403, "{method} {target}: {reply:#?}");
    };
    refused(
        "POST",
        &at(&id, "execute"),
        json!({"command": "touch /tmp/x"}),
    );
    refused("DELETE", &format!("/api/v1/sandboxes/{id}"), json!({}));
    refused("POST", "/sandboxes", json!({"templateID": "base"}));
    // Whatever would hand out a token that opens the guest.
    refused("GET", &format!("/sandboxes/{id}"), json!({}));
    refused(
        "POST",
        &format!("/sandboxes/{id}/connect"),
        json!({"timeout": 60}),
    );
    let opening = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"}}});
    refused("POST", "/mcp", opening);
    // Not even wakes up what traffic wakes up.
    let asleep = server.create_id(json!({"autoPause": true, "autoResume": {"enabled": true}}));
    let pause = format!("/sandboxes/{asleep}/pause");
    server.ask("POST", &pause, Some(json!({}))).expect(204);
    for what in ["files?path=/", "download?path=/etc/hostname", "usage"] {
        fails(&see(&at(&asleep, what)), ErrorCode::SandboxPaused);
    }
    let place = format!("/api/v1/sandboxes/{asleep}");
    assert_eq!(see(&place).expect(200)["status"], "paused");
    server
        .ask("GET", &at(&asleep, "files?path=/"), None)
        .expect(200);
    assert_eq!(see(&place).expect(200)["status"], "running");
    // No other spelling of a method or a way to say who one is helps.
    for (name, value) in [
        ("x-http-method-override", "GET"),
        ("atoll-role", "admin"),
        ("atoll-agent-id", "a"),
    ] {
        let headers = vec![("x-api-key", viewer.clone()), (name, value.to_owned())];
        let ask = Ask {
            method: "DELETE",
            target: &format!("/api/v1/sandboxes/{id}"),
            headers,
            body: None,
        };
        assert_eq!(server.send(&ask).unwrap().status, 403, "{name}");
    }
    let seen = server.ask("GET", &format!("/api/v1/sandboxes/{id}"), None);
    assert_eq!(seen.expect(200)["status"], "running");
}

#[test]
fn a_role_goes_on_to_the_key_that_takes_its_place_and_old_keys_keep_theirs() {
    let mut server = Server::start(second_home());
    let made = server
        .home
        .run([
            "key", "create", "--name", "look", "--role", "viewer", "--json",
        ])
        .json();
    let rotated = server
        .home
        .run(["key", "rotate", text(&made, "id"), "--json"])
        .json();
    assert_eq!(rotated["role"], "viewer");
    let reply = server.ask_as(text(&rotated, "key"), "POST", "/sandboxes", None);
    assert_eq!(reply.status, 403);
    let wrong = server.home.run(["key", "create", "--role", "root"]);
    assert_eq!(wrong.code, 2, "{wrong:?}");

    // The key in the home is an admin's, also in one from before there were roles.
    let all = |server: &Server| {
        let local = std::fs::read_to_string(server.home.path().join("local_key")).unwrap();
        let reply = server.ask_as(&local, "GET", "/api/v1/admin/sandboxes", None);
        reply.status
    };
    assert_eq!(all(&server), 200);
    server.crash();
    let local = server.home.path().join("local_key");
    let old = server
        .home
        .run(["key", "create", "--name", "old", "--json"])
        .json();
    assert_eq!(old["role"], "operator");
    std::fs::write(&local, text(&old, "key")).unwrap();
    server.start_again();
    assert_eq!(all(&server), 200);
}
