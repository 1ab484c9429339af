//! The way of a member from its pool to somebody who asked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_engine::{Limits, NetworkPolicy};
use atoll_guest_client::{GuestError, InitRequest};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::member::{Kernel, Member};
use super::{Pool, Pools};
use crate::identity::SandboxSecrets;
use crate::lifecycle::booking::Booked;
use crate::lifecycle::make::{Blueprint, variables};
use crate::lifecycle::task::Order;
use crate::lifecycle::{CreateError, Registration, Shared};
use crate::{LiveSandbox, OpenError};

/// How long a member may take to become somebody's. One that takes longer is
/// of no use: a new one is made.
const HAND_OVER_BOUND: Duration = Duration::from_secs(5);

/// Variables that programs look at when they start, and not again: a kernel
/// that runs already would not notice them. By name, and by how names begin.
const READ_AT_START: [&str; 8] = [
    "HOME", "LANG", "LANGUAGE", "LOCPATH", "PATH", "TMPDIR", "TZ", "USER",
];
const READ_AT_START_PREFIXES: [&str; 16] = [
    "ATOLL_",
    "GLIBC_",
    "IPYTHON",
    "JAVA_",
    "JUPYTER",
    "LC_",
    "LD_",
    "MALLOC_",
    "MKL_",
    "MPL",
    "NODE_",
    "NUMBA_",
    "NUMEXPR_",
    "OMP_",
    "OPENBLAS_",
    "PYTHON",
];

/// A member that was chosen, and that nobody else gets. Dropped, it is ended.
pub(in crate::lifecycle) struct Claim {
    shared: Arc<Shared>,
    /// Until it leaves.
    member: Option<Member>,
}

/// A member that has a row, and is what the row says in a moment.
pub(in crate::lifecycle) struct Leaving {
    pub(in crate::lifecycle) live: LiveSandbox,
    network: NetworkPolicy,
}

/// What a sandbox needs besides its walls.
type Held = (Leaving, (Registration, mpsc::Receiver<Order>), Booked);

impl Pools {
    /// A member that is what `blueprint` would be made into, if one waits.
    pub(in crate::lifecycle) fn claim(
        &self,
        blueprint: &Blueprint,
        environment: &BTreeMap<String, String>,
    ) -> Option<Claim> {
        let mut pools = self.lock();
        let of_template = |pool: &&mut Pool| {
            let template = pool.template.as_ref();
            template.is_some_and(|template| template.id == blueprint.template.id)
        };
        let pool = pools.iter_mut().find(of_template)?;
        pool.demand.arrived(Instant::now());
        let limits = &blueprint.spec.limits;
        let fits = |member: &Member| {
            member.template == blueprint.template
                && member.limits == *limits
                && can_have(&member.template, member.kernel, environment)
                // One without a network cannot get one.
                && (member.network == blueprint.spec.network
                    || member.network != NetworkPolicy::None)
        };
        let place = pool.ready.iter().position(fits);
        let member = place.and_then(|place| pool.ready.remove(place));
        if member.is_some() {
            pool.claimed += 1;
        } else {
            pool.missed += 1;
        }
        drop(pools);
        self.changed.notify_one();
        let member = member?;
        Some(Claim {
            shared: Arc::clone(&member.place.0.shared),
            member: Some(member),
        })
    }

    fn put_back(&self, member: Member) {
        let mut pools = self.lock();
        let home = pools.iter_mut().find(|pool| {
            let template = pool.template.as_ref();
            template.is_some_and(|template| template.id == member.template.id)
        });
        if let Some(pool) = home {
            pool.claimed = pool.claimed.saturating_sub(1);
            pool.ready.push_front(member);
        } else {
            drop(pools);
            tokio::spawn(member.end());
        }
    }

    /// Ends members until `limits` would fit into what they had, or none is left.
    pub(in crate::lifecycle) fn make_room(&self, limits: &Limits) {
        let (mut cpu_millis, mut memory_mib) = (0, 0);
        while cpu_millis < limits.cpu_millis || memory_mib < limits.memory_mib {
            let mut pools = self.lock();
            let largest = pools.iter_mut().max_by_key(|pool| pool.ready.len());
            let Some(member) = largest.and_then(|pool| pool.ready.pop_front()) else {
                return;
            };
            drop(pools);
            cpu_millis += member.limits.cpu_millis;
            memory_mib += member.limits.memory_mib;
            tracing::debug!("member {} makes room", member.id());
            tokio::spawn(member.end());
        }
    }
}

impl Shared {
    /// Books a part of the host for `limits`: members of pools make room, and
    /// who finds none free waits for its turn, unless it is `abandoned`.
    pub(in crate::lifecycle) async fn book(
        &self,
        limits: &Limits,
        abandoned: impl Future<Output = ()>,
    ) -> Result<Booked, CreateError> {
        let make_room = || self.pools.make_room(limits);
        tokio::select! {
            booked = self.booking.take(limits, make_room) => Ok(booked?),
            () = abandoned => Err(CreateError::Stopping),
        }
    }
}

