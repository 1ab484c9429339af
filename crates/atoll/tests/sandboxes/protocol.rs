//! The guest's protocol, spoken by clients that are not ours against a real
//! sandbox: E2B's released SDKs, Connect's own client, and recorded bytes.
//!
//! Each test is a program with many cases, or all recorded exchanges. The
//! numbers keep a program that runs nothing from passing; they only go up.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::clients;
use crate::clients::guest::Guest;
use crate::clients::program::{Program, run};

#[test]
fn python_sdk_sync() {
    run(&Program::Python(&["sync"]), 159);
}

#[test]
fn python_sdk_async() {
    run(&Program::Python(&["async"]), 160);
}

#[test]
fn js_sdk() {
    run(&Program::Node(&["sdk.mjs"]), 104);
}

#[test]
fn connect_node_json() {
    run(&Program::Node(&["connect.mjs", "json"]), 67);
}

#[test]
fn connect_node_binary() {
    run(&Program::Node(&["connect.mjs", "binary"]), 49);
}

#[test]
fn appendix_exchanges() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/exchanges");
    let mut files: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    files.sort();
    assert!(files.len() >= 11, "exchanges are missing: {files:#?}");
    // The token of the recorded requests and signatures.
    let guest = Guest::start("tok123");
    let differs = |file: &&std::path::PathBuf| {
        let text = fs::read_to_string(file).unwrap();
        let play = || clients::exchange::play(guest.address, &text);
        catch_unwind(AssertUnwindSafe(play)).is_err()
    };
    let differing: Vec<_> = files.iter().filter(differs).collect();
    assert!(
        differing.is_empty(),
        "the guest differs from {differing:#?}"
    );
}
