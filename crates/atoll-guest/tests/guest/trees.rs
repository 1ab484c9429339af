//! Trees that are deep, large, or change while they are walked.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, RenameFlags};
use serde_json::json;

use crate::support::rpc::{list, paths, refused};
use crate::support::{Guest, dig, place};

/// Lists a tree of so many levels and looks at its last directory.
fn list_deep(guest: &Guest, at: &str, levels: usize) {
    dig(at, "d", levels);
    let listed = list(guest, at, u32::MAX);
    assert_eq!(listed.len(), levels);
    assert_eq!(listed.last(), Some(&format!("{at}{}", "/d".repeat(levels))));
}

#[tokio::test]
async fn a_tree_deeper_than_paths_can_say_is_listed_and_removed() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    let deep = format!("{at}/deep");
    std::fs::create_dir(&deep).unwrap();
    list_deep(&guest, &deep, 2500);
    let path = format!("{deep}{}", "/d".repeat(2500));
    assert_eq!(
        guest.call("Stat", &json!({ "path": path })),
        Err(refused(
            "invalid_argument",
            &format!("stat '{path}': File name too long")
        ))
    );
    assert_eq!(guest.call("Remove", &json!({"path": deep})), Ok(json!({})));
    assert_eq!(list(&guest, &at, 9), [""; 0]);
}

#[tokio::test]
async fn a_tree_of_five_thousand_levels_is_removed() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    let deep = format!("{at}/deep");
    std::fs::create_dir(&deep).unwrap();
    dig(&deep, "d", 5000);
    assert_eq!(guest.call("Remove", &json!({"path": deep})), Ok(json!({})));
    assert_eq!(list(&guest, &at, 9), [""; 0]);
}

#[tokio::test]
#[ignore = "long: an answer of 26 MB"]
async fn a_tree_of_five_thousand_levels_is_listed() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    let deep = format!("{at}/deep");
    std::fs::create_dir(&deep).unwrap();
    list_deep(&guest, &deep, 5000);
    assert_eq!(guest.call("Remove", &json!({"path": deep})), Ok(json!({})));
}

#[tokio::test]
#[ignore = "long: makes and removes two hundred thousand files"]
async fn a_hundred_thousand_entries_are_listed_and_twice_as_many_refused() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    let fill = |directory: &str| {
        std::fs::create_dir(format!("{at}/{directory}")).unwrap();
        for index in 0..100_000 {
            std::fs::File::create(format!("{at}/{directory}/{index:06}")).unwrap();
        }
    };
    fill("a");
    let listed = list(&guest, &format!("{at}/a"), 1);
    assert_eq!(listed.len(), 100_000);
    assert!(listed.is_sorted());
    fill("b");
    let refusal = guest
        .call("ListDir", &json!({"path": at, "depth": 2}))
        .unwrap_err();
    assert_eq!(
        refusal,
        refused(
            "resource_exhausted",
            &format!(
                "directory '{at}' has more than 200000 entries or too long paths for one \
                 listing; list with a smaller depth or list its directories one by one"
            )
        )
    );
    let peak = guest.peak_memory_kib();
    assert!(peak < 256 * 1024, "the guest used {peak} KiB");
    for directory in ["a", "b"] {
        let request = json!({"path": format!("{at}/{directory}")});
        assert_eq!(guest.call("Remove", &request), Ok(json!({})));
    }
    assert_eq!(list(&guest, &at, 1), [""; 0]);
}

