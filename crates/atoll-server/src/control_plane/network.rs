//! `PUT /sandboxes/{id}/network`.

use std::collections::BTreeMap;

use atoll_control::lifecycle::Egress;
use atoll_protocol::rest::{EgressChange, EgressProxy};
use axum::extract::State;
use http::StatusCode;
use serde_json::Value;

use super::Plane;
use super::answer::ApiError;
use super::authentication::Asker;
use super::body::Optional;
use super::place::SandboxName;
use super::routes::Answer;

pub(super) async fn change(
    State(plane): State<Plane>,
    asker: Asker,
    SandboxName(id): SandboxName,
    Optional(body): Optional<EgressChange>,
) -> Answer<StatusCode> {
    refuse_what_is_absent(
        body.rules.as_ref(),
        body.egress_proxy.as_ref(),
        body.dns_servers.as_deref(),
    )?;
    let egress = Egress {
        internet: body.allow_internet_access,
        allow: body.allow_out,
        deny: body.deny_out,
    };
    let done = plane.lifecycle.set_egress(&asker.caller, &id, egress).await;
    done.map_err(|error| ApiError::of_sandbox(&id, error))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Refuses what a sandbox cannot have yet; what is empty asks for nothing.
pub(super) fn refuse_what_is_absent(
    rules: Option<&BTreeMap<String, Value>>,
    proxy: Option<&EgressProxy>,
    dns_servers: Option<&[String]>,
) -> Result<(), ApiError> {
    if rules.is_some_and(|rules| !rules.is_empty()) {
        let message = "Network transform rules are not available for your team.";
        return Err(ApiError::bad_request(message));
    }
    if proxy.is_some_and(|proxy| proxy.address.is_some()) {
        let message = "network.egressProxy is not part of this version of Atoll";
        return Err(ApiError::new(StatusCode::FORBIDDEN, message));
    }
    if dns_servers.is_some_and(|servers| !servers.is_empty()) {
        let message = "network.dnsServers is not part of this version of Atoll: names are resolved by its host";
        return Err(ApiError::bad_request(message));
    }
    Ok(())
}
