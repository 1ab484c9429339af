//! The network of real sandboxes: package managers on the host's own network,
//! policies and counters on a host made for the purpose.
//!
//! That host is a network namespace of the test's thread, which everything it
//! starts inherits; a second one behind it plays the internet. So the host's
//! real network is not touched, and what is open or closed is decided by nobody else.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::Command;
use std::sync::Arc;
use std::thread;

use atoll_engine::{
    Attachment, Denial, Limits, MonitoredRuntime, NetworkPolicy, Runtime as _, Sandbox,
    SandboxError, Tier,
};
use atoll_guest_client::ProcessEvent;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::harness;
use crate::harness::sandboxes::{LIFETIME, Sandboxes, client, initialise};
use crate::harness::{TestHome, home_for_builds, second_home};

/// An open address of the made-up internet, one more, and a private one.
const SERVER: &str = "198.51.100.7";
const OTHER: &str = "198.51.101.7";
const PRIVATE: &str = "10.1.2.3";

fn new_network() -> File {
    // SAFETY: only the network namespace of this thread changes.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
    File::open("/proc/thread-self/ns/net").unwrap()
}

fn enter(network: &File) {
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}

/// Runs a line of shell in the thread's network namespace.
fn shell(line: &str) {
    let output = Command::new("sh").args(["-ec", line]).output().unwrap();
    assert!(
        output.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Runs `test` on a host of its own with an internet in which `SERVER`, `OTHER`
/// and `PRIVATE` answer on TCP port 8080 with a line that names the peer.
fn on_own_host(test: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let ended = scope
            .spawn(|| {
                let internet = new_network();
                let far = format!("/proc/{}/fd/{}", std::process::id(), internet.as_raw_fd());
                let host = new_network();
                shell(&format!(
                    "ip link set lo up
                    ip link add up0 type veth peer name eth0 netns {far}
                    ip addr add 203.0.113.1/24 dev up0; ip link set up0 up
                    ip route add default via 203.0.113.2"
                ));
                enter(&internet);
                shell(&format!(
                    "ip link set lo up; ip addr add 203.0.113.2/24 dev eth0; ip link set eth0 up
                    for address in {SERVER} {OTHER} {PRIVATE}; do ip addr add $address/32 dev eth0; done
                    ip route add default via 203.0.113.1"
                ));
                let listener = TcpListener::bind("0.0.0.0:8080").unwrap();
                enter(&host);
                thread::spawn(move || {
                    use std::io::Write as _;
                    while let Ok((mut stream, peer)) = listener.accept() {
                        let _ = writeln!(stream, "hello {}", peer.ip());
                    }
                });
                test();
            })
            .join();
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
    });
}

/// A program that says for each of its arguments what a connection to it gives.
const PROBE: &str = r#"
import errno, socket, sys
for target in sys.argv[1:]:
    try:
        with socket.create_connection((target, 8080), timeout=1) as stream:
            print(target, stream.getsockname()[0], stream.makefile().readline().strip())
    except TimeoutError:
        print(target, "silence")
    except OSError as error:
        print(target, errno.errorcode[error.errno])
"#;

fn probe(home: &TestHome, options: &[&str], targets: &[&str]) -> serde_json::Value {
    let program = home.file("probe.py", PROBE);
    let mut arguments = vec!["--disk", "64M"];
    arguments.extend(options);
    arguments.push(program.to_str().unwrap());
    arguments.extend(targets);
    let report = home.run_json(&arguments);
    assert_eq!(report["exit_code"], 0, "{report:#}");
    report
}

