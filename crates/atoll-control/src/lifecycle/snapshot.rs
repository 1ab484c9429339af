//! A sandbox at one moment, as a template of its own: with its memory where its tier can write
//! that (`memory.rs`), and else its files.
//!
//! Every process holds still while the changes over the layers become a layer. The
//! monitor lets them run on when that is done, and also when this server dies: what
//! was read counts only after the monitor has said that nobody moved meanwhile.
//! Without memory, processes are not there in what is made of it.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use atoll_engine::{SandboxError, SandboxId, Still, Tier};
use atoll_store::db::{DatabaseError, Sandbox, SandboxState};
use atoll_store::{ArchiveError, Digest, LayerError, LayerInfo, no_progress};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::admission::Admitted;
use super::fork::FORKS_MAX;
use super::task::{Order, Reply, SandboxTask};
use super::{
    InvalidTemplateReference, InvalidWish, Lifecycle, OperationError, Shared, Step,
    TemplateReference,
};
use crate::identity::{Caller, SealError, now_ms};
use crate::live::blocking;
use crate::templates::{
    CatalogError, MemoryHeld, Resources, Snapshot, Template, TemplateId, TemplateName,
    layers_in_use,
};

/// The tag of a snapshot whose name has none.
pub(super) const DEFAULT_TAG: &str = "default";
/// How long a sandbox holds still for a snapshot, at most.
const STILL_BOUND: Duration = Duration::from_secs(600);
/// Layers that a snapshot may stand on; the kernel's overlay takes 500.
const LAYERS_MAX: usize = 200;
/// Sandboxes whose files are read at once.
pub(super) const READERS: usize = 2;
/// Requests of one tenant that read files, or wait to, at once.
pub(super) const PENDING_MAX: usize = 8;
/// Looks at a catalog that is busy, before the next minute's.
const SWEEPS: usize = 20;
const SWEEP_PAUSE: Duration = Duration::from_millis(500);

