//! The table of all routes.
//!
//! Tests walk through it: without a key, with a wrong one, with the name of
//! another tenant's sandbox. A route that is not here does not exist.

use std::sync::Arc;

use atoll_control::identity::Role;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{MethodRouter, delete, get, patch, post, put};
use http::Method;

use super::answer::{ApiError, missing_route, wrong_method};
use super::body::BODY_BYTES_MAX;
use super::{
    ControlPlane, Plane, absent, api, authentication, connect, create, events, get as look, health,
    kill, list, logs, metrics, network, pools, snapshots, teams, templates, timeout,
};

/// What a request must have to be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Nothing.
    Open,
    /// A valid key.
    Key,
    /// A valid key, whose tenant owns the `{sandbox}` of the path.
    Sandbox,
}

/// One route.
pub struct Route {
    /// Its method.
    pub method: Method,
    /// Its path, with `{names}` for what varies.
    pub path: &'static str,
    /// What a request must have.
    pub rule: Rule,
    /// What its key must at least be, where it must have one.
    pub role: Role,
    handler: fn() -> MethodRouter<Plane>,
}

macro_rules! routes {
    ($($rule:ident $role:ident $method:ident $path:literal => $handler:expr;)*) => {
        /// Every route of the control plane.
        pub static ROUTES: &[Route] = &[$(Route {
            method: Method::$method,
            path: $path,
            rule: Rule::$rule,
            role: Role::$role,
            handler: || routes!(@method $method $handler),
        },)*];
    };
    (@method GET $handler:expr) => { get($handler) };
    (@method POST $handler:expr) => { post($handler) };
    (@method PUT $handler:expr) => { put($handler) };
    (@method PATCH $handler:expr) => { patch($handler) };
    (@method DELETE $handler:expr) => { delete($handler) };
}

