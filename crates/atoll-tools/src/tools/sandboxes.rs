//! `create_sandbox`, `list_sandboxes`, `kill_sandbox`, `preview_url`.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::definition::{Answer, Call, Outcome};
use crate::error::ToolError;
use crate::workplace::{Listed, Wanted, WantedLimits};

/// Longest life that can be asked for.
const TIMEOUT_MAX_SECONDS: f64 = 86_400.0;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Create {
    /// Name of the template, for example `base` or `code-interpreter-v1-slim`. Default: that of the session.
    #[serde(default)]
    template: Option<String>,
    /// Seconds after which it ends by itself, up to 86400. Default: it lives as long as it is used in this session.
    #[serde(default)]
    timeout: Option<f64>,
    /// What to write on it, to find it again.
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    /// Environment variables of everything in it.
    #[serde(default)]
    envs: BTreeMap<String, String>,
    /// Whether it may reach the internet, where the operator allows it. Default: as the operator decided.
    #[serde(default)]
    internet: Option<bool>,
    /// Memory in MiB. Default: as its template has it.
    #[serde(default)]
    memory_mib: Option<u64>,
    /// Processors, for example 0.5. Default: as its template has it.
    #[serde(default)]
    cpus: Option<f64>,
    /// Writable disk in MiB. Default: as its template has it.
    #[serde(default)]
    disk_mib: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Created {
    /// Give this as `sandbox_id` to other tools.
    sandbox_id: String,
    template: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct List {}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Sandboxes {
    sandboxes: Vec<OneSandbox>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct OneSandbox {
    sandbox_id: String,
    template: String,
    /// running or paused.
    state: String,
    /// Whether it is the one of calls without `sandbox_id`.
    is_default: bool,
    /// Whether it ends with this session.
    is_of_this_session: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_at: Option<String>,
    metadata: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kill {
    /// Which sandbox.
    sandbox_id: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Killed {
    sandbox_id: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PreviewUrl {
    /// Port that a program in the sandbox listens on.
    port: u16,
    /// Which sandbox. Default: this session's own.
    #[serde(default)]
    sandbox_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Previewed {
    sandbox_id: String,
    port: u16,
    url: String,
    /// Headers that requests need.
    headers: BTreeMap<String, String>,
    /// Who can open it, and for how long.
    reach: String,
}

/// Thousandths of a processor.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range is checked before"
)]
pub(crate) fn processors(cpus: f64) -> Result<u64, ToolError> {
    if (0.01..=1024.0).contains(&cpus) {
        Ok((cpus * 1000.0).round() as u64)
    } else {
        Err(ToolError::arguments(
            format!("`cpus` cannot be {cpus}"),
            "write for example 0.5",
        ))
    }
}

fn answered<T: Serialize>(text: String, structured: &T) -> Answer {
    Ok(Outcome {
        text,
        structured: serde_json::to_value(structured).unwrap_or_default(),
        images: Vec::new(),
    })
}

pub(crate) async fn create(call: &Call, arguments: Create) -> Answer {
    let timeout = match arguments.timeout {
        None => None,
        Some(seconds) if (1.0..=TIMEOUT_MAX_SECONDS).contains(&seconds) => {
            Some(Duration::from_secs_f64(seconds))
        }
        Some(seconds) => {
            return Err(ToolError::arguments(
                format!("`timeout` cannot be {seconds}"),
                format!("give 1 to {TIMEOUT_MAX_SECONDS} seconds"),
            )
            .into());
        }
    };
    let wanted = Wanted {
        template: arguments.template,
        timeout,
        metadata: arguments.metadata,
        envs: arguments.envs,
        internet: arguments.internet,
        limits: WantedLimits {
            memory_mib: arguments.memory_mib,
            cpu_millis: arguments.cpus.map(processors).transpose()?,
            disk_mib: arguments.disk_mib,
        },
    };
    let place = call.desk.create(wanted).await?;
    let created = Created {
        sandbox_id: place.id,
        template: place.template,
    };
    let text = format!(
        "made sandbox `{}` from template `{}`",
        created.sandbox_id, created.template
    );
    answered(text, &created)
}

pub(crate) async fn list(call: &Call, _: List) -> Answer {
    let listed = call.desk.workplace().list().await?;
    let (own, default) = (call.desk.own(), call.desk.default_id());
    let sandboxes: Vec<OneSandbox> = listed
        .into_iter()
        .map(|one| OneSandbox::of(one, &own, default.as_deref()))
        .collect();
    let mut text = String::new();
    for one in &sandboxes {
        let default = if one.is_default { ", default" } else { "" };
        text.push_str(&format!(
            "{} ({}, {}{default})\n",
            one.sandbox_id, one.template, one.state
        ));
    }
    if text.is_empty() {
        text.push_str("[no sandboxes; one is made when a tool needs it]");
    }
    answered(text, &Sandboxes { sandboxes })
}

impl OneSandbox {
    fn of(listed: Listed, own: &[String], default: Option<&str>) -> Self {
        Self {
            is_default: default == Some(listed.id.as_str()),
            is_of_this_session: own.contains(&listed.id),
            sandbox_id: listed.id,
            template: listed.template,
            state: listed.state,
            started_at: listed.started_at,
            end_at: listed.end_at,
            metadata: listed.metadata,
        }
    }
}

pub(crate) async fn kill(call: &Call, arguments: Kill) -> Answer {
    call.desk.kill(&arguments.sandbox_id).await?;
    let killed = Killed {
        sandbox_id: arguments.sandbox_id,
    };
    answered(format!("ended sandbox `{}`", killed.sandbox_id), &killed)
}

pub(crate) async fn preview(call: &Call, arguments: PreviewUrl) -> Answer {
    if arguments.port == 0 {
        return Err(ToolError::arguments("there is no port 0", "give 1 to 65535").into());
    }
    let id = arguments.sandbox_id.as_deref();
    let place = call.desk.running_place(id).await?;
    let workplace = call.desk.workplace();
    let preview = workplace.preview(&place, arguments.port).await?;
    let previewed = Previewed {
        sandbox_id: place.id,
        port: arguments.port,
        url: preview.url,
        headers: preview.headers,
        reach: preview.reach,
    };
    answered(
        format!("{} ({})", previewed.url, previewed.reach),
        &previewed,
    )
}
