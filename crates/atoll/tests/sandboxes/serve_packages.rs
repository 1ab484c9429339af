//! Packages from the real registries: through `/api/v1`, and through the tool.
//! On the host's own network, as `pip_npm_and_apt_work_inside`.

use serde_json::{Map, Value, json};

use super::serve_api::{at, execute, sandbox};
use crate::harness::second_home;
use crate::harness::server::Server;
use crate::mcp::{begun, post, request, tool};

/// The mirrors that the operator of this host uses.
fn mirrors() -> Value {
    let names = ["PIP_INDEX_URL", "npm_config_registry"].into_iter();
    let set = names.filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?.into())));
    Value::Object(set.collect::<Map<_, _>>())
}

/// What each manager installs, and a command that works with it only.
const INSTALLED: [(&str, &str, &str); 3] = [
    (
        "pip",
        "six==1.17.0",
        "python3 -c 'import six; print(six.__version__)'",
    ),
    (
        "npm",
        "left-pad@1.3.0",
        "NODE_PATH=$(npm root):$(npm root -g) node -e 'console.log(require(\"left-pad\")(7, 2, \"0\"))'",
    ),
    ("apt", "hello", "hello"),
];

#[test]
fn packages_are_installed_by_every_manager_and_can_be_used() {
    let server = Server::start(second_home());
    let id = sandbox(
        &server,
        json!({"environment": mirrors(), "internet": true, "timeout_s": 900}),
    );
    for (manager, package, works) in INSTALLED {
        let before = execute(&server, &id, json!({"command": works}));
        assert_ne!(before["exit_code"], 0, "{before:#}");
        let wish = json!({"manager": manager, "packages": [package]});
        let done = server
            .ask("POST", &at(&id, "packages"), Some(wish))
            .expect(200);
        assert_eq!(
            (&done["outcome"], &done["exit_code"], &done["kind"]),
            (&json!("COMPLETED"), &json!(0), &json!("packages")),
            "{done:#}"
        );
        let after = execute(&server, &id, json!({"command": works}));
        assert_eq!(after["exit_code"], 0, "{after:#}");
    }
    let missing = json!({"manager": "pip", "packages": ["atoll-no-such-package-of-anybody"]});
    let failed = server
        .ask("POST", &at(&id, "packages"), Some(missing))
        .expect(200);
    assert_eq!(failed["status"], "failed", "{failed:#}");
}

#[test]
fn the_tool_installs_packages_by_every_manager() {
    let server = Server::start(second_home());
    let session = begun(&server, &server.key);
    let call = |name: &str, arguments: &Value| {
        let headers = [
            ("x-api-key", server.key.as_str()),
            ("mcp-session-id", session.as_str()),
        ];
        let call = request(2, "tools/call", &tool(name, arguments));
        let reply = post(&server, &headers, &call);
        assert!(
            reply.body.contains("\"isError\":false"),
            "{name}: {reply:#?}"
        );
    };
    call(
        "create_sandbox",
        &json!({"envs": mirrors(), "internet": true}),
    );
    let id = &server.listed("")[0];
    for (manager, package, works) in INSTALLED {
        let wish = json!({"manager": manager, "packages": [package], "sandbox_id": id});
        call("install_packages", &wish);
        let after = execute(&server, id, json!({"command": works}));
        assert_eq!(after["exit_code"], 0, "{after:#}");
    }
}

#[test]
fn limits_of_a_tool_are_those_of_its_sandbox() {
    let server = Server::start(second_home());
    let session = begun(&server, &server.key);
    let call = |name: &str, arguments: Value| {
        let headers = [
            ("x-api-key", server.key.as_str()),
            ("mcp-session-id", session.as_str()),
        ];
        let call = request(2, "tools/call", &tool(name, &arguments));
        post(&server, &headers, &call).body
    };
    let wish =
        |limits: Value| json!({"code": "echo here", "language": "bash", "resourceLimits": limits});
    // As CodeCrucible's configuration writes them, with every call.
    let usual = json!({"memory": "512MB", "cpu": "0.5", "diskSpace": "1GB"});
    for _ in 0..2 {
        let ran = call("executeCode", wish(usual.clone()));
        assert!(ran.contains("\"isError\":false"), "{ran}");
    }
    let all = server.listed("");
    assert_eq!(all.len(), 1, "{all:?}");
    let seen = server.ask("GET", &format!("/api/v1/sandboxes/{}", all[0]), None);
    let limits = seen.expect(200)["limits"].clone();
    assert_eq!(
        (
            &limits["memory_mib"],
            &limits["cpu_millis"],
            &limits["disk_mib"]
        ),
        (&json!(512), &json!(500), &json!(1024))
    );
    let other = call("executeCode", wish(json!({"memory": "600MB"})));
    assert!(other.contains("UNSUPPORTED"), "{other}");
    let much = json!({"memory_mib": 1_u64 << 40});
    let refused = call("create_sandbox", much);
    assert!(refused.contains("\"isError\":true"), "{refused}");
    let made = call("create_sandbox", json!({"memory_mib": 300, "cpus": 0.25}));
    assert!(made.contains("\"isError\":false"), "{made}");
}
