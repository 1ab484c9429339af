//! Plays the cases and judges them.
//!
//! A case is judged from two reports: the attack's and its control's.
//!
//! | control | attack | verdict |
//! |---|---|---|
//! | says that the host lacks what is attacked | | not applicable |
//! | failed | | inconclusive |
//! | succeeded | no report | inconclusive |
//! | succeeded | succeeded, or holds the secret of the canaries | breached |
//! | succeeded | failed | held |

pub(crate) mod scene;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_engine::{Runtime, Tier};

use crate::case::{Case, CaseReport, Verdict};
use crate::program::Report;
use crate::stage::Stage;
pub(crate) use scene::Scene;

/// Characters of what an attacker got that a report keeps.
const GOT_CHARACTERS: usize = 400;

/// What a selftest stands on.
#[derive(Clone)]
pub struct Ground {
    /// The home; canaries are made below it.
    pub home: PathBuf,
    /// This binary, which plays the parts.
    pub program: PathBuf,
    /// Layers of the template, the top one first. What is in them is the attacker's:
    /// it runs in sandboxes and nowhere else.
    pub layers: Vec<PathBuf>,
    /// The tree of the control room, in which programs run as root of the host: one
    /// that the host itself made, with a `python3`. Or why there is none; then no
    /// control that needs it gives a report.
    pub room: Result<PathBuf, String>,
    /// The user of the template.
    pub user: String,
    /// Addresses of sandboxes on this host, as a range.
    pub range: String,
    /// One runtime for each tier to attack.
    pub runtimes: Vec<Arc<dyn Runtime>>,
}

