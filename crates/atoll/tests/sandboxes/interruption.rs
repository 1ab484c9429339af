//! However a client ends, its sandbox goes with it.

use std::path::Path;

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{self, Finished, Running, TestHome, second_home};

/// A program that is busy in every way: a child, a daemon, and open input.
const BUSY: &str = "sleep 1000 & setsid -f sleep 1001; echo started; cat";

fn start(home: &TestHome, network: &str) -> Running {
    let mut running = home
        .atoll(["run", "--net", network, "--lang", "bash", "-c", BUSY])
        .start();
    running.wait_for("started\n");
    assert_eq!(home.leases().len(), 1);
    running
}

#[test]
fn ctrl_c_ends_with_130_and_leaves_nothing() {
    let home = second_home();
    for network in ["none", "full"] {
        let running = start(&home, network);
        running.signal_group(Signal::INT);
        assert_eq!(
            running.finish(),
            Finished::with_code(130, "started\n"),
            "{network}"
        );
        // Not only soon: when the command has ended, all is gone.
        assert_eq!(home.leases(), Vec::<serde_json::Value>::new());
    }
    home.assert_nothing_left("after Ctrl-C");
    assert_eq!(
        home.endings(),
        [json!({"kind": "killed"}), json!({"kind": "killed"})]
    );
}

#[test]
fn sigterm_ends_with_143_and_leaves_nothing() {
    let home = second_home();
    let running = start(&home, "none");
    running.signal(Signal::TERM);
    assert_eq!(running.finish(), Finished::with_code(143, "started\n"));
    assert_eq!(home.leases(), Vec::<serde_json::Value>::new());
    home.assert_nothing_left("after SIGTERM");
    assert_eq!(home.endings(), [json!({"kind": "killed"})]);
}

#[test]
fn the_monitor_removes_the_sandbox_of_a_client_that_was_killed() {
    let home = second_home();
    for network in ["none", "full"] {
        let running = start(&home, network);
        running.signal_group(Signal::KILL);
        assert_eq!(running.finish().code, -9);
        home.assert_nothing_left("after SIGKILL of the client");
    }
    assert_eq!(
        home.endings(),
        [
            json!({"kind": "client_gone"}),
            json!({"kind": "client_gone"})
        ]
    );
}

#[test]
fn a_sandbox_whose_monitor_was_killed_ends_and_the_next_run_removes_it() {
    let home = second_home();
    let running = start(&home, "none");
    let monitor = home.lease()["owner"]["pid"].as_i64().unwrap();
    let monitor = rustix::process::Pid::from_raw(i32::try_from(monitor).unwrap()).unwrap();
    rustix::process::kill_process(monitor, Signal::KILL).unwrap();
    let finished = running.finish();
    assert_eq!(
        (finished.code, finished.stdout.as_str()),
        (125, "started\n"),
        "{finished:#?}"
    );
    assert_eq!(home.python("print(6*7)"), Finished::printed("42\n"));
    home.assert_nothing_left("after SIGKILL of the monitor");
}

#[test]
fn an_interrupted_start_leaves_nothing() {
    let home = second_home();
    // From before the first host object up to a running program.
    for bound in [
        "0.001", "0.02", "0.04", "0.06", "0.08", "0.1", "0.13", "0.16",
    ] {
        let finished = home
            .atoll(["run", "--lang", "bash", "-c", "cat"])
            .through(["timeout", "--signal=INT", bound])
            .start()
            .finish();
        // It may have been too early for our handler, or too late to be noticed.
        let known = [124, 0];
        assert!(known.contains(&finished.code), "{bound}: {finished:#?}");
        home.assert_nothing_left(bound);
    }
}

#[test]
fn a_reader_that_goes_away_ends_the_run() {
    let home = second_home();
    let atoll = harness::binary();
    let script = format!("'{}' run --lang bash -c 'yes' | head -n 1", atoll.display());
    let finished = home
        .atoll(["-c", &script])
        .instead(Path::new("/bin/sh"))
        .finish();
    assert_eq!(
        (finished.code, finished.stdout.as_str()),
        (0, "y\n"),
        "{finished:#?}"
    );
    home.assert_nothing_left("after the reader went away");
}
