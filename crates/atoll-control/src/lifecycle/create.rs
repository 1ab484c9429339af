//! Making a sandbox: the row first, then the sandbox, then everybody may see it.
//!
//! All of it is done in a task of its own: a client that hangs up half-way
//! stops nothing. What comes out then is kept if the client gave an
//! idempotency key, by which it can ask again, and undone if not: nobody
//! would ever know its name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_engine::{Attachment, Limits, Outcome, SandboxId, SandboxSpec, Tier, open_files_ceiling};
use atoll_guest_client::InitRequest;
use atoll_protocol::ENVD_VERSION;
use atoll_store::db::{
    self, Change, Idempotency, Intent, Metadata, NewSandbox, Sandbox, SandboxState,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use super::admission::Admitted;
use super::ending::destroy_until_gone;
use super::task::{Order, SandboxTask};
use super::view::json;
use super::{
    CreateError, CreateWish, IdempotencyKey, Lifecycle, LifecycleView, PortAccess, Registration,
    SandboxView, Shared, Step, event,
};
use crate::LiveSandbox;
use crate::identity::{Caller, EnvdToken, SandboxSecrets, now_ms};
use crate::live::random_token;
use crate::running::{CodeAccess, Running};
use crate::service;
use crate::templates::{CatalogError, Template};

/// What a sandbox may take from its first process to its first command; with
/// nobody watching, it ends then.
const BIRTH_BOUND: Duration = Duration::from_secs(300);
/// How long a failure may be kept back until everything is removed.
const UNDO_BOUND: Duration = Duration::from_secs(15);
/// How long an idempotency key is remembered.
const IDEMPOTENCY_KEPT_MS: i64 = 24 * 60 * 60 * 1000;

/// A sandbox that was made, and the caller's way in.
#[derive(Debug, Clone)]
pub struct Created {
    /// What is known of it.
    pub view: SandboxView,
    /// Opens its guest to the caller.
    pub token: EnvdToken,
    /// Opens its ports, when not everybody may come.
    pub traffic_token: Option<String>,
}

/// How to find a sandbox in the engine again.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Handle {
    tier: Tier,
}

impl Lifecycle {
    /// Makes a sandbox that takes commands. Of requests with the same
    /// idempotency key one makes it and the others get the same.
    ///
    /// # Errors
    /// When it cannot be made as it was asked for; then nothing is left of it.
    pub async fn create(
        &self,
        caller: &Caller,
        wish: CreateWish,
        key: Option<IdempotencyKey>,
    ) -> Result<Created, CreateError> {
        self.begin_creation(caller, wish, key, None).await
    }

    /// The same from a template that is in no catalog: the files of `parent`.
    pub(super) async fn create_of(
        &self,
        caller: &Caller,
        wish: CreateWish,
        template: Template,
        parent: &SandboxId,
    ) -> Result<Created, CreateError> {
        let origin = Some((template, parent.clone()));
        self.begin_creation(caller, wish, None, origin).await
    }

    async fn begin_creation(
        &self,
        caller: &Caller,
        wish: CreateWish,
        key: Option<IdempotencyKey>,
        origin: Option<(Template, SandboxId)>,
    ) -> Result<Created, CreateError> {
        let (template, parent) = origin.unzip();
        let (reply, answer) = oneshot::channel();
        let (shared, caller) = (Arc::clone(&self.shared), caller.clone());
        tokio::spawn(async move {
            let mut creation = Creation {
                shared,
                caller,
                wish,
                key,
                template,
                parent,
                reply: Some(reply),
            };
            let result = creation.run().await;
            if let Some(reply) = creation.reply.take() {
                // Somebody who does not wait for a failure needs none.
                let _ = reply.send(result);
            }
        });
        answer.await.unwrap_or(Err(CreateError::Stopping))
    }
}

/// One creation under way.
struct Creation {
    shared: Arc<Shared>,
    caller: Caller,
    wish: CreateWish,
    key: Option<IdempotencyKey>,
    /// Instead of the one that the wish names.
    template: Option<Template>,
    /// Whose files it begins with.
    parent: Option<SandboxId>,
    reply: Option<oneshot::Sender<Result<Created, CreateError>>>,
}

/// What is decided before anything is made.
struct Plan {
    id: SandboxId,
    template: Template,
    spec: SandboxSpec,
    init: InitRequest,
    secrets: SandboxSecrets,
}

/// A sandbox that takes commands, and that nobody knows yet.
struct Made {
    live: LiveSandbox,
    limits: Limits,
    traffic_token: Option<String>,
}

