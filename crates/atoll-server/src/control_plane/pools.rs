//! `GET /pools`: the warm pools of the server, for its operator.

use atoll_control::identity::DEFAULT_TENANT;
use atoll_control::lifecycle::{PoolSize, PoolView};
use atoll_protocol::rest::{Pool, PoolMode};
use axum::Json;
use axum::extract::State;
use http::StatusCode;

use super::Plane;
use super::answer::ApiError;
use super::authentication::Asker;
use super::routes::Answer;

pub(super) async fn list(State(plane): State<Plane>, asker: Asker) -> Answer<Json<Vec<Pool>>> {
    // The numbers tell what everybody does: only the tenant of the home itself sees them.
    let operator = plane.database.tenant_by_name(DEFAULT_TENANT).await;
    let operator = operator.map_err(|error| ApiError::internal(&error))?;
    if operator.is_none_or(|tenant| tenant.tenant_id != asker.caller.tenant) {
        let message = format!("pools are shown to keys of the tenant '{DEFAULT_TENANT}' only");
        return Err(ApiError::new(StatusCode::FORBIDDEN, message));
    }
    let pools = plane.lifecycle.pools();
    Ok(Json(pools.into_iter().map(told).collect()))
}

fn told(pool: PoolView) -> Pool {
    let (mode, max) = match pool.size {
        PoolSize::Fixed(members) => (PoolMode::Fixed, members),
        PoolSize::Adaptive { max } => (PoolMode::Adaptive, max),
    };
    Pool {
        template: pool.template,
        mode,
        max,
        wanted: pool.wanted,
        ready: pool.ready,
        starting: pool.starting,
        claimed: pool.claimed,
        misses: pool.missed,
        replaced: pool.replaced,
        failure: pool.failure,
    }
}
