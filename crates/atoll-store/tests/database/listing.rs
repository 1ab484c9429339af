//! Lists, page by page.

use atoll_store::db::{Change, Cursor, Order, SandboxQuery, SandboxState, TenantId};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, TestRunner};

use crate::fixture::{Fixture, NOW, VISIBLE, metadata, new_sandbox};

/// Sandboxes that run since the given moments; `i0`, `i1`, …
async fn running(fixture: &Fixture, tenant: TenantId, prefix: &str, starts: &[i64]) {
    let fence = fixture.fence().await;
    for (number, start) in starts.iter().enumerate() {
        let mut new = new_sandbox(tenant, &format!("{prefix}{number}"));
        let parity = if number % 2 == 0 { "even" } else { "odd" };
        new.metadata = metadata(&[("parity", parity), ("all", "yes")]);
        let row = fixture.sandbox(&fence, &new).await;
        let change = Change {
            state: Some(SandboxState::Running),
            started_at_ms: Some(*start),
            ..Change::default()
        };
        fixture
            .database
            .change_sandbox(&fence, &row.sandbox_id, row.expected(), &change)
            .await
            .unwrap();
    }
}

/// Everything that pages of `query` show, in order.
async fn all_pages(fixture: &Fixture, tenant: TenantId, mut query: SandboxQuery) -> Vec<String> {
    let mut seen = Vec::new();
    loop {
        let page = fixture.database.list_sandboxes(tenant, &query).await;
        let page = page.unwrap();
        assert!(page.sandboxes.len() <= query.limit);
        seen.extend(page.sandboxes.into_iter().map(|row| row.sandbox_id));
        let Some(next) = page.next else { return seen };
        // Through its text, as a client hands it back.
        query.after = Some(Cursor::parse(&next.to_string(), query.order).unwrap());
    }
}

pub(crate) async fn pages_show_every_sandbox_once(fixture: &Fixture) {
    let cases = (
        proptest::collection::vec(0_i64..4, 0..12),
        1_usize..5,
        any::<bool>(),
    );
    let mut runner = TestRunner::new(Config::default());
    for case in 0..24 {
        let (starts, limit, is_ascending) = cases.new_tree(&mut runner).unwrap().current();
        let tenant = fixture.tenant(&format!("t{case}")).await;
        let starts: Vec<i64> = starts.iter().map(|start| NOW + start).collect();
        running(fixture, tenant, &format!("i{case}x"), &starts).await;
        let mut query = SandboxQuery::new(&VISIBLE, limit);
        let mut expected: Vec<(i64, String)> = (0..)
            .zip(&starts)
            .map(|(number, start)| (*start, format!("i{case}x{number}")))
            .collect();
        expected.sort();
        if is_ascending {
            query.order = Order::Ascending;
        } else {
            expected.reverse();
        }
        let expected: Vec<String> = expected.into_iter().map(|(_, id)| id).collect();
        let seen = all_pages(fixture, tenant, query).await;
        assert_eq!(seen, expected, "{starts:?} by {limit}, {is_ascending}");
    }
}

pub(crate) async fn pages_are_stable_while_sandboxes_come_and_go(fixture: &Fixture) {
    let database = &fixture.database;
    let tenant = fixture.tenant("a").await;
    running(fixture, tenant, "i", &[NOW, NOW + 1, NOW + 2, NOW + 3]).await;
    let mut query = SandboxQuery::new(&VISIBLE, 2);
    let first = database.list_sandboxes(tenant, &query).await.unwrap();
    let ids: Vec<_> = first.sandboxes.iter().map(|row| &row.sandbox_id).collect();
    assert_eq!(ids, ["i3", "i2"]);
    // The row that the cursor stands on goes, and a newer one comes.
    let fence = fixture.fence().await;
    let gone = &first.sandboxes[1];
    database
        .bury_sandbox(&fence, "i2", gone.expected(), NOW, "{}", &[])
        .await
        .unwrap();
    running(fixture, tenant, "new", &[NOW + 9]).await;
    query.after = first.next;
    let second = database.list_sandboxes(tenant, &query).await.unwrap();
    let ids: Vec<_> = second.sandboxes.iter().map(|row| &row.sandbox_id).collect();
    assert_eq!(ids, ["i1", "i0"]);
    assert_eq!(second.next, None);
}

pub(crate) async fn filters_by_state_template_metadata_and_start(fixture: &Fixture) {
    let (ours, theirs) = (fixture.tenant("a").await, fixture.tenant("b").await);
    running(fixture, ours, "i", &[NOW, NOW + 1, NOW + 2]).await;
    running(fixture, theirs, "j", &[NOW]).await;
    let fence = fixture.fence().await;
    fixture
        .sandbox(&fence, &new_sandbox(ours, "creating"))
        .await;
    let every = SandboxQuery::new(&VISIBLE, 10);
    let cases = [
        (every.clone(), vec!["i2", "i1", "i0"]),
        (
            SandboxQuery::new(&[SandboxState::Creating], 10),
            vec!["creating"],
        ),
        (SandboxQuery::new(&[SandboxState::Paused], 10), vec![]),
        (
            SandboxQuery {
                started_from_ms: Some(NOW + 1),
                ..every.clone()
            },
            vec!["i2", "i1"],
        ),
        (
            SandboxQuery {
                template: Some("base".to_owned()),
                ..every.clone()
            },
            vec!["i2", "i1", "i0"],
        ),
        (
            SandboxQuery {
                template: Some("other".to_owned()),
                ..every.clone()
            },
            vec![],
        ),
        (
            SandboxQuery {
                metadata: metadata(&[("parity", "even"), ("all", "yes")]),
                ..every.clone()
            },
            vec!["i2", "i0"],
        ),
        (
            SandboxQuery {
                metadata: metadata(&[("parity", "even"), ("all", "no")]),
                ..every
            },
            vec![],
        ),
    ];
    for (query, expected) in cases {
        let seen = all_pages(fixture, ours, query.clone()).await;
        assert_eq!(seen, expected, "{query:?}");
    }
}

pub(crate) async fn long_filtered_lists_are_read_to_their_end(fixture: &Fixture) {
    let tenant = fixture.tenant("a").await;
    // More than are read at a time, and the only ones wanted are the last.
    let starts: Vec<i64> = (0..300).map(|number| NOW + number).collect();
    running(fixture, tenant, "i", &starts).await;
    let fence = fixture.fence().await;
    let mut rare = new_sandbox(tenant, "rare");
    rare.created_at_ms = NOW - 1;
    rare.metadata = metadata(&[("rare", "yes")]);
    fixture.sandbox(&fence, &rare).await;
    let query = SandboxQuery {
        metadata: rare.metadata,
        ..SandboxQuery::new(SandboxState::ALL, 1)
    };
    assert_eq!(all_pages(fixture, tenant, query).await, ["rare"]);
}
