//! Several writers at once, each with connections of its own: one wins, and
//! the others are told who did.

use std::collections::BTreeSet;

use atoll_store::db::{
    Change, ChangeError, Created, Database, Earlier, LogLevel, LogQuery, Lost, NewLogEntry,
    Revoked, Rotated, SandboxState,
};

use crate::fixture::{Fixture, NOW, new_key, new_sandbox};
use crate::sandboxes::idempotency;

/// Writers at once.
const WRITERS: usize = 6;

/// How often each race is run.
const ROUNDS: usize = 10;

/// Runs `work` for every writer at the same time and returns what each got.
async fn race<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    databases: &[Database],
    work: impl Fn(usize, Database) -> F,
) -> Vec<T> {
    let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(databases.len()));
    let tasks: Vec<_> = databases
        .iter()
        .enumerate()
        .map(|(number, database)| {
            let (work, barrier) = (work(number, database.clone()), barrier.clone());
            tokio::spawn(async move {
                barrier.wait().await;
                work.await
            })
        })
        .collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}

async fn writers(fixture: &Fixture) -> Vec<Database> {
    let mut databases = Vec::new();
    for _ in 0..WRITERS {
        databases.push(fixture.again().await);
    }
    databases
}

async fn close(databases: Vec<Database>) {
    for database in databases {
        database.close().await;
    }
}

fn count<T>(results: &[T], wanted: impl Fn(&T) -> bool) -> usize {
    results.iter().filter(|result| wanted(result)).count()
}

pub(crate) async fn of_two_changes_of_one_sandbox_one_wins_and_the_other_is_told(
    fixture: &Fixture,
) {
    let databases = writers(fixture).await;
    let tenant = fixture.tenant("a").await;
    let fence = fixture.fence().await;
    let mut row = fixture.sandbox(&fence, &new_sandbox(tenant, "i1")).await;
    for _ in 0..ROUNDS {
        let expected = row.expected();
        let results = race(&databases, |number, database| {
            let fence = fence.clone();
            async move {
                let change = Change {
                    state: Some(SandboxState::Running),
                    handle: Some(number.to_string()),
                    ..Change::default()
                };
                database
                    .change_sandbox(&fence, "i1", expected, &change)
                    .await
            }
        })
        .await;
        let won: Vec<_> = results.iter().flatten().collect();
        assert_eq!(won.len(), 1, "{results:?}");
        let told = Lost::Changed {
            state: SandboxState::Running,
            version: expected.version + 1,
            epoch: fence.epoch(),
        };
        let losers = count(
            &results,
            |result| matches!(result, Err(ChangeError::Lost(lost)) if *lost == told),
        );
        assert_eq!(losers, WRITERS - 1, "{results:?}");
        let stored = fixture.database.sandbox(tenant, "i1").await.unwrap();
        assert_eq!(stored.as_ref(), Some(won[0]), "the winner's is there");
        row = stored.unwrap();
    }
    close(databases).await;
}

pub(crate) async fn of_two_burials_one_wins(fixture: &Fixture) {
    let databases = writers(fixture).await;
    let tenant = fixture.tenant("a").await;
    let fence = fixture.fence().await;
    for round in 0..ROUNDS {
        let id = format!("i{round}");
        let row = fixture.sandbox(&fence, &new_sandbox(tenant, &id)).await;
        let results = race(&databases, |number, database| {
            let (fence, id, expected) = (fence.clone(), id.clone(), row.expected());
            let outcome = format!("{{\"by\":{number}}}");
            async move {
                database
                    .bury_sandbox(&fence, &id, expected, NOW, &outcome, &[])
                    .await
            }
        })
        .await;
        let won: Vec<_> = results.iter().flatten().collect();
        assert_eq!(won.len(), 1, "{results:?}");
        let losers = count(&results, |result| {
            matches!(result, Err(ChangeError::Lost(Lost::Missing)))
        });
        assert_eq!(losers, WRITERS - 1, "{results:?}");
        let stored = fixture.database.tombstone(tenant, &id).await.unwrap();
        assert_eq!(stored.as_ref(), Some(won[0]));
    }
    close(databases).await;
}

