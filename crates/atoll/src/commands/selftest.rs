//! `atoll selftest`: every wall tried for real, on this host.

use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;

use anyhow::Context as _;
use atoll_control::templates::TemplateCatalog;
use atoll_engine::{Runtime, Tier, TierVerdict};
use atoll_selftest::{Case, CaseReport, Event, Glob, Ground, Verdict};
use atoll_store::no_progress;
use tokio::io::AsyncReadExt as _;
use tokio::signal::unix::{SignalKind, signal};

use super::isolation;
use super::template::ensure_template;
use crate::arguments::{SelftestArguments, SelftestTier};
use crate::failure::{Hinted, OWN_FAILURE};
use crate::home::{Home, require_root};
use crate::terminal::{self, Progress};

/// The built-in template whose source layer is the tree of the control room.
const CONTROL_TEMPLATE: &str = "base";

pub(crate) async fn selftest(
    home: &Home,
    arguments: &SelftestArguments,
) -> anyhow::Result<ExitCode> {
    let cases = chosen(arguments.only.as_deref())?;
    if arguments.list {
        list(&cases, arguments)?;
        return Ok(ExitCode::SUCCESS);
    }
    require_root()?;
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    if arguments.in_world {
        // Whoever started this part keeps its end of the pipe open.
        let mut lifeline = tokio::io::stdin();
        let mut nothing = [0_u8; 1];
        return tokio::select! {
            finished = attack(home, arguments, &cases) => finished,
            _ = lifeline.read(&mut nothing) => Ok(ExitCode::from(OWN_FAILURE)),
        };
    }
    // Whoever is dropped half-way takes its sandboxes and canaries along: both
    // end when their ends of our pipes close.
    tokio::select! {
        finished = attack(home, arguments, &cases) => finished,
        _ = interrupt.recv() => Ok(ExitCode::from(130)),
        _ = terminate.recv() => Ok(ExitCode::from(143)),
    }
}

/// The cases that `pattern` means; all without one.
fn chosen(pattern: Option<&str>) -> anyhow::Result<Vec<Case>> {
    let all = atoll_selftest::cases()?;
    let Some(pattern) = pattern else {
        return Ok(all);
    };
    let glob = Glob::new(pattern);
    let mut groups: Vec<String> = all.iter().map(|case| case.group.clone()).collect();
    groups.dedup();
    let found: Vec<Case> = all
        .into_iter()
        .filter(|case| glob.matches(&case.name))
        .collect();
    if found.is_empty() {
        return Err(Hinted::error(
            format!("no case is called `{pattern}`"),
            format!(
                "groups are {}; `atoll selftest --list` names every case",
                groups.join(", ")
            ),
        ));
    }
    Ok(found)
}

