//! `install_packages`: pip, npm and apt.

use std::time::Duration;

use atoll_guest_client::Command;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::execute_command::told;
use super::output::follow;
use super::timeout;
use crate::definition::{Answer, Call, Failure, Outcome};
use crate::error::{ErrorCode, ToolError};

const TIMEOUT: Duration = Duration::from_secs(300);
const PACKAGES_MAX: usize = 50;
const NAME_CHARS_MAX: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Manager {
    Pip,
    Npm,
    Apt,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Arguments {
    /// Who installs: pip for Python, npm for JavaScript (globally), apt for Debian packages.
    pub(crate) manager: Manager,
    /// Names of packages, each with its version where it matters: `numpy==2.3.0`, `left-pad@1.3.0`, `jq`.
    pub(crate) packages: Vec<String>,
    /// Seconds after which it is ended. Default 300, at most 3600.
    #[serde(default)]
    pub(crate) timeout: Option<f64>,
    /// Which sandbox. Default: this session's own, made on first use.
    #[serde(default)]
    pub(crate) sandbox_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Installed {
    sandbox_id: String,
    manager: Manager,
    packages: Vec<String>,
    /// What the package manager said, cut in the middle when long.
    output: String,
    duration_ms: u64,
}

pub(crate) async fn run(call: &Call, arguments: Arguments) -> Answer {
    let limit = timeout(arguments.timeout, TIMEOUT)?;
    let Arguments {
        manager, packages, ..
    } = arguments;
    check(&packages)?;
    let place = call.desk.place(arguments.sandbox_id.as_deref()).await?;
    let followed = follow(call, &place, command(manager, &packages), limit).await?;
    let outcome = told(call, &place, followed, limit).await?;
    let word = |name: &str| {
        let word = outcome
            .structured
            .get(name)
            .and_then(|value| value.as_str());
        word.unwrap_or_default().to_owned()
    };
    if outcome.structured["exit_code"] != 0 {
        return Err(Failure {
            error: ToolError::new(
                ErrorCode::Unsupported,
                "the packages were not installed; the output says why",
                "check the names and versions; a sandbox without internet access can install nothing: \
                 make one with `create_sandbox` and `internet: true` where that is allowed",
            ),
            partial: Some(Box::new(outcome)),
        });
    }
    let installed = Installed {
        sandbox_id: place.id.clone(),
        manager,
        output: word("stdout") + &word("stderr"),
        duration_ms: outcome.structured["duration_ms"]
            .as_u64()
            .unwrap_or_default(),
        packages,
    };
    Ok(Outcome {
        text: format!("installed {}", installed.packages.join(", ")),
        structured: serde_json::to_value(&installed).unwrap_or_default(),
        images: Vec::new(),
    })
}

/// Names are arguments of programs: none may be taken for an option.
fn check(packages: &[String]) -> Result<(), ToolError> {
    let refused = |cause: String| {
        Err(ToolError::arguments(
            cause,
            "give names of packages, each with its version where it matters",
        ))
    };
    if !(1..=PACKAGES_MAX).contains(&packages.len()) {
        return refused(format!("{} packages", packages.len()));
    }
    for name in packages {
        let is_name = (1..=NAME_CHARS_MAX).contains(&name.len())
            && !name.starts_with(['-', '.', '/'])
            // With which apt takes a package away.
            && !name.ends_with('-')
            && name
                .chars()
                .all(|char| char.is_ascii_graphic() && !"'\"`$;&|\\*?(){}".contains(char));
        if !is_name {
            let shown: String = name.chars().take(60).collect();
            return refused(format!("`{shown}` is no name of a package"));
        }
    }
    Ok(())
}

fn command(manager: Manager, packages: &[String]) -> Command {
    let (cmd, before): (&str, &[&str]) = match manager {
        Manager::Pip => (
            "python3",
            &["-m", "pip", "install", "--no-input", "--quiet"],
        ),
        Manager::Npm => ("npm", &["install", "--global", "--no-audit", "--no-fund"]),
        // The lists of packages are not part of templates.
        Manager::Apt => (
            "/bin/sh",
            &[
                "-c",
                "apt-get -qq update && exec apt-get -qq install --yes --no-install-recommends -- \"$@\"",
                "apt",
            ],
        ),
    };
    let mut args: Vec<String> = before.iter().map(|&arg| arg.to_owned()).collect();
    args.extend_from_slice(packages);
    Command {
        cmd: cmd.to_owned(),
        args,
        envs: [("DEBIAN_FRONTEND".to_owned(), "noninteractive".to_owned())].into(),
        user: match manager {
            Manager::Pip => None,
            Manager::Npm | Manager::Apt => Some("root".to_owned()),
        },
        ..Command::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_packages_are_names_and_nothing_else() {
        let names = |names: &[&str]| {
            names
                .iter()
                .map(|&name| name.to_owned())
                .collect::<Vec<_>>()
        };
        let good = [
            "numpy==2.3.0",
            "requests[socks]>=2",
            "@scope/pkg@1.2.3",
            "libssl-dev",
            "g++",
        ];
        assert_eq!(check(&names(&good)), Ok(()));
        for bad in [
            "",
            "--index-url=http://evil",
            "a b",
            "a;b",
            "$(id)",
            "./here",
            "sudo-",
            "/etc",
            "a\nb",
        ] {
            assert!(check(&names(&[bad])).is_err(), "{bad:?}");
        }
        assert!(check(&[]).is_err());
        assert!(check(&vec!["a".to_owned(); PACKAGES_MAX + 1]).is_err());
    }
}
