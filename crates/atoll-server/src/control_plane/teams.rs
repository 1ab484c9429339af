//! `GET /teams`: the one team of the caller.

use atoll_protocol::rest::Team;
use axum::Json;
use axum::extract::State;

use super::Plane;
use super::answer::ApiError;
use super::authentication::Asker;
use super::routes::Answer;

pub(super) async fn teams(State(plane): State<Plane>, asker: Asker) -> Answer<Json<Vec<Team>>> {
    let tenants = plane.database.tenants().await;
    let tenants = tenants.map_err(|error| ApiError::internal(&error))?;
    let own = tenants
        .into_iter()
        .filter(|tenant| tenant.tenant_id == asker.caller.tenant);
    let teams = own.map(|tenant| Team {
        team_id: tenant.tenant_id.to_string(),
        name: tenant.name,
        api_key: asker.key.clone().into(),
        is_default: true,
    });
    Ok(Json(teams.collect()))
}
