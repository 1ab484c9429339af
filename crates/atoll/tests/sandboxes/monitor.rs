//! The monitor beside each sandbox: it enforces the lifetime, records the end
//! and cleans up with nobody else running.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use atoll_engine::{
    Attachment, Limits, MonitoredRuntime, Outcome, Runtime as _, Sandbox, SandboxError, SandboxId,
    SandboxRecord, Tier,
};

use crate::harness;
use crate::harness::sandboxes::{LIFETIME, Sandboxes};
use crate::harness::{eventually, init_of, leftovers};

struct Fixture(Sandboxes);

impl Fixture {
    fn new() -> Self {
        Self(Sandboxes::new())
    }

    fn create(&self, attachment: Attachment, lifetime: Duration) -> Box<dyn Sandbox> {
        let limits = Limits {
            disk_mib: 64,
            ..Limits::default()
        };
        let spec = self.0.spec(attachment, lifetime, limits);
        let runtime = MonitoredRuntime::new(self.0.config.clone(), harness::tier());
        runtime.create(&spec).unwrap()
    }

    /// Waits until the end of `id` is on record.
    fn ending(&self, id: &SandboxId) -> Outcome {
        let path = self
            .0
            .home
            .path()
            .join("sandboxes")
            .join(format!("{id}.json"));
        eventually("its end is recorded", || {
            let record: SandboxRecord = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
            Some(record.ended?.outcome)
        })
    }
}

/// The slot of a sandbox and its lease.
fn lease(id: &SandboxId) -> (PathBuf, serde_json::Value) {
    fs::read_dir("/run/atoll/slots")
        .unwrap()
        .flatten()
        .find_map(|entry| {
            let text = fs::read(entry.path().join("lease.json")).ok()?;
            let lease: serde_json::Value = serde_json::from_slice(&text).ok()?;
            (lease["sandbox"] == id.as_str()).then(|| (entry.path(), lease))
        })
        .expect("the sandbox has a lease")
}

fn kill(pid: i64) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

fn monitor_of(id: &SandboxId) -> i64 {
    lease(id).1["owner"]["pid"].as_i64().unwrap()
}

#[test]
fn a_lifetime_ends_a_sandbox_that_nobody_watches() {
    let fixture = Fixture::new();
    let sandbox = fixture.create(Attachment::Detached, Duration::from_millis(700));
    let id = sandbox.id().clone();
    drop(sandbox);
    assert_eq!(
        fixture.ending(&id),
        Outcome::LifetimeEnded { limit_ms: 700 }
    );
    leftovers::assert_none(fixture.0.home.path(), "after its lifetime");
}

#[test]
fn a_sandbox_bound_to_its_client_ends_with_it_and_a_detached_one_does_not() {
    let fixture = Fixture::new();
    let bound = fixture.create(Attachment::Client, LIFETIME);
    let detached = fixture.create(Attachment::Detached, LIFETIME);
    let (bound_id, detached_id) = (bound.id().clone(), detached.id().clone());
    drop(bound);
    assert_eq!(fixture.ending(&bound_id), Outcome::ClientGone);
    assert_eq!(detached.wait(Duration::from_millis(1)).unwrap(), None);
    assert_eq!(detached.destroy().unwrap(), Outcome::Killed);
    assert_eq!(fixture.ending(&detached_id), Outcome::Killed);
    assert!(matches!(detached.stats(), Err(SandboxError::Gone)));
    leftovers::assert_none(fixture.0.home.path(), "after both");
}