impl Creation {
    async fn run(&mut self) -> Result<Created, CreateError> {
        let shared = Arc::clone(&self.shared);
        let settings = &shared.foundation.settings;
        self.wish.check(settings.lifetime_max)?;
        self.wish.traffic.ingress.check()?;
        let template = match self.template.take() {
            Some(template) => template,
            None => shared.template(&self.caller, &self.wish.template).await?,
        };
        let plan = self.plan(template)?;
        let tenant = self.caller.tenant;
        let Some(admitted) = shared.admission.enter(tenant) else {
            // Asking again for what is there takes no room.
            return match self.earlier().await? {
                Some(earlier) => self.not_new(earlier).await,
                None => Err(CreateError::TooMany(settings.sandboxes_max)),
            };
        };
        // Before the row: what has no task is taken for what a crash left.
        let (registration, orders) = Registration::take(&shared, &plan.id)
            .ok_or_else(|| std::io::Error::other("the id of a new sandbox is taken"))?;
        let row = match self.write_intent(&plan).await? {
            db::Created::New(row) => *row,
            db::Created::Earlier(earlier) => return self.not_new(earlier).await,
        };
        let id = plan.id.clone();
        let newborn = Newborn {
            shared: Arc::clone(&shared),
            row,
            registration,
            orders,
            admitted,
        };
        match self.make(plan).await {
            Ok(made) => self.introduce(newborn, made).await,
            Err((error, live)) => {
                let detail = chain(&error);
                let hint = error
                    .hint()
                    .unwrap_or("`atoll doctor` checks what this host offers");
                tracing::error!("sandbox {id} was not made: {detail}; hint: {hint}");
                newborn.undo_soon(live, Outcome::Crashed { detail }).await;
                Err(error)
            }
        }
    }

    fn plan(&self, template: Template) -> Result<Plan, CreateError> {
        let settings = &self.shared.foundation.settings;
        let network = self.wish.traffic.egress.policy(&settings.network)?;
        let id = SandboxId::random()?;
        let limits = template.resources.apply(&settings.limits);
        let limits = Limits {
            open_files: limits.open_files.min(open_files_ceiling()),
            ..limits
        };
        let mut variables = template.env.clone();
        variables.extend([
            ("E2B_SANDBOX".to_owned(), "true".to_owned()),
            ("E2B_SANDBOX_ID".to_owned(), id.to_string()),
            ("E2B_TEMPLATE_ID".to_owned(), template.id.to_string()),
        ]);
        variables.extend(self.wish.environment.clone());
        let traffic_token = match self.wish.traffic.ingress.access {
            PortAccess::Everybody => None,
            PortAccess::TokenHolders => Some(random_token()?),
        };
        Ok(Plan {
            spec: SandboxSpec {
                hostname: id.to_string(),
                id: id.clone(),
                layers: Vec::new(),
                limits,
                network,
                env: BTreeMap::new(),
                lifetime: Some(self.wish.timeout.saturating_add(BIRTH_BOUND)),
                attachment: Attachment::Detached,
            },
            init: InitRequest {
                env_vars: Some(variables),
                default_user: Some(template.user.clone()),
                default_workdir: Some(template.workdir.clone()),
                warm_kernels: Some(true),
                ..InitRequest::default()
            },
            secrets: SandboxSecrets {
                guest_token: random_token()?,
                environment: self.wish.environment.clone(),
                traffic_token,
            },
            id,
            template,
        })
    }

    async fn write_intent(&self, plan: &Plan) -> Result<db::Created, CreateError> {
        let foundation = &self.shared.foundation;
        let now_ms = now_ms();
        let sealed = foundation
            .identity
            .sealer
            .seal_sandbox(plan.id.as_str(), &plan.secrets)?;
        let new = NewSandbox {
            sandbox_id: plan.id.to_string(),
            tenant_id: self.caller.tenant,
            key_id: self.caller.key,
            template_id: plan.template.id.to_string(),
            template_name: plan.template.name.to_string(),
            metadata: Metadata(self.wish.metadata.clone()),
            limits: json(&plan.spec.limits),
            network: json(&self.wish.traffic),
            lifecycle: json(&self.lifecycle()),
            sealed,
            envd_version: ENVD_VERSION.to_owned(),
            client: self.wish.client(),
            agent_id: self.caller.agent_id.clone(),
            task_id: self.caller.task_id.clone(),
            created_at_ms: now_ms,
            end_at_ms: now_ms.saturating_add(millis(self.wish.timeout)),
        };
        let idempotency = self.idempotency(now_ms);
        let written = Step::WriteIntent.around(foundation.database.create_sandbox(
            &foundation.fence,
            &new,
            idempotency.as_ref(),
        ));
        Ok(written.await?)
    }

