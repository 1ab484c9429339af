//! `atoll doctor`: what this host offers, what is missing, and how to add it.

use std::path::PathBuf;
use std::process::ExitCode;

use atoll_engine::{Check, Tier, Verdict, inspect_host};
use comfy_table::{ContentArrangement, Table, presets};

use crate::arguments::DoctorArguments;
use crate::home::Home;

pub(crate) fn doctor(
    home: Option<PathBuf>,
    arguments: &DoctorArguments,
) -> anyhow::Result<ExitCode> {
    let home = Home::open(home);
    let range = home.as_ref().map(Home::slot_range).unwrap_or_default();
    let mut checks = inspect_host(&range);
    checks.push(match home {
        Ok(home) => Check {
            name: "home",
            verdict: Verdict::Ok,
            detail: home.path().display().to_string(),
            fix: None,
        },
        Err(error) => Check {
            name: "home",
            verdict: Verdict::Failed,
            detail: format!("{error:#}"),
            fix: Some("set ATOLL_HOME to a directory that you own".to_owned()),
        },
    });
    let usable = checks.iter().all(|check| check.verdict != Verdict::Failed);
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

fn show(checks: &[Check], usable: bool) {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
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
            "isolation: {} (the strongest that works here)",
            Tier::Container
        );
    } else {
        println!("isolation: none works here yet; see the hints above");
    }
}
