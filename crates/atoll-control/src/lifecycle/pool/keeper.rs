//! Filling pools, looking after their members, and emptying them.
//!
//! One member is made at a time, and only while no client waits for a
//! sandbox; where some always do, one every few seconds. Members are proven
//! again all the time, beside that.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use atoll_engine::SandboxId;
use futures_util::StreamExt as _;
use tokio::time::Instant;

use super::member::{AGE_MAX, Member, still_proves};
use super::{Failure, Pool, Pools};
use crate::LiveSandbox;
use crate::lifecycle::create::chain;
use crate::lifecycle::event::PoolEvent;
use crate::lifecycle::{Lifecycle, Shared};
use crate::templates::Template;

/// Longest time between two looks at what a pool lacks.
const LOOK: Duration = Duration::from_secs(2);
/// Time between two proofs of a member, which is looked at every [`LOOK`].
const PROOF_INTERVAL: Duration = Duration::from_secs(15);
/// Members that are proven at once: one that hangs does not keep the others.
const PROOFS_AT_ONCE: usize = 4;
/// How long a member waits to be made while clients wait for sandboxes.
const PATIENCE: Duration = Duration::from_secs(3);
/// Pause between two looks whether they still do.
const QUIET_LOOK: Duration = Duration::from_millis(25);
/// Pause after a member could not be made: the first one, and the longest.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LONGEST: Duration = Duration::from_secs(60);

impl Lifecycle {
    /// Keeps every pool at its size until [`close_pools`](Self::close_pools):
    /// a task of the server. No member is left when it ends.
    pub async fn keep_pools(&self) {
        let pools = &self.shared.pools;
        if pools.lock().is_empty() {
            return;
        }
        tokio::join!(self.shared.keep_filled(), self.shared.keep_proven());
        let left: Vec<Member> = pools
            .lock()
            .iter_mut()
            .flat_map(|pool| pool.ready.drain(..))
            .collect();
        futures_util::future::join_all(left.into_iter().map(Member::end)).await;
    }

    /// Lets [`keep_pools`](Self::keep_pools) empty all pools and end.
    pub fn close_pools(&self) {
        self.shared.pools.closing.send_replace(true);
    }
}

impl Shared {
    async fn keep_filled(self: &Arc<Self>) {
        while !self.pools.is_closing() {
            self.look_at_templates();
            for member in self.pools.not_wanted() {
                // One that does not go must not keep the others.
                tokio::spawn(member.end());
            }
            if let Some((index, template)) = self.pools.next_to_fill() {
                self.fill(index, template).await;
                continue;
            }
            tokio::select! {
                () = self.pools.changed.notified() => {}
                () = self.pools.closed_within(LOOK) => {}
            }
        }
    }

    /// Templates are built again while a server runs.
    fn look_at_templates(&self) {
        let catalog = &self.foundation.catalog;
        let wanted: Vec<_> = {
            let pools = self.pools.lock();
            let references = pools.iter().map(|pool| pool.settings.template.clone());
            references.collect()
        };
        for (index, reference) in wanted.iter().enumerate() {
            let found = reference.find(catalog);
            let mut pools = self.pools.lock();
            let Some(pool) = pools.get_mut(index) else {
                continue;
            };
            match found {
                Ok(Some(template)) => pool.template = Some(template),
                Ok(None) => {
                    pool.template = None;
                    let name = &reference.name;
                    pool.failed(format!(
                        "template '{name}' is not built on this server: `atoll template build {name}`"
                    ));
                }
                // What was known of it is as good for a while.
                Err(error) => pool.failed(chain(&error)),
            }
        }
    }

    /// Makes one member, when nobody is kept waiting by that.
    async fn fill(self: &Arc<Self>, index: usize, template: Template) {
        let patience = Instant::now() + PATIENCE;
        while self.pools.creations.load(Ordering::Relaxed) > 0 && Instant::now() < patience {
            self.pools.closed_within(QUIET_LOOK).await;
        }
        if self.pools.is_closing() {
            return;
        }
        let limits = template.resources.apply(&self.foundation.settings.limits);
        let Some(booked) = self.booking.take_now(&limits) else {
            let text = "the host has no room for another member".to_owned();
            self.pools.with(index, |pool| pool.failed(text));
            return;
        };
        self.pools.with(index, |pool| pool.starting += 1);
        let made = Member::make(self, template, booked).await;
        let full = self.pools.with(index, |pool| {
            pool.starting -= 1;
            match made {
                Ok(member) => {
                    pool.failure = None;
                    pool.ready.push_back(member);
                    pool.added += 1;
                    (pool.lacks(Instant::now()) == 0).then(|| {
                        let name = pool.settings.template.name.clone();
                        (name, pool.ready.len(), std::mem::take(&mut pool.added))
                    })
                }
                Err(error) => {
                    let text = chain(&error);
                    tracing::warn!(
                        "a member of the pool of '{}' was not made: {text}",
                        pool.settings.template.name
                    );
                    pool.failed(text);
                    None
                }
            }
        });
        if let Some((template, members, added)) = full.flatten() {
            self.tell_of_pool(PoolEvent::Refilled {
                template: &template,
                members,
                added,
            })
            .await;
        }
        if self.booking.waiting() > 0 {
            // Somebody came while it was made.
            self.pools.make_room(&limits);
        }
    }

