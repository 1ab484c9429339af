//! The code interpreter's port: who may run code, and how its answers end.

use std::sync::Arc;

use atoll_control::running::{CodeAccess, Ingress, Running};
use serde_json::{Value, json};

use crate::served::{Reached, Served};
use crate::wire::{Answer, End, Wire, request};

const JSON: (&str, &str) = ("content-type", "application/json");

/// A request to the interpreter's port, with what else is given.
fn on_code_port(
    id: &str,
    method: &str,
    target: &str,
    more: &[(&str, &str)],
    body: &Value,
) -> Vec<u8> {
    let mut headers = vec![("e2b-sandbox-id", id), ("e2b-sandbox-port", "49999"), JSON];
    headers.extend_from_slice(more);
    let body = if method == "POST" {
        body.to_string()
    } else {
        String::new()
    };
    request(method, target, &headers, body.as_bytes())
}

fn execute(reached: &Reached, code: &str, more: &[(&str, &str)]) -> Vec<u8> {
    on_code_port(
        reached.id(),
        "POST",
        "/execute",
        more,
        &json!({"code": code}),
    )
}

fn with_token(token: &str) -> [(&'static str, &str); 1] {
    [("x-access-token", token)]
}

fn lines(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let text = answer.text();
    assert!(
        text.is_ascii() && text.ends_with('\n') && !text.contains("\n\n"),
        "{text:?}"
    );
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The same sandbox, made by a client that sends no tokens.
fn of_the_first_generation(served: &Served, reached: &Reached) {
    let Running {
        id,
        tenant,
        live,
        limits,
        ingress,
        code_access: _,
    } = &*reached.sandbox;
    served.running.insert(Arc::new(Running {
        id: id.clone(),
        tenant: *tenant,
        live: live.clone(),
        limits: limits.clone(),
        ingress: ingress.clone(),
        code_access: CodeAccess::Everybody,
    }));
}

#[tokio::test(flavor = "multi_thread")]
async fn code_runs_by_token_and_contexts_are_open() {
    let served = Served::new().await;
    let (reached, other) = (served.sandbox().await, served.sandbox().await);
    let revoked = served.caller("default").await;
    let revoked_token = served
        .access
        .grant(&revoked, &reached.sandbox.id)
        .await
        .unwrap();
    let revoked_token = revoked_token.reveal().to_owned();
    let works = served
        .ask(execute(&reached, "1", &with_token(&revoked_token)))
        .await;
    assert_eq!(works.status(), 200);
    served.identity.keys.revoke(revoked.key).await.unwrap();
    served.access.revoke(revoked.key);

    let ran = served
        .ask(execute(
            &reached,
            "print('ü')\n40 + 2",
            &with_token(&reached.token),
        ))
        .await;
    let mut said = lines(&ran);
    assert_eq!(
        ran.head.header("content-type"),
        Some("application/x-ndjson")
    );
    said.iter_mut().for_each(|line| {
        line.as_object_mut().unwrap().remove("timestamp");
    });
    assert_eq!(
        said,
        [
            json!({"type": "number_of_executions", "execution_count": 2}),
            json!({"type": "stdout", "text": "ü\n"}),
            json!({"type": "result", "text": "42", "is_main_result": true, "extra": {}}),
            json!({"type": "end_of_execution"}),
        ]
    );

    let forged: [&[(&str, &str)]; 6] = [
        &[("x-access-token", "x")],
        &[("x-access-token", &other.token)],
        &[("x-access-token", &revoked_token)],
        &[
            ("x-access-token", &reached.token),
            ("x-access-token", &reached.token),
        ],
        &[("x-access-token", &reached.token[1..])],
        &[("x-access-token", "\u{fc}")],
    ];
    let id = served
        .ask(on_code_port(
            reached.id(),
            "POST",
            "/contexts",
            &[],
            &json!({}),
        ))
        .await
        .json();
    let id = id["id"].as_str().unwrap().to_owned();
    let restart = format!("/contexts/{id}/restart");
    let remove = format!("/contexts/{id}");
    let routes = [
        ("POST", "/execute", 401),
        ("GET", "/contexts", 200),
        ("POST", "/contexts", 200),
        ("POST", restart.as_str(), 200),
        ("DELETE", remove.as_str(), 200),
    ];
    for (method, target, open) in routes {
        for headers in forged {
            let answer = served
                .ask(on_code_port(
                    reached.id(),
                    method,
                    target,
                    headers,
                    &json!({"code": "1"}),
                ))
                .await;
            assert_eq!(answer.status(), 401, "{method} {target} {headers:?}");
        }
        let empty: [&[(&str, &str)]; 1] = [&[("x-access-token", "")]];
        if open == 401 {
            for headers in empty {
                let answer = served
                    .ask(on_code_port(
                        reached.id(),
                        method,
                        target,
                        headers,
                        &json!({"code": "1"}),
                    ))
                    .await;
                assert_eq!(answer.status(), 401, "{method} {target} {headers:?}");
            }
        }
        let answer = served
            .ask(on_code_port(
                reached.id(),
                method,
                target,
                &[],
                &json!({"code": "1"}),
            ))
            .await;
        assert_eq!(
            answer.status(),
            open,
            "{method} {target}: {}",
            answer.text()
        );
    }
    let missing = served
        .ask(on_code_port(
            reached.id(),
            "DELETE",
            &remove,
            &[],
            &json!({}),
        ))
        .await;
    assert_eq!(
        (missing.status(), missing.text()),
        (404, format!("Context {id} not found"))
    );
    let health = served
        .ask(on_code_port(
            reached.id(),
            "GET",
            "/health",
            &[],
            &json!({}),
        ))
        .await;
    assert_eq!((health.status(), health.text()), (200, "\"OK\"".to_owned()));
    served.end([reached, other]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_generation_runs_code_by_name_and_others_by_traffic_token_too() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    of_the_first_generation(&served, &reached);
    let last = |answer: &Answer| lines(answer).pop().unwrap();
    let end = json!({"type": "end_of_execution"});
    assert_eq!(last(&served.ask(execute(&reached, "1", &[])).await), end);
    assert_eq!(
        served
            .ask(execute(&reached, "1", &with_token("x")))
            .await
            .status(),
        401
    );

    let caller = served.caller("default").await;
    let ingress = Ingress {
        traffic_token: Some("0123456789abcdef".to_owned()),
        ..Ingress::default()
    };
    let closed = served.sandbox_of(&caller, ingress).await;
    let right = ("e2b-traffic-access-token", "0123456789abcdef");
    let wrong = ("e2b-traffic-access-token", "0123456789abcdeg");
    let token = ("x-access-token", closed.token.as_str());
    for (method, target) in [
        ("POST", "/execute"),
        ("GET", "/contexts"),
        ("GET", "/health"),
        ("POST", "/contexts"),
    ] {
        let ask = |headers: &[(&str, &str)]| {
            on_code_port(closed.id(), method, target, headers, &json!({"code": "1"}))
        };
        for headers in [
            [token].as_slice(),
            &[token, wrong],
            &[token, right, right],
            &[wrong],
        ] {
            let answer = served.ask(ask(headers)).await;
            assert_eq!(
                (answer.status(), answer.json()["code"].as_u64()),
                (403, Some(403)),
                "{target} {headers:?}"
            );
        }
        assert_eq!(
            served.ask(ask(&[token, right])).await.status(),
            200,
            "{target}"
        );
    }
    served.end([reached, closed]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_port_has_its_own_routes_only() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    for (port, targets) in [
        (
            "49999",
            [
                "/init",
                "/envs",
                "/files?path=a",
                "/metrics",
                "/process.Process/List",
                "/contexts/../init",
            ]
            .as_slice(),
        ),
        ("49983", &["/execute", "/contexts", "/contexts/a/restart"]),
    ] {
        for target in targets {
            for method in ["GET", "POST"] {
                let headers = [
                    ("e2b-sandbox-id", reached.id()),
                    ("e2b-sandbox-port", port),
                    ("x-access-token", &reached.token),
                ];
                let answer = served.ask(request(method, target, &headers, b"")).await;
                assert_eq!(answer.status(), 404, "{method} {target} on {port}");
            }
        }
    }
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn running_code_ends_with_the_right_to_it_and_with_its_sandbox() {
    let served = Served::new().await;
    let (first, second) = (
        served.caller("default").await,
        served.caller("default").await,
    );
    let reached = served.sandbox_of(&first, Ingress::default()).await;
    let token = served
        .access
        .grant(&second, &reached.sandbox.id)
        .await
        .unwrap();
    let open = async |code: Vec<u8>| {
        let mut wire = Wire::open(served.address).await;
        wire.send(code).await;
        assert_eq!(wire.head().await.status, 200);
        let mut seen = Vec::new();
        while !seen.windows(6).any(|six| six == b"stdout") {
            seen.extend(wire.piece().await.unwrap().unwrap());
        }
        wire
    };
    let endless = "import time\nkept = 1\nprint('runs')\nwhile True: time.sleep(1)";
    let mut of_second = open(execute(&reached, endless, &with_token(token.reveal()))).await;
    served.identity.keys.revoke(second.key).await.unwrap();
    served.access.revoke(second.key);
    assert_eq!(of_second.end().await, End::Reset);
    // It was interrupted, and what it left is there.
    let next = served
        .ask(execute(&reached, "kept", &with_token(&reached.token)))
        .await;
    assert_eq!(lines(&next)[1]["text"], "1", "{}", next.text());

    let mut of_first = open(execute(&reached, endless, &with_token(&reached.token))).await;
    of_the_first_generation(&served, &reached);
    let contexts = served
        .ask(on_code_port(
            reached.id(),
            "POST",
            "/contexts",
            &[],
            &json!({}),
        ))
        .await;
    let id = contexts.json()["id"].clone();
    let body = json!({"code": endless, "context_id": id});
    let mut of_nobody = open(on_code_port(reached.id(), "POST", "/execute", &[], &body)).await;
    served.kill(&reached).await;
    assert_eq!(of_first.end().await, End::Reset);
    assert_eq!(of_nobody.end().await, End::Reset);
    served.end([reached]).await;
}
