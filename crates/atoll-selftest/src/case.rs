//! What a case is, and what came of it.

use std::collections::BTreeMap;

use atoll_engine::Tier;
use serde::{Deserialize, Serialize};

use crate::native::Native;

/// One attack against one wall.
#[derive(Debug, Clone)]
pub struct Case {
    /// `<group>.<name>`.
    pub name: String,
    /// What it is about: the part of the name before the point.
    pub group: String,
    /// What the attacker does, in one sentence.
    pub tried: String,
    pub(crate) wall: String,
    /// The wall under gVisor, where it is another one.
    pub(crate) wall_gvisor: Option<String>,
    /// Why the case means nothing under gVisor.
    pub(crate) skip_gvisor: Option<String>,
    pub(crate) attack: Attack,
    pub(crate) control: Control,
}

impl Case {
    /// The wall that should hold in a sandbox of `tier`.
    #[must_use]
    pub fn wall(&self, tier: Tier) -> &str {
        match (tier, &self.wall_gvisor) {
            (Tier::Gvisor, Some(wall)) => wall,
            (Tier::Container | Tier::Gvisor | Tier::Microvm, _) => &self.wall,
        }
    }

    /// Whether it is about the network, and must be played in a world of its own
    /// (see [`crate::enter_world`]).
    #[must_use]
    pub fn needs_world(&self) -> bool {
        self.group == "network"
    }

    /// Where the same attack must succeed.
    #[must_use]
    pub fn control(&self) -> String {
        self.control.describe()
    }
}

/// How an attack is made.
#[derive(Debug, Clone)]
pub(crate) enum Attack {
    /// A program inside a sandbox.
    Program(Program),
    /// A sandbox or an archive that attacks Atoll's own host side.
    Native(Native),
}

/// A program for the template's Python.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) body: &'static str,
    /// What it is aimed at, beside the canaries.
    pub(crate) target: Target,
    pub(crate) user: User,
    pub(crate) place: Place,
    /// Working directories to start it in, one after the other.
    pub(crate) directories: Vec<String>,
}

/// Named texts that a program gets as `TARGET`.
pub(crate) type Target = BTreeMap<String, String>;

/// Who the attacker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// Root inside of the sandbox.
    Root,
    /// The user of the template.
    Template,
}

/// Where a program attacks from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// The sandbox that all harmless attacks share.
    Shared,
    /// A sandbox of its own, with these limits changed.
    Alone(Numbers),
    /// Two steps, `act` in one sandbox of its own and `check` in the neighbour.
    Observed,
}

/// Limits by name, in the units of [`atoll_engine::Limits`].
pub(crate) type Numbers = BTreeMap<String, u64>;

/// Where the wall is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Control {
    /// On the host, in the root file system of the template and nothing else between.
    Room {
        /// Namespaces of its own, where the real ones would be harmed.
        namespaces: Vec<Namespace>,
        /// Entered as sandboxes enter their root, for what the kernel refuses in a chroot.
        pivoted: bool,
        /// Leaves a descriptor of a host directory open, as a careless runtime would.
        leak: bool,
        target: Target,
    },
    /// In the same sandbox, aimed at something that is not protected.
    Inside(Target),
    /// In the sandbox that is attacked.
    Neighbour,
    /// The observer looks in the attacker's own sandbox.
    Observer,
    /// In a sandbox with a higher limit.
    Looser(Numbers),
    /// Told in words; the attack brings it along.
    Told(&'static str),
}

impl Control {
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Room {
                namespaces, leak, ..
            } => {
                let mut text = "the same as root of the host".to_owned();
                if !namespaces.is_empty() {
                    let names: Vec<&str> = namespaces.iter().map(|kind| kind.name()).collect();
                    text.push_str(&format!(" in throw-away {} namespaces", names.join(", ")));
                }
                if *leak {
                    text.push_str(", with a descriptor leaked on purpose");
                }
                text
            }
            Self::Inside(target) => {
                let aims: Vec<String> = target
                    .iter()
                    .map(|(name, value)| format!("{name} = {value}"))
                    .collect();
                format!("the same inside, aimed at {}", aims.join(", "))
            }
            Self::Neighbour => "the same inside of the attacked sandbox".to_owned(),
            Self::Observer => "the attacker's own sandbox sees the effect".to_owned(),
            Self::Looser(limits) => {
                let limits: Vec<String> = limits
                    .iter()
                    .map(|(name, value)| format!("{name} = {value}"))
                    .collect();
                format!("the same in a sandbox with {}", limits.join(", "))
            }
            Self::Told(text) => (*text).to_owned(),
        }
    }
}

/// A kind of namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Namespace {
    Cgroup,
    Ipc,
    Mount,
    Net,
    Uts,
}

impl Namespace {
    pub(crate) const ALL: [Self; 5] = [Self::Cgroup, Self::Ipc, Self::Mount, Self::Net, Self::Uts];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Ipc => "ipc",
            Self::Mount => "mount",
            Self::Net => "net",
            Self::Uts => "uts",
        }
    }
}

/// What came of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The attack failed, and its control succeeded.
    Held,
    /// The attack succeeded.
    Breached,
    /// The control did not succeed, or the attack gave no answer: nothing is proven.
    Inconclusive,
    /// This host or tier lacks what is attacked.
    NotApplicable,
}

impl Verdict {
    /// Whether an operator can be at ease.
    #[must_use]
    pub fn is_good(self) -> bool {
        match self {
            Self::Held | Self::NotApplicable => true,
            Self::Breached | Self::Inconclusive => false,
        }
    }

    /// Its name in `--json`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Breached => "breached",
            Self::Inconclusive => "inconclusive",
            Self::NotApplicable => "not_applicable",
        }
    }
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaseReport {
    /// Name of the case.
    pub name: String,
    /// Its group.
    pub group: String,
    /// Tier of the attacked sandbox.
    pub tier: Tier,
    /// What came of it.
    pub outcome: Verdict,
    /// What the attacker did.
    pub tried: String,
    /// What the attacker got.
    pub got: String,
    /// The wall that should have held.
    pub wall: String,
    /// Where the same attack was made without the wall.
    pub control: String,
    /// What the attacker got there.
    pub control_got: String,
    /// Why it proves nothing, or does not apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How long both took.
    pub duration_ms: u64,
}
