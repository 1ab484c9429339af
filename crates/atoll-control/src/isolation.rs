//! Which tier a sandbox gets: the strongest that works here, the one that was
//! asked for, and never one below what the operator demands.
//!
//! Nothing is believed from a version number. A tier counts when a real sandbox
//! of it has run a command in reasonable time on this host ([`probe`]).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_engine::{
    Attachment, GUEST_IN_LAYER, Limits, NetworkPolicy, Runtime, SandboxId, SandboxSpec, Tier,
    TierVerdict, open_files_ceiling,
};
use atoll_guest_client::{Command, ExitStatus, InitRequest, KERNEL_RELEASE, ProcessEvent};

use crate::LiveSandbox;

/// How long the sandbox of a probe may live.
const PROBE_LIFETIME: Duration = Duration::from_secs(60);
/// A tier that takes longer from the wish to the end of the first command is of no use.
const SLOWEST: Duration = Duration::from_secs(8);
/// A host that was busy at the first try may be quiet at the second.
const TRIES: usize = 2;
/// How long the command of a probe may take.
const COMMAND_BOUND: Duration = Duration::from_secs(20);
/// No kernel has a longer release.
const RELEASE_BYTES_MAX: usize = 256;

/// Which tier is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// The strongest that passes its probe.
    Strongest,
    /// This one or none.
    Exactly(Tier),
}

/// What was decided, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The tier.
    pub tier: Tier,
    /// The reason, for people.
    pub reason: String,
}

/// No tier is both wanted and there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Refusal {
    what: String,
    /// What can be done about it.
    pub hint: String,
}

const INSTALL: &str = "`atoll doctor` tries it again, and says how to install it; runsc 20240729 works (Debian 12: `apt-get install -t bookworm-backports runsc`)";

/// Decides between tiers; `verdict` says whether gVisor works here and is asked only if it matters.
///
/// # Errors
/// When nothing meets both `wish` and `minimum`.
pub async fn decide(
    wish: Wish,
    minimum: Tier,
    verdict: impl Future<Output = TierVerdict>,
) -> Result<Choice, Refusal> {
    match wish {
        Wish::Exactly(tier) if tier < minimum => Err(Refusal {
            what: format!("the {tier} tier is weaker than the required minimum, {minimum}"),
            hint: "ask for a stronger tier, or lower minimum_isolation in config.toml".to_owned(),
        }),
        Wish::Exactly(Tier::Container) => Ok(Choice {
            tier: Tier::Container,
            reason: "it was asked for".to_owned(),
        }),
        _ if wish == Wish::Exactly(Tier::Microvm) || minimum == Tier::Microvm => Err(Refusal {
            what: "the microvm tier is not part of this version of Atoll".to_owned(),
            hint: "choose gvisor or container".to_owned(),
        }),
        Wish::Exactly(_) | Wish::Strongest => match (verdict.await, wish, minimum) {
            (TierVerdict::Usable { milliseconds }, wish, _) => Ok(Choice {
                tier: Tier::Gvisor,
                reason: match wish {
                    Wish::Strongest => format!(
                        "the strongest that passes its probe; a sandbox ran a command in {milliseconds} ms"
                    ),
                    Wish::Exactly(_) => "it was asked for".to_owned(),
                },
            }),
            (TierVerdict::Refused { reason }, Wish::Strongest, Tier::Container) => Ok(Choice {
                tier: Tier::Container,
                reason: format!("the gvisor tier does not work here: {reason}"),
            }),
            (TierVerdict::Refused { reason }, ..) => Err(Refusal {
                what: format!("the gvisor tier does not work here: {reason}"),
                hint: INSTALL.to_owned(),
            }),
        },
    }
}

/// Makes a sandbox of `layers` and runs a command in it as `user`: the guest
/// itself, so that nothing of a template has a say in what all of a home get.
///
/// # Errors
/// With the reason why that does not work, or how long it took if too long.
pub async fn probe(
    runtime: &Arc<dyn Runtime>,
    layers: &[PathBuf],
    user: &str,
) -> Result<Duration, ProbeFailure> {
    let mut fastest = Duration::MAX;
    for _ in 0..TRIES {
        fastest = fastest.min(try_once(runtime, layers, user).await?);
        if fastest <= SLOWEST {
            return Ok(fastest);
        }
    }
    Err(ProbeFailure::lasting(format!(
        "too slow: a command in a new sandbox took {} ms, and {} ms is the most that is of use",
        fastest.as_millis(),
        SLOWEST.as_millis()
    )))
}

/// Why a probe failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ProbeFailure {
    reason: String,
    /// Whether it says something of the tier, and not of this one try.
    pub is_lasting: bool,
}

impl ProbeFailure {
    fn lasting(reason: String) -> Self {
        Self {
            reason,
            is_lasting: true,
        }
    }

