//! A fresh database of either kind, and rows to put into it.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_store::db::{
    Created, Database, Fence, KeyId, Location, Metadata, NewKey, NewSandbox, NodeId, Sandbox,
    SandboxState, TenantId,
};

use crate::postgres::Postgres;

/// A database of its own for one test.
pub(crate) struct Fixture {
    pub(crate) database: Database,
    pub(crate) location: String,
    pub(crate) home: tempfile::TempDir,
    /// Keeps the server running.
    _server: Option<Arc<Postgres>>,
}

/// A moment, in milliseconds.
pub(crate) const NOW: i64 = 1_800_000_000_000;

impl Fixture {
    async fn new(location: String, home: tempfile::TempDir, server: Option<Arc<Postgres>>) -> Self {
        let node = NodeId::of_home(home.path()).unwrap();
        let database = Database::open(&location.parse().unwrap(), node)
            .await
            .unwrap();
        Self {
            database,
            location,
            home,
            _server: server,
        }
    }

    /// The same database once more, as another process of the same node has it.
    pub(crate) async fn again(&self) -> Database {
        let location: Location = self.location.parse().unwrap();
        Database::open(&location, self.database.node().clone())
            .await
            .unwrap()
    }

    pub(crate) async fn tenant(&self, name: &str) -> TenantId {
        let tenant = self.database.ensure_tenant(name, NOW).await.unwrap();
        tenant.tenant_id
    }

    pub(crate) async fn key(&self, tenant: TenantId) -> KeyId {
        let key = new_key(tenant);
        self.database.insert_key(&key).await.unwrap();
        key.key_id
    }

    /// A sandbox in the state `creating`.
    pub(crate) async fn sandbox(&self, fence: &Fence, new: &NewSandbox) -> Sandbox {
        let created = self.database.create_sandbox(fence, new, None).await;
        let Ok(Created::New(sandbox)) = created else {
            panic!("{created:?}");
        };
        *sandbox
    }

    pub(crate) async fn fence(&self) -> Fence {
        self.database.begin_epoch(NOW).await.unwrap()
    }
}

pub(crate) fn new_key(tenant: TenantId) -> NewKey {
    let key_id = KeyId::random();
    NewKey {
        key_id,
        tenant_id: tenant,
        name: "ci".to_owned(),
        role: "operator".to_owned(),
        hash: format!("hash of {key_id}"),
        suffix: "beef".to_owned(),
        created_at_ms: NOW,
        expires_at_ms: None,
    }
}

pub(crate) fn new_sandbox(tenant: TenantId, id: &str) -> NewSandbox {
    NewSandbox {
        sandbox_id: id.to_owned(),
        tenant_id: tenant,
        key_id: KeyId::from_bytes([7; 16]),
        template_id: "0123456789abcdefghij".to_owned(),
        template_name: "base".to_owned(),
        metadata: metadata(&[("purpose", "test")]),
        limits: "{\"memory_mib\":512}".to_owned(),
        network: "{}".to_owned(),
        lifecycle: "{\"auto_pause\":false}".to_owned(),
        sealed: "opaque".to_owned(),
        envd_version: "0.6.13".to_owned(),
        client: "e2b-python-sdk/2.63.0".to_owned(),
        agent_id: Some("agent".to_owned()),
        task_id: None,
        created_at_ms: NOW,
        end_at_ms: NOW + 300_000,
    }
}

pub(crate) fn metadata(pairs: &[(&str, &str)]) -> Metadata {
    let pairs = pairs.iter().map(|(name, value)| {
        let (name, value) = (*name, *value);
        (name.to_owned(), value.to_owned())
    });
    Metadata(pairs.collect::<BTreeMap<_, _>>())
}

/// States that a client can see.
pub(crate) const VISIBLE: [SandboxState; 2] = [SandboxState::Running, SandboxState::Paused];

fn run(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(work);
}

pub(crate) fn on_sqlite(test: impl AsyncFnOnce(&Fixture)) {
    run(async {
        let home = tempfile::tempdir().unwrap();
        let location = home.path().join("atoll.db").to_str().unwrap().to_owned();
        test(&Fixture::new(location, home, None).await).await;
    });
}

pub(crate) fn on_postgres(test: impl AsyncFnOnce(&Fixture)) {
    run(async {
        let server = Postgres::shared();
        let location = server.fresh_database().await;
        let home = tempfile::tempdir().unwrap();
        let fixture = Fixture::new(location, home, Some(server)).await;
        test(&fixture).await;
        fixture.database.close().await;
    });
}
