//! Tools over MCP: released clients on both transports, and what no client
//! should do.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::command::Running;
use crate::harness::server::{Ask, Reply, Server};
use crate::harness::{TestHome, binary, eventually, installed_clients, second_home, tier};

/// A template of the tests that has kernels.
const TEMPLATE: &str = "code-interpreter-v1-tiny";

fn program(name: &str) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/mcp");
    sources.join(name)
}

const PYTHON_CASES: [&str; 10] = [
    "list",
    "code",
    "commands",
    "files",
    "processes",
    "progress",
    "sandboxes and previews",
    "images and resources",
    "packages",
    "aliases",
];

/// A virtual environment, the client in it, and a transport.
fn python(environment: &str, client: &str, transport: &str) -> Command {
    let mut command = Command::new(installed_clients().join(environment).join("bin/python"));
    command.arg(program("tools.py")).args([client, transport]);
    command
}

/// The TypeScript client with a transport; packages are found where a program lies.
fn node(work: &Path, file: &Path, transport: &str) -> Command {
    let directory = work.join("node");
    if !directory.exists() {
        fs::create_dir(&directory).unwrap();
        let packages = installed_clients().join("node/node_modules");
        symlink(packages, directory.join("node_modules")).unwrap();
    }
    let target = directory.join(file.file_name().unwrap());
    fs::copy(file, &target).unwrap();
    let mut command = Command::new(installed_clients().join("node/node"));
    command.arg(target).arg(transport);
    command
}

/// Runs a program, which must say that all of these cases hold.
fn holds(mut command: Command, home: &TestHome, variables: &[(&str, String)], cases: &[&str]) {
    let own: Vec<_> = variables
        .iter()
        .map(|(name, value)| (*name, value))
        .collect();
    let output = command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home.work())
        .env("LANG", "C.UTF-8")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("ATOLL_HOME", home.path())
        .env("ATOLL_ISOLATION", tier().to_string())
        .env("ATOLL_TEMPLATE", TEMPLATE)
        .envs(counting())
        .envs(own)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let held: Vec<&str> = said
        .lines()
        .filter_map(|line| line.strip_prefix("ok "))
        .collect();
    assert!(
        output.status.success() && held == cases,
        "{held:?}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Where `atoll` counts the lines that run, when it does.
fn counting() -> Option<(&'static str, std::ffi::OsString)> {
    let name = "LLVM_PROFILE_FILE";
    Some((name, std::env::var_os(name)?))
}

fn on_stdio(home: &TestHome) -> Vec<(&'static str, String)> {
    let command = format!("{} mcp --template {TEMPLATE}", binary().display());
    vec![
        ("ATOLL_MCP", command),
        ("ATOLL_HOME", home.path().display().to_string()),
    ]
}

fn in_http(server: &Server) -> Vec<(&'static str, String)> {
    vec![
        ("ATOLL_URL", format!("http://{}/mcp", server.address())),
        ("ATOLL_KEY", server.key.clone()),
    ]
}

#[test]
fn the_python_client_calls_every_tool_on_standard_streams() {
    let home = second_home();
    holds(
        python("mcp-1.30", "mcp", "stdio"),
        &home,
        &on_stdio(&home),
        &PYTHON_CASES,
    );
    home.assert_nothing_left("after the client");
}

#[test]
fn the_newest_python_client_calls_every_tool_in_http() {
    let server = Server::start(second_home());
    holds(
        python("mcp-2.3", "mcp", "http"),
        &server.home,
        &in_http(&server),
        &PYTHON_CASES,
    );
}

#[test]
#[ignore = "the other pairs of Python clients and transports: minutes"]
fn every_python_client_calls_every_tool_on_every_transport() {
    let server = Server::start(second_home());
    for (environment, client) in [("mcp-1.30", "mcp"), ("fastmcp", "fastmcp")] {
        let command = python(environment, client, "http");
        holds(command, &server.home, &in_http(&server), &PYTHON_CASES);
    }
    drop(server);
    let home = second_home();
    for (environment, client) in [("mcp-2.3", "mcp"), ("fastmcp", "fastmcp")] {
        let command = python(environment, client, "stdio");
        holds(command, &home, &on_stdio(&home), &PYTHON_CASES);
    }
    home.assert_nothing_left("after the clients");
}

const NODE_CASES: [&str; 6] = [
    "list",
    "every tool",
    "progress and cancellation of a command",
    "cancellation of code",
    "two clients at once",
    "close",
];

#[test]
fn the_typescript_client_calls_every_tool_on_standard_streams() {
    let home = second_home();
    let command = node(home.work(), &program("tools.mjs"), "stdio");
    holds(command, &home, &on_stdio(&home), &NODE_CASES);
    home.assert_nothing_left("after the client");
}

#[test]
fn the_typescript_client_calls_every_tool_in_http() {
    let server = Server::start(second_home());
    let command = node(server.home.work(), &program("tools.mjs"), "http");
    let mut cases = NODE_CASES.to_vec();
    cases.insert(5, "wrong key");
    holds(command, &server.home, &in_http(&server), &cases);
    // Whoever ends a session ends its sandboxes.
    eventually("no sandbox is left", || {
        server.leased().is_empty().then_some(())
    });
}

#[test]
fn a_tool_loop_in_the_style_of_codecrucible_works() {
    let home = second_home();
    let example =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/codecrucible/agent.ts");
    let mut command = node(home.work(), &example, "");
    let atoll = format!("{} mcp --template base --aliases", binary().display());
    let output = command
        .env("ATOLL_MCP", atoll)
        .env("ATOLL_HOME", home.path())
        .env("ATOLL_ISOLATION", tier().to_string())
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "the primes below 100 add up to 1060\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    home.assert_nothing_left("after the example");
}

#[test]
fn a_service_of_agents_works_with_sandboxes_in_place_of_its_host() {
    let server = Server::start(second_home());
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/fastapi-service");
    let url = format!("http://{}", server.address());
    let output = Command::new(installed_clients().join("fastapi-service/bin/python"))
        .arg("check.py")
        .current_dir(example)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("E2B_API_KEY", &server.key)
        .env("E2B_API_URL", &url)
        .env("E2B_SANDBOX_URL", &url)
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "ok\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(server.leased(), Vec::<String>::new());
}

pub(crate) fn request(id: u64, method: &str, params: &Value) -> String {
    format!(
        "{}\n",
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    )
}

pub(crate) fn initialize() -> Value {
    json!({
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    })
}

pub(crate) fn tool(name: &str, arguments: &Value) -> Value {
    json!({"name": name, "arguments": arguments})
}

/// `atoll mcp` that has said hello.
fn session(home: &TestHome) -> Running {
    let mut running = home.atoll(["mcp", "--template", "base"]).start();
    running.write(&request(1, "initialize", &initialize()));
    running.wait_for("\"id\":1");
    running.write("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n");
    running
}

#[test]
fn nonsense_on_standard_streams_is_survived_and_standard_output_stays_clean() {
    let home = second_home();
    let mut running = session(&home);
    running.write("this is no JSON\n{\"jsonrpc\":\"2.0\"}\n[]\n{\"a\":1}\n\n\u{0}\u{1}\n");
    running.write(&request(2, "no/such/method", &json!({})));
    running.write(&request(3, "tools/call", &tool("no_such_tool", &json!({}))));
    running.write(&request(4, "tools/call", &json!({"name": 7})));
    let huge = "x".repeat(9 * 1024 * 1024);
    let arguments = json!({"command": "wc -c", "envs": {"X": huge}});
    running.write(&request(
        5,
        "tools/call",
        &tool("execute_command", &arguments),
    ));
    running.wait_for("\"id\":5");
    running.write(&request(
        6,
        "tools/call",
        &tool("execute_command", &json!({"command": "echo still here"})),
    ));
    running.wait_for("still here");
    let finished = running.finish();
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    for line in finished.stdout.lines() {
        let message: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line:?}"));
        assert_eq!(message["jsonrpc"], "2.0", "{line}");
    }
    home.assert_nothing_left("after nonsense");
}