routes! {
    Open Viewer GET "/health" => health::health;
    Open Viewer GET "/ready" => health::ready;

    Key Agent POST "/v2/sandboxes" => create::second_generation;
    Key Agent POST "/sandboxes" => create::first_generation;
    Key Viewer GET "/v2/sandboxes" => list::second_generation;
    Key Viewer GET "/sandboxes" => list::first_generation;
    Key Viewer GET "/sandboxes/metrics" => metrics::latest;
    Sandbox Agent GET "/sandboxes/{sandbox}" => look::get;
    Sandbox Agent DELETE "/sandboxes/{sandbox}" => kill::kill;
    Sandbox Agent POST "/v2/sandboxes/{sandbox}/connect" => connect::second_generation;
    Sandbox Agent POST "/sandboxes/{sandbox}/connect" => connect::first_generation;
    Sandbox Agent POST "/sandboxes/{sandbox}/resume" => connect::resume;
    Sandbox Agent POST "/sandboxes/{sandbox}/timeout" => timeout::set;
    Sandbox Agent POST "/sandboxes/{sandbox}/refreshes" => timeout::refresh;
    Sandbox Agent PUT "/sandboxes/{sandbox}/network" => network::change;
    Sandbox Viewer GET "/sandboxes/{sandbox}/metrics" => metrics::of_one;
    Sandbox Viewer GET "/sandboxes/{sandbox}/logs" => logs::first_generation;
    Sandbox Viewer GET "/v2/sandboxes/{sandbox}/logs" => logs::second_generation;
    Sandbox Agent POST "/sandboxes/{sandbox}/pause" => connect::pause;
    Sandbox Agent POST "/sandboxes/{sandbox}/snapshots" => snapshots::create;
    Sandbox Agent POST "/sandboxes/{sandbox}/fork" => snapshots::fork;

    Key Viewer GET "/events" => events::events;

    Key Viewer GET "/teams" => teams::teams;
    Key Viewer GET "/pools" => pools::list;

    Key Viewer GET "/templates" => templates::list;
    Key Viewer GET "/v2/templates" => templates::list;
    Key Viewer GET "/templates/aliases/{alias}" => templates::alias;
    Key Viewer GET "/templates/{template}/tags" => templates::tags;
    Key Operator DELETE "/templates/{template}" => snapshots::delete;
    Key Operator PATCH "/templates/{template}" => absent::change_template;
    Key Operator PATCH "/v2/templates/{template}" => absent::change_template;
    Key Operator POST "/templates" => absent::build_template;
    Key Operator POST "/v2/templates" => absent::build_template;
    Key Operator POST "/v3/templates" => absent::build_template;
    Key Operator POST "/templates/tags" => absent::build_template;
    Key Operator DELETE "/templates/tags" => absent::build_template;

    Key Viewer GET "/snapshots" => snapshots::list;
    Key Viewer GET "/volumes" => absent::none_listed;
    Key Operator POST "/volumes" => absent::volumes;
    Key Viewer GET "/volumes/{volume}" => absent::no_volume;
    Key Operator DELETE "/volumes/{volume}" => absent::no_volume;
    Key Viewer GET "/secrets" => absent::none_listed;
    Key Operator POST "/secrets" => absent::secrets;
    Key Viewer GET "/secrets/{secret}" => absent::no_secret;
    Key Operator POST "/secrets/{secret}" => absent::no_secret;
    Key Operator DELETE "/secrets/{secret}" => absent::no_secret;

    Open Viewer GET "/api/v1/openapi.json" => api::document;
    Open Viewer GET "/api/v1/docs" => api::page;
    Open Viewer GET "/api/v1/docs/page.js" => api::script;
    Open Viewer GET "/api/v1/docs/page.css" => api::style;
    Key Agent POST "/api/v1/sandboxes" => api::create_sandbox;
    Key Viewer GET "/api/v1/sandboxes" => api::list_sandboxes;
    Sandbox Viewer GET "/api/v1/sandboxes/{sandbox}" => api::sandbox;
    Sandbox Agent DELETE "/api/v1/sandboxes/{sandbox}" => api::delete_sandbox;
    Sandbox Agent POST "/api/v1/sandboxes/{sandbox}/execute" => api::in_sandbox;
    Sandbox Agent POST "/api/v1/sandboxes/{sandbox}/packages" => api::packages;
    Sandbox Agent POST "/api/v1/sandboxes/{sandbox}/upload" => api::upload;
    Sandbox Viewer GET "/api/v1/sandboxes/{sandbox}/download" => api::download;
    Sandbox Viewer GET "/api/v1/sandboxes/{sandbox}/files" => api::list_files;
    Sandbox Agent DELETE "/api/v1/sandboxes/{sandbox}/files" => api::remove_file;
    Sandbox Viewer GET "/api/v1/sandboxes/{sandbox}/files/stat" => api::stat_file;
    Sandbox Viewer GET "/api/v1/sandboxes/{sandbox}/files/content" => api::read_file;
    Sandbox Agent PUT "/api/v1/sandboxes/{sandbox}/files/content" => api::write_file;
    Sandbox Agent POST "/api/v1/sandboxes/{sandbox}/files/directories" => api::make_directory;
    Sandbox Agent POST "/api/v1/sandboxes/{sandbox}/processes" => api::start_process;
    Sandbox Viewer GET "/api/v1/sandboxes/{sandbox}/processes" => api::processes;
    Sandbox Viewer GET "/api/v1/sandboxes/{sandbox}/processes/{process}" => api::process;
    Sandbox Agent DELETE "/api/v1/sandboxes/{sandbox}/processes/{process}" => api::stop_process;
    Sandbox Viewer GET "/api/v1/sandboxes/{sandbox}/processes/{process}/output" => api::output;
    Sandbox Agent POST "/api/v1/sandboxes/{sandbox}/processes/{process}/input" => api::write_to_process;
    Sandbox Viewer GET "/api/v1/sandboxes/{sandbox}/usage" => api::usage_of_sandbox;
    Sandbox Agent POST "/api/v1/sandboxes/{sandbox}/grants" => api::let_in_sandbox;
    Sandbox Agent DELETE "/api/v1/sandboxes/{sandbox}/grants/{agent}" => api::shut_out_of_sandbox;
    Key Agent POST "/api/v1/sessions" => api::create_session;
    Key Viewer GET "/api/v1/sessions" => api::sessions;
    Key Viewer GET "/api/v1/sessions/{session}" => api::session;
    Key Agent DELETE "/api/v1/sessions/{session}" => api::delete_session;
    Key Agent POST "/api/v1/sessions/{session}/execute" => api::in_session;
    Key Viewer GET "/api/v1/sessions/{session}/grants" => api::agents_of_session;
    Key Agent POST "/api/v1/sessions/{session}/grants" => api::let_in_session;
    Key Agent DELETE "/api/v1/sessions/{session}/grants/{agent}" => api::shut_out_of_session;
    Key Agent POST "/api/v1/tasks/{task}/complete" => api::complete_task;
    Key Viewer GET "/api/v1/executions" => api::executions;
    Key Viewer GET "/api/v1/executions/{execution}" => api::execution;
    Key Viewer GET "/api/v1/executions/{execution}/events" => api::follow;
    Key Agent POST "/api/v1/executions/{execution}/cancel" => api::cancel;
    Key Viewer GET "/api/v1/usage" => api::usage;
    Key Admin GET "/api/v1/admin/sandboxes" => api::list_all;
}

