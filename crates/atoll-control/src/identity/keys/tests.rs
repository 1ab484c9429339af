//! Forged, expired, revoked and rotated keys.

use super::*;
use crate::identity::{Identity, IdentityError};
use atoll_store::db::{Location, NodeId};
use proptest::prelude::*;

async fn open(home: &std::path::Path) -> Result<Identity, IdentityError> {
    let database = Database::open(&Location::of_home(home), NodeId::of_home(home)?).await?;
    Identity::open(home, database).await
}

async fn keys() -> (tempfile::TempDir, Keys) {
    let home = tempfile::tempdir().unwrap();
    let identity = open(home.path()).await.unwrap();
    (home, identity.keys)
}

async fn refusal(keys: &Keys, text: &str, now_ms: i64) -> Refusal {
    match keys.authenticate_at(text, now_ms).await {
        Err(AuthenticationError::Refused(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_key_stands_for_its_tenant() {
    let (_home, keys) = keys().await;
    let first = keys.create("ci", DEFAULT_TENANT, None).await.unwrap();
    let second = keys.create("ci", "other", None).await.unwrap();
    let caller = keys.authenticate(first.key.reveal()).await.unwrap();
    let expected = Caller {
        tenant: first.info.tenant_id,
        key: first.info.id,
        role: Role::Operator,
        agent_id: None,
        task_id: None,
    };
    assert_eq!(caller, expected);
    let other = keys.authenticate(second.key.reveal()).await.unwrap();
    assert_ne!(caller.tenant, other.tenant);
}

#[tokio::test]
async fn the_key_is_not_in_the_home() {
    let (home, keys) = keys().await;
    let issued = keys.create("ci", DEFAULT_TENANT, None).await.unwrap();
    let secret = issued.key.reveal().strip_prefix("e2b_").unwrap().as_bytes();
    let mut looked = 0;
    for entry in std::fs::read_dir(home.path()).unwrap() {
        let content = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!content.windows(secret.len()).any(|window| window == secret));
        looked += content.len();
    }
    assert!(looked > 4096, "the database was among them");
}

#[tokio::test]
async fn forged_keys_are_refused() {
    let (_home, keys) = keys().await;
    let issued = keys.create("ci", DEFAULT_TENANT, None).await.unwrap();
    let key = issued.key.reveal();
    let now = now_ms();
    let other = ApiKey::random().unwrap();
    assert_eq!(refusal(&keys, other.reveal(), now).await, Refusal::Unknown);
    let hash = keys.hasher.hash(&issued.key).to_hex().to_string();
    for text in [
        "",
        "e2b_",
        &key[4..],
        &key.to_uppercase(),
        &format!("{key} "),
        &hash,
    ] {
        assert_eq!(
            refusal(&keys, text, now).await,
            Refusal::Malformed,
            "{text}"
        );
    }
    // One digit off, at every place.
    for place in 4..key.len() {
        let mut bytes = key.as_bytes().to_vec();
        bytes[place] = if bytes[place] == b'0' { b'1' } else { b'0' };
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(refusal(&keys, &text, now).await, Refusal::Unknown, "{text}");
    }
    keys.authenticate(key).await.unwrap();
}

#[tokio::test]
async fn an_expired_key_is_refused_from_its_last_moment_on() {
    let (_home, keys) = keys().await;
    let lifetime = Some(Duration::from_secs(60));
    let issued = keys.create("ci", DEFAULT_TENANT, lifetime).await.unwrap();
    let end = issued.info.expires_at_ms.unwrap();
    assert_eq!(end, issued.info.created_at_ms + 60_000);
    let key = issued.key.reveal();
    keys.authenticate_at(key, end - 1).await.unwrap();
    assert_eq!(refusal(&keys, key, end).await, Refusal::Expired);
}

#[tokio::test]
async fn a_revoked_key_is_refused_at_once() {
    let (home, keys) = keys().await;
    let issued = keys.create("ci", DEFAULT_TENANT, None).await.unwrap();
    keys.authenticate(issued.key.reveal()).await.unwrap();
    // By another process.
    let elsewhere = open(home.path()).await.unwrap().keys;
    elsewhere.revoke(issued.info.id).await.unwrap();
    let why = refusal(&keys, issued.key.reveal(), now_ms()).await;
    assert_eq!(why, Refusal::Revoked);
    let again = keys.revoke(issued.info.id).await;
    assert!(matches!(again, Err(RevokeError::Already)));
    let missing = keys.revoke(KeyId::random()).await;
    assert!(matches!(missing, Err(RevokeError::NotFound)));
    let listed = keys.list(None).await.unwrap();
    assert_eq!(listed[0].state, KeyState::Revoked);
}

#[tokio::test]
async fn a_rotation_gives_a_new_key_and_lets_the_old_one_live_for_its_grace() {
    let (_home, keys) = keys().await;
    let lifetime = Duration::from_secs(3600);
    let old = keys.create("ci", "team", Some(lifetime)).await.unwrap();
    let rotated = keys
        .rotate(old.info.id, Duration::from_secs(60))
        .await
        .unwrap();
    let new = &rotated.issued;
    assert_ne!(new.key, old.key);
    assert_eq!(
        (
            new.info.name.as_str(),
            new.info.tenant.as_str(),
            new.info.state
        ),
        ("ci", "team", KeyState::Active)
    );
    assert_eq!(
        new.info.expires_at_ms,
        Some(new.info.created_at_ms + 3_600_000),
        "as long as the old one was meant to live"
    );
    let end = rotated.old_expires_at_ms;
    assert_eq!(end, new.info.created_at_ms + 60_000);
    for key in [&old.key, &new.key] {
        keys.authenticate_at(key.reveal(), end - 1).await.unwrap();
    }
    assert_eq!(
        refusal(&keys, old.key.reveal(), end).await,
        Refusal::Expired
    );
    keys.authenticate_at(new.key.reveal(), end).await.unwrap();
    let again = keys.rotate(old.info.id, Duration::ZERO).await;
    assert!(matches!(again, Err(RotateError::Over)), "{again:?}");
    let missing = keys.rotate(KeyId::random(), Duration::ZERO).await;
    assert!(matches!(missing, Err(RotateError::NotFound)));
}

#[tokio::test]
async fn without_grace_the_old_key_ends_at_once() {
    let (_home, keys) = keys().await;
    let old = keys.create("ci", DEFAULT_TENANT, None).await.unwrap();
    let rotated = keys.rotate(old.info.id, Duration::ZERO).await.unwrap();
    assert_eq!(rotated.issued.info.expires_at_ms, None);
    let why = refusal(&keys, old.key.reveal(), now_ms()).await;
    assert_eq!(why, Refusal::Expired);
}

#[tokio::test]
async fn the_use_of_a_key_is_noted_to_the_minute() {
    let (_home, keys) = keys().await;
    let issued = keys.create("ci", DEFAULT_TENANT, None).await.unwrap();
    let start = issued.info.created_at_ms;
    for (at, expected) in [
        (start, start),
        (start + 59_999, start),
        (start + 60_000, start + 60_000),
    ] {
        keys.authenticate_at(issued.key.reveal(), at).await.unwrap();
        let listed = keys.list(Some(issued.info.tenant_id)).await.unwrap();
        assert_eq!(listed[0].last_used_at_ms, Some(expected), "{at}");
    }
}

#[tokio::test]
async fn another_secret_is_noticed_before_any_key_is_refused() {
    let (home, keys) = keys().await;
    keys.create("ci", DEFAULT_TENANT, None).await.unwrap();
    std::fs::remove_file(home.path().join("secret")).unwrap();
    let refused = open(home.path()).await.unwrap_err();
    assert!(matches!(refused, IdentityError::OtherSecret), "{refused}");
    assert!(refused.hint().is_some());
}

#[tokio::test]
async fn names_that_cannot_be_shown_or_used_are_refused() {
    let (_home, keys) = keys().await;
    for name in ["", " ", "a\nb", "\u{1b}[2J", &"x".repeat(65)] {
        let refused = keys.create(name, DEFAULT_TENANT, None).await;
        assert!(matches!(refused, Err(IssueError::KeyName(_))), "{name:?}");
    }
    for tenant in ["", "Team", "a/b", "a b", "ü", &"x".repeat(65)] {
        let refused = keys.create("ci", tenant, None).await;
        assert!(
            matches!(refused, Err(IssueError::TenantName(_))),
            "{tenant:?}"
        );
    }
    assert_eq!(keys.list(None).await.unwrap(), []);
}

proptest! {
    #[test]
    fn only_the_form_of_a_key_is_looked_up(text in ".{0,60}") {
        let looks_like = text.len() == 44
            && text.starts_with("e2b_")
            && text[4..].bytes().all(|byte| b"0123456789abcdef".contains(&byte));
        prop_assert_eq!(ApiKey::parse(&text).is_some(), looks_like);
    }
}