/// Swaps two names as fast as it can until dropped.
struct Swapping {
    over: Arc<AtomicBool>,
    swaps: Arc<AtomicUsize>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Swapping {
    fn start(one: String, other: String) -> Self {
        let (over, swaps) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let thread = std::thread::spawn({
            let (over, swaps) = (Arc::clone(&over), Arc::clone(&swaps));
            move || {
                while !over.load(Ordering::Relaxed) {
                    let exchange = RenameFlags::EXCHANGE;
                    if rustix::fs::renameat_with(CWD, &one, CWD, &other, exchange).is_ok() {
                        swaps.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
        Self {
            over,
            swaps,
            thread: Some(thread),
        }
    }
}

impl Drop for Swapping {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[tokio::test]
async fn links_swapped_in_meanwhile_lead_nobody_astray() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    for index in 0..50 {
        std::fs::create_dir_all(format!("{at}/victim/d{index}")).unwrap();
        std::fs::write(format!("{at}/victim/d{index}/precious"), "x").unwrap();
    }
    let victim = list(&guest, &format!("{at}/victim"), 9);
    let end = std::time::Instant::now() + Duration::from_secs(3);
    let (mut rounds, mut swaps) = (0, 0);
    while std::time::Instant::now() < end {
        // `tree/a` is a directory or a link to the victim, from one moment
        // to the next.
        for index in 0..50 {
            std::fs::create_dir_all(format!("{at}/tree/a/d{index}")).unwrap();
            std::fs::write(format!("{at}/tree/a/d{index}/f"), "x").unwrap();
        }
        symlink("../victim", format!("{at}/tree/b")).unwrap();
        let swapping = Swapping::start(format!("{at}/tree/a"), format!("{at}/tree/b"));
        let tree = json!({"path": format!("{at}/tree"), "depth": 9});
        for listed in paths(&guest.call("ListDir", &tree).unwrap()["entries"]) {
            assert!(!listed.contains("precious"), "{listed}");
        }
        let moved =
            json!({"source": format!("{at}/tree/a/d0"), "destination": format!("{at}/tree/moved")});
        // Whichever it was, it is moved from where it was found.
        let _ = guest.call("Move", &moved);
        let back =
            json!({"source": format!("{at}/tree/moved"), "destination": format!("{at}/victim/d0")});
        if Path::new(&format!("{at}/tree/moved/precious")).exists() {
            guest.call("Move", &back).unwrap();
        }
        let removed = guest.call("Remove", &tree);
        swaps += swapping.swaps.load(Ordering::Relaxed);
        drop(swapping);
        assert_eq!(removed, Ok(json!({})));
        rounds += 1;
        assert!(!Path::new(&format!("{at}/tree")).exists());
    }
    assert_eq!(list(&guest, &format!("{at}/victim"), 9), victim);
    assert!(swaps > rounds, "{swaps} swaps in {rounds} rounds");
}

#[tokio::test]
async fn a_listing_survives_what_vanishes_meanwhile() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    let over = Arc::new(AtomicBool::new(false));
    let churn = std::thread::spawn({
        let (over, at) = (Arc::clone(&over), at.clone());
        move || {
            while !over.load(Ordering::Relaxed) {
                for index in 0..20 {
                    std::fs::create_dir_all(format!("{at}/{index}/a/b/c")).unwrap();
                }
                for index in 0..20 {
                    std::fs::remove_dir_all(format!("{at}/{index}")).unwrap();
                }
            }
        }
    });
    let mut most = 0;
    let begin = SystemTime::now();
    while begin.elapsed().unwrap() < Duration::from_secs(2) {
        most = most.max(list(&guest, &at, 9).len());
    }
    over.store(true, Ordering::Relaxed);
    churn.join().unwrap();
    assert!(most > 0);
}

#[tokio::test]
async fn a_directory_that_fills_again_is_not_emptied_forever() {
    let (guest, (_place, at)) = (Guest::ready().await, place());
    let tree = format!("{at}/tree");
    let over = Arc::new(AtomicBool::new(false));
    let fillers: Vec<_> = (0..2)
        .map(|filler| {
            let (over, tree) = (Arc::clone(&over), tree.clone());
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let _ = std::fs::create_dir_all(format!("{tree}/a/{filler}"));
                }
            })
        })
        .collect();
    for _ in 0..20 {
        match guest.call("Remove", &json!({"path": tree})) {
            Ok(_) => {}
            Err(refusal) => assert_eq!(refusal.code, "aborted", "{}", refusal.message),
        }
    }
    over.store(true, Ordering::Relaxed);
    fillers
        .into_iter()
        .for_each(|filler| filler.join().unwrap());
    assert_eq!(guest.call("Remove", &json!({"path": tree})), Ok(json!({})));
    assert!(!Path::new(&tree).exists());
}
