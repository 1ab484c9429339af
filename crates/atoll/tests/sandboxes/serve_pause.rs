//! Sandboxes that hold still: by order, at the end of their time, and until
//! somebody comes back.

use std::io::Read as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::server::{Ask, Reply, Server};
use atoll_engine::Tier;

use crate::harness::{eventually, second_home, tier};

/// Counts in a file, and notes the longest time between two of its steps.
const TICKER: &str = "
import time, http.server, threading
def tick():
    last, longest = time.monotonic(), 0.0
    while True:
        time.sleep(0.01)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
        open('/tmp/longest.new', 'w').write(str(longest))
        __import__('os').rename('/tmp/longest.new', '/tmp/longest')
threading.Thread(target=tick, daemon=True).start()
http.server.HTTPServer(('127.0.0.1', 8000), http.server.SimpleHTTPRequestHandler).serve_forever()
";

/// A service that takes a visitor in and says nothing.
const SILENT: &str = "
import socket, time
service = socket.create_server(('127.0.0.1', 9000))
open('/tmp/ready', 'w')
visitor = service.accept()
open('/tmp/met', 'w')
time.sleep(1000)
";

/// How long a sandbox is held still, for its processes to notice.
const HELD: Duration = Duration::from_secs(2);

pub(super) struct Sandbox<'s> {
    pub(super) server: &'s Server,
    pub(super) id: String,
    pub(super) token: String,
}

impl<'s> Sandbox<'s> {
    pub(super) fn make(server: &'s Server, more: Value) -> Self {
        Self::of(server, &server.create(more))
    }

    pub(super) fn of(server: &'s Server, made: &Value) -> Self {
        let text = |name: &str| made[name].as_str().unwrap().to_owned();
        Self {
            server,
            id: text("sandboxID"),
            token: text("envdAccessToken"),
        }
    }

    pub(super) fn ask(&self, method: &str, action: &str, body: Option<Value>) -> Reply {
        let version = if action == "/connect" { "/v2" } else { "" };
        let target = format!("{version}/sandboxes/{}{action}", self.id);
        self.server.ask(method, &target, body)
    }

    pub(super) fn state(&self) -> Value {
        self.ask("GET", "", None).expect(200)["state"].clone()
    }

    fn health(&self) -> u16 {
        self.server.health(&self.id).status
    }

    /// A file of it.
    pub(super) fn read(&self, path: &str) -> Reply {
        let target = format!("/files?path={path}&username=user");
        let token = [("x-access-token", self.token.as_str())];
        self.server.reach(&self.id, 49983, &target, &token)
    }

    pub(super) fn write(&self, path: &str, text: &str) {
        let ask = Ask {
            method: "POST",
            target: &format!("/files?path={path}&username=user"),
            headers: vec![
                ("e2b-sandbox-id", self.id.clone()),
                ("e2b-sandbox-port", "49983".to_owned()),
                ("x-access-token", self.token.clone()),
                ("content-type", "application/octet-stream".to_owned()),
            ],
            body: Some(text.as_bytes().to_vec()),
        };
        let written = self.server.send(&ask).unwrap();
        assert_eq!(written.status, 200, "{written:#?}");
    }

    /// Starts a command that nobody waits for.
    pub(super) fn start(&self, command: &str) {
        let command = format!("setsid sh -c '{command}' < /dev/null > /dev/null 2>&1 &");
        let arguments = ["exec", &self.id, "--", "sh", "-c", &command];
        let started = self.server.home.run(arguments);
        assert_eq!(started.code, 0, "{started:#?}");
    }

    pub(super) fn start_ticker(&self) {
        self.write("/tmp/ticker.py", TICKER);
        self.start("exec python3 /tmp/ticker.py");
        eventually("the ticker", || {
            (self.read("/tmp/longest").status == 200).then_some(())
        });
        eventually("its service", || {
            let page = self.server.reach(&self.id, 8000, "/", &[]);
            (page.status == 200).then_some(())
        });
    }