#[test]
fn a_client_that_is_killed_and_a_server_that_is_killed_leave_no_sandbox() {
    let home = second_home();
    for signal in [Signal::KILL, Signal::TERM] {
        let mut running = session(&home);
        let command = json!({"command": "echo begun; sleep 1000"});
        running.write(&request(2, "tools/call", &tool("start_process", &command)));
        running.wait_for("begun");
        assert_eq!(home.leases().len(), 1);
        running.signal(signal);
        running.finish();
        eventually("no sandbox is left", || {
            home.leases().is_empty().then_some(())
        });
    }
    let mut running = session(&home);
    running.write(&request(
        2,
        "tools/call",
        &tool("execute_command", &json!({"command": "echo on"})),
    ));
    running.wait_for("on\\n");
    assert_eq!(running.finish().code, 0);
    home.assert_nothing_left("after a client");
}

/// A message to `/mcp`.
pub(crate) fn post(server: &Server, headers: &[(&'static str, &str)], body: &str) -> Reply {
    let mut all = vec![
        ("content-type", "application/json".to_owned()),
        ("accept", "application/json, text/event-stream".to_owned()),
    ];
    all.extend(
        headers
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned())),
    );
    let ask = Ask {
        method: "POST",
        target: "/mcp",
        headers: all,
        body: Some(body.as_bytes().to_vec()),
    };
    let mut text = Vec::new();
    let mut stream = server.open(&ask).unwrap();
    stream.read_to_end(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    // Streams come in pieces, each with its length; what they say is read as it is.
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let headers = head
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once(": "));
    Reply {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        headers: headers
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        body: body.to_owned(),
    }
}

