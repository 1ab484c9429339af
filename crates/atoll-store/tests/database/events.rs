//! Events: one with each change, in order, for whom they concern, for a while.

use atoll_store::db::{
    Change, ChangeError, Database, Direction, Event, EventBounds, EventKind, EventQuery,
    EventScope, Lost, NewEvent, SandboxState,
};

use crate::fixture::{Fixture, NOW, new_sandbox};

fn event(sandbox: &str, kind: EventKind) -> NewEvent {
    NewEvent {
        at_ms: NOW,
        sandbox_id: Some(sandbox.to_owned()),
        kind,
        detail: r#"{"template":"base"}"#.to_owned(),
        mark: None,
    }
}

fn all() -> EventQuery {
    EventQuery {
        limit: 1000,
        ..EventQuery::default()
    }
}

async fn read(database: &Database, scope: EventScope, query: &EventQuery) -> Vec<Event> {
    database.events(scope, query).await.unwrap()
}

fn kinds(events: &[Event]) -> Vec<EventKind> {
    events.iter().map(|event| event.kind).collect()
}

fn numbers(events: &[Event]) -> Vec<i64> {
    events.iter().map(|event| event.sequence).collect()
}

pub(crate) async fn an_event_is_written_with_its_change_or_not_at_all(fixture: &Fixture) {
    let database = &fixture.database;
    let fence = fixture.fence().await;
    let tenant = fixture.tenant("a").await;
    let row = fixture.sandbox(&fence, &new_sandbox(tenant, "i1")).await;
    let mut news = database.event_news();
    news.borrow_and_update();
    let change = |kind| Change {
        state: Some(SandboxState::Running),
        events: vec![event("i1", kind)],
        ..Change::default()
    };
    let created = change(EventKind::Created);
    let expected = row.expected();
    let row = database
        .change_sandbox(&fence, "i1", expected, &created)
        .await
        .unwrap();
    assert!(news.has_changed().unwrap());
    news.borrow_and_update();
    let row = database
        .change_sandbox(&fence, "i1", row.expected(), &Change::default())
        .await
        .unwrap();
    assert!(!news.has_changed().unwrap(), "nobody looks for nothing");
    // The same once more is lost, and tells nothing.
    let again = database
        .change_sandbox(&fence, "i1", expected, &created)
        .await;
    assert!(matches!(
        again,
        Err(ChangeError::Lost(Lost::Changed { .. }))
    ));
    let killed = [event("i1", EventKind::Killed)];
    let lost = database
        .bury_sandbox(&fence, "i1", expected, NOW, "{}", &killed)
        .await;
    assert!(lost.is_err(), "{lost:?}");
    database
        .bury_sandbox(&fence, "i1", row.expected(), NOW, "{}", &killed)
        .await
        .unwrap();
    let events = read(database, EventScope::Tenant(tenant), &all()).await;
    let node_id = database.node().to_string();
    let stored = |sequence, kind| Event {
        sequence,
        at_ms: NOW,
        sandbox_id: Some("i1".to_owned()),
        kind,
        detail: r#"{"template":"base"}"#.to_owned(),
        node_id: node_id.clone(),
    };
    assert_eq!(
        events,
        [stored(1, EventKind::Created), stored(2, EventKind::Killed)]
    );
    // Who is not in charge any more tells nothing either.
    fixture.fence().await;
    let fenced = database
        .append_event(&fence, Some(tenant), &event("i1", EventKind::Adopted))
        .await;
    assert!(matches!(
        fenced,
        Err(ChangeError::Lost(Lost::Fenced { .. }))
    ));
    assert_eq!(
        read(database, EventScope::Tenant(tenant), &all()).await,
        events
    );
}

