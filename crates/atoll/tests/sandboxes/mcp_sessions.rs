//! Sessions of tools in HTTP, and the server's other ways to their sandboxes.

use serde_json::json;

use crate::harness::second_home;
use crate::harness::server::Server;
use crate::mcp::{begun, initialize, post, request, tool};

#[test]
fn a_sandbox_that_ended_between_two_calls_is_told_once_and_replaced() {
    let server = Server::start(second_home());
    let session = begun(&server, &server.key);
    let call = |name: &str, arguments: serde_json::Value| {
        let headers = [
            ("x-api-key", server.key.as_str()),
            ("mcp-session-id", session.as_str()),
        ];
        let call = tool(name, &arguments);
        let reply = post(&server, &headers, &request(2, "tools/call", &call));
        assert_eq!(reply.status, 200, "{reply:#?}");
        reply.body
    };
    let calls = [
        ("execute_command", json!({"command": "echo here"})),
        ("read_file", json!({"path": "/etc/hostname"})),
        ("run_code", json!({"code": "echo here", "language": "bash"})),
        ("preview_url", json!({"port": 8000})),
    ];
    for (name, arguments) in calls {
        let ran = call("execute_command", json!({"command": "echo here"}));
        assert!(ran.contains("\"isError\":false"), "{ran}");
        let old = server.listed("");
        assert_eq!(old.len(), 1);
        server.kill(&old[0]).expect(204);

        let told = call(name, arguments);
        assert!(told.contains("SANDBOX_UNAVAILABLE"), "{name}: {told}");
        assert!(told.contains("a new sandbox is made"), "{name}: {told}");
    }
    let ran = call("execute_command", json!({"command": "echo here"}));
    assert!(ran.contains("\"isError\":false"), "{ran}");
    let old = server.listed("");
    server.kill(&old[0]).expect(204);
    // Whoever wants to end it hears that it is gone; the next call has another.
    let told = call("kill_sandbox", json!({"sandbox_id": old[0]}));
    assert!(told.contains("SANDBOX_NOT_FOUND"), "{told}");
    let ran = call("execute_command", json!({"command": "echo here"}));
    assert!(ran.contains("\"isError\":false"), "{ran}");
    assert_ne!(server.listed(""), old);
}

#[test]
fn sandboxes_of_tools_are_made_for_the_agent_and_the_task_of_their_session() {
    let server = Server::start(second_home());
    let key = server.key.clone();
    let hello = request(1, "initialize", &initialize());
    let call = tool("execute_command", &json!({"command": "echo here"}));
    let call = request(2, "tools/call", &call);
    for (agent, task) in [("agent-7", "task-9"), ("agent-8", "task-9")] {
        let headers = [
            ("x-api-key", key.as_str()),
            ("atoll-agent-id", agent),
            ("atoll-task-id", task),
        ];
        let begun = post(&server, &headers, &hello);
        let session = begun.header("mcp-session-id").unwrap();
        let headers = [("x-api-key", key.as_str()), ("mcp-session-id", session)];
        let ran = post(&server, &headers, &call);
        assert!(ran.body.contains("\"isError\":false"), "{ran:#?}");
    }
    let page = server.ask("GET", "/events?kind=created", None).expect(200);
    let events = page["events"].as_array().unwrap();
    let said: Vec<_> = events
        .iter()
        .map(|event| json!([event["detail"]["agent_id"], event["detail"]["task_id"]]))
        .collect();
    let expected = [json!(["agent-7", "task-9"]), json!(["agent-8", "task-9"])];
    assert_eq!(said, expected);
}

#[test]
fn a_preview_neither_prolongs_nor_wakes_and_work_wakes_only() {
    let server = Server::start(second_home());
    let session = begun(&server, &server.key);
    let made = server.create(json!({"timeout": 120}));
    let id = made["sandboxID"].as_str().unwrap();
    let end = |id: &str| server.get(id).expect(200)["endAt"].clone();
    let before = end(id);
    let call = |name: &str, arguments: serde_json::Value| {
        let headers = [
            ("x-api-key", server.key.as_str()),
            ("mcp-session-id", session.as_str()),
        ];
        let call = request(2, "tools/call", &tool(name, &arguments));
        post(&server, &headers, &call).body
    };
    let command = json!({"command": "echo here", "sandbox_id": id});
    let preview = json!({"port": 8000, "sandbox_id": id});
    for (name, arguments) in [("preview_url", &preview), ("execute_command", &command)] {
        let ran = call(name, arguments.clone());
        assert!(ran.contains("\"isError\":false"), "{name}: {ran}");
    }
    assert_eq!(end(id), before);

    let target = format!("/sandboxes/{id}/pause");
    server.ask("POST", &target, Some(json!({}))).expect(204);
    let told = call("preview_url", preview);
    assert!(told.contains("is paused"), "{told}");
    assert_eq!(server.get(id).expect(200)["state"], "paused");
    let ran = call("execute_command", command);
    assert!(ran.contains("\"isError\":false"), "{ran}");
    assert_eq!(server.get(id).expect(200)["state"], "running");
}
