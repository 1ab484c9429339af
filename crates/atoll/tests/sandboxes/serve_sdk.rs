//! `atoll-client`, the Rust SDK, against a real server.

use std::io::Cursor;
use std::time::Duration;

use atoll_client::{
    Client, ClientError, Code, Command, CreateOptions, Endpoint, EntryKind, ExitStatus, GuestError,
    ListOptions, LogOptions, NetworkOptions, ProcessEvent, PtySize, Signal, Span, WatchEventKind,
    WatchOptions,
};
use tokio::io::AsyncReadExt as _;

use crate::harness::second_home;
use crate::harness::server::Server;

fn client(server: &Server) -> Client {
    let url = format!("http://{}", server.address());
    Client::new(Endpoint::new(&url, &server.key).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_are_made_found_changed_and_ended() {
    let server = Server::start(second_home());
    let client = client(&server);
    let options = CreateOptions {
        timeout: Some(Duration::from_secs(600)),
        metadata: [("user name".to_owned(), "ada & co".to_owned())].into(),
        idempotency_key: Some("once-only".to_owned()),
        ..CreateOptions::default()
    };
    let sandbox = client.create(&options).await.unwrap();
    let again = client.create(&options).await.unwrap();
    assert_eq!(again.id(), sandbox.id());
    let other = client.create(&CreateOptions::default()).await.unwrap();

    let wanted = ListOptions {
        metadata: options.metadata.clone(),
        ..ListOptions::default()
    };
    let found = client.list(&wanted).all().await.unwrap();
    let names: Vec<_> = found.iter().map(|one| one.sandbox_id.as_str()).collect();
    assert_eq!(names, [sandbox.id()]);
    let mut pages = client.list(&ListOptions {
        page: Some(1),
        ..ListOptions::default()
    });
    let mut seen = Vec::new();
    while let Some(page) = pages.next_page().await.unwrap() {
        assert!(page.len() <= 1);
        seen.extend(page.into_iter().map(|one| one.sandbox_id));
    }
    assert_eq!(seen, [other.id(), sandbox.id()]);

    let before = sandbox.info().await.unwrap().listed.end_at;
    sandbox
        .set_timeout(Duration::from_secs(3600))
        .await
        .unwrap();
    assert!(sandbox.info().await.unwrap().listed.end_at > before);
    let connected = client.connect(sandbox.id(), None).await.unwrap();
    let said = connected.commands().run("echo again").await.unwrap();
    assert_eq!(said.stdout_text(), "again\n");
    let closed = NetworkOptions {
        deny_out: vec!["0.0.0.0/0".to_owned()],
        ..NetworkOptions::default()
    };
    client.set_network(sandbox.id(), &closed).await.unwrap();
    assert!(
        sandbox
            .host(3000)
            .starts_with(&format!("3000-{}.", sandbox.id()))
    );
    let log = client
        .logs(sandbox.id(), LogOptions::default())
        .await
        .unwrap();
    assert_eq!(log[0].message, "sandbox started");
    client.metrics(sandbox.id(), Span::default()).await.unwrap();

    sandbox.kill().await.unwrap();
    other.kill().await.unwrap();
    assert!(matches!(
        sandbox.kill().await,
        Err(ClientError::NotFound(_))
    ));
    let gone = client.connect(sandbox.id(), None).await;
    assert!(matches!(gone, Err(ClientError::NotFound(_))));
    let unknown = client
        .create(&CreateOptions::template("no-such-template"))
        .await;
    assert!(matches!(unknown, Err(ClientError::NotFound(_))));
    let url = format!("http://{}", server.address());
    let stranger = Client::new(Endpoint::new(&url, "e2b_00").unwrap()).unwrap();
    let refused = stranger.list(&ListOptions::default()).all().await;
    assert!(matches!(refused, Err(ClientError::Unauthorized(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_and_terminals_of_a_sandbox_work_through_the_server() {
    let server = Server::start(second_home());
    let sandbox = client(&server)
        .create(&CreateOptions::default())
        .await
        .unwrap();
    let output = sandbox
        .commands()
        .run("echo out; echo err >&2; exit 3")
        .await
        .unwrap();
    assert_eq!(output.status, ExitStatus::Exited(3));
    assert_eq!(
        (output.stdout_text(), output.stderr_text()),
        ("out\n".into(), "err\n".into())
    );

    let cat = Command {
        cmd: "cat".to_owned(),
        stdin: true,
        ..Command::default()
    };
    let mut process = sandbox.commands().start(&cat).await.unwrap();
    process.input().send(b"typed").await.unwrap();
    assert_eq!(
        process.next().await.unwrap(),
        Some(ProcessEvent::Stdout("typed".into()))
    );
    let mut follower = sandbox.commands().follow(process.pid()).await.unwrap();
    process.input().close().await.unwrap();
    for one in [&mut process, &mut follower] {
        let end = one.next().await.unwrap();
        assert_eq!(end, Some(ProcessEvent::End(ExitStatus::Exited(0))));
    }

    let terminal = Command {
        cmd: "sh".to_owned(),
        args: vec!["-c".to_owned(), "stty size; read x; stty size".to_owned()],
        pty: Some(PtySize { cols: 90, rows: 20 }),
        ..Command::default()
    };
    let mut process = sandbox.commands().start(&terminal).await.unwrap();
    let mut shown = String::new();
    while !shown.contains("20 90") {
        let Some(ProcessEvent::Pty(bytes)) = process.next().await.unwrap() else {
            panic!("{shown}");
        };
        shown.push_str(&String::from_utf8_lossy(&bytes));
    }
    process
        .input()
        .resize(PtySize { cols: 91, rows: 21 })
        .await
        .unwrap();
    process.input().send(b"\n").await.unwrap();
    while let Some(event) = process.next().await.unwrap() {
        if let ProcessEvent::Pty(bytes) = event {
            shown.push_str(&String::from_utf8_lossy(&bytes));
        }
    }
    assert!(shown.contains("21 91"), "{shown}");

    let endless = Command {
        cmd: "sleep".to_owned(),
        args: vec!["600".to_owned()],
        ..Command::default()
    };
    let mut process = sandbox.commands().start(&endless).await.unwrap();
    process.input().signal(Signal::Terminate).await.unwrap();
    let end = process.next().await.unwrap();
    assert_eq!(end, Some(ProcessEvent::End(ExitStatus::Signaled(15))));

    // The end of a sandbox is an error for who follows a command in it, at once.
    let mut process = sandbox.commands().start(&endless).await.unwrap();
    sandbox.kill().await.unwrap();
    assert!(process.next().await.is_err());
    let after = sandbox.commands().start(&endless).await.unwrap_err();
    assert!(
        matches!(after, GuestError::Refused { status: 502, .. }),
        "{after:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn files_and_watches_of_a_sandbox_work_through_the_server() {
    let server = Server::start(second_home());
    let sandbox = client(&server)
        .create(&CreateOptions::default())
        .await
        .unwrap();
    let files = sandbox.files();
    let mut watch = files.watch(".", WatchOptions::default()).await.unwrap();
    files.write("small", "content").await.unwrap();
    let event = watch.next().await.unwrap().unwrap();
    assert_eq!(
        (event.kind, event.name.as_given()),
        (WatchEventKind::Create, "small")
    );
    assert_eq!(files.read("small", 100).await.unwrap(), b"content");
    let too_large = files.read("small", 3).await.unwrap_err();
    assert!(
        matches!(too_large, GuestError::TooLarge { .. }),
        "{too_large:?}"
    );

    // Large files go in pieces, in plain HTTP.
    let large: Vec<u8> = (0..48_000_000_u32)
        .map(|number| (number % 255) as u8)
        .collect();
    files
        .write_from("deep/large", Cursor::new(large.clone()))
        .await
        .unwrap();
    let mut reader = files.open("deep/large").await.unwrap();
    let mut back = Vec::new();
    reader.read_to_end(&mut back).await.unwrap();
    assert!(back == large);

    assert!(files.make_dir("made/below").await.unwrap());
    assert!(!files.make_dir("made/below").await.unwrap());
    assert_eq!(files.stat("made").await.unwrap().kind, EntryKind::Directory);
    files.rename("small", "made/renamed").await.unwrap();
    let listed = files.list("made", 1).await.unwrap();
    let mut names: Vec<_> = listed.iter().map(|entry| entry.name.as_given()).collect();
    names.sort_unstable();
    assert_eq!(names, ["below", "renamed"]);
    files.remove("made").await.unwrap();
    assert!(!files.exists("made").await.unwrap());
    let missing = files.stat("made").await.unwrap_err();
    assert!(
        matches!(
            missing,
            GuestError::Rpc {
                code: Code::NotFound,
                ..
            }
        ),
        "{missing:?}"
    );
    files.as_user("root").write("/root/own", "x").await.unwrap();
    let owner = sandbox
        .commands()
        .run("sudo stat -c %U /root/own")
        .await
        .unwrap();
    assert_eq!(owner.stdout_text(), "root\n");
    sandbox.kill().await.unwrap();
}