pub(crate) async fn events_are_read_by_whom_they_concern_from_both_ends(fixture: &Fixture) {
    let database = &fixture.database;
    let fence = fixture.fence().await;
    let (mine, other) = (fixture.tenant("a").await, fixture.tenant("b").await);
    for (tenant, sandbox, kind) in [
        (Some(mine), "i1", EventKind::Created),
        (Some(other), "i2", EventKind::Created),
        (Some(mine), "i1", EventKind::Paused),
        (None, "i3", EventKind::PoolMemberReplaced),
        (Some(mine), "i4", EventKind::Created),
        (Some(mine), "i1", EventKind::Killed),
    ] {
        let event = event(sandbox, kind);
        database.append_event(&fence, tenant, &event).await.unwrap();
    }
    let own = EventScope::Tenant(mine);
    assert_eq!(numbers(&read(database, own, &all()).await), [1, 3, 5, 6]);
    let theirs = read(database, EventScope::Tenant(other), &all()).await;
    assert_eq!(numbers(&theirs), [2]);
    let node = read(database, EventScope::Node, &all()).await;
    assert_eq!(numbers(&node), [1, 2, 3, 4, 5, 6]);
    let page = EventQuery {
        from: Some(1),
        limit: 2,
        ..all()
    };
    assert_eq!(numbers(&read(database, own, &page).await), [3, 5]);
    let newest = EventQuery {
        direction: Direction::Backward,
        limit: 2,
        ..all()
    };
    assert_eq!(numbers(&read(database, own, &newest).await), [6, 5]);
    let before = EventQuery {
        from: Some(5),
        ..newest
    };
    assert_eq!(numbers(&read(database, own, &before).await), [3, 1]);
    let of_one = EventQuery {
        sandbox: Some("i1".to_owned()),
        kinds: vec![EventKind::Killed, EventKind::Created],
        ..all()
    };
    let found = read(database, own, &of_one).await;
    assert_eq!(kinds(&found), [EventKind::Created, EventKind::Killed]);
    let foreign = EventQuery {
        sandbox: Some("i2".to_owned()),
        ..all()
    };
    assert_eq!(read(database, own, &foreign).await, []);
}

pub(crate) async fn who_goes_on_after_the_last_event_misses_none(fixture: &Fixture) {
    const WRITERS: i64 = 4;
    const EACH: i64 = 25;
    let fence = fixture.fence().await;
    let tenant = fixture.tenant("a").await;
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..WRITERS {
        let (database, fence) = (fixture.again().await, fence.clone());
        writers.spawn(async move {
            for _ in 0..EACH {
                let one = event("i1", EventKind::Paused);
                database
                    .append_event(&fence, Some(tenant), &one)
                    .await
                    .unwrap();
            }
            database.close().await;
        });
    }
    let mut seen = Vec::new();
    while i64::try_from(seen.len()).unwrap() < WRITERS * EACH {
        let page = EventQuery {
            from: seen.last().copied(),
            limit: 7,
            ..EventQuery::default()
        };
        let events = read(&fixture.database, EventScope::Tenant(tenant), &page).await;
        seen.extend(numbers(&events));
        if events.is_empty() && writers.is_empty() {
            break;
        }
        while writers.try_join_next().is_some() {}
    }
    assert_eq!(seen, (1..=WRITERS * EACH).collect::<Vec<_>>());
}

pub(crate) async fn who_wants_few_events_reads_no_other_twice_and_misses_none(fixture: &Fixture) {
    const WRITERS: usize = 4;
    const EACH: usize = 24;
    let fence = fixture.fence().await;
    let tenant = fixture.tenant("a").await;
    let own = EventScope::Tenant(tenant);
    let wanted = |from, limit| EventQuery {
        from: Some(from),
        kinds: vec![EventKind::Killed],
        limit,
        ..EventQuery::default()
    };
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..WRITERS {
        let (database, fence) = (fixture.again().await, fence.clone());
        writers.spawn(async move {
            for number in 0..EACH {
                let is_wanted = number % 4 == 0;
                let kind = [EventKind::Paused, EventKind::Killed][usize::from(is_wanted)];
                let one = event("i1", kind);
                database
                    .append_event(&fence, Some(tenant), &one)
                    .await
                    .unwrap();
            }
            database.close().await;
        });
    }
    let (mut seen, mut from) = (Vec::new(), 0);
    loop {
        let is_last = writers.is_empty();
        let page = fixture.database.events_after(own, &wanted(from, 3)).await;
        let page = page.unwrap();
        assert!(page.next >= from);
        from = page.next;
        seen.extend(numbers(&page.events));
        if is_last && page.events.is_empty() {
            break;
        }
        while writers.try_join_next().is_some() {}
    }
    let all_wanted = read(&fixture.database, own, &wanted(0, 1000)).await;
    assert_eq!(seen, numbers(&all_wanted));
    assert_eq!(seen.len(), WRITERS * EACH / 4);
    let newest = i64::try_from(WRITERS * EACH).unwrap();
    assert_eq!(from, newest, "what nobody asked for is behind");
    // A full page says nothing of what comes after it.
    let full = fixture.database.events_after(own, &wanted(0, 2)).await;
    let full = full.unwrap();
    assert_eq!((full.next, full.missed), (seen[1], None));
    // Who was away for too long is told.
    fixture.database.forget_events(0, 2).await.unwrap();
    let late = fixture.database.events_after(own, &wanted(0, 1000)).await;
    assert_eq!(late.unwrap().missed, Some(newest - 2));
    let in_time = wanted(newest - 2, 1000);
    let in_time = fixture.database.events_after(own, &in_time).await;
    assert_eq!(in_time.unwrap().missed, None);
}

