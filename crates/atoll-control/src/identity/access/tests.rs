//! Forged, foreign, revoked and expired tokens, and streams that are cut.

use std::sync::Arc;

use atoll_store::db::{Created, Fence, Location, Metadata, NewSandbox, NodeId};

use super::*;
use crate::identity::{Identity, IssuedKey, LookupError};

/// What nothing here comes close to taking.
const BOUND: Duration = Duration::from_secs(60);

struct World {
    home: tempfile::TempDir,
    database: Database,
    identity: Identity,
    access: Arc<Access>,
    fence: Fence,
}

impl World {
    async fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let database = open(home.path()).await;
        let identity = Identity::open(home.path(), database.clone()).await.unwrap();
        let fence = database.begin_epoch(now_ms()).await.unwrap();
        let access = Access::load(database.clone(), identity.mint.clone()).await;
        Self {
            home,
            database,
            identity,
            access: Arc::new(access.unwrap()),
            fence,
        }
    }

    async fn key(&self, tenant: &str) -> (IssuedKey, Caller) {
        let issued = self.identity.keys.create("ci", tenant, None).await.unwrap();
        let caller = self.identity.keys.authenticate(issued.key.reveal()).await;
        (issued, caller.unwrap())
    }

    async fn sandbox(&self, caller: &Caller) -> SandboxId {
        let id = SandboxId::random().unwrap();
        let now_ms = now_ms();
        let new = NewSandbox {
            sandbox_id: id.to_string(),
            tenant_id: caller.tenant,
            key_id: caller.key,
            template_id: "base".to_owned(),
            template_name: "base".to_owned(),
            metadata: Metadata::default(),
            limits: "{}".to_owned(),
            network: "{}".to_owned(),
            lifecycle: "{}".to_owned(),
            sealed: String::new(),
            envd_version: "0.6.13".to_owned(),
            client: String::new(),
            agent_id: None,
            task_id: None,
            created_at_ms: now_ms,
            end_at_ms: now_ms + 1000,
        };
        let created = self.database.create_sandbox(&self.fence, &new, None).await;
        assert!(matches!(created, Ok(Created::New(_))), "{created:?}");
        self.access.begin_sandbox(id.clone(), caller.tenant);
        id
    }

    async fn bury(&self, caller: &Caller, id: &SandboxId) {
        let row = self.database.sandbox(caller.tenant, id.as_str()).await;
        let expected = row.unwrap().unwrap().expected();
        self.database
            .bury_sandbox(&self.fence, id.as_str(), expected, now_ms(), "{}", &[])
            .await
            .unwrap();
        self.access.end_sandbox(id);
    }
}

async fn open(home: &std::path::Path) -> Database {
    let node = NodeId::of_home(home).unwrap();
    Database::open(&Location::of_home(home), node)
        .await
        .unwrap()
}

async fn broken(lifeline: Lifeline) -> Over {
    tokio::time::timeout(BOUND, lifeline.broken())
        .await
        .unwrap()
}

#[tokio::test]
async fn a_token_opens_its_sandbox_and_no_other() {
    let world = World::new().await;
    let (_, caller) = world.key("a").await;
    let (first, second) = (world.sandbox(&caller).await, world.sandbox(&caller).await);
    let token = world.access.grant(&caller, &first).await.unwrap();
    assert_eq!(world.access.grant(&caller, &first).await.unwrap(), token);
    let pass = world.access.verify(&first, token.reveal()).unwrap();
    assert_eq!((pass.tenant, pass.key), (caller.tenant, caller.key));
    let denied = world.access.verify(&second, token.reveal());
    assert_eq!(denied.unwrap_err(), Denied);
    assert!(world.access.verify(&first, "").is_err());
}

#[tokio::test]
async fn a_token_that_was_never_granted_opens_nothing() {
    let world = World::new().await;
    let (_, caller) = world.key("a").await;
    let sandbox = world.sandbox(&caller).await;
    let right = world.identity.mint.token(&sandbox, caller.key);
    assert!(world.access.verify(&sandbox, right.reveal()).is_err());
    world.access.grant(&caller, &sandbox).await.unwrap();
    world.access.verify(&sandbox, right.reveal()).unwrap();
}

