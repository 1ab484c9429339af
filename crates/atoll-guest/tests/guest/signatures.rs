//! URLs that whoever has them may use.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_guest_client::InitRequest;
use atoll_protocol::signature::{Operation, SignedUrl};

use crate::support::raw::{Answer, ask_bare, encode};
use crate::support::{Guest, TOKEN, client, whoami};

const OCTETS: (&str, &str) = ("Content-Type", "application/octet-stream");

fn unauthorized(message: &str) -> (u16, String) {
    (401, message.to_owned())
}

fn read(path: &str) -> SignedUrl<'_> {
    SignedUrl {
        path,
        operation: Operation::Read,
        user: "",
        expiration: None,
    }
}

/// A request without the token.
fn ask(guest: &Guest, start: &str) -> Answer {
    ask_bare(guest.address, start, &[OCTETS], b"written")
}

fn now() -> i64 {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(passed.as_secs()).unwrap()
}

#[tokio::test]
async fn the_signatures_of_real_clients_open() {
    let guest = Guest::bare();
    let client = client(guest.address, "tok123");
    client.wait_ready(Duration::from_secs(10)).await.unwrap();
    client
        .init(&InitRequest {
            access_token: Some("tok123".to_owned()),
            default_user: Some(whoami()),
            ..InitRequest::default()
        })
        .await
        .unwrap();
    // Nobody's home is certain to have that file, but the signature is good.
    let signature = encode("v1_byj2OB/vujgbES/1KAKCaR27E+9eOrB6PzeTnIL8L6M");
    let start = format!("GET /files?path=%2Fhome%2Fuser%2Fa.txt&signature={signature}");
    let status = ask(&guest, &start).status;
    assert!(status == 404 || status == 200, "{status}");
    // Without encoding, `+` is a space.
    let start =
        "GET /files?path=/home/user/a.txt&signature=v1_byj2OB/vujgbES/1KAKCaR27E+9eOrB6PzeTnIL8L6M";
    assert_eq!(
        ask(&guest, start).refusal(),
        unauthorized("invalid signature")
    );
    // Good until 2027, and for root, whose home has the file thereafter.
    if crate::support::whoami() == "root" && now() < 1_800_000_000 {
        let signature = encode("v1_PBhbIJd7+wpG6UYY8++mBm3J6DCbN+HU65YmGxGySuI");
        let start = format!(
            "POST /files?path=a.txt&username=root&signature_expiration=1800000000&signature={signature}"
        );
        let form = ("Content-Type", "text/plain");
        let answer = ask_bare(guest.address, &start, &[form], b"");
        // Past the check and refused for its type, so that nothing is left behind.
        assert_eq!(answer.refusal().0, 400);
    }
}

#[tokio::test]
async fn a_signature_opens_what_it_signs_and_nothing_else() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let (path, other) = (place.path().join("a b+c"), place.path().join("other"));
    std::fs::write(&path, "secret").unwrap();
    std::fs::write(&other, "other").unwrap();
    let (path, other) = (path.to_str().unwrap(), other.to_str().unwrap());
    let signature = encode(&read(path).sign(TOKEN));
    let invalid = unauthorized("invalid signature");

    let percent = encode(path);
    for spelled in [&percent, &percent.replace("%20", "+")] {
        let answer = ask(
            &guest,
            &format!("GET /files?path={spelled}&signature={signature}"),
        );
        assert_eq!((answer.status, &answer.body[..]), (200, &b"secret"[..]));
    }
    let head = ask(
        &guest,
        &format!("HEAD /files?path={percent}&signature={signature}"),
    );
    assert_eq!(head.status, 200);

    for start in [
        format!("GET /files?path={}&signature={signature}", encode(other)),
        format!("POST /files?path={percent}&signature={signature}"),
        format!("GET /files?path={percent}&username=root&signature={signature}"),
        format!("GET /files?path={percent}&signature_expiration=9999999999&signature={signature}"),
        format!("GET /files?path={percent}&signature_expiration=soon&signature={signature}"),
        format!("GET /files?path={percent}&signature_expiration=&signature={signature}"),
        format!("GET /files?path={percent}&signature="),
        format!("GET /files?path={percent}&signature=v1_"),
        // What is given twice could be signed once and used once.
        format!(
            "GET /files?path={percent}&path={}&signature={signature}",
            encode(other)
        ),
        format!(
            "GET /files?path={}&path={percent}&signature={signature}",
            encode(other)
        ),
        format!("GET /files?path={percent}&signature=x&signature={signature}"),
        format!("GET /files?path={percent}/&signature={signature}"),
    ] {
        assert_eq!(ask(&guest, &start).refusal(), invalid, "{start}");
    }
    let missing = unauthorized("missing signature query parameter");
    for start in [
        format!("GET /files?path={percent}"),
        format!("POST /files?path={percent}"),
        "GET /files".to_owned(),
        format!("PUT /files?path={percent}&signature={signature}"),
        format!("DELETE /files?path={percent}&signature={signature}"),
    ] {
        assert_eq!(ask(&guest, &start).refusal(), missing, "{start}");
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), "secret");
}

