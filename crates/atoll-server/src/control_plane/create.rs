//! `POST /v2/sandboxes` and `POST /sandboxes`.

use std::time::Duration;

use atoll_control::lifecycle::{
    CreateWish, Egress, IdempotencyKey, IngressWish, PauseMode, PortAccess, Traffic,
};
use atoll_control::templates::Resources;
use atoll_protocol::rest::{LimitsWish, NewSandbox, Sandbox};
use axum::Json;
use axum::extract::State;
use http::{HeaderMap, StatusCode, header};
use serde_json::Value;

use super::Plane;
use super::answer::ApiError;
use super::authentication::Asker;
use super::body::Required;
use super::network::refuse_what_is_absent;
use super::routes::Answer;

/// How long a sandbox lives when its creation does not say.
const TIMEOUT_FIRST: Duration = Duration::from_secs(15);
const TIMEOUT_SECOND: Duration = Duration::from_secs(300);

const IDEMPOTENCY_KEY: &str = "idempotency-key";

type Made = (StatusCode, Json<Sandbox>);

pub(super) async fn second_generation(
    State(plane): State<Plane>,
    asker: Asker,
    headers: HeaderMap,
    Required(body): Required<NewSandbox>,
) -> Answer<Made> {
    create(&plane, &asker, &headers, body, TIMEOUT_SECOND).await
}

pub(super) async fn first_generation(
    State(plane): State<Plane>,
    asker: Asker,
    headers: HeaderMap,
    Required(body): Required<NewSandbox>,
) -> Answer<Made> {
    create(&plane, &asker, &headers, body, TIMEOUT_FIRST).await
}

async fn create(
    plane: &Plane,
    asker: &Asker,
    headers: &HeaderMap,
    body: NewSandbox,
    default_timeout: Duration,
) -> Answer<Made> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let key = match headers.get(IDEMPOTENCY_KEY) {
        None => None,
        Some(_) => {
            let key = IdempotencyKey::parse(text(IDEMPOTENCY_KEY).unwrap_or_default());
            Some(key.map_err(|error| ApiError::bad_request(error.to_string()))?)
        }
    };
    let client = text(header::USER_AGENT.as_str()).unwrap_or_default();
    let longest = plane.lifecycle.settings().lifetime_max;
    let wish = wish(body, default_timeout.min(longest), client)?;
    let created = plane.lifecycle.create(&asker.caller, wish, key).await?;
    Ok((StatusCode::CREATED, Json(plane.sandbox(created))))
}

/// What the body asks for; an error for what this version does not have.
fn wish(body: NewSandbox, default_timeout: Duration, client: &str) -> Result<CreateWish, ApiError> {
    let pauses = body.auto_pause == Some(true);
    let auto_resumes = body.auto_resume.and_then(|auto| auto.enabled) == Some(true);
    if body.auto_pause_memory == Some(false) {
        if !pauses {
            let message = "autoPauseMemory cannot be false without autoPause";
            return Err(ApiError::bad_request(message));
        }
        if auto_resumes {
            let message = "autoPauseMemory cannot be false together with autoResume";
            return Err(ApiError::bad_request(message));
        }
    }
    let pause_mode = match body.auto_pause_memory {
        Some(false) => PauseMode::Filesystem,
        Some(true) | None => PauseMode::Full,
    };
    if body
        .volume_mounts
        .is_some_and(|volumes| !volumes.is_empty())
    {
        return Err(absent(
            "volumeMounts",
            "write files into the sandbox instead",
        ));
    }
    if body.iam.as_ref().is_some_and(has_content) {
        return Err(absent("iam", "hand tokens over with envVars instead"));
    }
    let network = body.network.unwrap_or_default();
    refuse_what_is_absent(
        network.rules.as_ref(),
        network.egress_proxy.as_ref(),
        network.dns_servers.as_deref(),
    )?;
    let timeout = match body.timeout {
        None => default_timeout,
        // Zero, which nobody can have, is refused with the same words.
        Some(seconds) => Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
    };
    Ok(CreateWish {
        template: body.template_id,
        timeout,
        metadata: body.metadata.unwrap_or_default(),
        environment: body.env_vars.unwrap_or_default(),
        limits: limits(body.limits.unwrap_or_default()),
        traffic: Traffic {
            egress: Egress {
                internet: body.allow_internet_access,
                allow: network.allow_out,
                deny: network.deny_out,
            },
            ingress: IngressWish {
                access: match network.allow_public_traffic {
                    Some(false) => PortAccess::TokenHolders,
                    Some(true) | None => PortAccess::Everybody,
                },
                mask_host: network.mask_request_host,
                https_ports: network.https_ports.unwrap_or_default(),
            },
        },
        pauses,
        pause_mode,
        auto_resumes,
        client: client.to_owned(),
    })
}