    fn lifecycle(&self) -> LifecycleView {
        LifecycleView {
            pauses: self.wish.pauses,
            auto_resumes: self.wish.auto_resumes,
            woken_for_ms: millis(self.wish.timeout),
        }
    }

    /// What became of an earlier request with the same key.
    async fn earlier(&self) -> Result<Option<db::Earlier>, CreateError> {
        let Some(asked) = self.idempotency(now_ms()) else {
            return Ok(None);
        };
        let database = &self.shared.foundation.database;
        Ok(database
            .earlier_creation(self.caller.tenant, &asked)
            .await?)
    }

    /// The answer to a request that came before.
    async fn not_new(&self, earlier: db::Earlier) -> Result<Created, CreateError> {
        match earlier {
            db::Earlier::Repeated { sandbox_id } => {
                self.shared.repeated(&self.caller, &sandbox_id).await
            }
            db::Earlier::OtherRequest => Err(CreateError::OtherRequest),
        }
    }

    fn idempotency(&self, now_ms: i64) -> Option<Idempotency> {
        self.key.as_ref().map(|key| Idempotency {
            key: key.as_str().to_owned(),
            request_digest: self.wish.digest(),
            not_before_ms: now_ms - IDEMPOTENCY_KEPT_MS,
        })
    }

    /// Makes what the row says, up to its first command.
    async fn make(&self, plan: Plan) -> Result<Made, (CreateError, Option<LiveSandbox>)> {
        let Plan {
            template,
            mut spec,
            init,
            secrets,
            ..
        } = plan;
        let foundation = &self.shared.foundation;
        // Closed only with the process.
        let turn = self.shared.creations.acquire().await.ok();
        let nothing_yet = |error: CatalogError| (error.into(), None);
        let held = foundation
            .catalog
            .hold_layers()
            .await
            .map_err(nothing_yet)?;
        let layers = foundation.catalog.layer_directories(&template);
        spec.layers = layers.await.map_err(nothing_yet)?;
        let (runtime, limits) = (Arc::clone(&foundation.runtime), spec.limits.clone());
        let opening = LiveSandbox::open_with_token(runtime, spec, init, secrets.guest_token);
        let live = Step::MakeSandbox.around(opening).await;
        let live = live.map_err(|error| (error.into(), None))?;
        drop(held);
        // What follows is the template's and the client's, who may take their time.
        drop(turn);
        let (started, ()) = tokio::join!(service::start(&live, &template), live.warm());
        match started {
            Ok(()) => Ok(Made {
                live,
                limits,
                traffic_token: secrets.traffic_token,
            }),
            Err(error) => Err((error.into(), Some(live))),
        }
    }

    /// Lets everybody see it, and tells who asked for it.
    async fn introduce(
        &mut self,
        mut newborn: Newborn,
        made: Made,
    ) -> Result<Created, CreateError> {
        let Made {
            live,
            limits,
            traffic_token,
        } = made;
        let shared = Arc::clone(&self.shared);
        let foundation = &shared.foundation;
        let id = live.sandbox().id().clone();
        let running = Arc::new(Running {
            id: id.clone(),
            tenant: self.caller.tenant,
            live: live.clone(),
            limits,
            ingress: self.wish.traffic.ingress.ingress(traffic_token.clone()),
            code_access: CodeAccess::of_client(
                &self.wish.client(),
                foundation.settings.code_without_token,
            ),
        });
        // Before the row says that it runs: who reads it there can reach it.
        foundation
            .access
            .begin_sandbox(id.clone(), self.caller.tenant);
        foundation.running.insert(Arc::clone(&running));
        let (view, token) = match self.settle(&mut newborn, &live).await {
            Ok(settled) => settled,
            Err(error) => {
                let detail = chain(&error);
                tracing::warn!("sandbox {id} was made and is undone: {detail}");
                let outcome = Outcome::Crashed { detail };
                newborn.undo_soon(Some(live), outcome).await;
                return Err(error);
            }
        };
        let created = Created {
            view,
            token,
            traffic_token,
        };
        let reply = self.reply.take();
        let is_told = reply.is_some_and(|reply| reply.send(Ok(created.clone())).is_ok());
        if is_told || self.key.is_some() {
            shared.note(&id, "sandbox started").await;
            newborn.live_on(running);
        } else {
            newborn.undo(Some(live), Outcome::ClientGone).await;
        }
        Ok(created)
    }