/// Why there is no snapshot, or no fork.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The sandbox.
    #[error(transparent)]
    Sandbox(#[from] OperationError),
    /// The name is none, or is another tenant's.
    #[error(transparent)]
    Name(#[from] InvalidTemplateReference),
    /// The name is in the namespace of somebody else.
    #[error("snapshots are named in the namespace '{0}'")]
    Namespace(String),
    /// There is no snapshot of that name.
    #[error("snapshot '{0}' not found")]
    Missing(String),
    /// Its tier has none.
    #[error(
        "snapshots and forks of sandboxes of the {0} tier are not part of this version of Atoll"
    )]
    Tier(Tier),
    /// The tenant has as many as it may.
    #[error("you have reached the maximum number of snapshots ({0}); delete some first")]
    TooMany(usize),
    /// As many are being made as may be.
    #[error("{PENDING_MAX} snapshots and forks of yours are being made already")]
    TooManyAtOnce,
    /// It was made of a snapshot of a snapshot of a snapshot.
    #[error(
        "the sandbox stands on {LAYERS_MAX} layers already: start from a template, and not from a chain of snapshots"
    )]
    TooDeep,
    /// As many forks cannot be asked for at once.
    #[error("'count' is from 1 to {FORKS_MAX}")]
    Count,
    /// Forks cannot live that long.
    #[error(transparent)]
    Time(#[from] InvalidWish),
    /// Reading its files took longer than it may be kept still.
    #[error("reading the files of the sandbox took longer than {} s; it runs on", STILL_BOUND.as_secs())]
    TooLong,
    /// It has files that no layer holds.
    #[error("the sandbox has files that a snapshot cannot hold: {0}; it runs on")]
    Unfit(ArchiveError),
    /// Its files could not be stored.
    #[error("the files of the sandbox cannot be stored")]
    Layer(#[source] LayerError),
    /// The catalog.
    #[error("cannot use the snapshots of this home")]
    Catalog(#[from] CatalogError),
    /// The kernel.
    #[error("the host did not do what it was asked")]
    Host(#[from] io::Error),
    /// Secrets cannot be read.
    #[error("cannot read the secrets of the sandbox")]
    Seal(#[from] SealError),
}

impl From<LayerError> for SnapshotError {
    fn from(error: LayerError) -> Self {
        match error {
            LayerError::Archive(
                unfit @ (ArchiveError::TooLarge { .. } | ArchiveError::Unsupported { .. }),
            ) => Self::Unfit(unfit),
            error => Self::Layer(error),
        }
    }
}

impl From<DatabaseError> for SnapshotError {
    fn from(error: DatabaseError) -> Self {
        Self::Sandbox(error.into())
    }
}

/// A sandbox that holds still, and runs on when this is dropped.
pub(super) struct Held {
    still: Still,
    row: Sandbox,
    /// Its task takes other orders again when this is gone.
    _place: oneshot::Sender<Infallible>,
}

/// A sandbox at one moment. Its memory, if it has that, stays while this is there.
pub(super) struct Moment {
    pub(super) template: Template,
    pub(super) _memory: Option<MemoryHeld>,
}

impl Moment {
    /// Waits until all of it would outlive the host, where that is not so yet.
    async fn reach_the_disk(&self) -> Result<(), SnapshotError> {
        if let Some(memory) = &self.template.memory {
            let image = memory.image.clone();
            blocking(move || image.sync()).await??;
        }
        Ok(())
    }
}

/// Resolves when nobody holds the sandbox any more.
pub(super) type Holder = oneshot::Receiver<Infallible>;

/// What snapshots are asked for.
#[derive(Debug, Clone, Default)]
pub struct SnapshotFilter {
    /// Of this sandbox.
    pub sandbox: Option<String>,
    /// Of this name, and of this tag if it has one.
    pub name: Option<TemplateReference>,
}

/// A snapshot, as its owner may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotView {
    /// What sandboxes are made from by `create`.
    pub id: String,
    /// What it is called, if it is.
    pub name: Option<String>,
    /// When it was taken, in milliseconds since 1970.
    pub created_at_ms: u64,
    /// The sandbox it was taken of.
    pub sandbox: String,
    /// What its files take, uncompressed, with those of its template, and its memory.
    pub total_bytes: u64,
    /// Whether processes go on in what is made of it.
    pub has_memory: bool,
}

impl Lifecycle {
    /// Makes a template of a sandbox of `caller` as it is, which runs on.
    ///
    /// # Errors
    /// When there is none, it is paused, its files cannot be read, or the name is none.
    pub async fn snapshot(
        &self,
        caller: &Caller,
        id: &str,
        name: Option<&str>,
    ) -> Result<SnapshotView, SnapshotError> {
        let (id, _) = self.shared.row(caller, id).await?;
        let (whole, caller) = (self.clone(), caller.clone());
        let name = name.map(str::to_owned);
        let pending = self.shared.pending(&caller)?;
        to_its_end(async move {
            let taken = whole.take_snapshot(&caller, &id, name.as_deref()).await;
            drop(pending);
            taken
        })
        .await
    }

    async fn take_snapshot(
        &self,
        caller: &Caller,
        id: &SandboxId,
        name: Option<&str>,
    ) -> Result<SnapshotView, SnapshotError> {
        let shared = &self.shared;
        let namespace = shared.namespace(caller).await?;
        let name = name.map(|name| named(name, &namespace)).transpose()?;
        let tenant = caller.tenant.to_string();
        let most = shared.foundation.settings.snapshots_max;
        let catalog = &shared.foundation.catalog;
        let mine = |one: &Snapshot| one.tenant == tenant && !one.is_retired;
        if catalog.snapshots()?.iter().filter(|one| mine(one)).count() >= most {
            return Err(SnapshotError::TooMany(most));
        }
        let turn = shared.readers.acquire().await.ok();
        // Until the record is there, which keeps the layer.
        let _held = catalog.hold_layers().await?;
        let moment = shared.moment_of(id).await?;
        drop(turn);
        moment.reach_the_disk().await?;
        let build = TemplateId::random()?;
        let (name, tag) = name.map_or((None, DEFAULT_TAG.to_owned()), |(name, tag)| {
            (Some(name), tag)
        });

        let _naming = shared.naming.lock().await;
        let known: Vec<Snapshot> = catalog.snapshots()?.into_iter().filter(mine).collect();
        // Others may have been as fast.
        let is_full = known.len() >= most;
        let same_name: Vec<Snapshot> = known
            .into_iter()
            .filter(|one| name.is_some() && one.name == name)
            .collect();
        let template_id = same_name.first().map(|one| one.template.id.clone());
        let template_id = template_id.unwrap_or_else(|| build.clone());
        let snapshot = Snapshot {
            template: Template {
                // An id is a name too, for who gave none.
                name: match &name {
                    Some(name) => name.clone(),
                    None => build.as_str().parse().map_err(io::Error::other)?,
                },
                id: template_id,
                ..moment.template.clone()
            },
            build,
            name,
            tag,
            tenant: tenant.clone(),
            sandbox: id.to_string(),
            is_retired: false,
        };
        if is_full {
            // So that its layer is freed.
            retire(shared, snapshot)?;
            return Err(SnapshotError::TooMany(most));
        }
        let writing = async { catalog.save_snapshot(&snapshot) };
        Step::WriteSnapshot.around(writing).await?;
        for replaced in same_name {
            if replaced.tag == snapshot.tag {
                retire(shared, replaced)?;
            }
        }
        shared.tell_of_snapshot(&snapshot).await;
        shared.note(id, "snapshot taken").await;
        Ok(view(&snapshot, &namespace))
    }

    /// Snapshots of `caller`, the newest first.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn snapshots(
        &self,
        caller: &Caller,
        filter: &SnapshotFilter,
    ) -> Result<Vec<SnapshotView>, SnapshotError> {
        let namespace = self.shared.namespace(caller).await?;
        let tenant = caller.tenant.to_string();
        let is_wanted = |one: &Snapshot| {
            let is_of_sandbox = filter.sandbox.as_ref().is_none_or(|id| one.sandbox == *id);
            let is_named = filter.name.as_ref().is_none_or(|name| {
                let is_in_namespace = name.namespace.as_ref().is_none_or(|it| *it == namespace);
                is_in_namespace
                    && names(name, one)
                    && name.tag.as_ref().is_none_or(|tag| *tag == one.tag)
            });
            one.tenant == tenant && !one.is_retired && is_of_sandbox && is_named
        };
        let snapshots = self.shared.foundation.catalog.snapshots()?;
        let wanted = snapshots.iter().filter(|one| is_wanted(one));
        Ok(wanted.map(|one| view(one, &namespace)).collect())
    }

    /// Deletes a snapshot of `caller`: the one of a tag, or all of a name or an id.
    /// Sandboxes that were made of it run on, and keep what they stand on.
    ///
    /// # Errors
    /// When there is none.
    pub async fn delete_snapshot(&self, caller: &Caller, text: &str) -> Result<(), SnapshotError> {
        let missing = || SnapshotError::Missing(text.chars().take(100).collect());
        let name: TemplateReference = text.parse().map_err(|_| missing())?;
        let shared = &self.shared;
        let _naming = shared.naming.lock().await;
        let found: Vec<Snapshot> = shared.own_snapshots::<SnapshotError>(caller, &name).await?;
        if found.is_empty() {
            return Err(missing());
        }
        for snapshot in found {
            retire(shared, snapshot)?;
        }
        Ok(())
    }
}

/// Does what a client asked for, also when the client goes away half-way.
pub(super) async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, SnapshotError>> + Send + 'static,
) -> Result<T, SnapshotError> {
    let done = tokio::spawn(work).await;
    done.map_err(|error| SnapshotError::Host(io::Error::other(error)))?
}

/// Lets nobody find a snapshot any more, and frees what it takes as soon as that can be.
fn retire(shared: &Arc<Shared>, snapshot: Snapshot) -> Result<(), CatalogError> {
    shared.foundation.catalog.save_snapshot(&Snapshot {
        is_retired: true,
        ..snapshot
    })?;
    sweep_soon(shared);
    Ok(())
}

/// Frees what retired snapshots take, as soon as that can be.
pub(super) fn sweep_soon(shared: &Arc<Shared>) {
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        for _ in 0..SWEEPS {
            if shared.sweep_snapshots().await {
                return;
            }
            tokio::time::sleep(SWEEP_PAUSE).await;
        }
    });
}

