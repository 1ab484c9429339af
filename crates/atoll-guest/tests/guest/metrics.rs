//! What the sandbox uses.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::Guest;
use crate::support::raw::{ask, ask_bare};

#[tokio::test]
async fn metrics_are_plausible() {
    let guest = Guest::ready().await;
    let started = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let answer = ask(&guest, "GET /metrics", &[], b"");
    assert_eq!(answer.status, 200);
    let metrics = answer.json();
    let keys: Vec<&String> = metrics.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "cpu_count",
            "cpu_used_pct",
            "disk_total",
            "disk_used",
            "mem_cache",
            "mem_total",
            "mem_total_mib",
            "mem_used",
            "mem_used_mib",
            "ts",
        ]
    );
    let number = |key: &str| metrics[key].as_u64().unwrap();
    assert!((started..started + 60).contains(&number("ts")));
    assert!(number("cpu_count") >= 1);
    assert!((0.0..=100.0).contains(&metrics["cpu_used_pct"].as_f64().unwrap()));
    for (used, total) in [("mem_used", "mem_total"), ("disk_used", "disk_total")] {
        assert!(
            0 < number(used) && number(used) <= number(total),
            "{metrics}"
        );
    }
    assert_eq!(number("mem_total_mib"), number("mem_total") >> 20);
    assert_eq!(number("mem_used_mib"), number("mem_used") >> 20);
}

#[tokio::test]
async fn work_shows_in_the_next_answer() {
    let guest = Guest::ready().await;
    ask(&guest, "GET /metrics", &[], b"");
    // All processors at once, for longer than the shortest measured time.
    let busy = guest
        .run("for i in $(seq $(nproc)); do timeout 0.5 bash -c 'while :; do :; done' & done; wait")
        .await;
    assert_eq!(busy.stdout, "");
    let metrics = ask(&guest, "GET /metrics", &[], b"").json();
    assert!(metrics["cpu_used_pct"].as_f64().unwrap() > 5.0, "{metrics}");
}

#[tokio::test]
async fn metrics_need_the_token() {
    let guest = Guest::ready().await;
    let answer = ask_bare(guest.address, "GET /metrics", &[], b"");
    assert_eq!(answer.refusal().0, 401);
}
