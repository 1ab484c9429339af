//! Logs and samples: bounded, and gone with their sandbox.

use atoll_store::db::{
    Database, Direction, Fence, Forgotten, LOG_ENTRIES_KEPT, LogLevel, LogQuery, METERED_MS,
    METRIC_INTERVAL_MS, METRIC_SAMPLES_KEPT, MeterReading, MetricSample, NewLogEntry, NewSandbox,
    UsageBy, UsageQuery, UsageSums,
};

use crate::fixture::{Fixture, NOW, new_sandbox};
use crate::sandboxes::idempotency;

fn entry(at_ms: i64, level: LogLevel, message: &str) -> NewLogEntry {
    NewLogEntry {
        at_ms,
        level,
        message: message.to_owned(),
        fields: "{\"pid\":1}".to_owned(),
    }
}

fn sample(at_ms: i64) -> MetricSample {
    MetricSample {
        at_ms,
        cpu_count: 2,
        cpu_used_millipercent: 12_500,
        memory_used_bytes: 1 << 20,
        memory_total_bytes: 512 << 20,
        memory_cache_bytes: 7,
        disk_used_bytes: 8,
        disk_total_bytes: 4 << 30,
    }
}

async fn messages(fixture: &Fixture, sandbox: &str, query: &LogQuery) -> Vec<String> {
    let tenant = fixture.tenant("a").await;
    let entries = fixture.database.logs(tenant, sandbox, query).await.unwrap();
    entries.into_iter().map(|entry| entry.message).collect()
}

pub(crate) async fn logs_are_bounded_and_read_from_both_ends(fixture: &Fixture) {
    let database = &fixture.database;
    let tenant = fixture.tenant("a").await;
    let other = fixture.tenant("b").await;
    let fence = fixture.fence().await;
    fixture.sandbox(&fence, &new_sandbox(tenant, "i1")).await;
    let extra = 10;
    let entries: Vec<NewLogEntry> = (0..LOG_ENTRIES_KEPT + extra)
        .map(|number| entry(NOW + number, LogLevel::Info, &number.to_string()))
        .collect();
    for part in entries.chunks(700) {
        database.append_logs(&fence, "i1", part).await.unwrap();
    }
    let mut query = LogQuery {
        limit: usize::MAX,
        ..LogQuery::default()
    };
    let kept = database.logs(tenant, "i1", &query).await.unwrap();
    assert_eq!(i64::try_from(kept.len()).unwrap(), LOG_ENTRIES_KEPT);
    assert_eq!(
        (kept[0].sequence, kept[0].message.as_str(), kept[0].level),
        (extra + 1, "10", LogLevel::Info)
    );
    assert_eq!(kept[0].fields, "{\"pid\":1}");
    query.limit = 2;
    query.direction = Direction::Backward;
    let newest = messages(fixture, "i1", &query).await;
    assert_eq!(newest, ["2009", "2008"]);
    assert_eq!(database.logs(other, "i1", &query).await.unwrap(), []);
}

pub(crate) async fn logs_are_filtered_by_level_text_and_time(fixture: &Fixture) {
    let tenant = fixture.tenant("a").await;
    let fence = fixture.fence().await;
    fixture.sandbox(&fence, &new_sandbox(tenant, "i1")).await;
    let entries = [
        entry(NOW, LogLevel::Debug, "look"),
        entry(NOW + 1, LogLevel::Warn, "low disk"),
        entry(NOW + 2, LogLevel::Error, "no disk"),
    ];
    fixture
        .database
        .append_logs(&fence, "i1", &entries)
        .await
        .unwrap();
    let every = LogQuery {
        limit: 10,
        ..LogQuery::default()
    };
    for (query, expected) in [
        (every.clone(), vec!["look", "low disk", "no disk"]),
        (
            LogQuery {
                level: Some(LogLevel::Warn),
                ..every.clone()
            },
            vec!["low disk", "no disk"],
        ),
        (
            LogQuery {
                search: Some("disk".to_owned()),
                limit: 1,
                ..every.clone()
            },
            vec!["low disk"],
        ),
        (
            LogQuery {
                from_ms: Some(NOW + 2),
                ..every.clone()
            },
            vec!["no disk"],
        ),
        (
            LogQuery {
                from_ms: Some(NOW + 1),
                direction: Direction::Backward,
                ..every
            },
            vec!["low disk", "look"],
        ),
    ] {
        assert_eq!(messages(fixture, "i1", &query).await, expected, "{query:?}");
    }
}

