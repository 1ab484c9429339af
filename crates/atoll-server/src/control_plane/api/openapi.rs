//! The document that describes `/api/v1`, OpenAPI 3.1: types from the code,
//! operations from the table beside it.

use std::sync::OnceLock;

use axum::Json;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::operations::{OPERATIONS, Operation, Param, Sent};
use super::problem::{ErrorCode, ProblemBody};

/// What a type looks like.
pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Value;

pub(super) fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}

pub(in super::super) async fn document() -> Json<&'static Value> {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    Json(DOCUMENT.get_or_init(write))
}

fn write() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let error = schema::<ProblemBody>(&mut generator);
    let mut paths: Map<String, Value> = Map::new();
    for operation in OPERATIONS {
        let described = describe(operation, &mut generator, &error);
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method.as_str().to_ascii_lowercase()] = described;
    }
    let definitions = generator.take_definitions(true);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Atoll",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "Sandboxes, sessions and executions for agents",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"key": []}, {"bearer": []}],
        "components": {
            "schemas": definitions,
            "securitySchemes": {
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
        "paths": paths,
    })
}

fn describe(operation: &Operation, generator: &mut SchemaGenerator, error: &Value) -> Value {
    let mut responses = Map::new();
    for (status, what, sent) in operation.answers {
        responses.insert(status.to_string(), answer(what, *sent, generator));
    }
    for (id, status, name, found) in PRODUCERS {
        if *id == operation.id
            && let Some(response) = responses.get_mut(*status)
        {
            response["links"] = links(name, found);
        }
    }
    for code in operation.errors.iter().chain(&always(operation)) {
        let status = code.status().to_string();
        let words = responses
            .get(&status)
            .and_then(|one| one["description"].as_str());
        let words = match words {
            Some(words) if words.contains(code.as_str()) => words.to_owned(),
            Some(words) => format!("{words}, {}", code.as_str()),
            None => code.as_str().to_owned(),
        };
        let content = json!({"application/json": {"schema": error}});
        responses.insert(status, json!({"description": words, "content": content}));
    }
    let parameters: Vec<Value> = path_parameters(operation.path)
        .chain(operation.query.iter().map(query_parameter))
        .chain(agent_headers(operation))
        .chain(own_headers(operation))
        .collect();
    let mut described = json!({
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": parameters,
        "responses": responses,
    });
    if let Some(sent) = operation.body {
        described["requestBody"] = json!({"required": true, "content": content(sent, generator)});
    }
    if operation.is_open {
        described["security"] = json!([]);
    }
    described
}

/// Answers that name something: of which operation, with which status, what,
/// and where in the answer.
const PRODUCERS: &[(&str, &str, &str, &str)] = &[
    (
        "createSandbox",
        "201",
        "sandbox",
        "$response.body#/sandbox_id",
    ),
    (
        "createSession",
        "201",
        "session",
        "$response.body#/session_id",
    ),
    (
        "executeInSandbox",
        "202",
        "execution",
        "$response.body#/execution_id",
    ),
    (
        "executeInSession",
        "202",
        "execution",
        "$response.body#/execution_id",
    ),
    (
        "startProcess",
        "201",
        "process",
        "$response.body#/execution_id",
    ),
];

/// What can be asked next, by who knows a `name`.
fn links(name: &str, found: &str) -> Value {
    let part = format!("{{{name}}}");
    let mut links = Map::new();
    for next in OPERATIONS.iter().filter(|next| next.path.contains(&part)) {
        let mut parameters = Map::new();
        for other in path_parameters(next.path) {
            let other = other["name"].as_str().unwrap_or_default().to_owned();
            let known = if other == name {
                found.to_owned()
            } else if name == "process" {
                // A process is asked for in the sandbox that it was started in.
                format!("$request.path.{other}")
            } else {
                continue;
            };
            parameters.insert(other, known.into());
        }
        let link = json!({"operationId": next.id, "parameters": parameters});
        links.insert(next.id.to_owned(), link);
    }
    Value::Object(links)
}

fn answer(what: &str, sent: Sent, generator: &mut SchemaGenerator) -> Value {
    match sent {
        Sent::Nothing => json!({"description": what}),
        _ => json!({"description": what, "content": content(sent, generator)}),
    }
}