pub(crate) async fn what_a_mark_stands_for_is_told_once(fixture: &Fixture) {
    let database = &fixture.database;
    let fence = fixture.fence().await;
    let tenant = fixture.tenant("a").await;
    let marked = NewEvent {
        mark: Some("snapshot:x".to_owned()),
        ..event("i1", EventKind::Snapshotted)
    };
    for _ in 0..2 {
        database
            .append_event(&fence, Some(tenant), &marked)
            .await
            .unwrap();
    }
    let events = read(database, EventScope::Tenant(tenant), &all()).await;
    assert_eq!(kinds(&events), [EventKind::Snapshotted]);
}

pub(crate) async fn old_events_are_forgotten_by_age_and_by_number(fixture: &Fixture) {
    let database = &fixture.database;
    let fence = fixture.fence().await;
    let tenant = fixture.tenant("a").await;
    for at_ms in NOW..NOW + 10 {
        let one = NewEvent {
            at_ms,
            ..event("i1", EventKind::Paused)
        };
        database
            .append_event(&fence, Some(tenant), &one)
            .await
            .unwrap();
    }
    let own = EventScope::Tenant(tenant);
    assert_eq!(database.forget_events(NOW + 3, 1000).await.unwrap(), 3);
    assert_eq!(database.forget_events(NOW + 3, 1000).await.unwrap(), 0);
    assert_eq!(read(database, own, &all()).await[0].sequence, 4);
    assert_eq!(database.forget_events(0, 2).await.unwrap(), 5);
    assert_eq!(numbers(&read(database, own, &all()).await), [9, 10]);
    let bounds = EventBounds {
        newest: 10,
        forgotten: 8,
    };
    assert_eq!(database.event_bounds().await.unwrap(), bounds);
    // Numbers go on when nothing is left.
    assert_eq!(database.forget_events(i64::MAX, 1000).await.unwrap(), 2);
    let next = event("i1", EventKind::Killed);
    database
        .append_event(&fence, Some(tenant), &next)
        .await
        .unwrap();
    assert_eq!(numbers(&read(database, own, &all()).await), [11]);
}

pub(crate) async fn a_webhook_begins_with_what_comes_next_and_never_goes_back(fixture: &Fixture) {
    let database = &fixture.database;
    let fence = fixture.fence().await;
    let tenant = fixture.tenant("a").await;
    for _ in 0..3 {
        let one = event("i1", EventKind::Paused);
        database
            .append_event(&fence, Some(tenant), &one)
            .await
            .unwrap();
    }
    let cursor = async |fence| database.webhook_cursor(fence, "hook").await.unwrap();
    assert_eq!(cursor(&fence).await, 3);
    database.advance_webhook(&fence, "hook", 7).await.unwrap();
    database.advance_webhook(&fence, "hook", 5).await.unwrap();
    assert_eq!(cursor(&fence).await, 7);
    let later = fixture.fence().await;
    database.advance_webhook(&fence, "hook", 9).await.unwrap();
    assert_eq!(cursor(&later).await, 7);
    // One that is still there stays; one that went begins anew.
    let kept = ["hook".to_owned()];
    database.keep_webhooks(&later, &kept).await.unwrap();
    assert_eq!(cursor(&later).await, 7);
    database.keep_webhooks(&later, &[]).await.unwrap();
    assert_eq!(cursor(&later).await, 3);
}
