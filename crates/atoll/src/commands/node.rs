//! A home as a node: its database, its identity and its life cycle, in the
//! hands of the one process that may change its sandboxes.

use std::sync::Arc;

use anyhow::Context as _;
use atoll_control::executions::Executions;
use atoll_control::identity::{Access, Identity, now_ms};
use atoll_control::lifecycle::{Foundation, Lifecycle};
use atoll_control::running::RunningSandboxes;
use atoll_control::sessions::Sessions;
use atoll_control::templates::TemplateCatalog;
use atoll_engine::Runtime;
use atoll_server::control_plane::AgentServices;
use atoll_store::db::{Database, Fence, HomeOwner, NodeId};

use crate::home::Home;

/// The home, for as long as this process has it.
pub(super) struct Node {
    pub(super) database: Database,
    pub(super) identity: Identity,
    pub(super) access: Arc<Access>,
    pub(super) running: Arc<RunningSandboxes>,
    pub(super) fence: Fence,
    /// Given back last.
    _owner: HomeOwner,
}

impl Node {
    /// Takes the home, opens its database and begins a new epoch.
    pub(super) async fn take(home: &Home) -> anyhow::Result<Self> {
        let owner = HomeOwner::take(home.path())?;
        let node = NodeId::of_home(home.path())?;
        let database = Database::open(&home.database()?, node)
            .await
            .context("cannot open the database")?;
        database.check().await?;
        let fence = database.begin_epoch(now_ms()).await?;
        let identity = Identity::open(home.path(), database.clone()).await?;
        let access = Access::load(database.clone(), identity.mint.clone()).await?;
        Ok(Self {
            database,
            identity,
            access: Arc::new(access),
            running: Arc::default(),
            fence,
            _owner: owner,
        })
    }

    /// What agents run, and where, once `lifecycle` knows its sandboxes.
    pub(super) async fn agent_services(
        &self,
        home: &Home,
        lifecycle: &Lifecycle,
    ) -> anyhow::Result<AgentServices> {
        let executions = Executions::open(
            lifecycle.clone(),
            self.database.clone(),
            self.fence.clone(),
            home.history_settings()?,
        )
        .await?;
        let places = executions.places(Arc::clone(&self.running));
        let sessions = Sessions::open(
            places.clone(),
            self.database.clone(),
            self.fence.clone(),
            self.identity.sealer.clone(),
            home.session_settings(),
        )
        .await?;
        Ok(AgentServices {
            executions,
            sessions,
            places,
        })
    }

    /// The life cycle of its sandboxes, which `runtime` makes.
    pub(super) fn lifecycle(
        &self,
        home: &Home,
        runtime: Arc<dyn Runtime>,
    ) -> anyhow::Result<Lifecycle> {
        Ok(Lifecycle::new(Foundation {
            home: home.path().to_owned(),
            database: self.database.clone(),
            fence: self.fence.clone(),
            identity: self.identity.clone(),
            access: Arc::clone(&self.access),
            running: Arc::clone(&self.running),
            runtime,
            catalog: TemplateCatalog::open(home.path())?,
            settings: home.lifecycle_settings()?,
        }))
    }
}
