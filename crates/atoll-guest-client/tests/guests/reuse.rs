//! Connections that are used again, and those that must not be.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_guest_client::{GuestClient, GuestError};
use atoll_protocol::envd::filesystem::RemoveResponse;

use crate::support::{answer, file_info, read_request, stat_response, unary};

/// What a fake guest does with a request.
enum Reply {
    /// Answers and waits for the next one.
    Say(Vec<u8>),
    /// Closes without a word.
    Close,
}

struct Guest {
    client: GuestClient,
    connections: Arc<AtomicUsize>,
    /// First lines of requests, with the number of their connection.
    requests: Arc<Mutex<Vec<(usize, String)>>>,
}

impl Guest {
    /// A guest that answers request `n` of connection `c` with `reply(c, n)`.
    fn new(reply: impl Fn(usize, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = crate::support::client(listener.local_addr().unwrap());
        let connections = Arc::new(AtomicUsize::new(0));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let guest = Self {
            client,
            connections: Arc::clone(&connections),
            requests: Arc::clone(&requests),
        };
        let reply = Arc::new(reply);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let connection = connections.fetch_add(1, Ordering::SeqCst);
                let (reply, requests) = (Arc::clone(&reply), Arc::clone(&requests));
                std::thread::spawn(move || serve(stream, connection, &*reply, &requests));
            }
        });
        guest
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    fn requests(&self) -> Vec<(usize, String)> {
        self.requests.lock().unwrap().clone()
    }
}

fn serve(
    mut stream: TcpStream,
    connection: usize,
    reply: &(dyn Fn(usize, usize) -> Reply + Send + Sync),
    requests: &Mutex<Vec<(usize, String)>>,
) {
    stream.set_nodelay(true).unwrap();
    for number in 0.. {
        let Some(head) = read_request(&mut stream) else {
            return;
        };
        let path = head.split(' ').nth(1).unwrap().to_owned();
        requests.lock().unwrap().push((connection, path));
        match reply(connection, number) {
            Reply::Say(bytes) => stream.write_all(&bytes).unwrap(),
            Reply::Close => return,
        }
    }
}

fn good() -> Vec<u8> {
    unary(&stat_response(file_info("a")))
}

async fn stat(guest: &Guest) -> Result<(), GuestError> {
    guest.client.stat("a", None).await.map(|_| ())
}

/// Gives drivers the time to see what the guest did.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

#[tokio::test]
async fn calls_share_a_connection() {
    let guest = Guest::new(|_, _| Reply::Say(good()));
    for _ in 0..10 {
        stat(&guest).await.unwrap();
    }
    assert_eq!(guest.connections(), 1);
    guest.client.close_idle();
    stat(&guest).await.unwrap();
    assert_eq!(guest.connections(), 2);
}

#[tokio::test]
async fn an_error_leaves_the_connection_usable() {
    let no = answer(
        "404 Not Found",
        "",
        br#"{"code":"not_found","message":"x"}"#,
    );
    let guest =
        Guest::new(move |_, number| Reply::Say(if number == 0 { no.clone() } else { good() }));
    assert!(stat(&guest).await.is_err());
    stat(&guest).await.unwrap();
    assert_eq!(guest.connections(), 1);
}

#[tokio::test]
async fn many_calls_at_once_leave_few_idle() {
    let guest = Guest::new(|_, _| Reply::Say(good()));
    let calls = (0..20).map(|_| stat(&guest));
    for result in futures_util::future::join_all(calls).await {
        result.unwrap();
    }
    let before = guest.connections();
    let calls = (0..20).map(|_| stat(&guest));
    for result in futures_util::future::join_all(calls).await {
        result.unwrap();
    }
    assert!(guest.connections() >= before + 16, "{before}");
}

#[tokio::test]
async fn a_body_that_is_dropped_early_takes_its_connection_along() {
    let guest = Guest::new(|_, _| Reply::Say(answer("200 OK", "", &[b'x'; 500_000])));
    drop(guest.client.read_file("x", None).await.unwrap());
    drop(guest.client.read_file("x", None).await.unwrap());
    assert_eq!(guest.connections(), 2);
}