    async fn keep_proven(&self) {
        while !self.pools.is_closing() {
            let due = self.pools.due_for_proof();
            futures_util::stream::iter(due)
                .for_each_concurrent(PROOFS_AT_ONCE, |due| self.prove_again(due))
                .await;
            self.pools.closed_within(LOOK).await;
        }
    }

    async fn prove_again(&self, due: Due) {
        let Due {
            index,
            id,
            live,
            template,
        } = due;
        let proven = still_proves(&live, &template).await;
        let useless = self.pools.with(index, |pool| {
            // It may be somebody's by now.
            let place = pool.ready.iter().position(|member| *member.id() == id)?;
            if proven.is_ok() {
                pool.ready[place].proven_at = Instant::now();
                return None;
            }
            pool.replaced += 1;
            pool.ready.remove(place)
        });
        if let (Some(member), Err(error)) = (useless.flatten(), &proven) {
            tracing::warn!("member {id} is of no use and replaced: {}", chain(error));
            self.pools.changed.notify_one();
            self.tell_of_pool(PoolEvent::MemberReplaced {
                template: template.name.as_str(),
                member: &id,
                reason: &chain(error),
            })
            .await;
            tokio::spawn(member.end());
        }
    }
}

/// A member that is to be proven again.
struct Due {
    index: usize,
    id: SandboxId,
    live: LiveSandbox,
    template: Template,
}

impl Pools {
    fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Waits for `time`, or until pools are to be emptied.
    async fn closed_within(&self, time: Duration) {
        let mut closing = self.closing.subscribe();
        // The sender is here: it cannot be gone.
        let _ = tokio::time::timeout(time, closing.wait_for(|closing| *closing)).await;
    }

    /// Does something with one pool.
    fn with<T>(&self, index: usize, work: impl FnOnce(&mut Pool) -> T) -> Option<T> {
        self.lock().get_mut(index).map(work)
    }

    /// Takes out who waited too long, who is of another build, and one of those
    /// that are too many.
    fn not_wanted(&self) -> Vec<Member> {
        let now = Instant::now();
        let mut taken = Vec::new();
        for pool in self.lock().iter_mut() {
            let template = pool.template.clone();
            let (kept, old): (Vec<_>, Vec<_>) = pool.ready.drain(..).partition(|member| {
                template.as_ref() == Some(&member.template)
                    && now.saturating_duration_since(member.made_at) < AGE_MAX
            });
            pool.ready.extend(kept);
            taken.extend(old);
            if pool.ready.len() > pool.demand.wanted(pool.settings.size, now) {
                taken.extend(pool.ready.pop_front());
            }
        }
        taken
    }

    /// The pool that lacks most of all that can be filled now.
    fn next_to_fill(&self) -> Option<(usize, Template)> {
        let now = Instant::now();
        let mut pools = self.lock();
        let mut most: Option<(usize, usize)> = None;
        for (index, pool) in pools.iter_mut().enumerate() {
            let lacks = pool.lacks(now);
            let waits = pool.failure.as_ref().is_some_and(|it| it.retry_at > now);
            if lacks > 0 && !waits && most.is_none_or(|(_, known)| lacks > known) {
                most = Some((index, lacks));
            }
        }
        let (index, _) = most?;
        let template = pools.get(index)?.template.clone()?;
        Some((index, template))
    }

    fn due_for_proof(&self) -> Vec<Due> {
        let now = Instant::now();
        let pools = self.lock();
        let members = pools
            .iter()
            .enumerate()
            .flat_map(|(index, pool)| pool.ready.iter().map(move |member| (index, member)));
        members
            .filter(|(_, member)| now.saturating_duration_since(member.proven_at) >= PROOF_INTERVAL)
            .map(|(index, member)| Due {
                index,
                id: member.id().clone(),
                live: member.live.clone(),
                template: member.template.clone(),
            })
            .collect()
    }
}

impl Pool {
    /// Notes why no member was made; it is tried again, less and less often.
    fn failed(&mut self, text: String) {
        let times = self.failure.as_ref().map_or(0, |failure| failure.times);
        let factor = 2_u32.saturating_pow(times.min(8));
        let pause = RETRY_FIRST.saturating_mul(factor).min(RETRY_LONGEST);
        self.failure = Some(Failure {
            text,
            times: times.saturating_add(1),
            retry_at: Instant::now() + pause,
        });
    }
}
