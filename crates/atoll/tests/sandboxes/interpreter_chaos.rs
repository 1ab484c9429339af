//! Kernels in real sandboxes: that they are there before anybody asks, and what very
//! many of them take.

use std::time::Instant;

use atoll_client::{Client, CodeOptions, CreateOptions, Endpoint, Execution, NewContext, Sandbox};
use atoll_engine::Tier;

use crate::harness::server::Server;
use crate::harness::{BOUND, second_home, tier};

/// The template that `cargo xtask test` builds for these tests.
const TEMPLATE: &str = "code-interpreter-v1-tiny";

/// Memory of the kernels of a sandbox, in KiB: `parent kernel kernel …`.
const MEMORY: &str = "
import os
def share(pid):
    with open(f'/proc/{pid}/smaps_rollup') as file:
        return next(int(line.split()[1]) for line in file if line.startswith('Pss:'))
kernels = []
for pid in filter(str.isdigit, os.listdir('/proc')):
    try:
        with open(f'/proc/{pid}/cmdline') as file:
            if 'forkserver.py' in file.read():
                kernels.append((pid != str(os.getppid()), share(pid)))
    except OSError:
        pass
print(*(share for _, share in sorted(kernels)))
";

pub(crate) fn client(server: &Server) -> Client {
    let url = format!("http://{}", server.address());
    Client::new(Endpoint::new(&url, &server.key).unwrap()).unwrap()
}

pub(crate) async fn sandbox(client: &Client) -> Sandbox {
    client
        .create(&CreateOptions::template(TEMPLATE))
        .await
        .unwrap()
}

pub(crate) async fn run_in(sandbox: &Sandbox, context: Option<&str>, code: &str) -> Execution {
    let options = CodeOptions {
        context: context.map(str::to_owned),
        timeout: Some(*BOUND),
        ..CodeOptions::default()
    };
    let ran = sandbox.code().run(code, &options, |_| {}).await;
    ran.unwrap_or_else(|error| panic!("{error} in {code}"))
}

pub(crate) async fn run(sandbox: &Sandbox, code: &str) -> Execution {
    run_in(sandbox, None, code).await
}

#[tokio::test]
async fn the_first_kernel_is_there_before_the_sandbox_is_handed_out() {
    let server = Server::start(second_home());
    let sandbox = sandbox(&client(&server)).await;
    // The parent and its fork, before any code was run.
    let processes = sandbox
        .commands()
        .run("cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -c '[/]forkserver.py'")
        .await
        .unwrap();
    assert_eq!(processes.stdout_text().trim(), "2");
    let begun = Instant::now();
    let first = run(&sandbox, "1 + 1").await;
    let first_took = begun.elapsed();
    let begun = Instant::now();
    let second = run(
        &sandbox,
        "sorted(Out), [name for name in dir() if name == '_2']",
    )
    .await;
    println!("first: {first_took:?}, second: {:?}", begun.elapsed());
    // What proved the kernel left nothing behind.
    assert_eq!((first.text(), first.execution_count), (Some("2"), Some(1)));
    assert_eq!(
        (second.text(), second.execution_count),
        (Some("([1], [])"), Some(2))
    );
    sandbox.kill().await.unwrap();
}

#[tokio::test]
async fn pid_1_comes_first_and_nobody_else_can() {
    if tier() != Tier::Container {
        return; // gVisor's own kernel gives each of its tasks a thread.
    }
    let server = Server::start(second_home());
    let sandbox = sandbox(&client(&server)).await;
    let nice = "
import os, subprocess
def nice(pid):
    with open(f'/proc/{pid}/stat') as file:
        return int(file.read().rsplit(')', 1)[1].split()[16])
try:
    os.nice(-1)
    lowered = 'lowered'
except PermissionError:
    lowered = 'refused'
shell = subprocess.run(['sudo', 'nice', '-n', '-1', 'nice'], capture_output=True, text=True)
nice(1), nice(os.getppid()), nice('self'), lowered, shell.stdout";
    let said = run(&sandbox, nice).await;
    assert_eq!(
        said.text(),
        Some("(-20, 0, 0, 'refused', '0\\n')"),
        "{said:?}"
    );
    let command = sandbox.commands().run("nice").await.unwrap();
    assert_eq!(command.stdout_text().trim(), "0");
    sandbox.kill().await.unwrap();
}