#[tokio::test]
async fn a_foreign_sandbox_is_a_missing_one() {
    let world = World::new().await;
    let ((_, ours), (_, theirs)) = (world.key("a").await, world.key("b").await);
    let sandbox = world.sandbox(&theirs).await;
    let foreign = world.access.grant(&ours, &sandbox).await.unwrap_err();
    let missing = SandboxId::random().unwrap();
    let missing = world.access.grant(&ours, &missing).await.unwrap_err();
    assert_eq!(format!("{foreign:?}"), format!("{missing:?}"));

    let foreign = ours.sandbox(&world.database, sandbox.as_str()).await;
    let missing = ours.sandbox(&world.database, "i00000000000000000000").await;
    let garbage = ours.sandbox(&world.database, "../../x").await;
    for looked in [foreign, missing, garbage] {
        assert!(matches!(looked, Err(LookupError::NotFound)), "{looked:?}");
    }
    let own = theirs.sandbox(&world.database, sandbox.as_str()).await;
    assert_eq!(own.unwrap().sandbox_id, sandbox.as_str());
}

#[tokio::test]
async fn revoking_a_key_ends_its_tokens_and_open_streams_at_once_and_no_others() {
    let world = World::new().await;
    let ((_, first), (_, second)) = (world.key("a").await, world.key("a").await);
    let sandbox = world.sandbox(&first).await;
    let tokens = [
        world.access.grant(&first, &sandbox).await.unwrap(),
        world.access.grant(&second, &sandbox).await.unwrap(),
    ];
    let pass = world.access.verify(&sandbox, tokens[0].reveal()).unwrap();
    world.identity.keys.revoke(first.key).await.unwrap();
    world.access.revoke(first.key);
    assert!(world.access.verify(&sandbox, tokens[0].reveal()).is_err());
    assert_eq!(broken(pass.lifeline).await, Over::KeyRevoked);
    world.access.verify(&sandbox, tokens[1].reveal()).unwrap();
    let again = world.access.grant(&first, &sandbox).await;
    assert!(matches!(again, Err(GrantError::NotFound)));
}

#[tokio::test]
async fn a_revocation_by_another_process_is_noticed() {
    let world = World::new().await;
    let (_, caller) = world.key("a").await;
    let sandbox = world.sandbox(&caller).await;
    let token = world.access.grant(&caller, &sandbox).await.unwrap();
    let pass = world.access.verify(&sandbox, token.reveal()).unwrap();
    let access = Arc::clone(&world.access);
    let task = tokio::spawn(async move { access.keep_fresh().await });
    let elsewhere = open(world.home.path()).await;
    let elsewhere = Identity::open(world.home.path(), elsewhere).await.unwrap();
    elsewhere.keys.revoke(caller.key).await.unwrap();
    assert_eq!(broken(pass.lifeline).await, Over::KeyRevoked);
    assert!(world.access.verify(&sandbox, token.reveal()).is_err());
    task.abort();
}

#[tokio::test]
async fn a_rotated_key_loses_its_tokens_when_its_grace_ends() {
    let world = World::new().await;
    let (_, caller) = world.key("a").await;
    let sandbox = world.sandbox(&caller).await;
    let token = world.access.grant(&caller, &sandbox).await.unwrap();
    let pass = world.access.verify(&sandbox, token.reveal()).unwrap();
    let keys = &world.identity.keys;
    let grace = Duration::from_millis(300);
    let rotated = keys.rotate(caller.key, grace).await.unwrap();
    world.access.refresh().await.unwrap();
    assert_eq!(broken(pass.lifeline).await, Over::KeyExpired);
    assert!(now_ms() >= rotated.old_expires_at_ms);
    assert!(world.access.verify(&sandbox, token.reveal()).is_err());
}

#[tokio::test]
async fn the_end_of_a_sandbox_ends_its_tokens_and_open_streams() {
    let world = World::new().await;
    let (_, caller) = world.key("a").await;
    let sandbox = world.sandbox(&caller).await;
    let token = world.access.grant(&caller, &sandbox).await.unwrap();
    let pass = world.access.verify(&sandbox, token.reveal()).unwrap();
    world.bury(&caller, &sandbox).await;
    assert_eq!(broken(pass.lifeline).await, Over::SandboxEnded);
    assert!(world.access.verify(&sandbox, token.reveal()).is_err());
    let again = world.access.grant(&caller, &sandbox).await;
    assert!(matches!(again, Err(GrantError::NotFound)));
}