#[tokio::test]
async fn a_guest_that_answers_twice_poisons_nothing() {
    let wrong = unary(&stat_response(file_info("wrong")));
    let guest = Guest::new(move |_, _| Reply::Say([good(), wrong.clone()].concat()));
    for _ in 0..5 {
        let entry = guest.client.stat("a", None).await.unwrap();
        assert_eq!(entry.file_name(), Ok("a"));
        settle().await;
    }
    assert_eq!(guest.connections(), 5);
}

#[tokio::test]
async fn a_guest_that_talks_on_an_idle_connection_loses_it() {
    let (talk, listen) = channel::<()>();
    let listen: Mutex<Receiver<()>> = Mutex::new(listen);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = crate::support::client(listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            read_request(&mut stream).unwrap();
            stream.write_all(&good()).unwrap();
            listen.lock().unwrap().recv().unwrap();
            let _ = stream.write_all(&unary(&stat_response(file_info("wrong"))));
            std::mem::forget(stream);
        }
    });
    for _ in 0..3 {
        let entry = client.stat("a", None).await.unwrap();
        assert_eq!(entry.file_name(), Ok("a"));
        talk.send(()).unwrap();
        settle().await;
    }
}

#[tokio::test]
async fn looking_is_tried_again_and_only_once() {
    let guest = Guest::new(|connection, number| match (connection, number) {
        (0, 1) => Reply::Close,
        _ => Reply::Say(good()),
    });
    stat(&guest).await.unwrap();
    stat(&guest).await.unwrap();
    let stat_path = "/filesystem.Filesystem/Stat".to_owned();
    assert_eq!(
        guest.requests(),
        [
            (0, stat_path.clone()),
            (0, stat_path.clone()),
            (1, stat_path)
        ]
    );

    let dead = Guest::new(|connection, number| match (connection, number) {
        (0, 0) => Reply::Say(good()),
        _ => Reply::Close,
    });
    stat(&dead).await.unwrap();
    let error = stat(&dead).await.unwrap_err();
    assert!(matches!(error, GuestError::Disconnected(_)), "{error:?}");
    assert_eq!(dead.requests().len(), 3);
}

#[tokio::test]
async fn what_changes_something_is_never_sent_twice() {
    let guest = Guest::new(|_, number| match number {
        0 => Reply::Say(unary(&RemoveResponse::default())),
        _ => Reply::Close,
    });
    guest.client.remove("a", None).await.unwrap();
    let error = guest.client.remove("b", None).await.unwrap_err();
    assert!(matches!(error, GuestError::Disconnected(_)), "{error:?}");
    assert_eq!(guest.requests().len(), 2);
}

#[tokio::test]
async fn uploads_have_a_connection_of_their_own() {
    let written = answer("200 OK", "content-type: application/json\r\n", b"[]");
    let guest = Guest::new(move |_, _| Reply::Say(written.clone()));
    for _ in 0..3 {
        guest.client.write_file("x", None, &b""[..]).await.unwrap();
    }
    assert_eq!(guest.connections(), 3);
}

#[tokio::test]
async fn a_connection_that_the_guest_closed_is_not_used() {
    let close = answer(
        "200 OK",
        "content-type: application/proto\r\nconnection: close\r\n",
        b"",
    );
    let guest = Guest::new(move |_, _| Reply::Say(close.clone()));
    for _ in 0..3 {
        guest.client.remove("a", None).await.unwrap();
        settle().await;
    }
    assert_eq!(guest.connections(), 3);
}

#[tokio::test]
async fn nothing_is_idle_for_long() {
    let (ended, end) = channel();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = crate::support::client(listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        read_request(&mut stream).unwrap();
        stream.write_all(&good()).unwrap();
        let start = std::time::Instant::now();
        assert!(read_request(&mut stream).is_none());
        ended.send(start.elapsed()).unwrap();
    });
    client.stat("a", None).await.unwrap();
    let idle = tokio::task::spawn_blocking(move || end.recv_timeout(Duration::from_secs(20)))
        .await
        .unwrap()
        .unwrap();
    assert!(idle > Duration::from_secs(4), "{idle:?}");
}