/// The routes, each behind its rule.
pub fn router(plane: Arc<ControlPlane>) -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        let handler = (route.handler)();
        // Two generations of errors: each guard speaks as its routes do.
        let is_ours = route.path.starts_with(api::PREFIX);
        let role = route.role;
        // What is layered last is asked first: who it is, then what that may do.
        let guarded = match route.rule {
            Rule::Open => handler,
            Rule::Key | Rule::Sandbox if is_ours => handler
                .route_layer(from_fn(move |request, next| {
                    api::admit(role, request, next)
                }))
                .route_layer(from_fn_with_state(Arc::clone(&plane), api::authenticate)),
            Rule::Key | Rule::Sandbox => handler
                .route_layer(from_fn(move |request, next| {
                    authentication::admit(role, request, next)
                }))
                .route_layer(from_fn_with_state(
                    Arc::clone(&plane),
                    authentication::authenticate,
                )),
        };
        let guarded = if is_ours {
            guarded.route_layer(from_fn(api::with_request_id))
        } else {
            guarded
        };
        router = router.route(route.path, guarded);
    }
    router
        .fallback(missing_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(plane)
}

impl Route {
    /// Its path with every `{name}` replaced by `value`.
    #[must_use]
    pub fn path_with(&self, value: &str) -> String {
        let segments = self.path.split('/').map(|segment| {
            if segment.starts_with('{') {
                value
            } else {
                segment
            }
        });
        segments.collect::<Vec<_>>().join("/")
    }
}

/// What handlers return.
pub(super) type Answer<T> = Result<T, ApiError>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_that_names_a_sandbox_asks_whose_it_is() {
        for route in ROUTES {
            let names_one = route.path.contains("{sandbox}");
            assert_eq!(
                names_one,
                route.rule == Rule::Sandbox,
                "{} {}",
                route.method,
                route.path
            );
        }
    }

    #[test]
    fn who_only_looks_changes_nothing_and_gets_no_token() {
        for route in ROUTES.iter().filter(|route| route.role == Role::Viewer) {
            assert_eq!(route.method, Method::GET, "{}", route.path);
            // Its answer holds a token that opens the guest.
            assert_ne!(route.path, "/sandboxes/{sandbox}");
        }
        let of_all = ROUTES.iter().filter(|route| route.role == Role::Admin);
        let paths: Vec<&str> = of_all.map(|route| route.path).collect();
        assert_eq!(paths, ["/api/v1/admin/sandboxes"]);
    }

    #[test]
    fn nothing_is_open_but_what_is_about_the_server_itself() {
        let open = ROUTES.iter().filter(|route| route.rule == Rule::Open);
        let paths: Vec<&str> = open.map(|route| route.path).collect();
        let described = ["openapi.json", "docs", "docs/page.js", "docs/page.css"];
        let described = described.map(|name| format!("/api/v1/{name}"));
        let expected = ["/health", "/ready"].into_iter();
        let expected = expected.chain(described.iter().map(String::as_str));
        assert_eq!(paths, expected.collect::<Vec<_>>());
    }
}