/// Why a selftest could not be made. What attacks did is never an error.
#[derive(Debug, thiserror::Error)]
pub enum SelftestError {
    /// The canaries could not be made or removed.
    #[error("cannot keep the canaries")]
    Keeper(#[source] std::io::Error),
    /// An attack program of this version is not well-formed.
    #[error("the catalog of attacks is broken: {0}")]
    Catalog(String),
}

/// Progress of a selftest.
#[derive(Debug)]
pub enum Event<'run> {
    /// A case begins.
    Begins {
        /// Its name.
        name: &'run str,
        /// Tier of the sandbox.
        tier: Tier,
        /// How many are done.
        done: usize,
        /// How many there are.
        of: usize,
    },
    /// A case is over.
    Ended(&'run CaseReport),
}

/// Plays `cases` on every tier of `ground`. Those that need a world
/// ([`Case::needs_world`]) are played alone, by a process that has called
/// [`crate::enter_world`].
///
/// # Errors
/// When nothing could be tried. Dropping the future ends everything that was made.
pub async fn run(
    ground: &Ground,
    cases: &[Case],
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<Vec<CaseReport>, SelftestError> {
    let mut reports = Vec::new();
    let of = cases.len() * ground.runtimes.len();
    for runtime in &ground.runtimes {
        let stage = Stage {
            runtime: Arc::clone(runtime),
            layers: ground.layers.clone(),
            user: ground.user.clone(),
        };
        let tier = stage.tier();
        let mut scene = Scene::open(ground, stage, cases)
            .await
            .map_err(SelftestError::Keeper)?;
        for case in cases {
            tell(Event::Begins {
                name: &case.name,
                tier,
                done: reports.len(),
                of,
            });
            let report = play(&mut scene, case, tier).await;
            tell(Event::Ended(&report));
            reports.push(report);
        }
        scene.close().await.map_err(SelftestError::Keeper)?;
    }
    Ok(reports)
}

async fn play(scene: &mut Scene, case: &Case, tier: Tier) -> CaseReport {
    let start = Instant::now();
    let skipped = match (tier, &case.skip_gvisor) {
        (Tier::Gvisor, Some(reason)) => Some(reason.clone()),
        (Tier::Container | Tier::Gvisor | Tier::Microvm, _) => None,
    };
    let judged = match skipped {
        Some(reason) => Judged {
            outcome: Verdict::NotApplicable,
            got: String::new(),
            control_got: String::new(),
            reason: Some(reason),
        },
        None => {
            let (attack, control) = scene.play(case).await;
            judge(&attack, &control, &scene.secrets())
        }
    };
    told(case, tier, &judged, start.elapsed())
}

/// The report of a case. Words from inside of a sandbox are made harmless for terminals here.
fn told(case: &Case, tier: Tier, judged: &Judged, took: Duration) -> CaseReport {
    CaseReport {
        name: case.name.clone(),
        group: case.group.clone(),
        tier,
        outcome: judged.outcome,
        tried: case.tried.clone(),
        got: shown(&judged.got),
        wall: case.wall(tier).to_owned(),
        control: case.control(),
        control_got: shown(&judged.control_got),
        reason: judged.reason.as_deref().map(shown),
        duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
    }
}

/// What two reports say together.
#[derive(Debug, PartialEq, Eq)]
struct Judged {
    outcome: Verdict,
    got: String,
    control_got: String,
    reason: Option<String>,
}

fn judge(
    attack: &Result<Report, String>,
    control: &Result<Report, String>,
    secrets: &[&str],
) -> Judged {
    let words = |report: &Result<Report, String>| match report {
        Ok(report) if report.detail.is_empty() => report.got.clone(),
        Ok(report) => format!("{} ({})", report.got, report.detail),
        Err(why) => why.clone(),
    };
    let (got, control_got) = (words(attack), words(control));
    let holds_secret = secrets
        .iter()
        .any(|secret| !secret.is_empty() && got.contains(secret));
    let (outcome, reason) = match (attack, control) {
        // What was seen was seen, whatever the control says.
        (Ok(_), _) if holds_secret => (Verdict::Breached, None),
        (
            _,
            Ok(Report {
                absent: Some(what), ..
            }),
        ) => (
            Verdict::NotApplicable,
            Some(format!("this host has no {what}")),
        ),
        (_, Err(why)) => {
            let why = format!("the control gave no report: {why}");
            (Verdict::Inconclusive, Some(why))
        }
        (_, Ok(control)) if !control.success => {
            let why = format!("the control did not succeed: {}", control.got);
            (Verdict::Inconclusive, Some(why))
        }
        (Err(why), Ok(_)) => {
            let why = format!("the attack gave no report: {why}");
            (Verdict::Inconclusive, Some(why))
        }
        (Ok(attack), Ok(_)) if attack.success => (Verdict::Breached, None),
        (Ok(_), Ok(_)) => (Verdict::Held, None),
    };
    Judged {
        outcome,
        got,
        control_got,
        reason,
    }
}

/// Bounded, and without what could move a cursor: it comes from inside of a sandbox.
pub(crate) fn shown(text: &str) -> String {
    let plain = text.chars().map(|character| {
        if character.is_control() {
            ' '
        } else {
            character
        }
    });
    plain.take(GOT_CHARACTERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn absent(what: &str) -> Report {
        Report {
            absent: Some(what.to_owned()),
            ..Report::failed("ENOSYS")
        }
    }

    #[test]
    fn a_verdict_needs_both_sides() {
        let yes = || Ok(Report::succeeded("in"));
        let no = || Ok(Report::failed("EPERM"));
        let silent = || Err("exit 1".to_owned());
        let rows = [
            (no(), yes(), Verdict::Held),
            (yes(), yes(), Verdict::Breached),
            (no(), no(), Verdict::Inconclusive),
            (yes(), no(), Verdict::Inconclusive),
            (no(), silent(), Verdict::Inconclusive),
            (silent(), yes(), Verdict::Inconclusive),
            (no(), Ok(absent("modules")), Verdict::NotApplicable),
            (yes(), Ok(absent("modules")), Verdict::NotApplicable),
            // Modest about it, but the secret is out.
            (Ok(Report::failed("it says hush")), yes(), Verdict::Breached),
            (Ok(Report::failed("it says hush")), no(), Verdict::Breached),
        ];
        for (attack, control, expected) in rows {
            let text = format!("{attack:?} {control:?}");
            assert_eq!(
                judge(&attack, &control, &["hush"]).outcome,
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn no_field_of_a_report_moves_a_cursor() {
        let case = crate::cases().unwrap().remove(0);
        let hostile = "\u{1b}[2J\u{9b}31m\r\n\u{7}all is well";
        let lacking = Report {
            absent: Some(hostile.to_owned()),
            ..Report::failed(hostile)
        };
        let sides = [
            (Ok(Report::failed(hostile)), Ok(lacking)),
            (Ok(Report::failed(hostile)), Err(hostile.to_owned())),
            (Err(hostile.to_owned()), Ok(Report::succeeded(hostile))),
            (Ok(Report::failed(hostile)), Ok(Report::failed(hostile))),
        ];
        for (attack, control) in sides {
            let judged = judge(&attack, &control, &[]);
            let report = told(&case, Tier::Container, &judged, Duration::ZERO);
            let reason = report.reason.unwrap();
            for text in [&report.got, &report.control_got, &reason] {
                assert!(text.contains("all is well"), "{text:?}");
                assert!(!text.chars().any(char::is_control), "{text:?}");
            }
        }
    }

    #[test]
    fn what_comes_from_inside_is_bounded_and_plain() {
        let text = shown(&format!("\u{1b}[2J{}", "x".repeat(10_000)));
        assert_eq!(text.chars().count(), GOT_CHARACTERS);
        assert!(text.starts_with(" [2Jx"));
    }
}