#[test]
fn lists_are_in_force_and_everything_is_counted() {
    on_own_host(|| {
        let home = second_home();
        let targets = [
            SERVER,
            OTHER,
            PRIVATE,
            "10.66051",
            "0x0a.1.2.3",
            "::ffff:10.1.2.3",
        ];
        let open = probe(&home, &["--net", "full"], &targets);
        let answer = "169.254.0.21 hello 203.0.113.1";
        let closed =
            "10.1.2.3 silence\n10.66051 silence\n0x0a.1.2.3 silence\n::ffff:10.1.2.3 silence\n";
        assert_eq!(
            open["stdout"],
            format!("{SERVER} {answer}\n{OTHER} {answer}\n{closed}")
        );
        let counted = &open["usage"]["network"];
        assert!(
            counted["sent"]["bytes"].as_u64().unwrap() > 100,
            "{counted}"
        );
        assert!(
            counted["received"]["packets"].as_u64().unwrap() >= 4,
            "{counted}"
        );
        assert!(
            counted["denied"]["closed_range"]["packets"]
                .as_u64()
                .unwrap()
                >= 4
        );
        assert_eq!(counted["denied"].as_object().unwrap().len(), 1, "{counted}");

        let options = [
            "--net",
            "full",
            "--net-deny",
            "0.0.0.0/0",
            "--net-allow",
            SERVER,
        ];
        let only = probe(&home, &options, &[SERVER, OTHER]);
        assert_eq!(
            only["stdout"],
            format!("{SERVER} {answer}\n{OTHER} silence\n")
        );
        let denied = &only["usage"]["network"]["denied"];
        assert!(
            denied["policy"]["packets"].as_u64().unwrap() > 0,
            "{denied}"
        );

        // The record keeps the last word.
        let id = only["sandbox_id"].as_str().unwrap();
        let record = fs::read(home.path().join(format!("sandboxes/{id}.json"))).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        assert_eq!(
            record["network"],
            serde_json::json!({"mode": "full", "allow": ["198.51.100.7/32"], "deny": ["0.0.0.0/0"]})
        );
        let kept = &record["ended"]["network"];
        assert_eq!(kept["denied"]["policy"], denied["policy"], "{record:#}");

        let without = probe(&home, &[], &[SERVER]);
        assert_eq!(without["stdout"], no_way());
        assert_eq!(without["usage"]["network"], serde_json::Value::Null);
    });
}

/// What a sandbox without a network finds; gVisor has a link to its host alone.
fn no_way() -> String {
    let error = match harness::tier() {
        Tier::Gvisor => "EHOSTUNREACH",
        _ => "ENETUNREACH",
    };
    format!("{SERVER} {error}\n")
}

#[test]
fn defaults_come_from_the_configuration_and_the_command_line_beats_them() {
    on_own_host(|| {
        let home = second_home();
        let settings = format!("network = \"full\"\nnetwork_deny = [\"{OTHER}\"]\n");
        fs::write(home.path().join("config.toml"), settings).unwrap();
        let answer = "169.254.0.21 hello 203.0.113.1";
        let configured = probe(&home, &[], &[SERVER, OTHER]);
        assert_eq!(
            configured["stdout"],
            format!("{SERVER} {answer}\n{OTHER} silence\n")
        );
        let other_list = probe(&home, &["--net-deny", SERVER], &[SERVER, OTHER]);
        assert_eq!(
            other_list["stdout"],
            format!("{SERVER} silence\n{OTHER} {answer}\n")
        );
        let none = probe(&home, &["--net", "none"], &[SERVER]);
        assert_eq!(none["stdout"], no_way());
    });
}

#[test]
fn lists_that_cannot_be_are_refused_before_anything_is_made() {
    let home = second_home();
    for (options, what, status) in [
        (
            vec!["--net", "full", "--net-allow", "example.org"],
            "domains are not supported yet",
            2,
        ),
        (
            vec!["--net", "full", "--net-allow", "10.0.0.5"],
            "lies in 10.0.0.0/8",
            125,
        ),
        (
            vec!["--net", "full", "--net-deny", "10.0.0.0/40"],
            "longer than",
            2,
        ),
        (vec!["--net-deny", "192.0.2.1"], "hint: add --net full", 125),
        (
            vec!["--net", "none", "--net-allow", "192.0.2.1"],
            "hint: add --net full",
            125,
        ),
    ] {
        let mut arguments = vec!["run", "-l", "bash", "-c", "true"];
        arguments.extend(&options);
        let finished = home.run(&arguments);
        assert_eq!(finished.code, status, "{options:?}: {finished:#?}");
        assert!(finished.stderr.contains(what), "{options:?}: {finished:#?}");
    }
    assert_eq!(home.endings().len(), 0);
}

