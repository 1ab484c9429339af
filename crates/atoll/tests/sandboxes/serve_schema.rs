//! `/api/v1` against its own document: `schemathesis` asks for everything in
//! it, as it should be and as it should not, along the links that it has.

use std::process::Command;

use crate::harness::server::Server;
use crate::harness::{installed_clients, second_home};

/// Asks `examples` times for each operation, and says what went wrong.
fn ask_for_everything(examples: u32) {
    let server = Server::start(second_home());
    let program = installed_clients().join("schemathesis/bin/schemathesis");
    let document = format!("http://{}/api/v1/openapi.json", server.address());
    let output = Command::new(program)
        .args(["run", &document])
        .args(["-H", &format!("X-API-Key: {}", server.key)])
        .args(["--max-examples", &examples.to_string()])
        // The same questions every time, one after the other.
        .args([
            "--seed",
            "1",
            "--workers",
            "1",
            "--generation-database",
            "none",
        ])
        .args(["--phases", "coverage,fuzzing,stateful"])
        // What a schema cannot say (one of two fields, the names of a manager's packages)
        // may be refused.
        .args(["--exclude-checks", "positive_data_acceptance"])
        .args(["--request-timeout", "60", "--no-color"])
        .current_dir(server.work())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("generated"), "{said}");
}

#[test]
fn answers_are_as_the_document_says() {
    ask_for_everything(2);
}

#[test]
#[ignore = "long: thousands of requests along the links of the document"]
fn whatever_is_asked_the_answers_are_as_the_document_says() {
    ask_for_everything(60);
}
