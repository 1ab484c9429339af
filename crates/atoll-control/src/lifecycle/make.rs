//! What sandboxes are made of, and the making: the same for one that somebody
//! waits for and for one that waits in a pool.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_engine::{Attachment, Limits, NetworkPolicy, SandboxId, SandboxSpec, open_files_ceiling};
use atoll_guest_client::InitRequest;

use super::{CreateError, Shared, Step};
use crate::LiveSandbox;
use crate::live::Tokens;
use crate::templates::{Resources, Template};

/// A sandbox that is to be made.
pub(super) struct Blueprint {
    pub(super) template: Template,
    /// Without its layers, which are looked up when it is made.
    pub(super) spec: SandboxSpec,
    pub(super) init: InitRequest,
    /// Opens its guest to the host.
    pub(super) guest_token: String,
}

/// What a sandbox is to be besides what its template says.
pub(super) struct Particulars<'a> {
    pub(super) id: SandboxId,
    pub(super) network: NetworkPolicy,
    pub(super) environment: &'a BTreeMap<String, String>,
    /// When its monitor ends it, with nobody watching.
    pub(super) lifetime: Duration,
    pub(super) guest_token: String,
    /// Limits of its own.
    pub(super) resources: &'a Resources,
}

impl Blueprint {
    /// A sandbox of `template` within `defaults`.
    pub(super) fn new(template: Template, defaults: &Limits, particulars: Particulars<'_>) -> Self {
        let Particulars {
            id,
            network,
            environment,
            lifetime,
            guest_token,
            resources,
        } = particulars;
        let limits = resources.apply(&template.resources.apply(defaults));
        let limits = Limits {
            open_files: limits.open_files.min(open_files_ceiling()),
            ..limits
        };
        let memory = template.memory.as_ref().map(|memory| memory.image.clone());
        Self {
            init: InitRequest {
                env_vars: Some(variables(&template, &id, environment)),
                default_user: Some(template.user.clone()),
                default_workdir: Some(template.workdir.clone()),
                warm_kernels: Some(memory.is_none()),
                ..InitRequest::default()
            },
            spec: SandboxSpec {
                // Programs that go on have noted what it was.
                hostname: memory
                    .as_ref()
                    .map_or_else(|| id.to_string(), |memory| memory.hostname().to_owned()),
                id,
                layers: Vec::new(),
                limits,
                network,
                env: BTreeMap::new(),
                lifetime: Some(lifetime),
                attachment: Attachment::Detached,
                memory,
            },
            template,
            guest_token,
        }
    }
}

/// Variables of every command in the sandbox `id`.
pub(super) fn variables(
    template: &Template,
    id: &SandboxId,
    environment: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut variables = template.env.clone();
    variables.extend([
        ("E2B_SANDBOX".to_owned(), "true".to_owned()),
        ("E2B_SANDBOX_ID".to_owned(), id.to_string()),
        ("E2B_TEMPLATE_ID".to_owned(), template.id.to_string()),
    ]);
    variables.extend(environment.clone());
    variables
}

impl Shared {
    /// Makes it, up to its first command. What its template wants to run, and
    /// its kernels, come after.
    pub(super) async fn open(
        &self,
        blueprint: Blueprint,
        step: Step,
    ) -> Result<LiveSandbox, CreateError> {
        let Blueprint {
            template,
            mut spec,
            init,
            guest_token,
        } = blueprint;
        let foundation = &self.foundation;
        // Closed only with the process.
        let _turn = self.creations.acquire().await.ok();
        let _held = foundation.catalog.hold_layers().await?;
        spec.layers = foundation.catalog.layer_directories(&template).await?;
        let memory = template.memory.as_ref();
        let _read = match memory {
            Some(memory) => Some(foundation.catalog.hold_memory(memory).await?),
            None => None,
        };
        let tokens = Tokens {
            known: memory.map(|memory| self.token_in(memory)).transpose()?,
            new: guest_token,
        };
        let runtime = Arc::clone(&foundation.runtime);
        let opening = LiveSandbox::open_with_tokens(runtime, spec, init, tokens);
        Ok(step.around(opening).await?)
    }
}
