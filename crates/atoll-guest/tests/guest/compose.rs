//! Several files become one.

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use serde_json::json;

use crate::support::raw::{Answer, TinyDisk, ask, ask_bare, noise};
use crate::support::{Guest, require_root};

fn compose(guest: &Guest, request: &serde_json::Value) -> Answer {
    ask(
        guest,
        "POST /files/compose",
        &[("Content-Type", "application/json")],
        request.to_string().as_bytes(),
    )
}

fn names(place: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(place)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn sources_become_one_file_in_their_order() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let at = |name: &str| place.path().join(name);
    let (first, second) = (noise(3 << 20), noise(70_000));
    std::fs::write(at("1"), &first).unwrap();
    std::fs::write(at("2"), &second).unwrap();
    std::fs::write(at("empty"), "").unwrap();
    let destination = at("new/place/whole");
    let answer = compose(
        &guest,
        &json!({"source_paths": [at("2"), at("empty"), at("1")], "destination": destination}),
    );
    assert_eq!(
        (answer.status, answer.json()),
        (
            200,
            json!({"name": "whole", "path": destination, "type": "file"})
        )
    );
    assert!(std::fs::read(&destination).unwrap() == [second, first].concat());
    assert_eq!(names(place.path()), ["new"]);
    assert_eq!(names(&at("new/place")), ["whole"]);
}

#[tokio::test]
async fn the_file_belongs_to_the_user_and_a_link_stays_one() {
    require_root();
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let at = |name: &str| place.path().join(name);
    std::fs::write(at("part"), "new").unwrap();
    std::fs::write(at("target"), "old").unwrap();
    symlink(at("target"), at("link")).unwrap();
    let answer = compose(
        &guest,
        &json!({"source_paths": [at("part")], "destination": at("link"), "username": "nobody"}),
    );
    assert_eq!(answer.status, 200);
    assert_eq!(names(place.path()), ["link", "target"]);
    assert!(at("link").is_symlink());
    let stat = std::fs::metadata(at("target")).unwrap();
    assert_eq!(
        (stat.uid(), stat.gid(), stat.mode() & 0o7777),
        (65534, 65534, 0o644)
    );
    assert_eq!(std::fs::read_to_string(at("target")).unwrap(), "new");
}

#[tokio::test]
async fn what_is_refused_changes_nothing() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let at = |name: &str| place.path().join(name);
    std::fs::create_dir(at("directory")).unwrap();
    symlink(at("directory"), at("alias")).unwrap();
    for name in ["part", "old", "directory/x"] {
        std::fs::write(at(name), name).unwrap();
    }
    std::fs::hard_link(at("part"), at("twin")).unwrap();
    let before = names(place.path());
    for (request, status) in [
        (
            json!({"source_paths": [at("part"), at("none")], "destination": at("old")}),
            404,
        ),
        (json!({"source_paths": [], "destination": at("old")}), 400),
        (json!({"destination": at("old")}), 400),
        (json!({"source_paths": [at("part")]}), 400),
        (
            json!({"source_paths": [at("old")], "destination": at("old")}),
            400,
        ),
        (
            json!({"source_paths": [at("part/../old")], "destination": at("old")}),
            400,
        ),
        (
            json!({"source_paths": [at("alias/x")], "destination": at("directory/x")}),
            400,
        ),
        (
            json!({"source_paths": [at("twin")], "destination": at("part")}),
            400,
        ),
        (
            json!({"source_paths": [at("part"), at("directory")], "destination": at("old")}),
            400,
        ),
        (
            json!({"source_paths": ["/dev/zero"], "destination": at("old")}),
            400,
        ),
        (
            json!({"source_paths": [at("part")], "destination": at("directory")}),
            400,
        ),
        (
            json!({"source_paths": [at("part")], "destination": at("old/x")}),
            400,
        ),
        (
            json!({"source_paths": ["~other/x"], "destination": at("old")}),
            400,
        ),
        (
            json!({"source_paths": [at("part")], "destination": at("old"), "username": "nobody-here"}),
            401,
        ),
        (json!({"source_paths": "x", "destination": at("old")}), 400),
        (json!([]), 400),
    ] {
        assert_eq!(compose(&guest, &request).refusal().0, status, "{request}");
        assert_eq!(names(place.path()), before, "{request}");
    }
    for name in ["part", "old", "directory/x"] {
        assert_eq!(std::fs::read_to_string(at(name)).unwrap(), name);
    }
}

#[tokio::test]
async fn a_full_disk_leaves_the_old_file() {
    let (guest, place) = (Guest::ready().await, tempfile::tempdir().unwrap());
    let disk = TinyDisk::mount();
    let source = place.path().join("source");
    std::fs::write(&source, noise(4 << 20)).unwrap();
    std::fs::write(disk.file("old"), "old").unwrap();
    let answer = compose(
        &guest,
        &json!({"source_paths": [source], "destination": disk.file("old")}),
    );
    assert_eq!(answer.refusal().0, 507);
    assert_eq!(names(disk.path()), ["old"]);
    assert_eq!(std::fs::read_to_string(disk.file("old")).unwrap(), "old");
    assert_eq!(std::fs::metadata(&source).unwrap().len(), 4 << 20);
}

#[tokio::test]
async fn the_token_is_needed() {
    let guest = Guest::ready().await;
    let answer = ask_bare(
        guest.address,
        "POST /files/compose?signature=v1_x",
        &[("Content-Type", "application/json")],
        b"{}",
    );
    assert_eq!(
        answer.refusal(),
        (
            401,
            "unauthorized access, please provide a valid access token or method signing if supported"
                .to_owned()
        )
    );
}
