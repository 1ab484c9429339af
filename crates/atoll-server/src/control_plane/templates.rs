//! Templates, as far as they can be looked at: `GET /templates` and around it.

use atoll_control::lifecycle::TemplateReference;
use atoll_control::templates::Template;
use atoll_protocol::ENVD_VERSION;
use atoll_protocol::rest::{self, BuildStatus, TemplateAlias};
use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::Serialize;
use uuid::Uuid;

use super::Plane;
use super::answer::ApiError;
use super::authentication::Asker;
use super::moment::rfc3339;
use super::place::Name;
use super::routes::Answer;

/// The only tag there is so far.
const DEFAULT_TAG: &str = "default";

pub(super) async fn list(
    State(plane): State<Plane>,
    _asker: Asker,
) -> Answer<Json<Vec<rest::Template>>> {
    let templates = plane.lifecycle.catalog().list();
    let templates = templates.map_err(|error| ApiError::internal(&error))?;
    let limits = &plane.lifecycle.settings().limits;
    let listed = templates.iter().map(|template| {
        let limits = template.resources.apply(limits);
        let built = rfc3339(i64::try_from(template.created_at_ms).unwrap_or(0));
        rest::Template {
            template_id: template.id.to_string(),
            build_id: build_id(template),
            cpu_count: limits.cpu_millis.div_ceil(1000),
            memory_mb: limits.memory_mib,
            disk_size_mb: limits.disk_mib,
            // Every tenant of this server uses the same ones.
            public: true,
            aliases: vec![template.name.to_string()],
            names: vec![template.name.to_string()],
            created_at: built.clone(),
            updated_at: built,
            created_by: None,
            last_spawned_at: None,
            spawn_count: 0,
            build_count: 1,
            envd_version: ENVD_VERSION.to_owned(),
            build_status: BuildStatus::Ready,
        }
    });
    Ok(Json(listed.collect()))
}

pub(super) async fn alias(
    State(plane): State<Plane>,
    _asker: Asker,
    Name(alias): Name,
) -> Answer<Json<TemplateAlias>> {
    let template = find(&plane, &alias)?;
    Ok(Json(TemplateAlias {
        template_id: template.id.to_string(),
        public: true,
    }))
}

/// A tag, and the build that it names.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tag {
    tag: &'static str,
    #[serde(rename = "buildID")]
    build_id: String,
    created_at: String,
}

pub(super) async fn tags(
    State(plane): State<Plane>,
    _asker: Asker,
    Name(name): Name,
) -> Answer<Json<Vec<Tag>>> {
    let template = find(&plane, &name)?;
    Ok(Json(vec![Tag {
        tag: DEFAULT_TAG,
        build_id: build_id(&template),
        created_at: rfc3339(i64::try_from(template.created_at_ms).unwrap_or(0)),
    }]))
}

/// The template that `text` names.
pub(super) fn find(plane: &Plane, text: &str) -> Answer<Template> {
    let missing = || {
        let shown: String = text.chars().take(100).collect();
        ApiError::new(
            StatusCode::NOT_FOUND,
            format!("template '{shown}' not found"),
        )
    };
    let reference: TemplateReference = text.parse().map_err(|_| missing())?;
    let found = reference.find(plane.lifecycle.catalog());
    found
        .map_err(|error| ApiError::internal(&error))?
        .ok_or_else(missing)
}

/// An id of the newest build: the same as long as it is the same build.
fn build_id(template: &Template) -> String {
    let digits = template.spec_hash.hex().get(..32).unwrap_or_default();
    Uuid::try_parse(digits).unwrap_or_default().to_string()
}
