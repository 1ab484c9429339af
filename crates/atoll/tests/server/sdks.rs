//! E2B's released SDKs through the server: the cases that they pass against a
//! guest alone.

use crate::clients::program::{Program, Target, run_against};
use crate::served::Served;

async fn run(program: Program, cases_min: usize) {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    std::thread::scope(|scope| {
        let run = || {
            let target = Target {
                url: format!("http://{}", served.address),
                token: &reached.token,
                sandbox_id: reached.id(),
                template_id: &served.sandboxes.template_id,
                home: &served.sandboxes.home,
            };
            run_against(&target, &program, cases_min);
        };
        // The server goes on meanwhile.
        tokio::task::block_in_place(|| scope.spawn(run).join()).unwrap();
    });
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_sdk_sync() {
    run(Program::Python(&["sync"]), 159).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_sdk_async() {
    run(Program::Python(&["async"]), 160).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn js_sdk() {
    run(Program::Node(&["sdk.mjs"]), 104).await;
}