    /// Stores that it runs, tells its monitor when it ends, and lets the caller in.
    async fn settle(
        &self,
        newborn: &mut Newborn,
        live: &LiveSandbox,
    ) -> Result<(SandboxView, EnvdToken), CreateError> {
        let foundation = &self.shared.foundation;
        let id = live.sandbox().id();
        let now_ms = now_ms();
        let change = Change {
            state: Some(SandboxState::Running),
            intent: Some(None),
            started_at_ms: Some(now_ms),
            end_at_ms: Some(now_ms.saturating_add(millis(self.wish.timeout))),
            handle: Some(json(&Handle {
                tier: foundation.runtime.tier(),
            })),
            events: event::of_birth(&newborn.row, self.parent.as_ref()),
            ..Change::default()
        };
        let writing = foundation.database.change_sandbox(
            &foundation.fence,
            id.as_str(),
            newborn.row.expected(),
            &change,
        );
        newborn.row = Step::WriteRunning.around(writing).await?;
        let time = self.lifecycle().monitors_time(self.wish.timeout);
        Step::SetEnd.around(live.end_after(time)).await?;
        let view = SandboxView::try_from(newborn.row.clone())?;
        let granting = foundation.access.grant(&self.caller, id);
        let token = Step::GrantToken.around(granting).await?;
        Ok((view, token))
    }
}

impl Shared {
    /// What an earlier request with the same idempotency key made.
    async fn repeated(&self, caller: &Caller, sandbox: &str) -> Result<Created, CreateError> {
        let foundation = &self.foundation;
        let row = foundation.database.sandbox(caller.tenant, sandbox).await?;
        let row = row.ok_or(CreateError::Ended)?;
        match row.state {
            SandboxState::Creating => return Err(CreateError::InProgress),
            SandboxState::Killing => return Err(CreateError::Ended),
            SandboxState::Running
            | SandboxState::Pausing
            | SandboxState::Paused
            | SandboxState::Resuming => {}
        }
        // It runs, and cannot be reached yet: its creation is in its last steps.
        let running = foundation.running.known(sandbox);
        let running = running.ok_or(CreateError::InProgress)?;
        Ok(Created {
            token: foundation.access.grant(caller, &running.id).await?,
            traffic_token: running.ingress.traffic_token.clone(),
            view: row.try_into()?,
        })
    }
}

/// A sandbox that has a row, and no task of its own yet.
struct Newborn {
    shared: Arc<Shared>,
    row: Sandbox,
    registration: Registration,
    orders: mpsc::Receiver<Order>,
    admitted: Admitted,
}

impl Newborn {
    /// Takes everything back. Who waits for an answer waits for that too, but not for ever.
    async fn undo_soon(self, live: Option<LiveSandbox>, outcome: Outcome) {
        let undoing = tokio::spawn(self.undo(live, outcome));
        if tokio::time::timeout(UNDO_BOUND, undoing).await.is_err() {
            tracing::error!("a sandbox that failed is not removed yet, and is tried on");
        }
    }

    /// Takes everything back.
    async fn undo(mut self, live: Option<LiveSandbox>, outcome: Outcome) {
        let shared = Arc::clone(&self.shared);
        let foundation = &shared.foundation;
        foundation.running.remove(&self.registration.id);
        foundation.access.end_sandbox(&self.registration.id);
        if let Some(live) = live {
            let killing = Change {
                state: Some(SandboxState::Killing),
                intent: Some(Some(Intent::Kill)),
                ..Change::default()
            };
            let writing = foundation.database.change_sandbox(
                &foundation.fence,
                &self.row.sandbox_id,
                self.row.expected(),
                &killing,
            );
            match Step::WriteKilling.around(writing).await {
                Ok(row) => self.row = row,
                Err(error) => tracing::warn!("an end is not written yet: {error}"),
            }
            Step::Destroy.around(destroy_until_gone(&live, None)).await;
        }
        shared.forget_idempotency_key(&self.row.sandbox_id).await;
        shared.bury(&self.row, &outcome).await;
    }

    /// Hands it to the task that is its only writer from now on.
    fn live_on(self, running: Arc<Running>) {
        SandboxTask::start(
            self.row,
            running,
            self.orders,
            (self.registration, self.admitted),
        );
    }
}

pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// An error with all its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
