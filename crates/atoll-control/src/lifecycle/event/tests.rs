//! What events say, and how much.

use std::collections::BTreeMap;

use atoll_store::db::{Created, Database, KeyId, Location, Metadata, NewSandbox, NodeId};

use super::*;

async fn row(metadata: BTreeMap<String, String>) -> Sandbox {
    let home = tempfile::tempdir().unwrap();
    let node = NodeId::of_home(home.path()).unwrap();
    let database = Database::open(&Location::of_home(home.path()), node)
        .await
        .unwrap();
    let fence = database.begin_epoch(now_ms()).await.unwrap();
    let tenant = database.ensure_tenant("a", now_ms()).await.unwrap();
    let new = NewSandbox {
        sandbox_id: "i1".to_owned(),
        tenant_id: tenant.tenant_id,
        key_id: KeyId::random(),
        template_id: "0123".to_owned(),
        template_name: "base".to_owned(),
        metadata: Metadata(metadata),
        limits: "{}".to_owned(),
        network: "{}".to_owned(),
        lifecycle: "{}".to_owned(),
        sealed: String::new(),
        envd_version: "0.6.13".to_owned(),
        client: String::new(),
        agent_id: Some("agent".to_owned()),
        task_id: None,
        created_at_ms: now_ms(),
        end_at_ms: now_ms() + 60_000,
    };
    match database.create_sandbox(&fence, &new, None).await {
        Ok(Created::New(row)) => *row,
        other => panic!("{other:?}"),
    }
}

fn said(event: &NewEvent) -> (EventKind, Value) {
    (event.kind, serde_json::from_str(&event.detail).unwrap())
}

#[tokio::test]
async fn an_event_says_what_is_recorded_of_its_sandbox() {
    let row = row(BTreeMap::from([("a".to_owned(), "b".to_owned())])).await;
    let recorded = json!({
        "template": "base", "template_id": "0123", "agent_id": "agent", "metadata": {"a": "b"},
    });
    let with = |more: Value| {
        let mut whole = recorded.clone();
        let object = whole.as_object_mut().unwrap();
        object.extend(more.as_object().unwrap().clone());
        whole
    };
    let events = of_birth(&row, None);
    let said_all = |events: &[NewEvent]| events.iter().map(said).collect::<Vec<_>>();
    assert_eq!(said_all(&events), [(EventKind::Created, recorded.clone())]);
    let parent: SandboxId = SandboxId::random().unwrap();
    let events = of_birth(&row, Some(&parent));
    assert_eq!(events[0].sandbox_id, Some(parent.to_string()));
    assert_eq!(
        said_all(&events),
        [
            (EventKind::Forked, with(json!({"fork": "i1"}))),
            (
                EventKind::Created,
                with(json!({"forked_from": parent.as_str()}))
            ),
        ]
    );
    let events = of_pause(&row);
    let asked = with(json!({"reason": "it was asked for"}));
    assert_eq!(said_all(&events), [(EventKind::Paused, asked)]);
    assert_eq!(of_waking(&row), [], "it was never still");
}

#[tokio::test]
async fn every_end_is_somebodys_wish_or_the_clocks_or_a_crash() {
    let row = row(BTreeMap::new()).await;
    for (outcome, kind) in [
        (Outcome::Killed, EventKind::Killed),
        (Outcome::ClientGone, EventKind::Killed),
        (Outcome::LifetimeEnded { limit_ms: 7 }, EventKind::Expired),
        (Outcome::Signaled { signal: 9 }, EventKind::Crashed),
        (Outcome::Exited { code: 0 }, EventKind::Crashed),
        (
            Outcome::Crashed {
                detail: "x".repeat(100_000),
            },
            EventKind::Crashed,
        ),
    ] {
        let events = of_end(&row, &outcome);
        let (told, detail) = said(&events[0]);
        assert_eq!((events.len(), told), (1, kind), "{outcome:?}");
        assert_eq!(detail["while"], "creating");
        let reason: String = outcome.to_string().chars().take(1024).collect();
        assert_eq!(detail["reason"], reason);
    }
}

#[tokio::test]
async fn metadata_that_does_not_fit_is_left_out_and_that_is_said() {
    let long = BTreeMap::from([("a".to_owned(), "b".repeat(EVENT_DETAIL_BYTES_MAX))]);
    let row = row(long).await;
    let (_, detail) = said(&of_birth(&row, None)[0]);
    let expected = json!({
        "template": "base", "template_id": "0123", "agent_id": "agent", "metadata_omitted": true,
    });
    assert_eq!(detail, expected);
}