#[tokio::test]
async fn a_signature_expires() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place.path().join("x");
    let path = path.to_str().unwrap();
    let start = |expiration: i64, signed: i64| {
        let url = SignedUrl {
            operation: Operation::Write,
            expiration: Some(signed),
            ..read(path)
        };
        format!(
            "POST /files?path={}&signature_expiration={expiration}&signature={}",
            encode(path),
            encode(&url.sign(TOKEN))
        )
    };
    let (later, before) = (now() + 600, now() - 10);
    assert_eq!(ask(&guest, &start(later, later)).status, 200);
    assert_eq!(std::fs::read_to_string(path).unwrap(), "written");
    assert_eq!(
        ask(&guest, &start(before, before)).refusal(),
        unauthorized("signature is already expired")
    );
    assert_eq!(
        ask(&guest, &start(later, before)).refusal(),
        unauthorized("invalid signature")
    );
}

#[tokio::test]
async fn a_form_that_names_its_files_is_signed_without_a_path() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place.path().join("x");
    let url = SignedUrl {
        operation: Operation::Write,
        ..read("")
    };
    let start = format!("POST /files?signature={}", encode(&url.sign(TOKEN)));
    let body = format!(
        "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{}\"\r\n\r\nx\r\n--XX--\r\n",
        path.display()
    );
    let form = ("Content-Type", "multipart/form-data; boundary=XX");
    let answer = ask_bare(guest.address, &start, &[form], body.as_bytes());
    assert_eq!(answer.status, 200);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "x");
}

#[tokio::test]
async fn a_token_that_is_presented_decides() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place.path().join("x");
    std::fs::write(&path, "secret").unwrap();
    let path = path.to_str().unwrap();
    let signature = encode(&read(path).sign(TOKEN));
    let start = format!("GET /files?path={}&signature={signature}", encode(path));
    let with =
        |token, start: &str| ask_bare(guest.address, start, &[("X-Access-Token", token)], b"");
    assert_eq!(
        with("wrong", &start).refusal(),
        unauthorized("access token present in header but does not match")
    );
    assert_eq!(with("", &start).body, b"secret");
    let start = format!("GET /files?path={}&signature=wrong", encode(path));
    assert_eq!(with(TOKEN, &start).body, b"secret");
    let start = format!("{start}&path=x");
    assert_eq!(with(TOKEN, &start).refusal().0, 400);
}

#[tokio::test]
async fn before_init_no_signature_opens() {
    let guest = Guest::bare();
    guest
        .client
        .wait_ready(Duration::from_secs(10))
        .await
        .unwrap();
    let text =
        "unauthorized access, please provide a valid access token or method signing if supported";
    let signature = encode(&read("/etc/hostname").sign(""));
    for start in [
        format!("GET /files?path=/etc/hostname&signature={signature}"),
        "GET /files?path=/etc/hostname".to_owned(),
        "POST /files?path=/tmp/never-written".to_owned(),
        "POST /files/compose".to_owned(),
        "GET /metrics".to_owned(),
        "GET /envs".to_owned(),
        "GET /nothing".to_owned(),
    ] {
        assert_eq!(ask(&guest, &start).refusal(), unauthorized(text), "{start}");
    }
}

#[tokio::test]
async fn a_signature_binds_the_user() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let path = place.path().join("x");
    let path = path.to_str().unwrap();
    let url = SignedUrl {
        operation: Operation::Write,
        ..read(path)
    };
    let (write, read) = (encode(&url.sign(TOKEN)), encode(&read(path).sign(TOKEN)));
    let path = encode(path);
    // "no-such-user:", which is an error wherever it counts.
    let other = ("Authorization", "Basic bm8tc3VjaC11c2VyOg==");
    let put = ask_bare(
        guest.address,
        &format!("POST /files?path={path}&signature={write}"),
        &[OCTETS, other],
        b"written",
    );
    assert_eq!(put.status, 200, "{:?}", put.json());
    let get = format!("GET /files?path={path}");
    let signed = format!("{get}&signature={read}");
    assert_eq!(
        ask_bare(guest.address, &signed, &[other], b"").body,
        b"written"
    );
    // With the token it counts, whatever else is there.
    let token = ("X-Access-Token", TOKEN);
    for start in [&get, &signed] {
        assert_eq!(
            ask_bare(guest.address, start, &[other, token], b"").refusal(),
            unauthorized("invalid username: 'no-such-user'")
        );
    }
}
