//! Hostile clients of the control plane. What is asked is generated from the
//! table of routes, so a new route is asked too.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use atoll_server::control_plane::{ROUTES, Rule};
use serde_json::{Value, json};

use crate::harness::second_home;
use crate::harness::server::{Ask, Reply, Server};

/// A name that no sandbox has.
const MISSING: &str = "i00000000000000000000";

fn ask(server: &Server, method: &str, target: &str, headers: &[(&'static str, &str)]) -> Reply {
    let headers = headers
        .iter()
        .map(|(name, value)| (*name, (*value).to_owned()))
        .collect();
    let ask = Ask {
        method,
        target,
        headers,
        body: matches!(method, "POST" | "PUT" | "PATCH").then(|| b"{\"timeout\":300}".to_vec()),
    };
    server.send(&ask).unwrap()
}

#[test]
fn no_route_answers_without_a_valid_key() {
    let server = Server::start(second_home());
    let revoked = server.key_of("default");
    let listed = server.run(["key", "list", "--json"]).json();
    let keys = listed.as_array().unwrap();
    let newest = keys.iter().max_by_key(|key| key["created_at_ms"].as_i64());
    let id = newest.unwrap()["id"].as_str().unwrap();
    assert_eq!(
        ask(&server, "GET", "/sandboxes", &[("x-api-key", &revoked)]).status,
        200
    );
    assert_eq!(server.run(["key", "revoke", id]).code, 0);

    let wrong = format!("e2b_{}", "0".repeat(40));
    let bearer = format!("Bearer {wrong}");
    let own = format!("Bearer {}", server.key);
    for route in ROUTES {
        let (method, target) = (route.method.as_str(), route.path_with(MISSING));
        let refused: [&[(&'static str, &str)]; 8] = [
            &[],
            &[("x-api-key", "")],
            &[("x-api-key", "x")],
            &[("x-api-key", &wrong)],
            &[("x-api-key", &revoked)],
            &[("authorization", &bearer)],
            &[("authorization", "Basic dXNlcjo=")],
            &[("x-api-key", &server.key), ("x-api-key", &server.key)],
        ];
        for headers in refused {
            let reply = ask(&server, method, &target, headers);
            match route.rule {
                Rule::Open => assert_eq!(reply.status, 200, "{method} {target} {headers:?}"),
                Rule::Key | Rule::Sandbox => {
                    reply.is_error(401);
                }
            }
        }
        // With a key, the same requests are heard.
        for headers in [
            [("x-api-key", server.key.as_str())],
            [("authorization", &own)],
        ] {
            let reply = ask(&server, method, &target, &headers);
            assert_ne!(reply.status, 401, "{method} {target}");
        }
    }
    assert_eq!(server.leased(), Vec::<String>::new());
}

#[test]
fn a_foreign_sandbox_is_answered_as_a_missing_one() {
    let server = Server::start(second_home());
    let foreign = server.create_id(json!({}));
    let stranger = server.key_of("stranger");
    let own = server
        .ask_as(
            &stranger,
            "POST",
            "/v2/sandboxes",
            Some(json!({"templateID": "base"})),
        )
        .expect(201);
    let own = own["sandboxID"].as_str().unwrap().to_owned();
    let before = server.get(&foreign).expect(200);
    let mut asked = 0;
    for route in ROUTES.iter().filter(|route| route.rule == Rule::Sandbox) {
        let reply = |id: &str| {
            let headers = [("x-api-key", stranger.as_str())];
            let reply = ask(
                &server,
                route.method.as_str(),
                &route.path_with(id),
                &headers,
            );
            // What differs between any two answers.
            let request = reply.header("x-request-id").unwrap_or("none").to_owned();
            let headers = reply.headers.iter().cloned();
            let headers = headers.filter(|(name, _)| name != "date" && name != "x-request-id");
            Reply {
                headers: headers.collect(),
                body: reply.body.replace(id, "ID").replace(&request, "REQUEST"),
                ..reply
            }
        };
        let (theirs, missing) = (reply(&foreign), reply(MISSING));
        missing.is_error(404);
        assert_eq!(theirs, missing, "{} {}", route.method, route.path);
        // A route that names more than a sandbox may miss that.
        if route.method != "DELETE" && route.path.matches('{').count() == 1 {
            assert_ne!(reply(&own).status, 404, "{} {}", route.method, route.path);
        }
        asked += 1;
    }
    assert!(asked > 10, "{asked} routes");
    // In lists it is not there either, and nothing happened to it.
    let list = server
        .ask_as(&stranger, "GET", "/v2/sandboxes", None)
        .expect(200);
    let names: Vec<&str> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["sandboxID"].as_str().unwrap())
        .collect();
    assert_eq!(names, [own.as_str()]);
    let target = format!("/sandboxes/metrics?sandbox_ids={foreign}");
    let metrics = server.ask_as(&stranger, "GET", &target, None).expect(200);
    assert_eq!(metrics, json!({"sandboxes": {}}));
    assert_eq!(server.get(&foreign).expect(200), before);
}

#[test]
fn a_revoked_key_is_refused_at_once_and_its_sandbox_stays_with_its_tenant() {
    let server = Server::start(second_home());
    let first = server.key_of("team");
    let second = server.key_of("team");
    let made = server
        .ask_as(
            &first,
            "POST",
            "/v2/sandboxes",
            Some(json!({"templateID": "base"})),
        )
        .expect(201);
    let target = format!("/sandboxes/{}", made["sandboxID"].as_str().unwrap());
    let keys = server
        .run(["key", "list", "--tenant", "team", "--json"])
        .json();
    let oldest = keys[0]["id"].as_str().unwrap();
    assert_eq!(server.run(["key", "revoke", oldest]).code, 0);
    server.ask_as(&first, "GET", &target, None).is_error(401);
    server.ask_as(&second, "GET", &target, None).expect(200);
    server.ask_as(&second, "DELETE", &target, None).expect(204);
}

#[test]
fn every_mistake_is_told_in_the_one_form() {
    let server = Server::start(second_home());
    let id = server.create_id(json!({}));
    let key = server.key.clone();
    let send = |method: &str, target: &str, body: &[u8]| {
        let headers = vec![("x-api-key", key.clone())];
        let body = Some(body.to_vec());
        let ask = Ask {
            method,
            target,
            headers,
            body,
        };
        server.send(&ask).unwrap()
    };
    let timeout = format!("/sandboxes/{id}/timeout");
    for body in [
        &b""[..],
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"{\"timeout\":\"x\"}",
        b"{\"timeout\":1.5}",
        b"{\"timeout\":1e400}",
    ] {
        send("POST", &timeout, body).is_error(400);
        send("POST", "/v2/sandboxes", body).is_error(400);
    }
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    send("POST", &timeout, &deep).is_error(400);
    send("POST", "/v2/sandboxes", &vec![b' '; 1024 * 1024 + 1]).is_error(413);
    for body in [
        json!({"templateID": 5}),
        json!({"templateID": "base", "metadata": {"a": 1}}),
        json!({"templateID": "base", "envVars": {"A=B": "c"}}),
        json!({"templateID": "base", "envVars": {"A": "c\u{0}"}}),
        json!({"templateID": "base", "network": {"httpsPorts": [49983]}}),
        json!({"templateID": "base", "network": {"httpsPorts": [70000]}}),
        json!({"templateID": "base", "network": {"maskRequestHost": "a\r\nb: c"}}),
        json!({"templateID": "base", "autoPause": true, "autoPauseMemory": "no"}),
        json!({"templateID": "base", "volumeMounts": [{"name": "v", "path": "/v"}]}),
    ] {
        send("POST", "/v2/sandboxes", body.to_string().as_bytes()).is_error(400);
    }
    for target in [
        "/nope",
        "/v9/sandboxes",
        "/sandboxes/",
        "//sandboxes",
        "/sandboxes/a/b/c",
    ] {
        ask(&server, "GET", target, &[("x-api-key", &key)]).is_error(404);
    }
    for (method, target) in [
        ("PUT", "/sandboxes"),
        ("DELETE", "/v2/sandboxes"),
        ("GET", timeout.as_str()),
    ] {
        ask(&server, method, target, &[("x-api-key", &key)]).is_error(405);
    }
    for name in [
        "..",
        "%2e%2e",
        "..%2f..%2fetc%2fpasswd",
        "%00",
        "%ff",
        "%27%20OR%201=1",
        &"a".repeat(4000),
        &id.to_uppercase(),
        &format!("{id}%2f..%2f{id}"),
    ] {
        for verb in ["", "/logs", "/metrics"] {
            let target = format!("/sandboxes/{name}{verb}");
            ask(&server, "GET", &target, &[("x-api-key", &key)]).is_error(404);
        }
    }
    assert_eq!(server.leased(), [id]);
}

#[test]
fn what_is_not_there_says_so_for_good() {
    let server = Server::start(second_home());
    for target in ["/snapshots", "/volumes", "/secrets"] {
        assert_eq!(server.ask("GET", target, None).expect(200), json!([]));
    }
    server
        .ask("POST", "/volumes", Some(json!({"name": "v"})))
        .is_error(501);
    server
        .ask("POST", "/secrets", Some(json!({"name": "s"})))
        .is_error(501);
    server.ask("GET", "/volumes/v", None).is_error(404);
    server
        .ask("POST", "/v3/templates", Some(json!({"name": "t"})))
        .is_error(400);
    server
        .ask("DELETE", "/templates/team%2Fsnap%3Adefault", None)
        .is_error(404);
    server.ask("DELETE", "/templates/base", None).is_error(400);
    let teams = server.ask("GET", "/teams", None).expect(200);
    assert_eq!(teams[0]["isDefault"], true);
    assert_eq!(teams[0]["apiKey"], *server.key);
    let templates = server.ask("GET", "/templates?teamID=x", None).expect(200);
    let names: Vec<&Value> = templates
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["names"])
        .collect();
    assert!(names.contains(&&json!(["base"])), "{templates}");
    assert_eq!(ask(&server, "GET", "/health", &[]).status, 200);
    assert_eq!(ask(&server, "GET", "/ready", &[]).status, 200);
}

#[test]
fn a_request_in_pieces_and_one_without_a_length_are_read() {
    let server = Server::start(second_home());
    let id = server.create_id(json!({}));
    // As the JavaScript SDK sends its bodies.
    let mut stream = TcpStream::connect(server.address()).unwrap();
    let head = format!(
        "POST /sandboxes/{id}/timeout HTTP/1.1\r\nhost: test\r\nx-api-key: {}\r\n\
         transfer-encoding: chunked\r\nconnection: close\r\n\r\n",
        server.key
    );
    for piece in [
        head.as_str(),
        "5\r\n{\"tim\r\n",
        "b\r\neout\":1000}\r\n",
        "0\r\n\r\n",
    ] {
        stream.write_all(piece.as_bytes()).unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
}