#[tokio::test]
async fn a_sandbox_that_is_being_ended_grants_nothing() {
    let world = World::new().await;
    let (_, caller) = world.key("a").await;
    let sandbox = world.sandbox(&caller).await;
    // Ended for its clients, and its row still there.
    world.access.end_sandbox(&sandbox);
    let late = world.access.grant(&caller, &sandbox).await;
    assert!(matches!(late, Err(GrantError::NotFound)));
}

#[tokio::test]
async fn tokens_outlive_a_restart_of_the_server_and_ends_do_too() {
    let world = World::new().await;
    let ((_, first), (_, second)) = (world.key("a").await, world.key("a").await);
    let (kept, ended) = (world.sandbox(&first).await, world.sandbox(&first).await);
    let mut tokens = Vec::new();
    for (caller, sandbox) in [(&first, &kept), (&second, &kept), (&first, &ended)] {
        tokens.push(world.access.grant(caller, sandbox).await.unwrap());
    }
    world.bury(&first, &ended).await;
    world.identity.keys.revoke(second.key).await.unwrap();
    // Another process on the same home.
    let database = open(world.home.path()).await;
    let identity = Identity::open(world.home.path(), database.clone()).await;
    let access = Access::load(database, identity.unwrap().mint)
        .await
        .unwrap();
    access.verify(&kept, tokens[0].reveal()).unwrap();
    assert!(access.verify(&kept, tokens[1].reveal()).is_err(), "revoked");
    assert!(access.verify(&ended, tokens[2].reveal()).is_err(), "ended");
}

#[tokio::test]
async fn a_signer_is_found_among_live_tokens() {
    let world = World::new().await;
    let (_, caller) = world.key("a").await;
    let mut sandboxes = Vec::new();
    for _ in 0..5 {
        let sandbox = world.sandbox(&caller).await;
        let token = world.access.grant(&caller, &sandbox).await.unwrap();
        sandboxes.push((sandbox, token));
    }
    for (sandbox, token) in &sandboxes {
        let found = world.access.find(|candidate| candidate == token.reveal());
        assert_eq!(found.map(|(id, _)| id).as_ref(), Some(sandbox));
        for (other, _) in &sandboxes {
            let found = world
                .access
                .find_in(other, |candidate| candidate == token.reveal());
            assert_eq!(found.is_some(), other == sandbox);
        }
    }
    assert!(world.access.find(|_| false).is_none());
    world.identity.keys.revoke(caller.key).await.unwrap();
    world.access.revoke(caller.key);
    assert!(world.access.find(|_| true).is_none(), "none opens anything");
    let (first, _) = &sandboxes[0];
    assert!(world.access.find_in(first, |_| true).is_none());
}

#[tokio::test]
async fn who_comes_without_a_token_is_told_of_the_end() {
    let world = World::new().await;
    let (_, caller) = world.key("a").await;
    let (ending, other) = (world.sandbox(&caller).await, world.sandbox(&caller).await);
    let end = world.access.end_of(&ending).unwrap();
    let goes_on = world.access.end_of(&other).unwrap();
    world.access.end_sandbox(&ending);
    tokio::time::timeout(BOUND, end.reached()).await.unwrap();
    assert!(world.access.end_of(&ending).is_none());
    let mut goes_on = std::pin::pin!(goes_on.reached());
    let polled =
        std::future::poll_fn(|context| std::task::Poll::Ready(goes_on.as_mut().poll(context)));
    assert!(polled.await.is_pending());
}

#[tokio::test]
async fn who_follows_without_a_sandbox_is_told_when_the_key_is_over() {
    let world = World::new().await;
    let (_, caller) = world.key("a").await;
    let lifeline = world.access.lifeline_of(caller.key).await.unwrap();
    let waiting = tokio::spawn(tokio::time::timeout(BOUND, lifeline.broken()));
    // Another process revokes it.
    let other = Identity::open(world.home.path(), open(world.home.path()).await)
        .await
        .unwrap();
    other.keys.revoke(caller.key).await.unwrap();
    world.access.refresh().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), Over::KeyRevoked);
    let again = world.access.lifeline_of(caller.key).await;
    assert!(matches!(again, Err(GrantError::NotFound)), "{again:?}");
}
