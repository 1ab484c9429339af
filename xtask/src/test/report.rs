//! The report of `cargo xtask test --full`, for `docs/reports`.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use super::Tally;
use crate::failure::{Context as _, Outcome};
use crate::machine::suite::Row;
use crate::program::Program;
use crate::progress::Stage;
use crate::workspace;

/// Writes it and returns its path, seen from the workspace.
pub(super) fn write(tally: &Tally, stages: &[Stage], machine: &[Row]) -> Outcome<PathBuf> {
    let date = Program::new("date")
        .args(["--utc", "+%F"])
        .read()?
        .trim()
        .to_owned();
    let path = PathBuf::from(format!("docs/reports/full-{date}.md"));
    let target = workspace::root().join(&path);
    if let Some(directory) = target.parent() {
        fs::create_dir_all(directory).context(|| format!("making `{}`", directory.display()))?;
    }
    let text = render(&date, &facts(), tally, stages, machine);
    fs::write(&target, text).context(|| format!("writing `{}`", target.display()))?;
    Ok(path)
}

fn render(
    date: &str,
    facts: &[(&str, String)],
    tally: &Tally,
    stages: &[Stage],
    machine: &[Row],
) -> String {
    let mut text = format!("# Full test run, {date}\n\n{tally}\n\n| machine | |\n|---|---|\n");
    // Writing to a string cannot fail.
    for (name, value) in facts {
        let _ = writeln!(text, "| {name} | {value} |");
    }
    text.push_str("\n| stage | seconds |\n|---|---|\n");
    for stage in stages {
        let _ = writeln!(text, "| {} | {:.1} |", stage.name, stage.took.as_secs_f64());
    }
    if !machine.is_empty() {
        text.push_str("\n## In the machine with cgroup v2\n\n| tests | passed | failed | skipped | seconds |\n|---|---|---|---|---|\n");
        for row in machine {
            let Row { name, tally, took } = row;
            let skipped = tally.skipped.len();
            let _ = writeln!(
                text,
                "| {name} | {} | {} | {skipped} | {took} |",
                tally.passed, tally.failed
            );
        }
    }
    for (title, lines) in [
        ("Failed", &tally.failures),
        ("Failed among the others and passed alone", &tally.unsteady),
        ("Skipped", &tally.skipped),
    ] {
        if !lines.is_empty() {
            let _ = writeln!(text, "\n## {title}\n");
            for line in lines {
                let _ = writeln!(text, "- {line}");
            }
        }
    }
    text
}

/// What a number in this report depends on.
fn facts() -> Vec<(&'static str, String)> {
    let file = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let commit = Program::new("git")
        .directory(workspace::root())
        .args(["describe", "--always", "--dirty", "--abbrev=12"])
        .read();
    let memory = file("/proc/meminfo")
        .lines()
        .next()
        .unwrap_or_default()
        .trim_start_matches("MemTotal:")
        .trim()
        .to_owned();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    vec![
        (
            "commit",
            commit
                .map(|commit| commit.trim().to_owned())
                .unwrap_or_default(),
        ),
        (
            "kernel",
            file("/proc/sys/kernel/osrelease").trim().to_owned(),
        ),
        ("cores", cores.to_string()),
        ("memory", memory),
        ("cgroups", cgroup_layout(&file("/proc/self/mounts"))),
    ]
}

/// Which version of cgroups a table of mounts shows.
fn cgroup_layout(mounts: &str) -> String {
    let of_kind = |kind: &str| -> Vec<&str> {
        let fields = mounts
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>());
        fields
            .filter(|fields| fields.get(2) == Some(&kind))
            .filter_map(|fields| fields.get(1).copied())
            .collect()
    };
    let (v1, v2) = (of_kind("cgroup"), of_kind("cgroup2"));
    let names: Vec<_> = v1
        .iter()
        .filter_map(|path| path.rsplit('/').next())
        .collect();
    match (names.is_empty(), v2.first()) {
        (true, None) => "none mounted".to_owned(),
        (true, Some(path)) => format!("v2 at {path}"),
        (false, None) => format!("v1 ({})", names.join(", ")),
        (false, Some(path)) => format!("v1 ({}) and v2 at {path}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_report_has_all_its_parts() {
        let stages = [Stage {
            name: "tests".into(),
            took: Duration::from_millis(61_240),
        }];
        let rows = [Row {
            name: "limits".into(),
            tally: Tally {
                passed: 3,
                ..Tally::default()
            },
            took: 40,
        }];
        let tally = Tally {
            passed: 3,
            skipped: vec!["x: full: y".into()],
            ..Tally::default()
        };
        let text = render(
            "2026-11-15",
            &[("kernel", "6.18".into())],
            &tally,
            &stages,
            &rows,
        );
        assert_eq!(
            text,
            "# Full test run, 2026-11-15\n\n3 passed, 0 failed, 1 skipped\n\n\
             | machine | |\n|---|---|\n| kernel | 6.18 |\n\n\
             | stage | seconds |\n|---|---|\n| tests | 61.2 |\n\n\
             ## In the machine with cgroup v2\n\n\
             | tests | passed | failed | skipped | seconds |\n|---|---|---|---|---|\n\
             | limits | 3 | 0 | 0 | 40 |\n\n## Skipped\n\n- x: full: y\n"
        );
    }

    #[test]
    fn cgroup_layouts_are_told_apart() {
        assert_eq!(
            cgroup_layout("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0"),
            "v2 at /sys/fs/cgroup"
        );
        let hybrid =
            "c /sys/fs/cgroup/memory cgroup rw 0 0\nc /sys/fs/cgroup/unified cgroup2 rw 0 0";
        assert_eq!(
            cgroup_layout(hybrid),
            "v1 (memory) and v2 at /sys/fs/cgroup/unified"
        );
    }
}
