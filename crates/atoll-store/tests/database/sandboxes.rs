//! The life of one sandbox in rows.

use atoll_store::db::{
    Change, ChangeError, CreateError, Created, Database, Earlier, Expected, Idempotency, Intent,
    Lost, NodeId, SandboxState, Tombstone,
};

use crate::fixture::{Fixture, NOW, metadata, new_sandbox};

pub(crate) fn idempotency(key: &str, digest: &str) -> Idempotency {
    Idempotency {
        key: key.to_owned(),
        request_digest: digest.to_owned(),
        not_before_ms: NOW - 1000,
    }
}

fn lost(error: ChangeError) -> Lost {
    match error {
        ChangeError::Lost(lost) => lost,
        ChangeError::Database(error) => panic!("{error}"),
    }
}

pub(crate) async fn a_sandbox_is_stored_whole(fixture: &Fixture) {
    let tenant = fixture.tenant("a").await;
    let fence = fixture.fence().await;
    let mut new = new_sandbox(tenant, "i1");
    new.metadata = metadata(&[("a b", "c&d"), ("ü", "\u{0}\"\\"), ("", "")]);
    let created = fixture.sandbox(&fence, &new).await;
    let stored = fixture.database.sandbox(tenant, "i1").await.unwrap();
    let stored = stored.unwrap();
    assert_eq!(created, stored);
    assert_eq!(stored.intent().unwrap(), Some(Intent::Create));
    assert_eq!(
        (stored.state, stored.version, stored.epoch, stored.handle),
        (SandboxState::Creating, 1, fence.epoch(), None)
    );
    assert_eq!(stored.metadata, new.metadata);
    assert_eq!(
        (
            stored.limits,
            stored.network,
            stored.lifecycle,
            stored.sealed
        ),
        (new.limits, new.network, new.lifecycle, new.sealed)
    );
    assert_eq!(
        (
            stored.agent_id,
            stored.task_id,
            stored.client,
            stored.envd_version
        ),
        (new.agent_id, new.task_id, new.client, new.envd_version)
    );
    assert_eq!(
        (stored.created_at_ms, stored.started_at_ms, stored.end_at_ms),
        (NOW, NOW, new.end_at_ms)
    );
    assert_eq!(fixture.database.count_sandboxes(tenant).await.unwrap(), 1);
}

pub(crate) async fn a_foreign_sandbox_is_a_missing_one(fixture: &Fixture) {
    let database = &fixture.database;
    let (ours, theirs) = (fixture.tenant("a").await, fixture.tenant("b").await);
    let fence = fixture.fence().await;
    let row = fixture.sandbox(&fence, &new_sandbox(theirs, "i1")).await;
    assert_eq!(database.sandbox(ours, "i1").await.unwrap(), None);
    assert!(database.sandbox(theirs, "i1").await.unwrap().is_some());
    database
        .bury_sandbox(&fence, "i1", row.expected(), NOW, "{}", &[])
        .await
        .unwrap();
    assert_eq!(database.tombstone(ours, "i1").await.unwrap(), None);
    assert!(database.tombstone(theirs, "i1").await.unwrap().is_some());
}

pub(crate) async fn a_change_keeps_what_it_does_not_name(fixture: &Fixture) {
    let database = &fixture.database;
    let tenant = fixture.tenant("a").await;
    let fence = fixture.fence().await;
    let row = fixture.sandbox(&fence, &new_sandbox(tenant, "i1")).await;
    let running = Change {
        state: Some(SandboxState::Running),
        intent: Some(None),
        started_at_ms: Some(NOW + 30),
        handle: Some("{\"slot\":3}".to_owned()),
        ..Change::default()
    };
    let first = database
        .change_sandbox(&fence, "i1", row.expected(), &running)
        .await
        .unwrap();
    assert_eq!(first.intent().unwrap(), None);
    assert_eq!((first.state, first.version), (SandboxState::Running, 2));
    assert_eq!(
        (first.started_at_ms, first.end_at_ms),
        (NOW + 30, row.end_at_ms)
    );
    assert_eq!(first.sealed, row.sealed);

    let longer = Change {
        end_at_ms: Some(NOW + 900_000),
        network: Some("{\"deny\":[]}".to_owned()),
        ..Change::default()
    };
    let second = database
        .change_sandbox(&fence, "i1", first.expected(), &longer)
        .await
        .unwrap();
    let mut expected = first;
    expected.version = 3;
    expected.end_at_ms = NOW + 900_000;
    expected.network = "{\"deny\":[]}".to_owned();
    assert_eq!(second, expected);

    let pausing = Change {
        state: Some(SandboxState::Pausing),
        intent: Some(Some(Intent::Pause)),
        pause_mode: Some("full".to_owned()),
        ..Change::default()
    };
    let third = database
        .change_sandbox(&fence, "i1", second.expected(), &pausing)
        .await
        .unwrap();
    assert_eq!(third.intent().unwrap(), Some(Intent::Pause));
    // An intent that is not named stays too.
    let fourth = database
        .change_sandbox(&fence, "i1", third.expected(), &Change::default())
        .await
        .unwrap();
    assert_eq!(fourth.intent().unwrap(), Some(Intent::Pause));
    assert_eq!(fourth.pause_mode.as_deref(), Some("full"));
}

