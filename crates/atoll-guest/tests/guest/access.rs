//! Who may ask what.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use atoll_guest_client::{Command, GuestError, InitRequest};

use crate::support::raw;
use crate::support::{Guest, TOKEN, bash, client, finish};

fn init(token: &str) -> InitRequest {
    InitRequest {
        access_token: Some(token.to_owned()),
        default_user: Some(crate::support::whoami()),
        ..InitRequest::default()
    }
}

fn unauthorized<T>(result: &Result<T, GuestError>) -> bool {
    matches!(result, Err(GuestError::Unauthorized(_)))
}

#[tokio::test]
async fn before_init_only_health_answers() {
    let guest = Guest::bare();
    guest
        .client
        .wait_ready(Duration::from_secs(10))
        .await
        .unwrap();
    assert!(unauthorized(&guest.client.start(&bash("true")).await));
    assert!(unauthorized(
        &guest.client.read_file("/etc/hostname", None).await
    ));
    assert!(unauthorized(
        &guest
            .client
            .write_file("/tmp/never-written", None, &b"x"[..])
            .await
    ));
}

#[tokio::test]
async fn the_first_init_must_set_a_token_and_later_ones_must_present_it() {
    let guest = Guest::bare();
    guest
        .client
        .wait_ready(Duration::from_secs(10))
        .await
        .unwrap();
    assert!(matches!(
        guest.client.init(&InitRequest::default()).await,
        Err(GuestError::Refused { status: 400, .. })
    ));
    guest.client.init(&init(TOKEN)).await.unwrap();
    let stranger = client(guest.address, "guess");
    assert!(unauthorized(&stranger.init(&init("guess")).await));
    assert!(unauthorized(&stranger.start(&bash("true")).await));
    assert!(unauthorized(
        &stranger.read_file("/etc/hostname", None).await
    ));
    guest
        .client
        .init(&InitRequest {
            env_vars: Some([("A".to_owned(), "1".to_owned())].into()),
            ..init(TOKEN)
        })
        .await
        .unwrap();
    assert_eq!(
        finish(guest.client.start(&bash("echo $A")).await.unwrap())
            .await
            .unwrap()
            .stdout,
        "1\n"
    );
}

#[tokio::test]
async fn health_is_for_everybody_and_the_rest_for_the_token() {
    let guest = Guest::ready().await;
    let health = raw::ask_bare(guest.address, "GET /health", &[], b"");
    assert_eq!(
        health,
        raw::Answer {
            status: 204,
            headers: vec![("cache-control".to_owned(), "no-store".to_owned())],
            body: Vec::new(),
        }
    );
    let refusal = (
        401,
        "unauthorized access, please provide a valid access token or method signing if supported"
            .to_owned(),
    );
    for headers in [&[][..], &[("X-Access-Token", "guess")]] {
        for start in [
            "GET /envs",
            "GET /metrics",
            "POST /files/compose",
            "POST /init",
            "GET /nothing",
            "POST /process.Process/List",
            "POST /filesystem.Filesystem/Stat",
        ] {
            let answer = raw::ask_bare(guest.address, start, headers, b"{}");
            assert_eq!(answer.refusal(), refusal, "{start} with {headers:?}");
        }
    }
    assert_eq!(
        raw::ask(&guest, "GET /envs", &[], b"").json(),
        serde_json::json!({"SANDBOX_VARIABLE": "from-init"})
    );
}