/// Runs [`PROBE`] in a sandbox that lives on.
async fn ask_inside(sandbox: &Arc<dyn Sandbox>, target: &str) -> String {
    let guest = client(sandbox, "token");
    initialise(&guest, "token", &[]).await;
    let command = atoll_guest_client::Command {
        cmd: "python3".to_owned(),
        args: vec!["-c".to_owned(), PROBE.to_owned(), target.to_owned()],
        ..atoll_guest_client::Command::default()
    };
    let mut process = guest.start(&command).await.unwrap();
    let mut text = String::new();
    while let Some(event) = process.next().await.unwrap() {
        match event {
            ProcessEvent::Stdout(bytes) => text.push_str(&String::from_utf8_lossy(&bytes)),
            ProcessEvent::End(_) => break,
            _ => {}
        }
    }
    text
}

#[test]
fn what_a_sandbox_can_reach_is_changed_while_it_runs() {
    on_own_host(|| {
        let sandboxes = Sandboxes::new();
        let limits = Limits {
            disk_mib: 64,
            ..Limits::default()
        };
        let mut spec = sandboxes.spec(Attachment::Client, LIFETIME, limits.clone());
        spec.network = NetworkPolicy::full();
        let runtime = MonitoredRuntime::new(sandboxes.config.clone(), harness::tier());
        let sandbox: Arc<dyn Sandbox> = Arc::from(runtime.create(&spec).unwrap());
        let inside = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let answer = format!("{SERVER} 169.254.0.21 hello 203.0.113.1\n");
        assert_eq!(inside.block_on(ask_inside(&sandbox, SERVER)), answer);

        let deny = NetworkPolicy::Full {
            allow: Vec::new(),
            deny: vec!["198.51.100.0/24".parse().unwrap()],
        };
        for closed in [deny, NetworkPolicy::None] {
            sandbox.set_network(&closed).unwrap();
            let silence = format!("{SERVER} silence\n");
            assert_eq!(inside.block_on(ask_inside(&sandbox, SERVER)), silence);
        }
        let denied = sandbox.stats().unwrap().network.unwrap().denied;
        assert!(denied[&Denial::Policy].packets >= 2, "{denied:?}");
        sandbox.set_network(&NetworkPolicy::full()).unwrap();
        assert_eq!(inside.block_on(ask_inside(&sandbox, SERVER)), answer);

        let closed = NetworkPolicy::Full {
            allow: vec!["10.0.0.1".parse().unwrap()],
            deny: Vec::new(),
        };
        assert!(matches!(
            sandbox.set_network(&closed),
            Err(SandboxError::Failed(text)) if text.contains("closed to every sandbox")
        ));
        sandbox.destroy().unwrap();

        let without = sandboxes.create(limits);
        without.set_network(&NetworkPolicy::None).unwrap();
        assert!(matches!(
            without.set_network(&NetworkPolicy::full()),
            Err(SandboxError::Failed(text)) if text.contains("made without a network")
        ));
        without.destroy().unwrap();
    });
}

fn network_check(home: &TestHome) -> serde_json::Value {
    let finished = home.run(["doctor", "--json"]);
    let checks = finished.json();
    let found = checks.as_array().unwrap().iter();
    let mut found = found.filter(|check| check["name"] == "network");
    found.next().unwrap().clone()
}

