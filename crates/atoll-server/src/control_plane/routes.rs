//! The table of all routes.
//!
//! Tests walk through it: without a key, with a wrong one, with the name of
//! another tenant's sandbox. A route that is not here does not exist.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, delete, get, patch, post, put};
use http::Method;

use super::answer::{ApiError, missing_route, wrong_method};
use super::body::BODY_BYTES_MAX;
use super::{
    ControlPlane, Plane, absent, authentication, connect, create, events, get as look, health,
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
    handler: fn() -> MethodRouter<Plane>,
}

macro_rules! routes {
    ($($rule:ident $method:ident $path:literal => $handler:expr;)*) => {
        /// Every route of the control plane.
        pub static ROUTES: &[Route] = &[$(Route {
            method: Method::$method,
            path: $path,
            rule: Rule::$rule,
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
    Open GET "/health" => health::health;
    Open GET "/ready" => health::ready;

    Key POST "/v2/sandboxes" => create::second_generation;
    Key POST "/sandboxes" => create::first_generation;
    Key GET "/v2/sandboxes" => list::second_generation;
    Key GET "/sandboxes" => list::first_generation;
    Key GET "/sandboxes/metrics" => metrics::latest;
    Sandbox GET "/sandboxes/{sandbox}" => look::get;
    Sandbox DELETE "/sandboxes/{sandbox}" => kill::kill;
    Sandbox POST "/v2/sandboxes/{sandbox}/connect" => connect::second_generation;
    Sandbox POST "/sandboxes/{sandbox}/connect" => connect::first_generation;
    Sandbox POST "/sandboxes/{sandbox}/resume" => connect::resume;
    Sandbox POST "/sandboxes/{sandbox}/timeout" => timeout::set;
    Sandbox POST "/sandboxes/{sandbox}/refreshes" => timeout::refresh;
    Sandbox PUT "/sandboxes/{sandbox}/network" => network::change;
    Sandbox GET "/sandboxes/{sandbox}/metrics" => metrics::of_one;
    Sandbox GET "/sandboxes/{sandbox}/logs" => logs::first_generation;
    Sandbox GET "/v2/sandboxes/{sandbox}/logs" => logs::second_generation;
    Sandbox POST "/sandboxes/{sandbox}/pause" => connect::pause;
    Sandbox POST "/sandboxes/{sandbox}/snapshots" => snapshots::create;
    Sandbox POST "/sandboxes/{sandbox}/fork" => snapshots::fork;

    Key GET "/events" => events::events;

    Key GET "/teams" => teams::teams;
    Key GET "/pools" => pools::list;

    Key GET "/templates" => templates::list;
    Key GET "/v2/templates" => templates::list;
    Key GET "/templates/aliases/{alias}" => templates::alias;
    Key GET "/templates/{template}/tags" => templates::tags;
    Key DELETE "/templates/{template}" => snapshots::delete;
    Key PATCH "/templates/{template}" => absent::change_template;
    Key PATCH "/v2/templates/{template}" => absent::change_template;
    Key POST "/templates" => absent::build_template;
    Key POST "/v2/templates" => absent::build_template;
    Key POST "/v3/templates" => absent::build_template;
    Key POST "/templates/tags" => absent::build_template;
    Key DELETE "/templates/tags" => absent::build_template;

    Key GET "/snapshots" => snapshots::list;
    Key GET "/volumes" => absent::none_listed;
    Key POST "/volumes" => absent::volumes;
    Key GET "/volumes/{volume}" => absent::no_volume;
    Key DELETE "/volumes/{volume}" => absent::no_volume;
    Key GET "/secrets" => absent::none_listed;
    Key POST "/secrets" => absent::secrets;
    Key GET "/secrets/{secret}" => absent::no_secret;
    Key POST "/secrets/{secret}" => absent::no_secret;
    Key DELETE "/secrets/{secret}" => absent::no_secret;
}

/// The routes, each behind its rule.
pub fn router(plane: Arc<ControlPlane>) -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        let handler = (route.handler)();
        let guarded = match route.rule {
            Rule::Open => handler,
            Rule::Key | Rule::Sandbox => handler.route_layer(from_fn_with_state(
                Arc::clone(&plane),
                authentication::authenticate,
            )),
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
    fn nothing_is_open_but_what_says_whether_the_server_works() {
        let open = ROUTES.iter().filter(|route| route.rule == Rule::Open);
        let paths: Vec<&str> = open.map(|route| route.path).collect();
        assert_eq!(paths, ["/health", "/ready"]);
    }
}
