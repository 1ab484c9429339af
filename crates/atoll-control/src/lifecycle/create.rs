//! Making a sandbox: the row first, then the sandbox, then everybody may see it.
//!
//! All of it is done in a task of its own: a client that hangs up half-way
//! stops nothing. What comes out then is kept if the client gave an
//! idempotency key, by which it can ask again, and undone if not: nobody
//! would ever know its name.

use std::sync::Arc;
use std::time::Duration;

use atoll_engine::{Limits, Outcome, SandboxId, Tier};
use atoll_protocol::ENVD_VERSION;
use atoll_store::db::{
    self, Change, Idempotency, Intent, Metadata, NewSandbox, Sandbox, SandboxState,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use super::admission::Admitted;
use super::booking::Booked;
use super::ending::destroy_until_gone;
use super::make::{Blueprint, Particulars};
use super::pool::{Claim, Leaving};
use super::task::{Order, SandboxTask};
use super::view::json;
use super::{
    CreateError, CreateWish, IdempotencyKey, InvalidWish, Lifecycle, LifecycleView, PauseMode,
    PortAccess, Registration, SandboxView, Shared, Step, event,
};
use crate::LiveSandbox;
use crate::identity::{Caller, EnvdToken, SandboxSecrets, now_ms};
use crate::live::random_token;
use crate::running::{CodeAccess, Running};
use crate::service;
use crate::templates::Template;

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
    blueprint: Blueprint,
    secrets: SandboxSecrets,
}