    fn longest_gap(&self) -> Duration {
        let text = self.read("/tmp/longest").body;
        Duration::from_secs_f64(text.trim().parse().unwrap())
    }
}

#[test]
fn a_paused_sandbox_holds_still_and_runs_on_where_it_stood() {
    let server = Server::start(second_home());
    let sandbox = Sandbox::make(&server, json!({"metadata": {"a": "b"}}));
    sandbox.start_ticker();
    let boot = sandbox.read("/proc/sys/kernel/random/boot_id").body;

    sandbox.ask("POST", "/pause", None).expect(204);
    // At once: clients ask right after.
    assert_eq!(sandbox.health(), 502);
    assert_eq!(server.reach(&sandbox.id, 8000, "/", &[]).status, 502);
    let detail = sandbox.ask("GET", "", None).expect(200);
    assert_eq!(detail["state"], "paused");
    assert_eq!(detail["pauseMode"], "full");
    assert_eq!(detail["metadata"], json!({"a": "b"}));
    assert_eq!(detail["envdAccessToken"], sandbox.token);
    assert_eq!(server.listed("?state=paused"), [sandbox.id.as_str()]);
    assert_eq!(server.listed("?state=running"), Vec::<String>::new());
    assert_eq!(server.listed(""), [sandbox.id.as_str()]);

    // What holds still cannot be paused again, has no time, and no network to change.
    sandbox.ask("POST", "/pause", Some(json!({}))).is_error(409);
    let time = Some(json!({"timeout": 60}));
    sandbox.ask("POST", "/timeout", time).is_error(404);
    let network = Some(json!({"allow_internet_access": false}));
    sandbox.ask("PUT", "/network", network).is_error(409);

    std::thread::sleep(HELD);
    let body = Some(json!({"timeout": 120}));
    let connected = sandbox.ask("POST", "/connect", body.clone()).expect(201);
    assert_eq!(connected["envdAccessToken"], sandbox.token);
    assert_eq!(sandbox.state(), "running");
    assert_eq!(sandbox.health(), 204);
    // With its next tick, which may come after this.
    eventually("a gap as long as it was held", || {
        (sandbox.longest_gap() >= HELD).then_some(())
    });
    assert_eq!(server.reach(&sandbox.id, 8000, "/", &[]).status, 200);
    assert_eq!(sandbox.read("/proc/sys/kernel/random/boot_id").body, boot);
    sandbox.ask("POST", "/connect", body).expect(200);
    sandbox.ask("POST", "/resume", None).is_error(409);

    sandbox
        .ask("POST", "/pause", Some(json!({"memory": true})))
        .expect(204);
    sandbox
        .ask("POST", "/resume", Some(json!({"timeout": 60})))
        .expect(201);
    assert_eq!(sandbox.health(), 204);
    let healthy = Some(json!({"requireHealthyGuest": true}));
    sandbox.ask("POST", "/pause", healthy).expect(204);
    sandbox.ask("DELETE", "", None).expect(204);
    assert_eq!(server.leased(), Vec::<String>::new());
}