#[test]
fn doctor_tries_the_way_out_and_names_what_blocks_it() {
    on_own_host(|| {
        let home = second_home();
        let check = network_check(&home);
        assert_eq!(check["verdict"], "ok", "{check}");
        assert!(
            check["detail"].as_str().unwrap().contains("left this host"),
            "{check}"
        );
        shell(
            "nft 'add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }'",
        );
        let check = network_check(&home);
        assert_eq!(check["verdict"], "warning", "{check}");
        assert!(
            check["detail"]
                .as_str()
                .unwrap()
                .contains("`ip filter FORWARD`"),
            "{check}"
        );
        assert!(check["fix"].as_str().unwrap().contains("Docker"), "{check}");
        // The advice works.
        shell(
            "nft 'add rule ip filter FORWARD iifname \"atl*\" accept; add rule ip filter FORWARD oifname \"atl*\" accept'",
        );
        assert_eq!(network_check(&home)["verdict"], "ok");
    });
}

/// On the host's own network: what a user does first.
#[test]
fn pip_npm_and_apt_work_inside() {
    let home = second_home();
    let program = "set -e
pip download --quiet --no-deps --dest /tmp/wheels six && ls /tmp/wheels
cd /tmp && npm install --silent --no-audit --no-fund left-pad@1.3.0 >/dev/null && ls node_modules
sudo apt-get -qq update && apt-cache policy hello | grep -c Candidate
";
    let mut arguments = vec!["--net", "full", "--lang", "bash", "-c", program];
    // The mirrors that the operator of this host uses.
    for name in ["PIP_INDEX_URL", "npm_config_registry"] {
        if std::env::var_os(name).is_some() {
            arguments.extend(["--env", name]);
        }
    }
    let report = home.run_json(&arguments);
    assert_eq!(report["exit_code"], 0, "{report:#}");
    let text = report["stdout"].as_str().unwrap();
    assert!(
        text.contains("six-") && text.contains("left-pad") && text.ends_with("1\n"),
        "{text}"
    );
    let counted = &report["usage"]["network"];
    assert!(
        counted["received"]["bytes"].as_u64().unwrap() > 100_000,
        "{counted}"
    );
    assert!(counted["dns"]["packets"].as_u64().unwrap() > 0, "{counted}");
}

#[test]
fn gc_removes_interfaces_that_nobody_leases_and_nothing_else() {
    on_own_host(|| {
        let home = home_for_builds();
        let program = home.file("wait.sh", "echo ready; cat; grep -o eth0 /proc/net/dev");
        let program = program.to_str().unwrap();
        let mut running = home
            .atoll(["run", "--net", "full", "--disk", "64M", program])
            .start();
        running.wait_for("ready");
        shell(
            "ip link add atl65000 type veth peer name other0
            ip link add atl65001 type bridge",
        );
        let interfaces = || {
            let shown = Command::new("ip").args(["-o", "link"]).output().unwrap();
            let shown = String::from_utf8(shown.stdout).unwrap();
            let names = shown
                .lines()
                .filter_map(|line| line.split([' ', '@', ':']).nth(2));
            let names = names.filter(|name| name.starts_with("atl"));
            names.map(str::to_owned).collect::<Vec<_>>()
        };
        let before = interfaces();
        assert_eq!(before.len(), 3, "{before:?}");

        let gc = |options: &[&str]| home.atoll(["gc", "--json"]).and(options).finish().json();
        assert_eq!(gc(&["--dry-run"])["interfaces"], 1);
        assert_eq!(interfaces(), before, "a preview removes nothing");
        assert_eq!(gc(&[])["interfaces"], 1);
        let kept: Vec<_> = before
            .into_iter()
            .filter(|name| name != "atl65000")
            .collect();
        assert_eq!(
            interfaces(),
            kept,
            "that of the sandbox, and one that is no veth"
        );
        assert_eq!(gc(&[])["interfaces"], 0);
        let finished = running.finish();
        assert_eq!(finished.stdout, "ready\neth0\n", "{finished:#?}");
    });
}