pub(crate) async fn a_change_with_an_old_version_or_state_is_lost(fixture: &Fixture) {
    let database = &fixture.database;
    let tenant = fixture.tenant("a").await;
    let fence = fixture.fence().await;
    let row = fixture.sandbox(&fence, &new_sandbox(tenant, "i1")).await;
    let there = Lost::Changed {
        state: SandboxState::Creating,
        version: 1,
        epoch: fence.epoch(),
    };
    for expected in [
        Expected {
            version: 2,
            ..row.expected()
        },
        Expected {
            state: SandboxState::Running,
            ..row.expected()
        },
    ] {
        let change = Change::default();
        let changed = database
            .change_sandbox(&fence, "i1", expected, &change)
            .await;
        assert_eq!(lost(changed.unwrap_err()), there);
        let buried = database
            .bury_sandbox(&fence, "i1", expected, NOW, "{}", &[])
            .await;
        assert_eq!(lost(buried.unwrap_err()), there);
    }
    let missing = database
        .change_sandbox(&fence, "i2", row.expected(), &Change::default())
        .await;
    assert_eq!(lost(missing.unwrap_err()), Lost::Missing);
    assert_eq!(database.sandbox(tenant, "i1").await.unwrap(), Some(row));
}

pub(crate) async fn a_later_start_of_the_server_fences_the_earlier_one(fixture: &Fixture) {
    let database = &fixture.database;
    let tenant = fixture.tenant("a").await;
    let old = fixture.fence().await;
    let row = fixture.sandbox(&old, &new_sandbox(tenant, "i1")).await;
    let successor = fixture.again().await;
    let new = successor.begin_epoch(NOW).await.unwrap();
    assert!(new.epoch() > old.epoch());

    let fenced = Lost::Fenced { epoch: new.epoch() };
    let change = Change::default();
    let changed = database
        .change_sandbox(&old, "i1", row.expected(), &change)
        .await;
    assert_eq!(lost(changed.unwrap_err()), fenced);
    let buried = database
        .bury_sandbox(&old, "i1", row.expected(), NOW, "{}", &[])
        .await;
    assert_eq!(lost(buried.unwrap_err()), fenced);
    let logged = database.append_logs(&old, "i1", &[]).await;
    assert_eq!(lost(logged.unwrap_err()), fenced);
    let created = database
        .create_sandbox(&old, &new_sandbox(tenant, "i2"), None)
        .await;
    assert!(matches!(created, Err(CreateError::Lost(ref lost)) if *lost == fenced));

    // The new one goes on where the old one was.
    let changed = successor
        .change_sandbox(&new, "i1", row.expected(), &change)
        .await;
    assert_eq!(changed.unwrap().epoch, new.epoch());
    successor.close().await;
}

pub(crate) async fn a_burial_leaves_a_tombstone_and_no_token(fixture: &Fixture) {
    let database = &fixture.database;
    let tenant = fixture.tenant("a").await;
    let fence = fixture.fence().await;
    let new = new_sandbox(tenant, "i1");
    let row = fixture.sandbox(&fence, &new).await;
    let key = fixture.key(tenant).await;
    assert!(database.record_token("i1", key, NOW).await.unwrap());
    let outcome = "{\"kind\":\"killed\"}";
    let buried = database
        .bury_sandbox(&fence, "i1", row.expected(), NOW + 5, outcome, &[])
        .await
        .unwrap();
    let expected = Tombstone {
        sandbox_id: new.sandbox_id,
        tenant_id: tenant,
        key_id: new.key_id,
        template_id: new.template_id,
        template_name: new.template_name,
        metadata: new.metadata,
        agent_id: new.agent_id,
        task_id: new.task_id,
        created_at_ms: NOW,
        started_at_ms: NOW,
        ended_at_ms: NOW + 5,
        outcome: outcome.to_owned(),
    };
    assert_eq!(buried, expected);
    let stored = database.tombstone(tenant, "i1").await.unwrap();
    assert_eq!(stored, Some(expected));
    assert_eq!(database.sandbox(tenant, "i1").await.unwrap(), None);
    let tokens = database.tokens_of_node(database.node()).await.unwrap();
    assert_eq!(tokens, []);
    assert!(!database.record_token("i1", key, NOW).await.unwrap());
}

