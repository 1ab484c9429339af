//! URLs of `/files` that carry their own right.

use std::time::{SystemTime, UNIX_EPOCH};

use atoll_protocol::signature::{Operation, SignedUrl};
use serde_json::json;

use crate::served::{Reached, Served};
use crate::wire::{Answer, request};

fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| {
            if byte.is_ascii_alphanumeric() {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

/// `/files?…` as a client signs it.
fn signed(
    token: &str,
    operation: Operation,
    path: &str,
    user: &str,
    expiration: Option<i64>,
) -> String {
    let url = SignedUrl {
        path,
        operation,
        user,
        expiration,
    };
    let mut target = format!(
        "/files?path={}&signature={}",
        encoded(path),
        encoded(&url.sign(token))
    );
    if !user.is_empty() {
        target.push_str(&format!("&username={}", encoded(user)));
    }
    if let Some(expiration) = expiration {
        target.push_str(&format!("&signature_expiration={expiration}"));
    }
    target
}

fn now() -> i64 {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(passed.as_secs()).unwrap()
}

async fn get(served: &Served, headers: &[(&str, &str)], target: &str) -> Answer {
    served.ask(request("GET", target, headers, b"")).await
}

async fn put(served: &Served, target: &str, content: &[u8]) -> Answer {
    let headers = [("content-type", "application/octet-stream")];
    served.ask(request("POST", target, &headers, content)).await
}

fn refusal(message: &str) -> serde_json::Value {
    json!({"code": 401, "message": message})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_url_finds_its_sandbox() {
    let served = Served::new().await;
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(served.sandbox().await);
    }
    for (number, reached) in all.iter().enumerate() {
        let content = format!("of sandbox {number}");
        let write = signed(&reached.token, Operation::Write, "a b+c.txt", "", None);
        let answer = put(&served, &write, content.as_bytes()).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert_eq!(answer.json()[0]["path"], "/home/user/a b+c.txt");
    }
    for (number, reached) in all.iter().enumerate() {
        let read = signed(
            &reached.token,
            Operation::Read,
            "a b+c.txt",
            "",
            Some(now() + 600),
        );
        let expected = format!("of sandbox {number}");
        assert_eq!(get(&served, &[], &read).await.text(), expected);
        // The same URL, where the sandbox is named.
        let host = format!("49983-{}.localhost", reached.id());
        assert_eq!(
            get(&served, &[("host", &host)], &read).await.text(),
            expected
        );
    }
    served.end(all).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signature_opens_nothing_else() {
    let served = Served::new().await;
    let (reached, neighbour) = (served.sandbox().await, served.sandbox().await);
    let path = "/home/user/secret.txt";
    let token = reached.token.as_str();
    put(
        &served,
        &signed(token, Operation::Write, path, "", None),
        b"secret",
    )
    .await;
    let good = signed(token, Operation::Read, path, "", None);
    assert_eq!(get(&served, &[], &good).await.text(), "secret");

    let other = |from: &str, to: &str| good.replace(&encoded(from), &encoded(to));
    for target in [
        other(path, "/etc/passwd"),
        other(path, "/home/user/../user/secret.txt"),
        other(path, "../../home/user/secret.txt"),
        format!("{good}&username=root"),
        format!("{good}&signature_expiration=9999999999"),
        format!("{good}&path={}", encoded("/etc/passwd")),
        format!(
            "/files?path={}&{}",
            encoded("/etc/passwd"),
            &good["/files?".len()..]
        ),
        signed("guessed", Operation::Read, path, "", None),
        signed("", Operation::Read, path, "", None),
        signed(token, Operation::Write, path, "", None),
        format!("/files?path={}&signature=", encoded(path)),
        format!("/files?path={}&signature=v1_", encoded(path)),
    ] {
        let answer = get(&served, &[], &target).await;
        assert_eq!(answer.status(), 401, "{target}: {}", answer.text());
        assert_eq!(answer.json(), refusal("invalid signature"), "{target}");
    }
    let answer = put(&served, &good, b"changed").await;
    assert_eq!(answer.json(), refusal("invalid signature"));
    let expired = signed(token, Operation::Read, path, "", Some(now() - 10));
    let answer = get(&served, &[], &expired).await;
    assert_eq!(answer.json(), refusal("signature is already expired"));
    let answer = get(&served, &[], "/files?path=a").await;
    assert_eq!(answer.json(), refusal("missing signature query parameter"));

    // At another sandbox's door it is nobody's.
    let host = format!("49983-{}.localhost", neighbour.id());
    let answer = get(&served, &[("host", &host)], &good).await;
    assert_eq!(answer.json(), refusal("invalid signature"));
    assert_eq!(get(&served, &[], &good).await.text(), "secret");
    served.end([reached, neighbour]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signature_gives_the_rights_of_the_user_it_names() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    let owner_of = async |reached: &Reached, path: &str| {
        let headers = [
            ("e2b-sandbox-id", reached.id()),
            ("e2b-sandbox-port", "49983"),
            ("x-access-token", reached.token.as_str()),
            ("content-type", "application/json"),
        ];
        let body = json!({"path": path}).to_string();
        let stat = request(
            "POST",
            "/filesystem.Filesystem/Stat",
            &headers,
            body.as_bytes(),
        );
        let answer = served.ask(stat).await;
        answer.json()["entry"]["owner"].as_str().unwrap().to_owned()
    };
    let root = ("authorization", "Basic cm9vdDo=");
    let headers = [root, ("content-type", "application/octet-stream")];
    for (user, path, expected) in [("", "/tmp/one", "user"), ("root", "/tmp/two", "root")] {
        let target = signed(&reached.token, Operation::Write, path, user, None);
        let answer = served.ask(request("POST", &target, &headers, b"x")).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert_eq!(owner_of(&reached, path).await, expected);
    }
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signature_ends_with_its_key() {
    let served = Served::new().await;
    let caller = served.caller("default").await;
    let reached = served.sandbox_of(&caller, Default::default()).await;
    let read = signed(&reached.token, Operation::Read, "/etc/hostname", "", None);
    assert_eq!(get(&served, &[], &read).await.status(), 200);
    served.identity.keys.revoke(caller.key).await.unwrap();
    served.access.revoke(caller.key);
    let answer = get(&served, &[], &read).await;
    assert_eq!(answer.json(), refusal("invalid signature"));
    served.end([reached]).await;
}
