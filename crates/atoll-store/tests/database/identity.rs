//! Tenants, keys and tokens.

use atoll_store::db::{KeyId, KeyRecord, NewKey, Revoked, Rotated};

use crate::fixture::{Fixture, NOW, new_key, new_sandbox};

fn record(key: &NewKey) -> KeyRecord {
    KeyRecord {
        key_id: key.key_id,
        tenant_id: key.tenant_id,
        name: key.name.clone(),
        role: key.role.clone(),
        hash: key.hash.clone(),
        suffix: key.suffix.clone(),
        created_at_ms: key.created_at_ms,
        expires_at_ms: key.expires_at_ms,
        last_used_at_ms: None,
        revoked_at_ms: None,
        rotated_to: None,
    }
}

pub(crate) async fn a_tenant_is_made_once(fixture: &Fixture) {
    let database = &fixture.database;
    let first = database.ensure_tenant("default", NOW).await.unwrap();
    let again = database.ensure_tenant("default", NOW + 1).await.unwrap();
    let other = database.ensure_tenant("other", NOW).await.unwrap();
    assert_eq!(first, again);
    assert_ne!(first.tenant_id, other.tenant_id);
    assert_eq!(
        database.tenants().await.unwrap(),
        [first.clone(), other.clone()]
    );
    assert_eq!(database.tenant_by_name("other").await.unwrap(), Some(other));
    assert_eq!(database.tenant_by_name("nobody").await.unwrap(), None);
}

pub(crate) async fn a_setting_is_the_first_ones(fixture: &Fixture) {
    let database = &fixture.database;
    assert_eq!(database.remember("mark", "a").await.unwrap(), "a");
    assert_eq!(database.remember("mark", "b").await.unwrap(), "a");
    assert_eq!(database.remember("other", "b").await.unwrap(), "b");
}

pub(crate) async fn keys_are_found_by_their_hash_and_listed_by_tenant(fixture: &Fixture) {
    let database = &fixture.database;
    let (ours, theirs) = (fixture.tenant("a").await, fixture.tenant("b").await);
    let keys = [new_key(ours), new_key(theirs)];
    for key in &keys {
        database.insert_key(key).await.unwrap();
    }
    let expected = record(&keys[0]);
    let found = database.key_by_hash(&keys[0].hash).await.unwrap();
    assert_eq!(found, Some(expected.clone()));
    assert_eq!(database.key_by_hash("another").await.unwrap(), None);
    assert_eq!(database.keys(Some(ours)).await.unwrap(), [expected]);
    assert_eq!(database.keys(None).await.unwrap().len(), 2);
    // The same hash twice is refused, whoever asks.
    let twin = NewKey {
        hash: keys[0].hash.clone(),
        ..new_key(theirs)
    };
    assert!(database.insert_key(&twin).await.is_err());
    assert_eq!(database.keys(None).await.unwrap().len(), 2);
}

pub(crate) async fn a_key_is_revoked_once(fixture: &Fixture) {
    let database = &fixture.database;
    let key = fixture.key(fixture.tenant("a").await).await;
    assert_eq!(database.revoke_key(key, NOW).await.unwrap(), Revoked::Now);
    let before = database.revoke_key(key, NOW + 9).await.unwrap();
    assert_eq!(before, Revoked::Before);
    let found = database.key(key).await.unwrap().unwrap();
    assert_eq!(found.revoked_at_ms, Some(NOW));
    assert!(!found.is_valid(NOW));
    let missing = database.revoke_key(KeyId::random(), NOW).await.unwrap();
    assert_eq!(missing, Revoked::Missing);
}

pub(crate) async fn a_rotated_key_lives_for_its_grace_and_no_longer(fixture: &Fixture) {
    let database = &fixture.database;
    let tenant = fixture.tenant("a").await;
    let old = fixture.key(tenant).await;
    let successor = new_key(tenant);
    let rotated = database.rotate_key(old, &successor, 60_000).await.unwrap();
    let old_expires_at_ms = NOW + 60_000;
    assert_eq!(rotated, Rotated::Done { old_expires_at_ms });
    let found = database.key(old).await.unwrap().unwrap();
    assert!(found.is_valid(NOW + 59_999) && !found.is_valid(NOW + 60_000));
    assert_eq!(found.rotated_to, Some(successor.key_id.to_string()));
    let new = database.key(successor.key_id).await.unwrap();
    assert_eq!(new, Some(record(&successor)));
}