#[test]
fn whoever_is_there_is_sent_away_and_strangers_pause_nothing() {
    let server = Server::start(second_home());
    let sandbox = Sandbox::make(&server, json!({}));
    let stranger = server.key_of("others");
    let target = format!("/sandboxes/{}/pause", sandbox.id);
    server
        .ask_as(&stranger, "POST", &target, None)
        .is_error(404);
    assert_eq!(sandbox.health(), 204);
    let without_memory = Some(json!({"memory": false}));
    server
        .ask_as(&stranger, "POST", &target, without_memory.clone())
        .is_error(404);
    if tier() == Tier::Gvisor {
        let refused = sandbox.ask("POST", "/pause", without_memory);
        assert_eq!(refused.header("should-retry"), Some("false"));
        let said = refused.is_error(503);
        assert!(said.contains("gvisor"), "{said}");
        let body = json!({"templateID": "base", "autoPause": true, "autoPauseMemory": false});
        let said = server
            .ask("POST", "/v2/sandboxes", Some(body))
            .is_error(400);
        assert!(said.contains("gvisor"), "{said}");
    }

    // A service that says nothing, and a client who waits for it.
    sandbox.write("/tmp/silent.py", SILENT);
    sandbox.start("exec python3 /tmp/silent.py");
    let ask = Ask {
        method: "GET",
        target: "/",
        headers: vec![
            ("e2b-sandbox-id", sandbox.id.clone()),
            ("e2b-sandbox-port", "9000".to_owned()),
        ],
        body: None,
    };
    eventually("the service", || {
        (sandbox.read("/tmp/ready").status == 200).then_some(())
    });
    let mut waiting = server.open(&ask).unwrap();
    eventually("the visit", || {
        (sandbox.read("/tmp/met").status == 200).then_some(())
    });
    sandbox.ask("POST", "/pause", None).expect(204);
    let mut answer = Vec::new();
    let ended = waiting.read_to_end(&mut answer);
    assert!(
        ended.is_err() || !answer.starts_with(b"HTTP/1.1 200"),
        "{answer:?}"
    );
    server
        .ask_as(&stranger, "POST", &target, None)
        .is_error(404);
    let target = format!("/v2/sandboxes/{}/connect", sandbox.id);
    server
        .ask_as(&stranger, "POST", &target, Some(json!({})))
        .is_error(404);
    assert_eq!(sandbox.state(), "paused");
}

#[test]
fn at_the_end_of_its_time_it_is_paused_where_that_was_asked_for() {
    let server = Server::start(second_home());
    let sandbox = Sandbox::make(&server, json!({"autoPause": true, "timeout": 3}));
    let detail = sandbox.ask("GET", "", None).expect(200);
    let expected = json!({"autoResume": false, "onTimeout": "pause"});
    assert_eq!(detail["lifecycle"], expected);
    sandbox.start_ticker();
    eventually("its pause", || (sandbox.state() == "paused").then_some(()));
    // No traffic wakes it up, and its time is not its end.
    assert_eq!(sandbox.health(), 502);
    sandbox
        .ask("POST", "/connect", Some(json!({"timeout": 100})))
        .expect(201);
    assert_eq!(server.reach(&sandbox.id, 8000, "/", &[]).status, 200);
}

#[test]
fn traffic_that_may_come_in_wakes_it_up() {
    let server = Server::start(second_home());
    let sandbox = Sandbox::make(
        &server,
        json!({"autoResume": {"enabled": true}, "network": {"allowPublicTraffic": false}}),
    );
    let detail = sandbox.ask("GET", "", None).expect(200);
    assert_eq!(detail["lifecycle"]["autoResume"], true);
    sandbox.write("/tmp/kept", "kept");
    let pause = || sandbox.ask("POST", "/pause", None).expect(204);

    pause();
    // Nobody who may not come in.
    assert_eq!(server.reach(&sandbox.id, 8000, "/", &[]).status, 403);
    let forged = [("x-access-token", "0".repeat(64))];
    let forged = forged
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()));
    let refused = server.reach(&sandbox.id, 49983, "/files?path=/tmp/kept", &forged);
    assert_eq!(refused.status, 401, "{refused:#?}");
    assert_eq!(sandbox.state(), "paused");
    // Who may: by a token, many at once, by asking how it is.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(sandbox.read("/tmp/kept").body, "kept"));
        }
    });
    assert_eq!(sandbox.state(), "running");
    pause();
    assert_eq!(sandbox.health(), 204);
    pause();
    let traffic = sandbox.ask("POST", "/connect", Some(json!({}))).expect(201);
    let traffic = traffic["trafficAccessToken"].as_str().unwrap().to_owned();
    pause();
    let token = [("e2b-traffic-access-token", traffic.as_str())];
    // Nothing listens there; that it says so takes a sandbox that runs.
    assert_eq!(server.reach(&sandbox.id, 8000, "/", &token).status, 502);
    assert_eq!(sandbox.state(), "running");
}