pub(crate) async fn of_many_requests_with_one_idempotency_key_one_creates(fixture: &Fixture) {
    let databases = writers(fixture).await;
    let tenant = fixture.tenant("a").await;
    let fence = fixture.fence().await;
    for round in 0..ROUNDS {
        let results = race(&databases, |number, database| {
            let (fence, key) = (fence.clone(), format!("k{round}"));
            let new = new_sandbox(tenant, &format!("i{round}x{number}"));
            async move {
                let asked = idempotency(&key, "d");
                let created = database.create_sandbox(&fence, &new, Some(&asked)).await;
                created.unwrap()
            }
        })
        .await;
        let made: Vec<&str> = results
            .iter()
            .filter_map(|created| match created {
                Created::New(sandbox) => Some(sandbox.sandbox_id.as_str()),
                Created::Earlier(_) => None,
            })
            .collect();
        let [made] = made[..] else {
            panic!("{results:?}");
        };
        let repeated = count(
            &results,
            |created| matches!(created, Created::Earlier(Earlier::Repeated { sandbox_id }) if sandbox_id == made),
        );
        assert_eq!(repeated, WRITERS - 1, "{results:?}");
        let live = fixture.database.count_sandboxes(tenant).await.unwrap();
        assert_eq!(usize::try_from(live).unwrap(), round + 1);
    }
    close(databases).await;
}

pub(crate) async fn of_many_rotations_one_wins(fixture: &Fixture) {
    let databases = writers(fixture).await;
    let tenant = fixture.tenant("a").await;
    for round in 0..ROUNDS {
        let key = fixture.key(tenant).await;
        let results = race(&databases, |_, database| async move {
            database.rotate_key(key, &new_key(tenant), 1).await.unwrap()
        })
        .await;
        let done = count(&results, |rotated| matches!(rotated, Rotated::Done { .. }));
        let over = count(&results, |rotated| *rotated == Rotated::Over);
        assert_eq!((done, over), (1, WRITERS - 1), "{results:?}");
        let keys = fixture.database.keys(Some(tenant)).await.unwrap();
        assert_eq!(keys.len(), (round + 1) * 2, "one successor each");
    }
    close(databases).await;
}

pub(crate) async fn of_many_revocations_one_wins(fixture: &Fixture) {
    let databases = writers(fixture).await;
    let tenant = fixture.tenant("a").await;
    for _ in 0..ROUNDS {
        let key = fixture.key(tenant).await;
        let results = race(&databases, |_, database| async move {
            database.revoke_key(key, NOW).await.unwrap()
        })
        .await;
        let now = count(&results, |revoked| *revoked == Revoked::Now);
        let before = count(&results, |revoked| *revoked == Revoked::Before);
        assert_eq!((now, before), (1, WRITERS - 1), "{results:?}");
    }
    close(databases).await;
}

pub(crate) async fn epochs_are_never_given_out_twice(fixture: &Fixture) {
    let databases = writers(fixture).await;
    let mut seen = BTreeSet::new();
    for _ in 0..ROUNDS {
        let results = race(&databases, |_, database| async move {
            database.begin_epoch(NOW).await.unwrap().epoch()
        })
        .await;
        seen.extend(results);
    }
    let expected: BTreeSet<i64> = (1..).take(ROUNDS * WRITERS).collect();
    assert_eq!(seen, expected);
    close(databases).await;
}

pub(crate) async fn many_writers_of_one_log_lose_no_entry(fixture: &Fixture) {
    let databases = writers(fixture).await;
    let tenant = fixture.tenant("a").await;
    let fence = fixture.fence().await;
    fixture.sandbox(&fence, &new_sandbox(tenant, "i1")).await;
    for _ in 0..ROUNDS {
        race(&databases, |number, database| {
            let fence = fence.clone();
            async move {
                let entry = |part: &str| NewLogEntry {
                    at_ms: NOW,
                    level: LogLevel::Info,
                    message: format!("{number}{part}"),
                    fields: "{}".to_owned(),
                };
                let entries = [entry("a"), entry("b")];
                database.append_logs(&fence, "i1", &entries).await.unwrap();
            }
        })
        .await;
    }
    let query = LogQuery {
        limit: usize::MAX,
        ..LogQuery::default()
    };
    let entries = fixture.database.logs(tenant, "i1", &query).await.unwrap();
    let sequences: Vec<i64> = entries.iter().map(|entry| entry.sequence).collect();
    let expected: Vec<i64> = (1..).take(ROUNDS * WRITERS * 2).collect();
    assert_eq!(sequences, expected);
    // What was appended together stays together.
    for pair in entries.chunks(2) {
        let (first, second) = (&pair[0].message, &pair[1].message);
        assert_eq!(first.replace('a', "b"), *second);
    }
    close(databases).await;
}