async fn attack(
    home: &Home,
    arguments: &SelftestArguments,
    cases: &[Case],
) -> anyhow::Result<ExitCode> {
    let template = ensure_template(home, &arguments.template).await?;
    let catalog = TemplateCatalog::open(home.path())?;
    // Held to the end: sandboxes are made all the time.
    let _held = catalog.hold_layers().await?;
    let layers = catalog.layer_directories(&template).await?;
    let ground = Ground {
        home: home.path().to_owned(),
        program: std::env::current_exe().context("cannot find this program's own file")?,
        runtimes: runtimes(home, arguments.tier, &layers, &template.user).await?,
        layers,
        room: control_room(home, &catalog).await,
        user: template.user.clone(),
        range: home.slot_range().to_string(),
    };
    if arguments.survey {
        let text = atoll_selftest::survey(&ground)
            .await
            .map_err(|why| anyhow::anyhow!("cannot make the survey: {why}"))?;
        print!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(count) = arguments.siege {
        return besiege(&ground, count, arguments).await;
    }
    let mut progress = Progress::new();
    let mut tell = |event: Event<'_>| match event {
        Event::Begins {
            name,
            tier,
            done,
            of,
        } => progress.now(&format!("{done} of {of}: {name} ({tier})")),
        Event::Ended(report) if report.outcome.is_good() => {}
        Event::Ended(report) => progress.line(&format!(
            "{} {} ({}): {}",
            report.outcome.name(),
            report.name,
            report.tier,
            report.reason.as_ref().unwrap_or(&report.got)
        )),
    };
    let (distant, local): (Vec<Case>, Vec<Case>) =
        cases.iter().cloned().partition(Case::needs_world);
    let mut reports = Vec::new();
    if arguments.in_world {
        reports = atoll_selftest::run(&ground, &distant, &mut tell).await?;
    } else {
        if !local.is_empty() {
            reports = atoll_selftest::run(&ground, &local, &mut tell).await?;
        }
        if !distant.is_empty() {
            reports.extend(in_world(home, arguments).await?);
        }
    }
    drop(progress);
    if arguments.json {
        println!("{}", serde_json::to_string(&reports)?);
    } else {
        show(&reports);
    }
    let good = reports.iter().all(|report| report.outcome.is_good());
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The tree in which controls run as root of the host. It is never the template's that
/// is tried, and never a layer that a step made: whoever writes those would get the host.
async fn control_room(home: &Home, catalog: &TemplateCatalog) -> Result<PathBuf, String> {
    let why = |error: anyhow::Error| format!("there is no control room: {error:#}");
    let base = ensure_template(home, CONTROL_TEMPLATE).await.map_err(why)?;
    let layer = base.source_layer().ok_or_else(|| {
        format!("there is no control room: `{CONTROL_TEMPLATE}` has no layer of its source")
    })?;
    let tree = catalog.layers().ensure(layer, no_progress()).await;
    tree.map_err(|error| why(error.into()))
}

/// Many attackers at once; fails when peaceful sandboxes beside them were disturbed.
async fn besiege(
    ground: &Ground,
    count: usize,
    arguments: &SelftestArguments,
) -> anyhow::Result<ExitCode> {
    let mut progress = Progress::new();
    progress.now(&format!("{count} sandboxes attack"));
    let report = atoll_selftest::siege(ground, count, arguments.siege_time)
        .await
        .map_err(|why| anyhow::anyhow!("the siege could not be held: {why}"))?;
    drop(progress);
    let failures: usize = report.peaceful.iter().map(|it| it.failures).sum();
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!(
            "{} sandboxes attacked for {} s: {} rounds, {} replaced",
            report.sandboxes, report.seconds, report.rounds, report.replaced
        );
        let mut table = terminal::table();
        table.set_header(["", "samples", "p50 ms", "p95 ms", "max ms"]);
        let mut rows = vec![
            ("command on the host, quiet".to_owned(), report.host_quiet),
            (
                "command on the host, besieged".to_owned(),
                report.host_besieged,
            ),
        ];
        for peaceful in &report.peaceful {
            let tier = peaceful.tier;
            rows.push((format!("peaceful sandbox ({tier}), quiet"), peaceful.quiet));
            rows.push((
                format!("peaceful sandbox ({tier}), besieged"),
                peaceful.besieged,
            ));
        }
        for (name, latency) in &rows {
            let milliseconds = |micros: u64| format!("{}.{:02}", micros / 1000, micros % 1000 / 10);
            table.add_row([
                name,
                &latency.samples.to_string(),
                &milliseconds(latency.p50_us),
                &milliseconds(latency.p95_us),
                &milliseconds(latency.max_us),
            ]);
        }
        println!("{table}");
        println!("wrong or missing answers of peaceful sandboxes: {failures}");
    }
    Ok(if failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Has the cases of the network played by a process with a network of its own.
async fn in_world(home: &Home, arguments: &SelftestArguments) -> anyhow::Result<Vec<CaseReport>> {
    let tier = match arguments.tier {
        SelftestTier::Container => "container",
        SelftestTier::Gvisor => "gvisor",
        SelftestTier::All => "all",
    };
    let mut command = tokio::process::Command::new(
        std::env::current_exe().context("cannot find this program's own file")?,
    );
    command
        .arg("--home")
        .arg(home.path())
        .args(["selftest", "--in-world", "--json", "--tier", tier])
        .args(["--template", &arguments.template])
        .args(arguments.only.iter().flat_map(|only| ["--only", only]))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().context("cannot start the network's part")?;
    // Held to the end: when we end, it does.
    let _lifeline = child.stdin.take();
    let output = child.wait_with_output().await?;
    serde_json::from_slice(&output.stdout).with_context(|| {
        format!(
            "the network's part of the selftest ended with {}",
            output.status
        )
    })
}

/// One runtime per tier to attack.
async fn runtimes(
    home: &Home,
    wanted: SelftestTier,
    layers: &[PathBuf],
    user: &str,
) -> anyhow::Result<Vec<Arc<dyn Runtime>>> {
    let mut runtimes = Vec::new();
    if wanted != SelftestTier::Gvisor {
        runtimes.push(home.runtime(Tier::Container)?);
    }
    if wanted != SelftestTier::Container {
        // Tried anew: what was remembered may not be true any more.
        match isolation::gvisor(home, layers, user).await {
            TierVerdict::Usable { .. } => runtimes.push(home.runtime(Tier::Gvisor)?),
            TierVerdict::Refused { reason } if wanted == SelftestTier::Gvisor => {
                return Err(Hinted::error(
                    format!("gVisor cannot be attacked on this host: {reason}"),
                    "`atoll doctor` says how to add it".to_owned(),
                ));
            }
            TierVerdict::Refused { reason } => {
                eprintln!("note: the gvisor tier is not attacked: {reason}");
            }
        }
    }
    Ok(runtimes)
}

fn list(cases: &[Case], arguments: &SelftestArguments) -> anyhow::Result<()> {
    if arguments.json {
        let rows: Vec<serde_json::Value> = cases
            .iter()
            .map(|case| {
                serde_json::json!({
                    "name": case.name,
                    "group": case.group,
                    "tried": case.tried,
                    "wall": case.wall(Tier::Container),
                    "control": case.control(),
                })
            })
            .collect();
        println!("{}", serde_json::to_string(&rows)?);
        return Ok(());
    }
    let mut table = terminal::table();
    table.set_header(["case", "tried", "wall"]);
    for case in cases {
        table.add_row([&case.name, &case.tried, case.wall(Tier::Container)]);
    }
    println!("{table}");
    println!("\n{} cases", cases.len());
    Ok(())
}

fn show(reports: &[CaseReport]) {
    let mut table = terminal::table();
    table.set_header(["", "case", "tier", "tried", "got", "wall"]);
    for report in reports {
        let got = report.reason.as_ref().unwrap_or(&report.got);
        let mark = match report.outcome {
            Verdict::Held => "held",
            Verdict::Breached => "BREACHED",
            Verdict::Inconclusive => "INCONCLUSIVE",
            Verdict::NotApplicable => "n/a",
        };
        table.add_row([
            mark,
            &report.name,
            &report.tier.to_string(),
            &report.tried,
            got,
            &report.wall,
        ]);
    }
    println!("{table}");
    let count = |outcome| {
        reports
            .iter()
            .filter(|report| report.outcome == outcome)
            .count()
    };
    println!(
        "\n{} cases: {} held, {} breached, {} inconclusive, {} not applicable here",
        reports.len(),
        count(Verdict::Held),
        count(Verdict::Breached),
        count(Verdict::Inconclusive),
        count(Verdict::NotApplicable),
    );
}
