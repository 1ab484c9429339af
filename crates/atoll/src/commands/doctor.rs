//! `atoll doctor`: what this host offers, what is missing, and how to add it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use atoll_control::LiveSandbox;
use atoll_control::templates::{Template, TemplateCatalog};
use atoll_engine::{
    Attachment, Check, Limits, NetworkPolicy, RUN_DIR, SandboxId, SandboxSpec, Tier, Verdict,
    inspect_host, open_files_ceiling,
};
use atoll_guest_client::{Command, ExitStatus, InitRequest, ProcessEvent};

use crate::arguments::DoctorArguments;
use crate::failure;
use crate::home::Home;
use crate::terminal;

/// How long the sandbox of the probe may live.
const PROBE_BOUND: Duration = Duration::from_secs(60);

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
    if usable(&checks)
        && let Ok(home) = &home
    {
        checks.push(try_sandbox(home).await);
    }
    let usable = usable(&checks);
    if arguments.json {
        println!("{}", serde_json::to_string(&checks)?);
    } else {
        show(&checks, usable);
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

/// Believes nothing and runs a real sandbox.
async fn try_sandbox(home: &Home) -> Check {
    let template = async {
        let catalog = TemplateCatalog::open(home.path())?;
        Ok::<_, anyhow::Error>(catalog.get(&"base".parse()?)?)
    };
    match template.await {
        Ok(None) => finding(
            "sandbox",
            Verdict::Warning,
            "not tried: the template `base` is not built yet".to_owned(),
            Some("atoll template build base".to_owned()),
        ),
        Ok(Some(template)) => match probe(home, &template).await {
            Ok(time) => {
                let detail = format!("created, used and removed in {} ms", time.as_millis());
                finding("sandbox", Verdict::Ok, detail, None)
            }
            Err(error) => finding(
                "sandbox",
                Verdict::Failed,
                format!("{error:#}"),
                failure::hint(&error),
            ),
        },
        Err(error) => finding("sandbox", Verdict::Failed, format!("{error:#}"), None),
    }
}

async fn probe(home: &Home, template: &Template) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let catalog = TemplateCatalog::open(home.path())?;
    let held = catalog.hold_layers().await?;
    let id = SandboxId::random()?;
    let default = Limits::default();
    let spec = SandboxSpec {
        hostname: id.to_string(),
        id,
        layers: catalog.layer_directories(template).await?,
        limits: Limits {
            open_files: default.open_files.min(open_files_ceiling()),
            ..default
        },
        network: NetworkPolicy::None,
        env: BTreeMap::new(),
        lifetime: Some(PROBE_BOUND),
        attachment: Attachment::Client,
    };
    let init = InitRequest {
        default_user: Some(template.user.clone()),
        ..InitRequest::default()
    };
    let live = LiveSandbox::open(home.runtime()?, spec, init).await?;
    drop(held);
    let exit = first_exit(&live).await;
    live.destroy().await?;
    match exit? {
        ExitStatus::Exited(0) => Ok(start.elapsed()),
        other => anyhow::bail!("`true` in a sandbox {}", other.text()),
    }
}

async fn first_exit(live: &LiveSandbox) -> anyhow::Result<ExitStatus> {
    let command = Command {
        cmd: "true".to_owned(),
        ..Command::default()
    };
    let mut process = live.guest().start(&command).await?;
    while let Some(event) = process.next().await? {
        if let ProcessEvent::End(exit) = event {
            return Ok(exit);
        }
    }
    anyhow::bail!("a command in a sandbox gave no exit status")
}

fn show(checks: &[Check], usable: bool) {
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
    if usable {
        println!(
            "isolation: {} (the strongest that this version of Atoll has)",
            Tier::Container
        );
    } else {
        println!("isolation: none works here yet; see the hints above");
    }
}