impl Claim {
    /// Makes a plan one for this member.
    pub(in crate::lifecycle) fn rewrite(
        &self,
        blueprint: &mut Blueprint,
        secrets: &mut SandboxSecrets,
    ) {
        let Some(member) = &self.member else {
            return;
        };
        let id = member.id().clone();
        blueprint.init = InitRequest {
            env_vars: Some(variables(&member.template, &id, &secrets.environment)),
            ..InitRequest::default()
        };
        // What it is told anew when it boots again is the whole of it.
        secrets.init.env_vars.clone_from(&blueprint.init.env_vars);
        blueprint.spec.id = id;
        blueprint.guest_token.clone_from(&member.guest_token);
        secrets.guest_token.clone_from(&member.guest_token);
    }

    /// Gives it back as it was: nobody has touched it.
    pub(in crate::lifecycle) fn put_back(mut self) {
        if let Some(member) = self.member.take() {
            let limits = member.limits.clone();
            self.shared.pools.put_back(member);
            if self.shared.booking.waiting() > 0 {
                // Somebody looked for room while it was away.
                self.shared.pools.make_room(&limits);
            }
        }
    }

    /// Takes it out for good: it has a row.
    pub(in crate::lifecycle) fn leave(mut self) -> Option<Held> {
        let member = self.member.take()?;
        let leaving = Leaving {
            live: member.live,
            network: member.network,
        };
        Some((leaving, member.place, member.booked))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(member) = self.member.take() {
            tokio::spawn(member.end());
        }
    }
}

impl Leaving {
    /// Becomes what `blueprint` says: one call to the guest, and one to the
    /// host where it may reach something else than before.
    pub(in crate::lifecycle) async fn become_what(
        &self,
        blueprint: &Blueprint,
    ) -> Result<(), CreateError> {
        let becoming = async {
            if self.network != blueprint.spec.network {
                self.live
                    .set_network(blueprint.spec.network.clone())
                    .await?;
            }
            let told = self.live.guest().init(&blueprint.init).await;
            told.map_err(useless)
        };
        match tokio::time::timeout(HAND_OVER_BOUND, becoming).await {
            Ok(done) => done,
            Err(_) => Err(useless(GuestError::Timeout {
                what: "take its variables",
                bound: HAND_OVER_BOUND,
            })),
        }
    }
}

fn useless(source: GuestError) -> CreateError {
    let ending = "it waited in a pool".to_owned();
    CreateError::Open(OpenError::Guest { source, ending })
}

/// Whether programs that run in a member already are as if they had been
/// started with these variables.
fn can_have(
    template: &crate::templates::Template,
    kernel: Kernel,
    environment: &BTreeMap<String, String>,
) -> bool {
    let mut names = environment.keys();
    let is_read_at_start = |name: &String| {
        let mut prefixes = READ_AT_START_PREFIXES.iter();
        READ_AT_START.contains(&name.as_str()) || prefixes.any(|start| name.starts_with(start))
    };
    match (&template.start_cmd, kernel) {
        // What it runs is not ours, and was started without.
        (Some(_), _) => environment.is_empty(),
        (None, Kernel::Warm) => !names.any(is_read_at_start),
        (None, Kernel::None) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::templates::{Resources, Template, TemplateId};
    use atoll_store::Digest;

    fn template(start_cmd: Option<&str>) -> Template {
        Template {
            name: "base".parse().unwrap(),
            id: TemplateId::random().unwrap(),
            layers: Vec::new(),
            env: BTreeMap::new(),
            user: "user".to_owned(),
            workdir: "/home/user".to_owned(),
            start_cmd: start_cmd.map(str::to_owned),
            ready_cmd: None,
            resources: Resources::default(),
            created_at_ms: 0,
            spec_hash: Digest::of(b"spec"),
            total_bytes: 0,
            memory: None,
        }
    }

    #[test]
    fn a_member_is_given_no_variable_that_its_programs_would_not_notice() {
        let named = |name: &str| BTreeMap::from([(name.to_owned(), "x".to_owned())]);
        let (plain, serving) = (template(None), template(Some("serve")));
        let nothing = BTreeMap::new();
        for (template, kernel, environment, expected) in [
            (&plain, Kernel::Warm, nothing.clone(), true),
            (&plain, Kernel::Warm, named("API_KEY"), true),
            (&plain, Kernel::Warm, named("MY_PATH"), true),
            (&plain, Kernel::Warm, named("USER_ID"), true),
            (&plain, Kernel::Warm, named("PATH"), false),
            (&plain, Kernel::Warm, named("PYTHONPATH"), false),
            (&plain, Kernel::Warm, named("LD_PRELOAD"), false),
            (&plain, Kernel::Warm, named("TZ"), false),
            // Every command is a new process.
            (&plain, Kernel::None, named("PYTHONPATH"), true),
            (&serving, Kernel::None, nothing, true),
            (&serving, Kernel::None, named("API_KEY"), false),
        ] {
            let can = can_have(template, kernel, &environment);
            assert_eq!(can, expected, "{:?} {environment:?}", template.start_cmd);
        }
    }
}