fn limits(wanted: LimitsWish) -> Resources {
    let LimitsWish {
        memory_mib,
        cpu_millis,
        disk_mib,
    } = wanted;
    Resources {
        memory_mib,
        cpu_millis,
        disk_mib,
        ..Resources::default()
    }
}

/// Whether a value says anything.
fn has_content(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Object(fields) => fields.values().any(has_content),
        Value::Array(items) => !items.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

fn absent(field: &str, instead: &str) -> ApiError {
    ApiError::bad_request(format!(
        "'{field}' is not part of this version of Atoll: {instead}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Result<CreateWish, ApiError> {
        wish(serde_json::from_str(text).unwrap(), TIMEOUT_SECOND, "test")
    }

    #[test]
    fn what_clients_send_by_default_is_taken() {
        for text in [
            r#"{"templateID":"base"}"#,
            r#"{"templateID":"base","timeout":300,"secure":true,"allow_internet_access":true}"#,
            r#"{"templateID":"base","metadata":{},"envVars":{},"autoPause":false}"#,
            r#"{"templateID":"base","metadata":null,"envVars":null,"network":null,"mcp":null,"volumeMounts":[]}"#,
            r#"{"templateID":"base","autoResume":{"enabled":false},"autoPauseMemory":true,"iam":{"tokens":{}}}"#,
            r#"{"templateID":"base","mcp":{"server":{}},"unknown":[1,2]}"#,
            r#"{"templateID":"base","autoPause":true,"autoPauseMemory":false}"#,
            r#"{"templateID":"base","autoPause":true,"autoResume":{"enabled":true}}"#,
            r#"{"templateID":"base","network":{"rules":{},"dnsServers":[],"egressProxy":null}}"#,
        ] {
            assert!(asked(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn what_is_not_there_is_refused() {
        for fields in [
            r#""autoPauseMemory":false"#,
            r#""autoPause":true,"autoPauseMemory":false,"autoResume":{"enabled":true}"#,
            r#""volumeMounts":[{"name":"v","path":"/v"}]"#,
            r#""iam":{"tokens":{"a":{"audience":"b"}}}"#,
            r#""network":{"rules":{"example.com":[]}}"#,
            r#""network":{"egressProxy":{"address":"192.0.2.1:1080"}}"#,
            r#""network":{"dnsServers":["192.0.2.1"]}"#,
        ] {
            let text = format!(r#"{{"templateID":"base",{fields}}}"#);
            assert!(asked(&text).is_err(), "{fields}");
        }
    }

    #[test]
    fn absent_and_false_are_two_things() {
        let internet = |text: &str| asked(text).unwrap().traffic.egress.internet;
        assert_eq!(internet(r#"{"templateID":"a"}"#), None);
        assert_eq!(
            internet(r#"{"templateID":"a","allow_internet_access":null}"#),
            None
        );
        assert_eq!(
            internet(r#"{"templateID":"a","allow_internet_access":false}"#),
            Some(false)
        );
        let timeout = |text: &str| asked(text).unwrap().timeout;
        assert_eq!(timeout(r#"{"templateID":"a"}"#), TIMEOUT_SECOND);
        assert_eq!(
            timeout(r#"{"templateID":"a","timeout":-5}"#),
            Duration::ZERO
        );
    }
}