impl Plan {
    fn id(&self) -> &SandboxId {
        &self.blueprint.spec.id
    }
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
        let tier = shared.foundation.runtime.tier();
        if self.wish.pause_mode == PauseMode::Filesystem && tier != Tier::Container {
            return Err(InvalidWish::FilesOnly(tier).into());
        }
        let template = match self.template.take() {
            Some(template) => template,
            None => shared.template(&self.caller, &self.wish.template).await?,
        };
        let mut plan = self.plan(template)?;
        let _under_way = shared.pools.creation_begins();
        let blueprint = &plan.blueprint;
        if let Some(claim) = shared.pools.claim(blueprint, &self.wish.environment) {
            let template = plan.blueprint.template.clone();
            claim.rewrite(&mut plan.blueprint, &mut plan.secrets);
            if let Some(created) = self.bring_about(plan, Some(claim)).await? {
                return Ok(created);
            }
            // The member did not live up to it; nobody has to know.
            plan = self.plan(template)?;
        }
        let created = self.bring_about(plan, None).await?;
        // Only with a member there can be neither.
        created.ok_or(CreateError::Stopping)
    }

    /// Does what is planned, with a sandbox that waits or with a new one.
    /// Nothing where one that waits was of no use, and is gone.
    async fn bring_about(
        &mut self,
        plan: Plan,
        claim: Option<Claim>,
    ) -> Result<Option<Created>, CreateError> {
        let shared = Arc::clone(&self.shared);
        let Some(admitted) = shared.admission.enter(self.caller.tenant) else {
            if let Some(claim) = claim {
                claim.put_back();
            }
            // Asking again for what is there takes no room.
            return match self.earlier().await? {
                Some(earlier) => self.not_new(earlier).await.map(Some),
                None => Err(CreateError::TooMany(
                    shared.foundation.settings.sandboxes_max,
                )),
            };
        };
        let (claim, fresh) = match claim {
            Some(claim) => (Some(claim), None),
            None => {
                let limits = &plan.blueprint.spec.limits;
                let booked = match shared.booking.take_now(limits) {
                    Some(booked) => booked,
                    // Nor does it take any waiting.
                    None => match self.earlier().await? {
                        Some(earlier) => return self.not_new(earlier).await.map(Some),
                        None => shared.book(limits, self.abandoned()).await?,
                    },
                };
                // Before the row: what has no task is taken for what a crash left.
                let place = Registration::take(&shared, plan.id());
                let taken = || std::io::Error::other("the id of a new sandbox is taken");
                (None, Some((place.ok_or_else(taken)?, booked)))
            }
        };
        let row = match self.write_intent(&plan).await? {
            db::Created::New(row) => *row,
            db::Created::Earlier(earlier) => {
                if let Some(claim) = claim {
                    claim.put_back();
                }
                return self.not_new(earlier).await.map(Some);
            }
        };
        let (leaving, place, booked) = match (claim.and_then(Claim::leave), fresh) {
            (Some((leaving, place, booked)), _) => (Some(leaving), place, booked),
            (None, Some((place, booked))) => (None, place, booked),
            (None, None) => return Err(CreateError::Stopping),
        };
        let newborn = Newborn {
            shared: Arc::clone(&shared),
            row,
            registration: place.0,
            orders: place.1,
            admitted,
            booked,
        };
        let is_member = leaving.is_some();
        let made = match leaving {
            Some(leaving) => hand_over(plan, leaving).await,
            None => self.make(plan).await,
        };
        let done = match made {
            Ok(made) => self.introduce(newborn, made).await,
            Err((error, live)) => {
                let detail = chain(&error);
                if !is_member {
                    let hint = error
                        .hint()
                        .unwrap_or("`atoll doctor` checks what this host offers");
                    let id = &newborn.row.sandbox_id;
                    tracing::error!("sandbox {id} was not made: {detail}; hint: {hint}");
                }
                newborn.undo_soon(live, Outcome::Crashed { detail }).await;
                Err(error)
            }
        };
        match done {
            Ok(created) => Ok(Some(created)),
            Err(error @ (CreateError::Open(_) | CreateError::Lost(_))) if is_member => {
                tracing::warn!("a member of a pool was of no use: {}", chain(&error));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until nobody waits for the answer, and nobody can ask for it again.
    fn abandoned(&mut self) -> impl Future<Output = ()> {
        let reply = self.reply.as_mut().filter(|_| self.key.is_none());
        async move {
            match reply {
                Some(reply) => reply.closed().await,
                None => std::future::pending().await,
            }
        }
    }

    fn plan(&self, template: Template) -> Result<Plan, CreateError> {
        let settings = &self.shared.foundation.settings;
        let network = self.wish.traffic.egress.policy(&settings.network)?;
        let traffic_token = match self.wish.traffic.ingress.access {
            PortAccess::Everybody => None,
            PortAccess::TokenHolders => Some(random_token()?),
        };
        let guest_token = random_token()?;
        let particulars = Particulars {
            id: SandboxId::random()?,
            network,
            environment: &self.wish.environment,
            lifetime: self.wish.timeout.saturating_add(BIRTH_BOUND),
            guest_token: guest_token.clone(),
            resources: &self.wish.limits,
        };
        // What a template has nobody has to ask for, and a fork is as its parent.
        if self.parent.is_none() {
            let usual = template.resources.apply(&settings.limits);
            let largest = settings.limits_max.or_larger(&usual);
            let wanted = self.wish.limits.apply(&usual);
            wanted
                .validate_within(&largest)
                .map_err(InvalidWish::Limits)?;
        }
        let blueprint = Blueprint::new(template, &settings.limits, particulars);
        Ok(Plan {
            secrets: SandboxSecrets {
                guest_token,
                environment: self.wish.environment.clone(),
                traffic_token,
                init: blueprint.init.clone(),
            },
            blueprint,
        })
    }

    async fn write_intent(&self, plan: &Plan) -> Result<db::Created, CreateError> {
        let foundation = &self.shared.foundation;
        let now_ms = now_ms();
        let id = plan.id().as_str();
        let sealed = foundation.identity.sealer.seal_sandbox(id, &plan.secrets)?;
        let new = NewSandbox {
            sandbox_id: id.to_owned(),
            tenant_id: self.caller.tenant,
            key_id: self.caller.key,
            template_id: plan.blueprint.template.id.to_string(),
            template_name: plan.blueprint.template.name.to_string(),
            metadata: Metadata(self.wish.metadata.clone()),
            limits: json(&plan.blueprint.spec.limits),
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
            pause_mode: self.wish.pause_mode,
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
        let Plan { blueprint, secrets } = plan;
        let template = blueprint.template.clone();
        let limits = blueprint.spec.limits.clone();
        let opening = self.shared.open(blueprint, Step::MakeSandbox);
        let live = opening.await.map_err(|error| (error, None))?;
        let started = match template.memory {
            // Whatever there is goes on, kernels too.
            Some(_) => Ok(()),
            None => tokio::join!(service::start(&live, &template), live.warm()).0,
        };
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

/// Makes a sandbox that waited what the row says.
async fn hand_over(
    plan: Plan,
    leaving: Leaving,
) -> Result<Made, (CreateError, Option<LiveSandbox>)> {
    let Plan { blueprint, secrets } = plan;
    match Step::ClaimMember
        .around(leaving.become_what(&blueprint))
        .await
    {
        Ok(()) => Ok(Made {
            live: leaving.live,
            limits: blueprint.spec.limits,
            traffic_token: secrets.traffic_token,
        }),
        Err(error) => Err((error, Some(leaving.live))),
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
    booked: Booked,
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
            (self.registration, self.admitted, self.booked),
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