#[tokio::test]
async fn an_init_that_asks_for_what_the_guest_cannot_do_changes_nothing() {
    let guest = Guest::ready().await;
    let wishes = [
        (
            r#""volumeMounts":[{"nfs_target":"10.0.0.1:/","path":"/data"}]"#,
            "volumeMounts: ",
        ),
        (r#""caBundle":"-----BEGIN CERTIFICATE-----""#, "caBundle: "),
        (
            r#""volumeMounts":"all""#,
            "the body of /init is not understood: ",
        ),
    ];
    for (wish, reason) in wishes {
        let body = format!(r#"{{"envVars":{{"FROM":"refused"}},{wish}}}"#);
        let (status, why) = raw::ask(&guest, "POST /init", &[], body.as_bytes()).refusal();
        assert_eq!(status, 400, "{wish}");
        assert!(why.starts_with(reason), "{why}");
        assert_eq!(
            raw::ask(&guest, "GET /envs", &[], b"").json(),
            serde_json::json!({"SANDBOX_VARIABLE": "from-init"})
        );
    }
    let harmless = br#"{"envVars":{"FROM":"init"},"volumeMounts":[],"caBundle":"","hyperloopIP":"1.2.3.4","timestamp":"2027-01-01T00:00:00Z","lifecycleID":"one","unknown":1}"#;
    let answer = raw::ask(&guest, "POST /init", &[], harmless);
    assert_eq!(answer.status, 204, "{answer:?}");
    assert_eq!(
        raw::ask(&guest, "GET /envs", &[], b"").json(),
        serde_json::json!({"FROM": "init"})
    );
}

/// What E2B's own clients send, byte for byte: JSON frames.
#[tokio::test]
async fn the_exchange_of_a_real_client_is_understood() {
    let guest = Guest::ready().await;
    let message = br#"{"process":{"cmd":"/bin/bash","args":["-l","-c","echo hi"]},"stdin":false}"#;
    let mut stream = TcpStream::connect(guest.address).unwrap();
    write!(
        stream,
        "POST /process.Process/Start HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/connect+json\r\n\
         Connect-Protocol-Version: 1\r\nConnect-Timeout-Ms: 60000\r\nX-Access-Token: {TOKEN}\r\nContent-Length: {}\r\n\r\n",
        message.len() + 5
    )
    .unwrap();
    stream
        .write_all(&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()])
        .unwrap();
    stream.write_all(message).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(
        answer.contains("content-type: application/connect+json\r\n"),
        "{answer}"
    );
    let order = [
        r#"{"event":{"start":{"pid":"#,
        r#"{"event":{"data":{"stdout":"aGkK"}}}"#,
        r#"{"event":{"end":{"exited":true,"status":"exit status 0"}}}"#,
        "\u{2}\0\0\0\u{2}{}",
    ];
    let places: Vec<_> = order
        .iter()
        .map(|part| {
            answer
                .find(part)
                .unwrap_or_else(|| panic!("{part} is missing in {answer}"))
        })
        .collect();
    assert!(places.is_sorted(), "{answer}");
}

/// Opens connections that say nothing, or begin to.
fn silent(guest: &Guest, count: usize) -> Vec<TcpStream> {
    (0..count)
        .map(|number| {
            let mut stream = TcpStream::connect(guest.address).unwrap();
            if number % 2 == 0 {
                // One that was closed already says nothing more.
                let _ = stream.write_all(b"POST /init HTTP/1.1\r\nhost: g\r\n");
            }
            stream
        })
        .collect()
}

/// Processor time that the guest has used, in clock ticks.
fn ticks(guest: &Guest) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", guest.pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[tokio::test]
async fn silent_strangers_keep_nobody_out() {
    let guest = Guest::ready_under(&["prlimit", "--nofile=256"], &crate::support::whoami()).await;
    let waits = Command {
        stdin: true,
        ..bash("read line; echo $line")
    };
    let mut process = guest.client.start(&waits).await.unwrap();
    let held = silent(&guest, 300);
    let before = ticks(&guest);
    for _ in 0..3 {
        let asked = Instant::now();
        assert_eq!(
            raw::ask_bare(guest.address, "GET /health", &[], b"").status,
            204
        );
        assert_eq!(guest.run("echo served").await.stdout, "served\n");
        assert!(asked.elapsed() < Duration::from_secs(5));
    }
    assert!(ticks(&guest) - before < 200, "the guest spins");
    // Who came before with the token is still there.
    process.input().send(b"kept\n").await.unwrap();
    crate::support::output_until(&mut process, "kept\n").await;
    drop(held);
}

#[tokio::test]
async fn descriptors_that_ran_out_come_back() {
    let guest = Guest::ready_under(&["prlimit", "--nofile=24"], &crate::support::whoami()).await;
    let held: Vec<_> = (0..60)
        .map(|_| {
            let mut stream = TcpStream::connect(guest.address).unwrap();
            // With the token they may stay.
            let _ = write!(
                stream,
                "GET /envs HTTP/1.1\r\nhost: g\r\nx-access-token: {TOKEN}\r\n\r\n"
            );
            stream
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = ticks(&guest);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(ticks(&guest) - before < 30, "the guest spins");
    drop(held);
    assert_eq!(
        raw::ask_bare(guest.address, "GET /health", &[], b"").status,
        204
    );
}

#[tokio::test]
#[ignore = "long: half a minute"]
async fn heads_are_awaited_for_a_while_and_streams_for_ever() {
    let guest = Guest::ready().await;
    let mut process = guest.start("sleep 40; echo still there").await;
    let ended = |begin: &'static [u8]| {
        let mut stream = raw::connect(guest.address);
        std::thread::spawn(move || {
            stream.write_all(begin).unwrap();
            let begun = Instant::now();
            let _ = stream.read_to_end(&mut Vec::new());
            begun.elapsed()
        })
    };
    let threads = [
        &b""[..],
        b"GET /health HTTP/1.1\r\nhost",
        b"GET /health HTTP/1.1\r\nhost: g\r\n\r\n",
    ]
    .map(ended);
    for thread in threads {
        let bounds = Duration::from_secs(25)..Duration::from_secs(40);
        assert!(bounds.contains(&thread.join().unwrap()));
    }
    crate::support::output_until(&mut process, "still there\n").await;
}

fn init_head(length: usize) -> String {
    format!(
        "POST /init HTTP/1.1\r\nhost: g\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    )
}

#[tokio::test]
async fn the_token_of_init_is_checked_before_its_body_comes() {
    let guest = Guest::ready().await;
    let mut stream = raw::connect(guest.address);
    let begun = Instant::now();
    stream.write_all(init_head(1 << 40).as_bytes()).unwrap();
    assert_eq!(raw::receive(stream).refusal().0, 401);
    assert!(begun.elapsed() < Duration::from_secs(4));
}

#[tokio::test]
async fn whoever_delays_the_first_init_does_not_keep_the_host_out() {
    let guest = Guest::bare();
    guest
        .client
        .wait_ready(Duration::from_secs(10))
        .await
        .unwrap();
    let large = vec![b' '; 2 << 20];
    let answer = raw::ask_bare(guest.address, "POST /init", &[], &large);
    assert_eq!(answer.refusal().0, 400);

    let begun = Instant::now();
    let waiting: Vec<TcpStream> = (0..12)
        .map(|_| {
            let mut stream = raw::connect(guest.address);
            stream.write_all(init_head(1000).as_bytes()).unwrap();
            stream.write_all(b"{").unwrap();
            stream
        })
        .collect();
    let statuses: Vec<u16> = waiting
        .into_iter()
        .map(|stream| raw::receive(stream).refusal().0)
        .collect();
    assert!(begun.elapsed() < Duration::from_secs(15));
    let count = |status| statuses.iter().filter(|other| **other == status).count();
    assert_eq!((count(503), count(408)), (4, 8), "{statuses:?}");

    // One that began before the host and ends after it sets no token.
    let body = serde_json::json!({"accessToken": "guess"}).to_string();
    let mut late = raw::connect(guest.address);
    late.write_all(init_head(body.len()).as_bytes()).unwrap();
    late.write_all(&body.as_bytes()[..5]).unwrap();
    guest.client.init(&init(TOKEN)).await.unwrap();
    late.write_all(&body.as_bytes()[5..]).unwrap();
    assert_eq!(raw::receive(late).refusal().0, 401);
    assert_eq!(guest.run("echo mine").await.stdout, "mine\n");
}