#[test]
fn a_killed_monitor_takes_its_sandbox_along_and_the_next_start_records_it() {
    let fixture = Fixture::new();
    let sandbox = fixture.create(Attachment::Detached, LIFETIME);
    let id = sandbox.id().clone();
    let init = init_of(id.as_str());
    kill(monitor_of(&id));
    eventually("the kernel ends the sandbox", || {
        let stat = fs::read_to_string(format!("/proc/{init}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
    assert_eq!(fixture.0.home.run(["template", "list"]).code, 0);
    assert_eq!(
        fixture.ending(&id),
        Outcome::Crashed {
            detail: "its monitor was killed".to_owned()
        }
    );
    assert!(matches!(sandbox.destroy(), Err(SandboxError::Gone)));
    leftovers::assert_none(fixture.0.home.path(), "after the monitor was killed");
}

#[test]
fn every_command_of_this_host_removes_what_a_killed_monitor_left() {
    let fixture = Fixture::new();
    let elsewhere = harness::TestHome::empty();
    let abandoned = || {
        let sandbox = fixture.create(Attachment::Detached, LIFETIME);
        let id = sandbox.id().clone();
        let monitor = monitor_of(&id);
        kill(monitor);
        eventually("the monitor is gone", || {
            let stat = fs::read_to_string(format!("/proc/{monitor}/stat")).unwrap_or_default();
            (stat.is_empty() || stat.contains(") Z ")).then_some(())
        });
        id
    };
    let slot_of = |id: &SandboxId| {
        let slots = fs::read_dir("/run/atoll/slots").unwrap().flatten();
        slots
            .map(|entry| entry.path().join("lease.json"))
            .find(|lease| fs::read_to_string(lease).is_ok_and(|text| text.contains(id.as_str())))
    };
    for command in [
        &["tools"][..],
        &["env"],
        &["stop"],
        &["ca"],
        &["key", "list"],
        &["template", "list"],
        &["completions", "bash"],
        &["gc"],
    ] {
        let id = abandoned();
        // Some of them find no server in this home, and have cleaned up before.
        elsewhere.run(command);
        // A command of another test may have been first, and is about to.
        eventually("its slot is free", || slot_of(&id).is_none().then_some(()));
        assert_eq!(
            fixture.ending(&id),
            Outcome::Crashed {
                detail: "its monitor was killed".to_owned()
            },
            "{command:?}"
        );
    }
    leftovers::assert_none(fixture.0.home.path(), "after all of them");
}

#[test]
fn a_killed_guest_is_a_crash_that_says_so() {
    let fixture = Fixture::new();
    let sandbox = fixture.create(Attachment::Client, LIFETIME);
    kill(i64::from(init_of(sandbox.id().as_str())));
    let expected = Outcome::Crashed {
        detail: "PID 1 was ended by signal 9".to_owned(),
    };
    assert_eq!(fixture.ending(sandbox.id()), expected);
    assert!(sandbox.dial(49983).is_err());
    leftovers::assert_none(fixture.0.home.path(), "after the guest was killed");
}

#[test]
fn a_frozen_sandbox_stands_still_answers_nothing_and_can_still_be_destroyed() {
    let fixture = Fixture::new();
    let sandbox = fixture.create(Attachment::Client, LIFETIME);
    let ask_health = |bound| {
        // A sandbox with a network stack of its own does not even take the call.
        let mut stream = sandbox.dial(49983)?;
        stream.set_read_timeout(Some(bound)).unwrap();
        stream
            .write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .unwrap();
        let mut answer = [0_u8; 12];
        stream
            .read_exact(&mut answer)
            .map(|()| String::from_utf8_lossy(&answer).into_owned())
    };
    eventually("the guest listens", || sandbox.dial(49983).ok());
    // An answer may take its time where processors are busy; that none comes is seen sooner.
    let (patient, brief) = (Duration::from_secs(20), Duration::from_millis(300));
    assert_eq!(ask_health(patient).unwrap(), "HTTP/1.1 204");
    sandbox.freeze().unwrap();
    let before = sandbox.stats().unwrap().cpu_usec;
    assert!(ask_health(brief).is_err());
    assert_eq!(sandbox.stats().unwrap().cpu_usec, before);
    sandbox.thaw().unwrap();
    assert_eq!(ask_health(patient).unwrap(), "HTTP/1.1 204");
    sandbox.freeze().unwrap();
    assert_eq!(sandbox.destroy().unwrap(), Outcome::Killed);
    leftovers::assert_none(fixture.0.home.path(), "after it was destroyed frozen");
}

#[test]
fn a_halted_sandbox_shows_what_changed_over_its_layers() {
    let fixture = Fixture::new();
    let sandbox = fixture.create(Attachment::Client, LIFETIME);
    if harness::tier() == Tier::Gvisor {
        // Its changes are in a file of gVisor's own.
        let refused = sandbox.halt().unwrap_err();
        assert!(
            matches!(
                refused,
                SandboxError::Unsupported {
                    tier: Tier::Gvisor,
                    ..
                }
            ),
            "{refused:?}"
        );
        assert_eq!(sandbox.destroy().unwrap(), Outcome::Killed);
        return;
    }
    let init = init_of(sandbox.id().as_str());
    fs::write(format!("/proc/{init}/root/srv/made"), "here").unwrap();
    let changes = sandbox.halt().unwrap();
    assert_eq!(
        fs::read_to_string(changes.join("srv/made")).unwrap(),
        "here"
    );
    assert!(!Path::new(&format!("/proc/{init}/root/srv")).exists());
    assert_eq!(sandbox.destroy().unwrap(), Outcome::Killed);
    leftovers::assert_none(fixture.0.home.path(), "after it was halted");
}

#[test]
fn the_control_socket_survives_garbage_silence_and_floods() {
    let fixture = Fixture::new();
    let sandbox = fixture.create(Attachment::Client, LIFETIME);
    let control = lease(sandbox.id()).0.join("control.sock");
    for garbage in [
        &b"not json\n"[..],
        b"\xff\xfe\n",
        b"{\"destroy\":",
        b"\"no such question\"\n",
    ] {
        let mut stream = UnixStream::connect(&control).unwrap();
        stream.write_all(garbage).unwrap();
        drop(stream);
    }
    let mut endless = UnixStream::connect(&control).unwrap();
    endless
        .set_write_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    while endless.write(&[b'x'; 65536]).is_ok() {}
    let silent: Vec<_> = (0..3)
        .map(|_| UnixStream::connect(&control).unwrap())
        .collect();
    assert!(sandbox.stats().unwrap().memory_bytes > 0);
    drop(silent);
    assert_eq!(sandbox.destroy().unwrap(), Outcome::Killed);
}
