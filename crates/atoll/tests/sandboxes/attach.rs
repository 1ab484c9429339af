//! Sandboxes that outlive who made them: found again, told when to end, and
//! never mistaken for those that end with their client.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_engine::{
    AttachError, Attachment, Ended, Limits, MonitoredRuntime, Outcome, RunningSandbox,
    Runtime as _, Sandbox, SandboxError, SandboxId, SandboxRecord, attach, running_sandboxes,
};
use atoll_guest_client::{Command, ProcessEvent};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::harness;
use crate::harness::sandboxes::{LIFETIME, Sandboxes, client, initialise};
use crate::harness::{eventually, leftovers, second_home, tier};

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
        let runtime = MonitoredRuntime::new(self.0.config.clone(), tier());
        runtime.create(&spec).unwrap()
    }

    fn attach(&self, id: &SandboxId) -> Result<Box<dyn Sandbox>, AttachError> {
        attach(self.0.home.path(), id)
    }

    fn ended(&self, id: &SandboxId) -> Ended {
        let directory = self.0.home.path().join("sandboxes");
        eventually("its end is recorded", || {
            let text = fs::read(directory.join(format!("{id}.json"))).ok()?;
            serde_json::from_slice::<SandboxRecord>(&text).ok()?.ended
        })
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

#[tokio::test]
async fn whoever_comes_later_finds_a_detached_sandbox_with_its_processes() {
    let fixture = Fixture::new();
    let first: Arc<dyn Sandbox> = Arc::from(fixture.create(Attachment::Detached, LIFETIME));
    let id = first.id().clone();
    let guest = client(&first, "secret");
    initialise(&guest, "secret", &[]).await;
    let sleeper = Command {
        cmd: "sleep".to_owned(),
        args: vec!["3600".to_owned()],
        ..Command::default()
    };
    let started = guest.start(&sleeper).await.unwrap();
    let pid = started.pid();
    drop((started, guest, first));

    let again: Arc<dyn Sandbox> = Arc::from(fixture.attach(&id).unwrap());
    assert_eq!(again.id(), &id);
    assert!(again.stats().unwrap().memory_bytes > 0);
    let guest = client(&again, "secret");
    let look = Command {
        cmd: "cat".to_owned(),
        args: vec![format!("/proc/{pid}/comm")],
        ..Command::default()
    };
    let mut looking = guest.start(&look).await.unwrap();
    let mut said = Vec::new();
    while let Some(event) = looking.next().await.unwrap() {
        if let ProcessEvent::Stdout(bytes) = event {
            said.extend_from_slice(&bytes);
        }
    }
    assert_eq!(String::from_utf8_lossy(&said), "sleep\n");
    assert_eq!(again.destroy().unwrap(), Outcome::Killed);
    assert!(matches!(fixture.attach(&id), Err(AttachError::Gone)));
    leftovers::assert_none(fixture.0.home.path(), "after it was destroyed");
}

#[test]
fn nothing_else_can_be_attached_to() {
    let fixture = Fixture::new();
    let sandbox = fixture.create(Attachment::Detached, LIFETIME);
    let elsewhere = second_home();
    for (home, id) in [
        (fixture.0.home.path(), SandboxId::random().unwrap()),
        (elsewhere.path(), sandbox.id().clone()),
    ] {
        assert!(matches!(attach(home, &id), Err(AttachError::Gone)), "{id}");
    }
    assert_eq!(running_sandboxes(elsewhere.path()).unwrap(), []);
    // The same question with the right home is answered.
    fixture.attach(sandbox.id()).unwrap();
    sandbox.destroy().unwrap();
}

#[test]
fn what_runs_is_listed_with_its_bond() {
    let fixture = Fixture::new();
    let bound = fixture.create(Attachment::Client, LIFETIME);
    let detached = fixture.create(Attachment::Detached, LIFETIME);
    let mut listed = running_sandboxes(fixture.0.home.path()).unwrap();
    listed.sort_by(|left, right| left.id.cmp(&right.id));
    let mut expected = [
        (&bound, Attachment::Client),
        (&detached, Attachment::Detached),
    ]
    .map(|(sandbox, attachment)| RunningSandbox {
        id: sandbox.id().clone(),
        tier: tier(),
        attachment,
    });
    expected.sort_by(|left, right| left.id.cmp(&right.id));
    assert_eq!(listed, expected);
    let id = bound.id().clone();
    // Who only attached holds nothing: the bond is to the one who made it.
    let attached = fixture.attach(&id).unwrap();
    drop(bound);
    assert_eq!(fixture.ended(&id).outcome, Outcome::ClientGone);
    assert!(matches!(attached.stats(), Err(SandboxError::Gone)));
    detached.destroy().unwrap();
}

#[test]
fn a_new_end_counts_from_now_with_nobody_there() {
    let fixture = Fixture::new();
    let sandbox = fixture.create(Attachment::Detached, LIFETIME);
    let id = sandbox.id().clone();
    let left = Duration::from_millis(500);
    let asked_ms = now_ms();
    sandbox.end_after(left).unwrap();
    let done_ms = now_ms();
    drop(sandbox);
    let ended = fixture.ended(&id);
    assert!(
        matches!(ended.outcome, Outcome::LifetimeEnded { .. }),
        "{ended:?}"
    );
    assert!(ended.at_ms >= asked_ms + 500, "ended early: {ended:?}");
    println!(
        "written down {} ms after the end of its lifetime",
        ended.at_ms.saturating_sub(done_ms + 500)
    );
    leftovers::assert_none(fixture.0.home.path(), "after its lifetime");
}

#[test]
fn a_later_end_takes_the_place_of_an_earlier_one() {
    let fixture = Fixture::new();
    let sandbox = fixture.create(Attachment::Detached, Duration::from_secs(2));
    sandbox.end_after(LIFETIME).unwrap();
    assert_eq!(sandbox.wait(Duration::from_secs(3)).unwrap(), None);
    sandbox.end_after(Duration::ZERO).unwrap();
    let ended = sandbox.wait(*harness::BOUND).unwrap().unwrap();
    assert!(matches!(ended, Outcome::LifetimeEnded { .. }), "{ended:?}");
    assert!(matches!(
        sandbox.end_after(LIFETIME),
        Err(SandboxError::Gone)
    ));
    // Collects the monitor.
    assert!(matches!(sandbox.destroy(), Err(SandboxError::Gone)));
}

#[test]
fn the_end_can_be_waited_for_without_a_thread() {
    let fixture = Fixture::new();
    let made = fixture.create(Attachment::Detached, LIFETIME);
    let sandbox = fixture.attach(made.id()).unwrap();
    let signal = sandbox.end_signal().unwrap();
    let is_readable = |bound: Duration| {
        let bound = Timespec::try_from(bound).unwrap();
        poll(&mut [PollFd::new(&signal, PollFlags::IN)], Some(&bound)).unwrap() == 1
    };
    assert!(!is_readable(Duration::ZERO));
    sandbox.end_after(Duration::ZERO).unwrap();
    assert!(is_readable(*harness::BOUND));
    let ended = sandbox.wait(*harness::BOUND).unwrap().unwrap();
    assert!(matches!(ended, Outcome::LifetimeEnded { .. }), "{ended:?}");
    assert!(matches!(made.destroy(), Err(SandboxError::Gone)));
}