impl Shared {
    /// A place among those of a tenant whose sandboxes' files are read. Taken before
    /// anything waits: who asks for more is told, and piles nothing up.
    pub(super) fn pending(&self, caller: &Caller) -> Result<Admitted, SnapshotError> {
        let entered = self.snapshotting.enter(caller.tenant);
        entered.ok_or(SnapshotError::TooManyAtOnce)
    }

    /// Removes what retired snapshots take, as far as nothing stands on it; whether it could look.
    pub(super) async fn sweep_snapshots(&self) -> bool {
        match self
            .foundation
            .catalog
            .sweep_snapshots(&layers_in_use)
            .await
        {
            Ok(_) => true,
            Err(CatalogError::Busy) => false,
            Err(error) => {
                tracing::warn!("deleted snapshots still take room: {error}");
                true
            }
        }
    }

    /// How snapshots of `caller` are named: by the tenant.
    async fn namespace(&self, caller: &Caller) -> Result<String, DatabaseError> {
        let tenants = self.foundation.database.tenants().await?.into_iter();
        let own = tenants.filter(|tenant| tenant.tenant_id == caller.tenant);
        let name = own.map(|tenant| tenant.name).next();
        let is_reference = |name: &String| format!("{name}/a").parse::<TemplateReference>().is_ok();
        Ok(name
            .filter(is_reference)
            .unwrap_or_else(|| caller.tenant.to_string()))
    }