fn content(sent: Sent, generator: &mut SchemaGenerator) -> Value {
    match sent {
        Sent::Nothing => json!({}),
        Sent::Json(schema) => json!({"application/json": {"schema": schema(generator)}}),
        Sent::JsonOrEvents(schema) => json!({
            "application/json": {"schema": schema(generator)},
            "text/event-stream": {"schema": {"type": "string"}},
        }),
        Sent::Events => json!({"text/event-stream": {"schema": {"type": "string"}}}),
        Sent::Bytes => {
            json!({"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}})
        }
        Sent::Text(of) => json!({of: {"schema": {"type": "string"}}}),
        Sent::AnyJson => json!({"application/json": {"schema": {"type": "object"}}}),
    }
}

/// Errors that every operation has which asks for a key, or takes a body.
fn always(operation: &Operation) -> Vec<ErrorCode> {
    let mut codes = Vec::new();
    if !operation.is_open {
        codes.extend([
            ErrorCode::InvalidRequest,
            ErrorCode::Unauthorized,
            ErrorCode::Internal,
        ]);
    }
    if operation.body.is_some() {
        codes.extend([ErrorCode::RequestTimeout, ErrorCode::PayloadTooLarge]);
    }
    codes
}

fn path_parameters(path: &str) -> impl Iterator<Item = Value> {
    path.split('/').filter_map(|part| {
        let name = part.strip_prefix('{')?.strip_suffix('}')?;
        Some(json!({
            "name": name, "in": "path", "required": true,
            "schema": {"type": "string", "minLength": 1},
        }))
    })
}

fn query_parameter(param: &Param) -> Value {
    let schema = match param.kind {
        "integer" => json!({"type": "integer", "minimum": 0}),
        "limit" => json!({"type": "integer", "minimum": 1, "maximum": 100}),
        "date-time" => json!({"type": "string", "format": "date-time"}),
        "path" => json!({"type": "string", "minLength": 1, "maxLength": 4096}),
        _ => json!({"type": "string"}),
    };
    json!({
        "name": param.name, "in": "query", "required": param.kind == "path",
        "description": param.what, "schema": schema,
    })
}

/// Headers that mean something to one operation.
const OWN_HEADERS: &[(&str, &str, &str, &str)] = &[
    (
        "createSandbox",
        "Idempotency-Key",
        "^[a-z0-9-]{1,255}$",
        "Asking again with the same key within a day gives the same sandbox",
    ),
    (
        "followExecution",
        "Last-Event-ID",
        "^[0-9]{1,19}$",
        "The number of the last event that was seen",
    ),
];

fn own_headers(operation: &Operation) -> impl Iterator<Item = Value> {
    let own = OWN_HEADERS.iter().filter(|(id, ..)| *id == operation.id);
    own.map(|(_, name, pattern, what)| {
        json!({
            "name": name, "in": "header", "required": false, "description": what,
            "schema": {"type": "string", "pattern": pattern},
        })
    })
}

/// By which a caller says for whom it asks.
fn agent_headers(operation: &Operation) -> impl Iterator<Item = Value> {
    let names = [
        ("Atoll-Agent-Id", "The agent in whose name this is asked"),
        ("Atoll-Task-Id", "The task that this is part of"),
    ];
    names.into_iter().filter(|_| !operation.is_open).map(|(name, what)| {
        json!({
            "name": name, "in": "header", "required": false, "description": what,
            "schema": {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[!-~]([ -~]*[!-~])?$"},
        })
    })
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::super::super::routes::{ROUTES, Rule};
    use super::super::PREFIX;
    use super::*;

    fn is_described(method: &Method, path: &str) -> bool {
        OPERATIONS
            .iter()
            .any(|operation| operation.method == *method && operation.path == path)
    }

    #[test]
    fn every_route_is_described_and_nothing_else_is() {
        let routes: Vec<_> = ROUTES
            .iter()
            .filter(|route| route.path.starts_with(PREFIX))
            .collect();
        for route in &routes {
            assert!(
                is_described(&route.method, route.path),
                "{} {}",
                route.method,
                route.path
            );
        }
        assert_eq!(routes.len(), OPERATIONS.len());
        for operation in OPERATIONS {
            let route = routes
                .iter()
                .find(|route| route.method == operation.method && route.path == operation.path);
            let is_open = route.unwrap().rule == Rule::Open;
            assert_eq!(is_open, operation.is_open, "{}", operation.path);
        }
    }

    #[test]
    fn every_reference_leads_to_a_schema() {
        let document = write();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let text = document.to_string();
        let mut count = 0;
        for reference in text.split("\"$ref\":\"").skip(1) {
            let reference = reference.split('"').next().unwrap();
            let name = reference.strip_prefix("#/components/schemas/");
            assert!(schemas.contains_key(name.unwrap()), "{reference}");
            count += 1;
        }
        assert!(count > 50, "{count} references");
        let ids: std::collections::BTreeSet<&str> = OPERATIONS.iter().map(|one| one.id).collect();
        assert_eq!(ids.len(), OPERATIONS.len());
    }
}