#[test]
fn a_pause_outlives_servers_and_the_time_that_was_left() {
    let mut server = Server::start(second_home());
    let made = server.create(json!({"timeout": 4}));
    let paused = Sandbox::of(&server, &made);
    paused.write("/tmp/kept", "kept");
    paused.ask("POST", "/pause", None).expect(204);
    let id = paused.id.clone();
    server.crash();
    // Longer than it had: a monitor alone would have ended it.
    std::thread::sleep(Duration::from_secs(5));
    server.start_again();
    let paused = Sandbox::of(&server, &made);
    assert_eq!(paused.state(), "paused");
    assert_eq!(paused.health(), 502);
    paused
        .ask("POST", "/connect", Some(json!({"timeout": 60})))
        .expect(201);
    assert_eq!(paused.read("/tmp/kept").body, "kept");
    paused.ask("POST", "/pause", None).expect(204);
    // What `stop --kill` ends is everything.
    let stopped = server.home.run(["stop", "--kill"]);
    assert_eq!(stopped.code, 0, "{stopped:#?}");
    assert_eq!(server.ended().code, 0);
    assert_eq!(server.leased(), Vec::<String>::new());
    server.start_again();
    server.get(&id).is_error(404);
}

/// Asks it to keep its files and nothing else.
fn without_memory() -> Option<Value> {
    Some(json!({"memory": false}))
}

#[test]
fn without_its_memory_it_boots_again_on_its_files() {
    if tier() == Tier::Gvisor {
        return; // refused there: see `whoever_is_there_is_sent_away_and_strangers_pause_nothing`
    }
    let mut server = Server::start(second_home());
    let made = server.create(json!({
        "envVars": {"COLOUR": "green"}, "metadata": {"a": "b"}, "autoResume": {"enabled": true},
    }));
    let sandbox = Sandbox::of(&server, &made);
    sandbox.write("/home/user/kept", "kept");
    sandbox.write("/tmp/kept", "too");
    sandbox.start_ticker();
    let boot = sandbox.read("/proc/sys/kernel/random/boot_id").body;
    let group = format!("atoll/{}", sandbox.id);
    assert_ne!(processes_of(&group), 0);

    sandbox.ask("POST", "/pause", without_memory()).expect(204);
    assert_eq!(processes_of(&group), 0, "its memory is free");
    // Traffic never wakes up what would boot, whatever it was made with.
    assert_eq!(sandbox.health(), 502);
    assert_eq!(server.reach(&sandbox.id, 8000, "/", &[]).status, 502);
    let detail = sandbox.ask("GET", "", None).expect(200);
    assert_eq!(
        [
            &detail["state"],
            &detail["pauseMode"],
            &detail["metadata"]["a"]
        ],
        [&json!("paused"), &json!("filesystem"), &json!("b")]
    );
    sandbox
        .ask("POST", "/pause", without_memory())
        .is_error(409);

    // It outlives its server, and is the same for whoever kept its token.
    let (id, token) = (sandbox.id.clone(), sandbox.token.clone());
    server.crash();
    server.start_again();
    let sandbox = Sandbox {
        server: &server,
        id,
        token,
    };
    assert_eq!(sandbox.state(), "paused");
    let connected = sandbox
        .ask("POST", "/connect", without_memory())
        .expect(201);
    assert_eq!(connected["envdAccessToken"], sandbox.token);
    assert_eq!(sandbox.read("/home/user/kept").body, "kept");
    assert_eq!(sandbox.read("/tmp/kept").body, "too");
    let now = sandbox.read("/proc/sys/kernel/random/boot_id").body;
    assert_ne!(now, boot);
    assert_eq!(server.reach(&sandbox.id, 8000, "/", &[]).status, 502);
    let asked = [
        "exec",
        &sandbox.id,
        "--",
        "sh",
        "-c",
        "echo $COLOUR $E2B_SANDBOX_ID; id -un; pwd",
    ];
    let said = server.home.run(asked);
    let expected = format!("green {}\nuser\n/home/user\n", sandbox.id);
    assert_eq!(said.stdout, expected, "{said:#?}");
    // Names are resolved, its limits hold, and it can be paused in the other way.
    let asked = ["exec", &sandbox.id, "--", "cat", "/etc/resolv.conf"];
    assert!(server.home.run(asked).stdout.contains("nameserver"));
    sandbox.start_ticker();
    sandbox.ask("POST", "/pause", None).expect(204);
    assert_eq!(
        sandbox.ask("GET", "", None).expect(200)["pauseMode"],
        "full"
    );
    assert_eq!(
        server.reach(&sandbox.id, 8000, "/", &[]).status,
        200,
        "traffic wakes it up"
    );
    assert_eq!(sandbox.read("/proc/sys/kernel/random/boot_id").body, now);
    sandbox
        .ask("POST", "/connect", without_memory())
        .is_error(400);

    // One that is killed while it has no processes leaves nothing.
    sandbox.ask("POST", "/pause", without_memory()).expect(204);
    sandbox.ask("DELETE", "", None).expect(204);
    assert_eq!(server.leased(), Vec::<String>::new());
}