/// Prints what kernels take; what one of them takes at most, in KiB.
fn shares(what: &str, said: &Execution) -> u64 {
    assert_eq!(said.error, None);
    let text = said.logs.stdout.concat();
    let mut shares: Vec<u64> = text
        .split_whitespace()
        .map(|share| share.parse().unwrap())
        .collect();
    let parent = shares.remove(0);
    shares.sort_unstable();
    let total: u64 = shares.iter().sum();
    let (count, most) = (shares.len() as u64, *shares.last().unwrap());
    println!(
        "{what}: parent {parent} KiB, {count} kernels: mean {} KiB, median {} KiB, most {most} KiB",
        total / count,
        shares[shares.len() / 2],
    );
    // The one that counts is at work.
    shares[shares.len().saturating_sub(2)]
}

/// More than an idle kernel may take beside many of its kind, in KiB.
const IDLE_KIB_MAX: u64 = 40 * 1024;

/// The same for one that has nobody to share with but its parent.
const ALONE_KIB_MAX: u64 = 64 * 1024;

#[tokio::test]
#[ignore = "long: fifty kernels in one sandbox"]
async fn fifty_contexts_work_in_one_sandbox() {
    let server = Server::start(second_home());
    let sandbox = sandbox(&client(&server)).await;
    let mut contexts = Vec::new();
    let begun = Instant::now();
    for number in 0..50 {
        let made = sandbox.code().create_context(&NewContext::default()).await;
        let context = made.unwrap().id;
        run_in(&sandbox, Some(&context), &format!("x = {number}")).await;
        contexts.push(context);
    }
    println!("50 contexts in {:?}", begun.elapsed());
    let most = shares("one sandbox", &run(&sandbox, MEMORY).await);
    assert!(most < IDLE_KIB_MAX, "{most} KiB");
    let begun = Instant::now();
    let all = contexts
        .iter()
        .map(|context| run_in(&sandbox, Some(context), "x * 2"));
    let all = futures_util::future::join_all(all).await;
    println!("50 executions at once in {:?}", begun.elapsed());
    for (number, ran) in all.iter().enumerate() {
        assert_eq!(ran.text(), Some((number * 2).to_string().as_str()));
    }
    for context in &contexts {
        sandbox.code().remove_context(context).await.unwrap();
    }
    assert_eq!(sandbox.code().contexts().await.unwrap().len(), 2);
    let left = run(&sandbox, MEMORY).await.logs.stdout.concat();
    assert_eq!(left.split_whitespace().count(), 2, "{left}");
    sandbox.kill().await.unwrap();
}

#[tokio::test]
#[ignore = "long: twenty sandboxes with a kernel each"]
async fn twenty_sandboxes_have_a_kernel_each() {
    let server = Server::start(second_home());
    let client = client(&server);
    let begun = Instant::now();
    let mut sandboxes = Vec::new();
    for _ in 0..20 {
        sandboxes.push(sandbox(&client).await);
    }
    println!("20 sandboxes in {:?}", begun.elapsed());
    for (number, sandbox) in sandboxes.iter().enumerate() {
        run(sandbox, &format!("x = {number}")).await;
    }
    let mut most = 0;
    for (number, sandbox) in sandboxes.iter().enumerate() {
        let said = run(sandbox, &format!("{MEMORY}\nx")).await;
        assert_eq!(said.text(), Some(number.to_string().as_str()));
        most = most.max(shares(&format!("sandbox {number}"), &said));
    }
    assert!(most < ALONE_KIB_MAX, "{most} KiB");
    for sandbox in sandboxes {
        sandbox.kill().await.unwrap();
    }
}
