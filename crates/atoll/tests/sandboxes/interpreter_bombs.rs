//! What a fork bomb in a cell comes to.

use std::time::{Duration, Instant};

use atoll_client::{CodeOptions, NewContext, RunCodeError};
use atoll_engine::Tier;

use super::interpreter_chaos::{client, run, run_in, sandbox};
use crate::harness::server::Server;
use crate::harness::{second_home, tier};

/// How long a bomb may work before its client gives up.
const BOMB_BOUND: Duration = Duration::from_secs(6);

#[tokio::test]
async fn a_fork_bomb_in_a_cell_costs_its_context_and_nothing_else() {
    endure(&[
        // Ends where there is no room, and goes on.
        "import os\nwhile True: os.fork()",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    ])
    .await;
}

#[tokio::test]
async fn a_fork_bomb_that_leaves_its_session_costs_no_more() {
    endure(&[
        // Each in a session of its own, so that no one signal reaches them all.
        "import os\nwhile True:\n    try:\n        if os.fork() == 0: os.setsid()\n    except OSError: pass",
        // Each an orphan as well, below nobody who could be asked for it.
        "import os\nwhile True:\n    try:\n        if os.fork() == 0:\n            os.setsid()\n            if os.fork(): os._exit(0)\n    except OSError: pass",
    ])
    .await;
}

/// Runs bombs, and looks at what is left after each of them.
async fn endure(bombs: &[&str]) {
    if tier() != Tier::Container {
        return; // Under gVisor the sandbox may end when its memory does: `limits.rs`.
    }
    let server = Server::start(second_home());
    let sandbox = sandbox(&client(&server)).await;
    let kept = sandbox.code().create_context(&NewContext::default()).await;
    let kept = kept.unwrap().id;
    run_in(&sandbox, Some(&kept), "kept = 1").await;
    let patient = CodeOptions {
        timeout: Some(BOMB_BOUND),
        ..CodeOptions::default()
    };
    for bomb in bombs {
        let begun = Instant::now();
        match sandbox.code().run(bomb, &patient, |_| {}).await {
            Ok(ended) => {
                let error = ended.error.expect("a bomb that succeeds");
                println!("bomb: {} after {:?}", error.name, begun.elapsed());
            }
            Err(RunCodeError::Timeout(_)) => {}
            Err(RunCodeError::Sandbox(_) | RunCodeError::TooMuch) => panic!("not a bomb: {bomb}"),
        }
        let begun = Instant::now();
        assert_eq!(run(&sandbox, "1 + 1").await.text(), Some("2"), "{bomb}");
        println!("next cell after {:?}", begun.elapsed());
        let other = run_in(&sandbox, Some(&kept), "kept").await;
        assert_eq!(other.text(), Some("1"), "{other:?} after {bomb}");
        // All of it is gone: what is left has room.
        let count = sandbox.commands().run("ls -d /proc/[0-9]* | wc -l").await;
        let count: usize = count.unwrap().stdout_text().trim().parse().unwrap();
        assert!(count < 32, "{count} processes after {bomb}");
    }
    sandbox.kill().await.unwrap();
}