pub(crate) async fn idempotency_keys_belong_to_tenants_and_end(fixture: &Fixture) {
    let database = &fixture.database;
    let (ours, theirs) = (fixture.tenant("a").await, fixture.tenant("b").await);
    let fence = fixture.fence().await;
    let create = async |tenant, id: &str, asked: Idempotency| {
        let new = new_sandbox(tenant, id);
        let created = database.create_sandbox(&fence, &new, Some(&asked)).await;
        created.unwrap()
    };
    let repeated = Created::Earlier(Earlier::Repeated {
        sandbox_id: "i1".to_owned(),
    });
    assert!(matches!(
        create(ours, "i1", idempotency("k", "d")).await,
        Created::New(_)
    ));
    assert_eq!(create(ours, "i2", idempotency("k", "d")).await, repeated);
    assert_eq!(
        create(ours, "i2", idempotency("k", "other")).await,
        Created::Earlier(Earlier::OtherRequest)
    );
    assert!(matches!(
        create(theirs, "i3", idempotency("k", "d")).await,
        Created::New(_)
    ));
    assert_eq!(database.sandbox(ours, "i2").await.unwrap(), None);

    let later = Idempotency {
        not_before_ms: NOW + 1,
        ..idempotency("k", "other")
    };
    assert!(matches!(create(ours, "i4", later).await, Created::New(_)));
    let earlier = |asked| async move { database.earlier_creation(theirs, &asked).await.unwrap() };
    assert_eq!(
        earlier(idempotency("k", "d")).await,
        Some(Earlier::Repeated {
            sandbox_id: "i3".to_owned()
        })
    );
    assert_eq!(
        earlier(idempotency("k", "other")).await,
        Some(Earlier::OtherRequest)
    );
    assert_eq!(earlier(idempotency("unused", "d")).await, None);
    let forgotten = Idempotency {
        not_before_ms: NOW + 1,
        ..idempotency("k", "d")
    };
    assert_eq!(earlier(forgotten).await, None);
    database.forget_idempotency_key_of("i3").await.unwrap();
    assert!(matches!(
        create(theirs, "i5", idempotency("k", "d")).await,
        Created::New(_)
    ));
}

pub(crate) async fn a_fenced_creation_leaves_no_idempotency_key(fixture: &Fixture) {
    let database = &fixture.database;
    let tenant = fixture.tenant("a").await;
    let old = fixture.fence().await;
    let new = fixture.fence().await;
    let asked = idempotency("k", "d");
    let refused = database
        .create_sandbox(&old, &new_sandbox(tenant, "i1"), Some(&asked))
        .await;
    assert!(matches!(
        refused,
        Err(CreateError::Lost(Lost::Fenced { .. }))
    ));
    let created = database
        .create_sandbox(&new, &new_sandbox(tenant, "i2"), Some(&asked))
        .await;
    assert!(matches!(created, Ok(Created::New(_))), "{created:?}");
}

pub(crate) async fn a_nodes_sandboxes_are_found_again(fixture: &Fixture) {
    let tenant = fixture.tenant("a").await;
    let fence = fixture.fence().await;
    let mine = fixture.sandbox(&fence, &new_sandbox(tenant, "i1")).await;
    let elsewhere = tempfile::tempdir().unwrap();
    let node = NodeId::of_home(elsewhere.path()).unwrap();
    let other = Database::open(&fixture.location.parse().unwrap(), node.clone())
        .await
        .unwrap();
    let theirs = other.begin_epoch(NOW).await.unwrap();
    other
        .create_sandbox(&theirs, &new_sandbox(tenant, "i2"), None)
        .await
        .unwrap();
    let found = other.sandboxes_of_node(fixture.database.node()).await;
    assert_eq!(found.unwrap(), std::slice::from_ref(&mine));
    assert_eq!(other.sandboxes_of_node(&node).await.unwrap().len(), 1);
    // A node changes its own sandboxes only.
    let change = Change::default();
    let changed = other
        .change_sandbox(&theirs, "i1", mine.expected(), &change)
        .await;
    assert_eq!(lost(changed.unwrap_err()), Lost::Missing);
    assert_eq!(NodeId::of_home(elsewhere.path()).unwrap(), node);
    other.close().await;
}