    fn of_this_try(reason: String) -> Self {
        Self {
            reason,
            is_lasting: false,
        }
    }
}

async fn try_once(
    runtime: &Arc<dyn Runtime>,
    layers: &[PathBuf],
    user: &str,
) -> Result<Duration, ProbeFailure> {
    let failed = |error: &dyn std::error::Error| ProbeFailure::of_this_try(chain(error));
    let start = Instant::now();
    let id = SandboxId::random().map_err(|error| failed(&error))?;
    let default = Limits::default();
    let spec = SandboxSpec {
        hostname: id.to_string(),
        id,
        layers: layers.to_vec(),
        limits: Limits {
            open_files: default.open_files.min(open_files_ceiling()),
            ..default
        },
        network: NetworkPolicy::None,
        env: BTreeMap::new(),
        lifetime: Some(PROBE_LIFETIME),
        attachment: Attachment::Client,
        memory: None,
    };
    let init = InitRequest {
        default_user: Some(user.to_owned()),
        ..InitRequest::default()
    };
    let live = LiveSandbox::open(Arc::clone(runtime), spec, init)
        .await
        .map_err(|error| failed(&error))?;
    let said = kernel_of(&live).await;
    let took = start.elapsed();
    let removed = live.destroy().await;
    let kernel = said.map_err(ProbeFailure::of_this_try)?;
    removed.map_err(|error| failed(&error))?;
    let own = rustix::system::uname();
    if runtime.tier() > Tier::Container && kernel.as_bytes() == own.release().to_bytes() {
        let reason = "its sandboxes run on the kernel of the host".to_owned();
        return Err(ProbeFailure::lasting(reason));
    }
    Ok(took)
}

/// The release of the kernel inside, in the guest's words.
async fn kernel_of(live: &LiveSandbox) -> Result<String, String> {
    let command = Command {
        cmd: format!("/{GUEST_IN_LAYER}"),
        args: vec![KERNEL_RELEASE.to_owned()],
        timeout: Some(COMMAND_BOUND),
        ..Command::default()
    };
    let broken = |error: atoll_guest_client::GuestError| chain(&error);
    let mut process = live.guest().start(&command).await.map_err(broken)?;
    let mut said = Vec::new();
    while let Some(event) = process.next().await.map_err(broken)? {
        match event {
            ProcessEvent::Stdout(bytes) => {
                said.extend_from_slice(&bytes);
                if said.len() > RELEASE_BYTES_MAX {
                    return Err("a sandbox has a kernel with an endless name".to_owned());
                }
            }
            ProcessEvent::End(ExitStatus::Exited(0)) => {
                return Ok(String::from_utf8_lossy(&said).trim().to_owned());
            }
            ProcessEvent::End(other) => {
                return Err(format!("the first command in a sandbox {}", other.text()));
            }
            _ => {}
        }
    }
    Err("a command in a sandbox gave no exit status".to_owned())
}

/// An error with all its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn decided(wish: Wish, minimum: Tier, works: bool) -> Result<Tier, String> {
        let verdict = if works {
            TierVerdict::Usable { milliseconds: 300 }
        } else {
            TierVerdict::Refused {
                reason: "no runsc".to_owned(),
            }
        };
        decide(wish, minimum, async { verdict })
            .await
            .map(|choice| choice.tier)
            .map_err(|refusal| refusal.to_string())
    }

    #[tokio::test]
    async fn the_strongest_that_works_and_meets_the_minimum_is_taken() {
        use Tier::{Container, Gvisor, Microvm};
        use Wish::{Exactly, Strongest};
        let broken = "the gvisor tier does not work here: no runsc";
        let absent = "the microvm tier is not part of this version of Atoll";
        let weak = "the container tier is weaker than the required minimum, gvisor";
        let rows = [
            (Strongest, Container, true, Ok(Gvisor)),
            (Strongest, Container, false, Ok(Container)),
            (Strongest, Gvisor, true, Ok(Gvisor)),
            (Strongest, Gvisor, false, Err(broken)),
            (Strongest, Microvm, true, Err(absent)),
            (Exactly(Container), Container, false, Ok(Container)),
            (Exactly(Container), Gvisor, true, Err(weak)),
            (Exactly(Gvisor), Container, true, Ok(Gvisor)),
            (Exactly(Gvisor), Container, false, Err(broken)),
            (Exactly(Microvm), Container, true, Err(absent)),
        ];
        for (wish, minimum, works, expected) in rows {
            assert_eq!(
                decided(wish, minimum, works).await,
                expected.map_err(str::to_owned),
                "{wish:?} {minimum} {works}"
            );
        }
    }

    #[tokio::test]
    async fn a_pinned_container_asks_for_no_probe() {
        let never = std::future::pending();
        let choice = decide(Wish::Exactly(Tier::Container), Tier::Container, never).await;
        assert_eq!(choice.unwrap().tier, Tier::Container);
    }
}