    /// Snapshots of `caller` that `name` names, the newest first.
    pub(super) async fn own_snapshots<E>(
        &self,
        caller: &Caller,
        name: &TemplateReference,
    ) -> Result<Vec<Snapshot>, E>
    where
        E: From<DatabaseError> + From<CatalogError>,
    {
        if let Some(namespace) = &name.namespace
            && *namespace != self.namespace(caller).await?
        {
            return Ok(Vec::new());
        }
        let tenant = caller.tenant.to_string();
        let mut snapshots = self.foundation.catalog.snapshots()?;
        snapshots.retain(|one| {
            let has_tag = name.tag.as_ref().is_none_or(|tag| *tag == one.tag);
            one.tenant == tenant && !one.is_retired && has_tag && names(name, one)
        });
        Ok(snapshots)
    }

    /// A sandbox that runs, as a template: with its memory where its tier can write that, and
    /// else with its files.
    pub(super) async fn moment_of(&self, id: &SandboxId) -> Result<Moment, SnapshotError> {
        let running = self.foundation.running.known(id.as_str());
        let tier = running.map(|running| running.live.sandbox().tier());
        match tier.unwrap_or_else(|| self.foundation.runtime.tier()) {
            Tier::Container => self.files_of(id).await,
            Tier::Gvisor => self.memory_of(id).await,
            tier @ Tier::Microvm => Err(SnapshotError::Tier(tier)),
        }
    }

    /// The files of a sandbox that runs, as a layer on its layers.
    async fn files_of(&self, id: &SandboxId) -> Result<Moment, SnapshotError> {
        let (reply, answer) = oneshot::channel();
        self.order(id, Order::HoldStill { reply }).await?;
        let held = answer.await.unwrap_or(Err(OperationError::NotFound))?;
        let Held { still, row, _place } = held;
        let layers = digests(still.layers())?;
        if layers.len() >= LAYERS_MAX {
            return Err(SnapshotError::TooDeep);
        }
        let info = self.import(still).await?;
        let template = self.template_of(&row, &layers)?;
        let bytes = template.total_bytes.saturating_add(info.bytes);
        let mut all = vec![info.digest];
        all.extend(layers);
        let template = Template {
            layers: all,
            created_at_ms: u64::try_from(now_ms()).unwrap_or(0),
            total_bytes: bytes,
            ..template
        };
        Ok(Moment {
            template,
            _memory: None,
        })
    }

    /// Makes a layer of what changed, and lets the sandbox run on.
    async fn import(&self, still: Still) -> Result<LayerInfo, SnapshotError> {
        let layers = self.foundation.catalog.layers();
        let changes = still.changes().to_owned();
        let importing = timeout(STILL_BOUND, layers.import_tree(&changes, no_progress()));
        let imported = Step::ReadFiles.around(importing).await;
        // Whatever came of it, it runs on; and what was read from one that ended is worth nothing.
        let released = blocking(move || still.release()).await?;
        match (imported, released) {
            (_, Err(SandboxError::Gone)) => Err(OperationError::NotFound.into()),
            (_, Err(error)) => Err(OperationError::from(error).into()),
            (Err(_), Ok(())) => Err(SnapshotError::TooLong),
            (Ok(imported), Ok(())) => Ok(imported?),
        }
    }