async fn record(database: &Database, fence: &Fence, samples: &[(&str, &MetricSample)]) -> u64 {
    database.record_samples(fence, samples).await.unwrap()
}

pub(crate) async fn samples_are_a_ring(fixture: &Fixture) {
    let database = &fixture.database;
    let (ours, theirs) = (fixture.tenant("a").await, fixture.tenant("b").await);
    let fence = fixture.fence().await;
    fixture.sandbox(&fence, &new_sandbox(ours, "i1")).await;
    let lap = METRIC_INTERVAL_MS * METRIC_SAMPLES_KEPT;
    for at in [NOW, NOW + METRIC_INTERVAL_MS, NOW + METRIC_INTERVAL_MS + 1] {
        assert_eq!(record(database, &fence, &[("i1", &sample(at))]).await, 1);
    }
    let read = async |tenant, from, to| {
        let samples = database.samples(tenant, "i1", from, to).await;
        samples.unwrap()
    };
    let first = [sample(NOW), sample(NOW + METRIC_INTERVAL_MS + 1)];
    assert_eq!(read(ours, i64::MIN, i64::MAX).await, first);
    assert_eq!(read(ours, NOW, NOW).await, [sample(NOW)]);
    assert_eq!(read(ours, 0, NOW - 1).await, []);
    assert_eq!(read(theirs, i64::MIN, i64::MAX).await, []);
    // A lap later the oldest one is overwritten.
    // Not for a sandbox that is not there, which keeps nobody else from being written.
    let (other, later) = (sample(NOW), sample(NOW + lap));
    assert_eq!(
        record(database, &fence, &[("i2", &other), ("i1", &later)]).await,
        1
    );
    let second = [sample(NOW + METRIC_INTERVAL_MS + 1), sample(NOW + lap)];
    assert_eq!(read(ours, i64::MIN, i64::MAX).await, second);
    // Not after a later start.
    fixture.fence().await;
    assert_eq!(record(database, &fence, &[("i1", &sample(NOW))]).await, 0);
}

pub(crate) async fn what_ended_long_ago_is_forgotten(fixture: &Fixture) {
    let database = &fixture.database;
    let tenant = fixture.tenant("a").await;
    let fence = fixture.fence().await;
    let query = LogQuery {
        limit: 10,
        ..LogQuery::default()
    };
    for (id, ended_at_ms) in [("old", NOW), ("recent", NOW + 100)] {
        let asked = idempotency(id, "d");
        let mut new = new_sandbox(tenant, id);
        new.created_at_ms = ended_at_ms;
        database
            .create_sandbox(&fence, &new, Some(&asked))
            .await
            .unwrap();
        let row = database.sandbox(tenant, id).await.unwrap().unwrap();
        let log = [entry(NOW, LogLevel::Info, id)];
        database.append_logs(&fence, id, &log).await.unwrap();
        let sample = sample(NOW);
        let samples = [(id, &sample)];
        database.record_samples(&fence, &samples).await.unwrap();
        database
            .bury_sandbox(&fence, id, row.expected(), ended_at_ms, "{}", &[])
            .await
            .unwrap();
        assert_eq!(
            messages(fixture, id, &query).await,
            [id],
            "kept for a while"
        );
    }
    let forgotten = database.forget(NOW + 100).await.unwrap();
    let expected = Forgotten {
        tombstones: 1,
        idempotency_keys: 1,
    };
    assert_eq!(forgotten, expected);
    assert_eq!(database.tombstone(tenant, "old").await.unwrap(), None);
    assert!(
        database
            .tombstone(tenant, "recent")
            .await
            .unwrap()
            .is_some()
    );
    assert!(messages(fixture, "old", &query).await.is_empty());
    assert_eq!(messages(fixture, "recent", &query).await, ["recent"]);
    let samples = database.samples(tenant, "old", i64::MIN, i64::MAX).await;
    assert_eq!(samples.unwrap(), []);
    let samples = database.samples(tenant, "recent", i64::MIN, i64::MAX).await;
    assert_eq!(samples.unwrap().len(), 1);
}