/// Processes in the groups of a sandbox, wherever the host has them.
fn processes_of(group: &str) -> usize {
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory"];
    let lists = roots.map(|root| format!("{root}/{group}/cgroup.procs"));
    let texts = lists
        .iter()
        .filter_map(|list| std::fs::read_to_string(list).ok());
    texts.map(|text| text.lines().count()).sum()
}

#[test]
fn no_write_is_lost_by_pausing_again_and_again() {
    write_and_pause(5);
}

#[test]
#[ignore = "long: 30 cycles"]
fn no_write_is_lost_by_pausing_thirty_times() {
    write_and_pause(30);
}

/// Pauses a sandbox and wakes it up, with something new written before each time.
fn write_and_pause(cycles: usize) {
    let server = Server::start(second_home());
    let sandbox = Sandbox::make(&server, json!({}));
    let mut written = Vec::new();
    for cycle in 0..cycles {
        let path = format!("/home/user/file-{cycle}");
        let text = format!("{cycle} ").repeat(20_000 + cycle);
        sandbox.write(&path, &text);
        written.push((path, text));
        // In turn, where the tier can do both.
        let is_full = cycle % 2 == 0 || tier() == Tier::Gvisor;
        let body = Some(json!({"memory": is_full}));
        sandbox.ask("POST", "/pause", body).expect(204);
        sandbox.ask("POST", "/connect", Some(json!({}))).expect(201);
        for (path, text) in &written {
            assert!(
                sandbox.read(path).body == *text,
                "{path} after cycle {cycle}"
            );
        }
    }
}

#[test]
fn at_the_end_of_its_time_only_files_are_kept_where_that_was_asked_for() {
    if tier() == Tier::Gvisor {
        return;
    }
    let server = Server::start(second_home());
    let wish = json!({"autoPause": true, "autoPauseMemory": false, "timeout": 2});
    let sandbox = Sandbox::make(&server, wish);
    sandbox.write("/home/user/kept", "kept");
    let boot = sandbox.read("/proc/sys/kernel/random/boot_id").body;
    eventually("its pause", || (sandbox.state() == "paused").then_some(()));
    assert_eq!(
        sandbox.ask("GET", "", None).expect(200)["pauseMode"],
        "filesystem"
    );
    sandbox
        .ask("POST", "/connect", Some(json!({"timeout": 100})))
        .expect(201);
    assert_eq!(sandbox.read("/home/user/kept").body, "kept");
    assert_ne!(sandbox.read("/proc/sys/kernel/random/boot_id").body, boot);
}