/// Begins a session with a key, and returns its name.
pub(crate) fn begun(server: &Server, key: &str) -> String {
    let reply = post(
        server,
        &[("x-api-key", key)],
        &request(1, "initialize", &initialize()),
    );
    assert_eq!(reply.status, 200, "{reply:#?}");
    reply.header("mcp-session-id").unwrap().to_owned()
}

#[test]
fn a_session_is_its_keys_alone_and_ends_with_it() {
    let server = Server::start(second_home());
    let made = server
        .home
        .run(["key", "create", "--name", "agent", "--json"])
        .json();
    let key = made["key"].as_str().unwrap().to_owned();
    let stranger = server.key_of("somebody-else");
    let session = begun(&server, &key);
    let command = tool(
        "execute_command",
        &json!({"command": "echo in the sandbox"}),
    );
    let call = request(2, "tools/call", &command);
    let ran = post(
        &server,
        &[("x-api-key", &key), ("mcp-session-id", &session)],
        &call,
    );
    assert!(
        ran.status == 200 && ran.body.contains("in the sandbox"),
        "{ran:#?}"
    );
    assert_eq!(server.leased().len(), 1);

    let missing = post(
        &server,
        &[("x-api-key", &key), ("mcp-session-id", "no-such")],
        &call,
    );
    assert_eq!(missing.status, 404);
    for other in [&stranger, &server.key] {
        let foreign = post(
            &server,
            &[("x-api-key", other), ("mcp-session-id", &session)],
            &call,
        );
        assert_eq!((foreign.status, &foreign.body), (404, &missing.body));
    }
    for headers in [
        vec![("mcp-session-id", session.as_str())],
        vec![
            ("mcp-session-id", session.as_str()),
            ("x-api-key", "e2b_00"),
        ],
        vec![
            ("mcp-session-id", session.as_str()),
            ("authorization", "Bearer nothing"),
        ],
    ] {
        post(&server, &headers, &call).is_error(401);
    }
    let evil = [
        ("x-api-key", key.as_str()),
        ("origin", "http://evil.example"),
    ];
    let page = post(&server, &evil, &request(1, "initialize", &initialize()));
    assert_eq!(page.status, 403, "{page:#?}");

    let id = made["id"].as_str().unwrap();
    server.home.run(["key", "revoke", id]).succeeded();
    let over = post(
        &server,
        &[("x-api-key", &key), ("mcp-session-id", &session)],
        &call,
    );
    over.is_error(401);
    eventually("the sandbox is gone", || {
        server.leased().is_empty().then_some(())
    });
}

#[test]
fn nonsense_in_http_is_refused_and_nothing_is_left_of_it() {
    let server = Server::start(second_home());
    let key = server.key.clone();
    let session = begun(&server, &key);
    let known = [
        ("x-api-key", key.as_str()),
        ("mcp-session-id", session.as_str()),
    ];
    for body in [
        "",
        "no JSON",
        "[]",
        "{}",
        "{\"jsonrpc\":\"2.0\",\"id\":1}",
        "\u{0}",
    ] {
        let reply = post(&server, &known, body);
        assert!((400..500).contains(&reply.status), "{body:?}: {reply:#?}");
        let reply = post(&server, &known[..1], body);
        assert!((400..500).contains(&reply.status), "{body:?}: {reply:#?}");
    }
    let huge = json!({"command": "x".repeat(10 * 1024 * 1024)});
    let reply = post(
        &server,
        &known,
        &request(2, "tools/call", &tool("execute_command", &huge)),
    );
    assert_eq!(reply.status, 413, "{reply:#?}");
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!((400..500).contains(&post(&server, &known, &deep).status));
    for method in ["PUT", "PATCH"] {
        assert_eq!(server.ask(method, "/mcp", None).status, 405);
    }
    let reply = post(&server, &known, &request(3, "tools/list", &json!({})));
    assert!(reply.body.contains("run_code"), "{reply:#?}");
    assert_eq!(server.leased(), Vec::<String>::new());
}

#[test]
fn schemas_are_printed_as_function_calling_apis_take_them() {
    let home = TestHome::empty();
    let openai = home
        .run(["tools", "--format", "openai", "--aliases"])
        .json();
    let names: Vec<&str> = openai
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["function"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names.len(), 18);
    assert_eq!((names[0], names[15]), ("run_code", "executeCode"));
    let anthropic = home
        .run(["tools", "--format", "anthropic", "--json"])
        .json();
    assert_eq!(anthropic[0]["input_schema"]["required"], json!(["code"]));
    let mcp = home.run(["tools", "--format", "mcp"]).json();
    assert_eq!(mcp["tools"].as_array().unwrap().len(), 15);
    let people = home.run(["tools"]).succeeded();
    assert_eq!(people.lines().count(), 15);
}