pub(crate) async fn usage_is_summed_up_by_the_minute_and_read_once(fixture: &Fixture) {
    let old = fixture.fence().await;
    let (fence, tenant) = (fixture.fence().await, fixture.tenant("a").await);
    let database = &fixture.database;
    for (id, agent) in [("one", Some("x")), ("two", Some("x")), ("three", None)] {
        let new = NewSandbox {
            agent_id: agent.map(str::to_owned),
            ..new_sandbox(tenant, id)
        };
        database.create_sandbox(&fence, &new, None).await.unwrap();
    }
    let reading = |at_ms| MeterReading {
        at_ms,
        cpu_usec: 5,
        sent_bytes: 0,
        received_bytes: 0,
        memory_bytes: 0,
        disk_bytes: 0,
    };
    let used = |cpu_usec| UsageSums {
        cpu_usec,
        running_ms: 1000,
        ..UsageSums::default()
    };
    let record = async |fence: &Fence, id: &str, last: Option<i64>, at_ms: i64, cpu_usec: i64| {
        let readings = (last.map(reading), reading(at_ms));
        let sums = (at_ms - at_ms % METERED_MS, used(cpu_usec));
        let recorded = database.record_usage(fence, id, readings, sums);
        recorded.await.unwrap()
    };
    let minute = METERED_MS;
    assert!(record(&fence, "one", None, minute, 1).await);
    assert!(record(&fence, "one", Some(minute), minute + 5, 2).await);
    // The same seconds are not counted twice, nor by a server of yesterday.
    assert!(!record(&fence, "one", Some(minute), minute + 6, 4).await);
    assert!(!record(&fence, "one", None, minute + 6, 4).await);
    assert!(!record(&old, "one", Some(minute + 5), minute + 6, 4).await);
    assert!(!record(&fence, "nobody", None, minute, 1).await);
    assert!(record(&fence, "one", Some(minute + 5), 3 * minute, 8).await);
    assert!(record(&fence, "two", None, minute, 16).await);
    assert!(record(&fence, "three", None, minute, 32).await);
    assert_eq!(
        database.last_reading("one").await.unwrap(),
        Some(reading(3 * minute))
    );

    let query = UsageQuery {
        by: UsageBy::Agent,
        from_ms: 0,
        to_ms: i64::MAX,
        agent_id: None,
        task_id: None,
        sandbox_id: None,
        limit: 10,
        after: None,
    };
    let sums = async |tenant, query: UsageQuery| -> Vec<(String, i64, i64)> {
        let sums = database.metered_usage(tenant, &query).await.unwrap();
        let sums = sums.into_iter();
        sums.map(|one| (one.name, one.sandboxes, one.sums.cpu_usec))
            .collect()
    };
    let entry = |name: &str, sandboxes, cpu_usec| (name.to_owned(), sandboxes, cpu_usec);
    assert_eq!(
        sums(tenant, query.clone()).await,
        [entry("", 1, 32), entry("x", 2, 27)]
    );
    let by_sandbox = UsageQuery {
        by: UsageBy::Sandbox,
        agent_id: Some("x".to_owned()),
        to_ms: 2 * minute,
        ..query.clone()
    };
    assert_eq!(
        sums(tenant, by_sandbox.clone()).await,
        [entry("one", 1, 3), entry("two", 1, 16)]
    );
    let next = UsageQuery {
        after: Some("one".to_owned()),
        ..by_sandbox
    };
    assert_eq!(sums(tenant, next).await, [entry("two", 1, 16)]);
    let late = UsageQuery {
        from_ms: 3 * minute + 7,
        ..query.clone()
    };
    assert_eq!(sums(tenant, late).await, [entry("x", 1, 8)]);
    let other = fixture.tenant("b").await;
    assert_eq!(sums(other, query.clone()).await, []);

    assert_eq!(database.forget_usage(2 * minute).await.unwrap(), 3);
    assert_eq!(sums(tenant, query).await, [entry("x", 1, 8)]);
}
