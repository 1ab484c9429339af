//! A process that writes is killed again and again. What it was told is
//! stored must be there afterwards, and of what it was not told, all or nothing.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use atoll_store::db::{
    Change, Created, Database, Earlier, Idempotency, NodeId, SandboxQuery, SandboxState, TenantId,
};

use crate::fixture::{Fixture, NOW, new_sandbox};

/// Tells this program that it is the writer: database, home, file for what is done.
const VARIABLES: [&str; 3] = [
    "ATOLL_WRITER_DATABASE",
    "ATOLL_WRITER_HOME",
    "ATOLL_WRITER_DONE",
];

/// Times that the writer is killed.
const KILLS: usize = 12;

/// How long a writer may take to come up on a machine that is busy.
const BOUND: Duration = Duration::from_secs(60);

fn asked(id: &str) -> Idempotency {
    Idempotency {
        key: format!("for-{id}"),
        request_digest: "d".to_owned(),
        not_before_ms: 0,
    }
}

/// Creates, starts and every second time ends sandboxes until `last`, and
/// says so after each.
async fn write(location: &str, home: &Path, done: &Path, last: usize) {
    let node = NodeId::of_home(home).unwrap();
    let database = Database::open(&location.parse().unwrap(), node)
        .await
        .unwrap();
    let tenant = database.ensure_tenant("a", NOW).await.unwrap().tenant_id;
    let fence = database.begin_epoch(NOW).await.unwrap();
    let mut done = File::options()
        .append(true)
        .create(true)
        .open(done)
        .unwrap();
    for number in 0..last {
        let id = format!("i{}x{number}", fence.epoch());
        let new = new_sandbox(tenant, &id);
        let created = database
            .create_sandbox(&fence, &new, Some(&asked(&id)))
            .await;
        let Ok(Created::New(row)) = created else {
            panic!("{created:?}");
        };
        writeln!(done, "created {id}").unwrap();
        let running = Change {
            state: Some(SandboxState::Running),
            intent: Some(None),
            ..Change::default()
        };
        let changed = database.change_sandbox(&fence, &id, row.expected(), &running);
        let row = changed.await.unwrap();
        writeln!(done, "running {id}").unwrap();
        if number % 2 == 1 {
            let buried = database.bury_sandbox(&fence, &id, row.expected(), NOW, "{}", &[]);
            buried.await.unwrap();
            writeln!(done, "buried {id}").unwrap();
        }
    }
}

/// Alone it is a test of the writer; with its variables, it is the writer.
#[tokio::test]
async fn a_writer_writes_what_it_says() {
    let [database, home, done] = VARIABLES.map(std::env::var_os);
    if let (Some(database), Some(home), Some(done)) = (database, home, done) {
        let (home, done) = (PathBuf::from(home), PathBuf::from(done));
        write(database.to_str().unwrap(), &home, &done, usize::MAX).await;
    }
    let home = tempfile::tempdir().unwrap();
    let location = home.path().join("atoll.db").to_str().unwrap().to_owned();
    let done = home.path().join("done");
    write(&location, home.path(), &done, 3).await;
    let expected = "created i1x0\nrunning i1x0\ncreated i1x1\nrunning i1x1\nburied i1x1\ncreated i1x2\nrunning i1x2\n";
    assert_eq!(fs::read_to_string(&done).unwrap(), expected);
    let node = NodeId::of_home(home.path()).unwrap();
    let database = Database::open(&location.parse().unwrap(), node)
        .await
        .unwrap();
    assert_eq!(compare(&database, &done).await, (2, 1));
}

pub(crate) async fn nothing_acknowledged_is_lost_and_nothing_is_half_when_a_writer_is_killed(
    fixture: &Fixture,
) {
    let done = fixture.home.path().join("done");
    for kill in 0..KILLS {
        let lines = |path: &Path| {
            let text = fs::read(path).unwrap_or_default();
            text.iter().filter(|byte| **byte == b'\n').count()
        };
        // Another step of the work each time.
        let enough = lines(&done) + 1 + kill * 7 % 23;
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::a_writer_writes_what_it_says"])
            .env(VARIABLES[0], &fixture.location)
            .env(VARIABLES[1], fixture.home.path())
            .env(VARIABLES[2], &done)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let end = Instant::now() + BOUND;
        while lines(&done) < enough {
            let ended = writer.try_wait().unwrap();
            let in_time = ended.is_none() && Instant::now() < end;
            if !in_time {
                let _ = writer.kill();
                let _ = writer.wait();
                panic!("the writer did not get to {enough}: {ended:?}");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        writer.kill().unwrap();
        writer.wait().unwrap();
        let database = fixture.again().await;
        database.check().await.unwrap();
        compare(&database, &done).await;
        database.close().await;
    }
}

/// Compares the database with what its writers were told. Returns how many
/// live and how many ended.
async fn compare(database: &Database, done: &Path) -> (usize, usize) {
    let tenant = database.tenant_by_name("a").await.unwrap().unwrap();
    let tenant = tenant.tenant_id;
    let text = fs::read_to_string(done).unwrap();
    let told: BTreeSet<&str> = text.lines().collect();
    let query = SandboxQuery::new(SandboxState::ALL, usize::MAX);
    let live = database.list_sandboxes(tenant, &query).await.unwrap();
    let mut live: std::collections::BTreeMap<String, SandboxState> = live
        .sandboxes
        .into_iter()
        .map(|row| (row.sandbox_id, row.state))
        .collect();
    let mut ended = 0;
    let created = told.iter().filter_map(|line| line.strip_prefix("created "));
    for id in created {
        let was = |word: &str| told.contains(format!("{word} {id}").as_str());
        if database.tombstone(tenant, id).await.unwrap().is_some() {
            assert!(was("running"), "{id} ended and never ran");
            assert!(!live.contains_key(id), "{id} is both");
            ended += 1;
        } else {
            assert!(!was("buried"), "the end of {id} is lost");
            let state = live.get(id).unwrap_or_else(|| panic!("{id} is lost"));
            assert!(!was("running") || *state == SandboxState::Running, "{id}");
        }
        assert!(is_repeated(database, tenant, id).await, "{id}");
    }
    // What nobody was told of is whole too: no sandbox without its idempotency key.
    let count = live.len();
    live.retain(|id, _| !told.contains(format!("created {id}").as_str()));
    for id in live.keys() {
        assert!(is_repeated(database, tenant, id).await, "{id} is half");
    }
    (count, ended)
}

/// Whether a repetition of the request finds the sandbox that it made.
async fn is_repeated(database: &Database, tenant: TenantId, id: &str) -> bool {
    // The writer is dead, so nobody minds a new epoch.
    let fence = database.begin_epoch(NOW).await.unwrap();
    let new = new_sandbox(tenant, "unused");
    let created = database
        .create_sandbox(&fence, &new, Some(&asked(id)))
        .await;
    matches!(created, Ok(Created::Earlier(Earlier::Repeated { sandbox_id })) if sandbox_id == id)
}