    /// What a sandbox was made from, as far as it is still known: with these layers, or else of
    /// the same id, which may have been built again since.
    pub(super) fn template_of(
        &self,
        row: &Sandbox,
        layers: &[Digest],
    ) -> Result<Template, SnapshotError> {
        let catalog = &self.foundation.catalog;
        let mut snapshots = catalog.snapshots()?;
        snapshots.retain(|one| !one.is_retired);
        let known: Vec<Template> = catalog
            .list()?
            .into_iter()
            .chain(snapshots.into_iter().map(|one| one.template))
            .filter(|template| template.id.as_str() == row.template_id)
            .map(without_memory)
            .collect();
        let exact = known.iter().find(|template| template.layers == layers);
        if let Some(template) = exact.or_else(|| known.first()) {
            return Ok(template.clone());
        }
        let name: TemplateName = row.template_name.parse().map_err(io::Error::other)?;
        Ok(Template {
            name,
            id: TemplateId::random()?,
            layers: Vec::new(),
            env: std::collections::BTreeMap::new(),
            user: "user".to_owned(),
            workdir: "/home/user".to_owned(),
            start_cmd: None,
            ready_cmd: None,
            resources: Resources::default(),
            created_at_ms: 0,
            spec_hash: Digest::of(row.template_id.as_bytes()),
            total_bytes: 0,
            memory: None,
        })
    }
}

impl SandboxTask {
    /// Keeps it still for somebody, if it runs.
    pub(super) async fn hold_still(&mut self, reply: Reply<Held>) {
        if self.row.state != SandboxState::Running {
            let _ = reply.send(Err(OperationError::Paused)); // who does not wait needs no answer
            return;
        }
        let (place, holder) = oneshot::channel();
        let holding = self.running.live.hold_still();
        let held = Step::HoldStill.around(holding).await.map(|still| Held {
            still,
            row: self.row.clone(),
            _place: place,
        });
        if held.is_ok() {
            self.holder = Some(holder);
        }
        // Who does not wait drops it, and it runs on.
        let _ = reply.send(held.map_err(Into::into));
    }
}

/// Waits until nobody holds a sandbox any more; for ever when nobody does.
pub(super) async fn released(holder: &mut Option<Holder>) {
    match holder {
        Some(holder) => {
            // It ends by being dropped: nothing can be sent.
            let _ = holder.await;
        }
        None => std::future::pending().await,
    }
}

/// What a template is without the memory that sandboxes of it begin with.
fn without_memory(template: Template) -> Template {
    let memory = template.memory.as_ref();
    let bytes = memory.map_or(0, |memory| memory.image.bytes());
    Template {
        total_bytes: template.total_bytes.saturating_sub(bytes),
        memory: None,
        ..template
    }
}

/// What the directories of layers are called by.
pub(super) fn digests(layers: &[PathBuf]) -> io::Result<Vec<Digest>> {
    let digest = |path: &PathBuf| {
        let digest = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(Digest::from_file_name);
        digest.ok_or_else(|| io::Error::other("a layer of the sandbox has no digest for a name"))
    };
    layers.iter().map(digest).collect()
}

/// Name and tag of a new snapshot.
fn named(text: &str, namespace: &str) -> Result<(TemplateName, String), SnapshotError> {
    let TemplateReference {
        namespace: its,
        name,
        tag,
    } = text.parse()?;
    if its.is_some_and(|its| its != namespace) {
        return Err(SnapshotError::Namespace(namespace.to_owned()));
    }
    let name = name.parse();
    let name = name.map_err(|_| InvalidTemplateReference::of(text))?;
    Ok((name, tag.unwrap_or_else(|| DEFAULT_TAG.to_owned())))
}

/// Whether a reference is the name or the id of a snapshot.
fn names(reference: &TemplateReference, snapshot: &Snapshot) -> bool {
    let name = snapshot.name.as_ref().map(TemplateName::as_str);
    name == Some(reference.name.as_str()) || snapshot.template.id.as_str() == reference.name
}

fn view(snapshot: &Snapshot, namespace: &str) -> SnapshotView {
    let name = snapshot
        .name
        .as_ref()
        .map(|name| format!("{namespace}/{name}"));
    let path = name
        .clone()
        .unwrap_or_else(|| snapshot.template.id.to_string());
    SnapshotView {
        id: format!("{path}:{}", snapshot.tag),
        name,
        created_at_ms: snapshot.template.created_at_ms,
        sandbox: snapshot.sandbox.clone(),
        total_bytes: snapshot.template.total_bytes,
        has_memory: snapshot.template.memory.is_some(),
    }
}