pub(crate) async fn an_earlier_expiry_is_not_moved_by_a_rotation(fixture: &Fixture) {
    let database = &fixture.database;
    let tenant = fixture.tenant("a").await;
    let old = NewKey {
        expires_at_ms: Some(NOW + 1000),
        ..new_key(tenant)
    };
    database.insert_key(&old).await.unwrap();
    let rotated = database
        .rotate_key(old.key_id, &new_key(tenant), 60_000)
        .await
        .unwrap();
    let old_expires_at_ms = NOW + 1000;
    assert_eq!(rotated, Rotated::Done { old_expires_at_ms });
}

pub(crate) async fn only_a_valid_key_of_the_same_tenant_is_rotated(fixture: &Fixture) {
    let database = &fixture.database;
    let (ours, theirs) = (fixture.tenant("a").await, fixture.tenant("b").await);
    let revoked = fixture.key(ours).await;
    database.revoke_key(revoked, NOW).await.unwrap();
    let expired = NewKey {
        expires_at_ms: Some(NOW),
        ..new_key(ours)
    };
    database.insert_key(&expired).await.unwrap();
    let rotated = fixture.key(ours).await;
    database
        .rotate_key(rotated, &new_key(ours), 1)
        .await
        .unwrap();
    let foreign = fixture.key(theirs).await;
    let keys = database.keys(None).await.unwrap();
    for (key, expected) in [
        (revoked, Rotated::Over),
        (expired.key_id, Rotated::Over),
        (rotated, Rotated::Over),
        (foreign, Rotated::Missing),
        (KeyId::random(), Rotated::Missing),
    ] {
        let outcome = database.rotate_key(key, &new_key(ours), 1).await.unwrap();
        assert_eq!(outcome, expected);
    }
    assert_eq!(database.keys(None).await.unwrap(), keys, "none was changed");
}

pub(crate) async fn use_of_a_key_is_written_once_a_minute(fixture: &Fixture) {
    let database = &fixture.database;
    let key = fixture.key(fixture.tenant("a").await).await;
    for (at, expected) in [
        (NOW, true),
        (NOW + 1, false),
        (NOW + 59_999, false),
        (NOW + 60_000, true),
    ] {
        let written = database.touch_key(key, at, at - 60_000).await.unwrap();
        assert_eq!(written, expected, "{at}");
    }
    let found = database.key(key).await.unwrap().unwrap();
    assert_eq!(found.last_used_at_ms, Some(NOW + 60_000));
}

pub(crate) async fn every_change_of_a_key_changes_the_revision(fixture: &Fixture) {
    let database = &fixture.database;
    let tenant = fixture.tenant("a").await;
    let mut seen = vec![database.keys_revision().await.unwrap()];
    let key = fixture.key(tenant).await;
    seen.push(database.keys_revision().await.unwrap());
    let successor = new_key(tenant);
    database.rotate_key(key, &successor, 1).await.unwrap();
    seen.push(database.keys_revision().await.unwrap());
    database.revoke_key(successor.key_id, NOW).await.unwrap();
    seen.push(database.keys_revision().await.unwrap());
    assert_eq!(seen, [0, 1, 2, 3]);
    database.touch_key(key, NOW, NOW).await.unwrap();
    assert_eq!(
        database.keys_revision().await.unwrap(),
        3,
        "use is no change"
    );
}

pub(crate) async fn a_token_takes_a_live_sandbox_and_a_valid_key_of_one_tenant(fixture: &Fixture) {
    let database = &fixture.database;
    let (ours, theirs) = (fixture.tenant("a").await, fixture.tenant("b").await);
    let fence = fixture.fence().await;
    fixture.sandbox(&fence, &new_sandbox(ours, "i1")).await;
    let key = fixture.key(ours).await;
    for _ in 0..2 {
        assert!(database.record_token("i1", key, NOW).await.unwrap());
    }
    let tokens = database.tokens_of_node(database.node()).await.unwrap();
    let tokens: Vec<_> = tokens
        .iter()
        .map(|token| (token.sandbox_id.as_str(), token.key_id, token.tenant_id))
        .collect();
    assert_eq!(tokens, [("i1", key, ours)]);

    let foreign = fixture.key(theirs).await;
    assert!(!database.record_token("i1", foreign, NOW).await.unwrap());
    assert!(!database.record_token("i2", key, NOW).await.unwrap());
    database.revoke_key(key, NOW).await.unwrap();
    assert!(!database.record_token("i1", key, NOW).await.unwrap());
    let expired = NewKey {
        expires_at_ms: Some(NOW),
        ..new_key(ours)
    };
    database.insert_key(&expired).await.unwrap();
    let allowed = database.record_token("i1", expired.key_id, NOW).await;
    assert!(!allowed.unwrap());
}
