//! A sandbox that waits: made as any other, proven by an execution, and ended
//! when it is of no use.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_engine::{Limits, NetworkPolicy, SandboxId};
use atoll_guest_client::{ExitStatus, GuestError};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::LiveSandbox;
use crate::lifecycle::booking::Booked;
use crate::lifecycle::ending::destroy_until_gone;
use crate::lifecycle::make::{Blueprint, Particulars};
use crate::lifecycle::task::Order;
use crate::lifecycle::{CreateError, Registration, Shared, Step};
use crate::live::random_token;
use crate::service;
use crate::templates::{Resources, Template};

/// What ends a member that nobody looks after any more.
const LIFETIME: Duration = Duration::from_secs(60 * 60);
/// A member that waited for so long is replaced: long before its monitor ends it.
pub(super) const AGE_MAX: Duration = Duration::from_secs(50 * 60);
/// How long the first proof of a member may take: its kernel starts.
const FIRST_PROOF_BOUND: Duration = Duration::from_secs(60);
/// How long any other may take.
const PROOF_BOUND: Duration = Duration::from_secs(20);

/// What proves a member that has no kernel: a command as clients run it.
const PROOF: &str = "true";

/// Whether code runs in a process that was started before anybody asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kernel {
    Warm,
    None,
}

/// A sandbox that waits.
pub(super) struct Member {
    pub(super) live: LiveSandbox,
    pub(super) template: Template,
    pub(super) limits: Limits,
    pub(super) network: NetworkPolicy,
    pub(super) guest_token: String,
    pub(super) kernel: Kernel,
    pub(super) made_at: Instant,
    pub(super) proven_at: Instant,
    /// Its place among the tasks: it is no stray.
    pub(super) place: (Registration, mpsc::Receiver<Order>),
    pub(super) booked: Booked,
}

/// Why a member is of no use.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unproven {
    #[error("its guest does not run code")]
    Guest(#[from] GuestError),
    #[error("a command ended with {}", .0.text())]
    Command(ExitStatus),
}

/// Why there is no new member.
#[derive(Debug, thiserror::Error)]
pub(super) enum MemberError {
    #[error(transparent)]
    Create(#[from] CreateError),
    #[error("a new sandbox is of no use: {}", super::super::create::chain(.0))]
    Unproven(#[from] Unproven),
}

impl Member {
    pub(super) fn id(&self) -> &SandboxId {
        self.live.sandbox().id()
    }

    /// Makes one of `template`, in the part of the host that is booked for it.
    pub(super) async fn make(
        shared: &Arc<Shared>,
        template: Template,
        booked: Booked,
    ) -> Result<Self, MemberError> {
        let settings = &shared.foundation.settings;
        let id = SandboxId::random().map_err(CreateError::from)?;
        let guest_token = random_token().map_err(CreateError::from)?;
        let particulars = Particulars {
            resources: &Resources::default(),
            id: id.clone(),
            network: settings.network.clone(),
            environment: &BTreeMap::new(),
            lifetime: LIFETIME,
            guest_token: guest_token.clone(),
        };
        let blueprint = Blueprint::new(template.clone(), &settings.limits, particulars);
        let limits = blueprint.spec.limits.clone();
        let place = Registration::take(shared, &id)
            .ok_or_else(|| std::io::Error::other("the id of a new sandbox is taken"))
            .map_err(CreateError::from)?;
        let live = shared.open(blueprint, Step::MakeMember).await?;
        let ready = async {
            service::start(&live, &template)
                .await
                .map_err(CreateError::from)?;
            Ok(prove(&live, &template, FIRST_PROOF_BOUND).await?)
        };
        match ready.await {
            Ok(kernel) => Ok(Self {
                network: settings.network.clone(),
                live,
                template,
                limits,
                guest_token,
                kernel,
                made_at: Instant::now(),
                proven_at: Instant::now(),
                place,
                booked,
            }),
            Err(error) => {
                // One that does not go keeps its place, and not the others.
                tokio::spawn(async move {
                    destroy_until_gone(&live, None).await;
                    drop((place, booked));
                });
                Err(error)
            }
        }
    }

    /// Ends it; what it had of the host is free then.
    pub(super) async fn end(self) {
        let ending = destroy_until_gone(&self.live, None);
        Step::EndMember.around(ending).await;
    }
}

/// Whether a member still does what it is for.
pub(super) async fn still_proves(live: &LiveSandbox, template: &Template) -> Result<(), Unproven> {
    prove(live, template, PROOF_BOUND).await.map(drop)
}

/// Runs code in it, or a command where there is no kernel.
async fn prove(
    live: &LiveSandbox,
    template: &Template,
    bound: Duration,
) -> Result<Kernel, Unproven> {
    if live.guest().warm(bound).await?.has_kernel {
        return Ok(Kernel::Warm);
    }
    match service::run(live, template, PROOF, bound).await? {
        ExitStatus::Exited(0) => Ok(Kernel::None),
        other => Err(Unproven::Command(other)),
    }
}
