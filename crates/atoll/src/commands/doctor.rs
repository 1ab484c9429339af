//! `atoll doctor`: what this host offers, what is missing, and how to add it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use atoll_control::isolation::{Choice, Refusal, decide, probe};
use atoll_control::templates::TemplateCatalog;
use atoll_engine::{Check, RUN_DIR, Tier, TierVerdict, Verdict, inspect_host, remembered_verdict};

use super::isolation;
use crate::arguments::DoctorArguments;
use crate::failure;
use crate::home::Home;
use crate::terminal;

/// What installs gVisor: Debian 12 has it in its backports, later releases among their packages.
const INSTALL_RUNSC: &str = "on Debian 12 `sed '/^$/q;s/^Suites:.*/Suites: bookworm-backports/' /etc/apt/sources.list.d/debian.sources > /etc/apt/sources.list.d/backports.sources` (or the same for a line of /etc/apt/sources.list), then `apt-get update && apt-get install -t bookworm-backports runsc`; on later releases `apt-get install runsc`";

/// Names of the lines about tiers, the weakest first.
const TIERS: [&str; 3] = ["container tier", "gvisor tier", "microvm tier"];

pub(crate) async fn doctor(
    home: Option<PathBuf>,
    arguments: &DoctorArguments,
) -> anyhow::Result<ExitCode> {
    let home = Home::open(home);
    let range = home.as_ref().map(Home::slot_range).unwrap_or_default();
    // Without a home, nothing is looked for in its place.
    let place = home.as_ref().map_or(Path::new(RUN_DIR), Home::path);
    let mut checks = inspect_host(place, &range);
    checks.push(match &home {
        Ok(home) => finding("home", Verdict::Ok, home.path().display().to_string(), None),
        Err(error) => {
            let fix = failure::hint(error)
                .unwrap_or("set ATOLL_HOME to a directory that you own".to_owned());
            finding("home", Verdict::Failed, format!("{error:#}"), Some(fix))
        }
    });
    let usable = |checks: &[Check]| checks.iter().all(|check| check.verdict != Verdict::Failed);
    let mut chosen = None;
    if usable(&checks)
        && let Ok(home) = &home
    {
        checks.extend(try_tiers(home).await);
        chosen = Some(decide_now(home).await);
    }
    let usable = usable(&checks);
    if arguments.json {
        println!("{}", serde_json::to_string(&checks)?);
    } else {
        show(&checks, chosen.as_ref());
    }
    Ok(if usable {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn finding(name: &'static str, verdict: Verdict, detail: String, fix: Option<String>) -> Check {
    Check {
        name,
        verdict,
        detail,
        fix,
    }
}

/// Believes nothing and runs a real sandbox of each tier.
async fn try_tiers(home: &Home) -> Vec<Check> {
    let untried = |verdict, detail: String, fix: Option<&str>| {
        vec![finding(TIERS[0], verdict, detail, fix.map(str::to_owned))]
    };
    let base = async {
        let catalog = TemplateCatalog::open(home.path())?;
        let Some(template) = catalog.get(&"base".parse()?)? else {
            return Ok(None);
        };
        let held = catalog.hold_layers().await?;
        let layers = catalog.layer_directories(&template).await?;
        Ok::<_, anyhow::Error>(Some((held, layers, template.user)))
    };
    match base.await {
        Ok(None) => untried(
            Verdict::Warning,
            "not tried: the template `base` is not built yet".to_owned(),
            Some("`atoll template build base`"),
        ),
        Err(error) => {
            let fix = failure::hint(&error);
            let fix = fix.as_deref().unwrap_or("`atoll template build base`");
            untried(Verdict::Failed, format!("{error:#}"), Some(fix))
        }
        Ok(Some((_held, layers, user))) => vec![
            container(home, &layers, &user).await,
            gvisor(home, &layers, &user).await,
            finding(
                TIERS[2],
                Verdict::Warning,
                "not part of this version of Atoll".to_owned(),
                None,
            ),
        ],
    }
}

async fn container(home: &Home, layers: &[PathBuf], user: &str) -> Check {
    let runtime = match home.runtime(Tier::Container) {
        Ok(runtime) => runtime,
        Err(error) => {
            let fix = failure::hint(&error);
            return finding(TIERS[0], Verdict::Failed, format!("{error:#}"), fix);
        }
    };
    match probe(&runtime, layers, user).await {
        Ok(time) => finding(TIERS[0], Verdict::Ok, ran_in(time.as_millis()), None),
        Err(failure) => finding(
            TIERS[0],
            Verdict::Failed,
            failure.to_string(),
            Some(format!(
                "`tail {}/monitor.log` and `dmesg | tail` have what was seen on the way",
                home.path().display()
            )),
        ),
    }
}

async fn gvisor(home: &Home, layers: &[PathBuf], user: &str) -> Check {
    match isolation::gvisor(home, layers, user).await {
        TierVerdict::Usable { milliseconds } => finding(
            TIERS[1],
            Verdict::Ok,
            ran_in(u128::from(milliseconds)),
            None,
        ),
        TierVerdict::Refused { reason } => finding(
            TIERS[1],
            // In nobody's way unless it is demanded.
            if home.minimum_isolation() >= Tier::Gvisor {
                Verdict::Failed
            } else {
                Verdict::Warning
            },
            reason,
            Some(if home.runsc().is_some() {
                format!("`runsc --version` should say 20240729 or later; {INSTALL_RUNSC}")
            } else {
                INSTALL_RUNSC.to_owned()
            }),
        ),
    }
}

fn ran_in(milliseconds: u128) -> String {
    format!("a new sandbox ran a command after {milliseconds} ms")
}

/// What a sandbox would get now, without trying anything again.
async fn decide_now(home: &Home) -> Result<Choice, Refusal> {
    let verdict = async {
        let known = home
            .runsc()
            .and_then(|runsc| remembered_verdict(home.path(), &runsc));
        known.unwrap_or_else(|| TierVerdict::Refused {
            reason: "`runsc` is not installed, or was not tried".to_owned(),
        })
    };
    decide(home.isolation().into(), home.minimum_isolation(), verdict).await
}

fn show(checks: &[Check], chosen: Option<&Result<Choice, Refusal>>) {
    let mut table = terminal::table();
    for check in checks {
        let mark = match check.verdict {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Failed => "MISSING",
        };
        table.add_row([mark, check.name, &check.detail]);
        if let Some(fix) = &check.fix {
            table.add_row(["", "", &format!("hint: {fix}")]);
        }
    }
    println!("{table}");
    println!();
    match chosen {
        Some(Ok(choice)) => println!("isolation: {} ({})", choice.tier, choice.reason),
        Some(Err(refusal)) => println!("isolation: none: {refusal}\nhint: {}", refusal.hint),
        None => println!("isolation: none works here yet; see the hints above"),
    }
}
