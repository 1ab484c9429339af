//! `atoll key`: what it prints, what it refuses, and what it leaves on disk.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// How a command ended.
#[derive(Debug)]
struct Finished {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Finished {
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in {self:#?}"))
    }

    fn succeeded(self) -> String {
        assert_eq!(self.code, 0, "{self:#?}");
        self.stdout
    }
}

/// A home that never has a sandbox, so that nothing of it is on the host.
struct TestHome {
    directory: tempfile::TempDir,
}

impl TestHome {
    fn empty() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }
}

fn key(home: &TestHome, arguments: &[&str]) -> Finished {
    let program = std::env::var_os("ATOLL_BIN")
        .map_or_else(|| env!("CARGO_BIN_EXE_atoll").into(), PathBuf::from);
    let output = Command::new(program)
        .arg("key")
        .args(arguments)
        .env("ATOLL_HOME", home.path())
        .env_remove("ATOLL_DATABASE")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Finished {
        code: output.status.code().unwrap(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// A failure of Atoll itself: explained, with advice, and nothing on standard output.
#[track_caller]
fn assert_refused(finished: &Finished, part: &str) {
    assert_eq!(
        (finished.code, finished.stdout.as_str()),
        (125, ""),
        "{finished:#?}"
    );
    assert!(
        finished.stderr.starts_with("error: ") && finished.stderr.contains(part),
        "no {part:?} in {finished:#?}"
    );
    assert!(finished.stderr.contains("\nhint: "), "{finished:#?}");
}

fn create(home: &TestHome, arguments: &[&str]) -> Value {
    let created = key(home, &[&["create", "--json"], arguments].concat());
    assert_eq!((created.code, created.stderr.as_str()), (0, ""));
    created.json()
}

fn list(home: &TestHome) -> Vec<Value> {
    let listed = key(home, &["list", "--json"]);
    listed.json().as_array().unwrap().clone()
}

#[test]
fn a_key_is_printed_once_and_nothing_else_knows_it() {
    let home = TestHome::empty();
    let created = key(&home, &["create", "--name", "laptop"]);
    assert_eq!(created.code, 0, "{created:#?}");
    let text = created.stdout.strip_suffix('\n').unwrap();
    let digits = text.strip_prefix("e2b_").unwrap();
    assert!(
        digits.len() == 40
            && digits
                .bytes()
                .all(|byte| b"0123456789abcdef".contains(&byte)),
        "{text}"
    );
    assert!(
        created
            .stderr
            .contains("key `laptop` of tenant `default` for the role `operator`, never expires")
            && !created.stderr.contains(digits),
        "{created:#?}"
    );
    for name in ["atoll.db", "secret", "node_id"] {
        let path = home.path().join(name);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
        let content = fs::read(&path).unwrap();
        let found = content
            .windows(digits.len())
            .any(|window| window == digits.as_bytes());
        assert!(!found, "{name}");
    }
    let table = key(&home, &["list"]).succeeded();
    assert!(
        table.contains("laptop") && table.contains(&digits[36..]),
        "{table}"
    );
    assert!(!table.contains(digits), "{table}");
}

#[test]
fn json_has_everything_and_scripts_rely_on_it() {
    let home = TestHome::empty();
    let created = create(
        &home,
        &["--name", "ci", "--tenant", "build", "--expires", "30d"],
    );
    let millis = |name: &str| created[name].as_i64().unwrap();
    assert_eq!(
        millis("expires_at_ms") - millis("created_at_ms"),
        30 * 86_400_000
    );
    assert_eq!(created["name"], "ci");
    assert_eq!(created["tenant"], "build");
    let text = created["key"].as_str().unwrap();
    let listed = list(&home);
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["id"], created["id"]);
    assert_eq!(listed[0]["state"], "active");
    assert_eq!(listed[0]["last_used_at_ms"], Value::Null);
    assert_eq!(listed[0]["mask"]["suffix"], text[40..]);
    // Keys are listed by tenant too.
    create(&home, &[]);
    let listed = key(&home, &["list", "--tenant", "build", "--json"]).json();
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_refused(
        &key(&home, &["list", "--tenant", "nobody"]),
        "there is no tenant `nobody`",
    );
}

#[test]
fn keys_are_revoked_by_id_or_by_a_name_that_means_one() {
    let home = TestHome::empty();
    let twins = [
        create(&home, &["--name", "twin"]),
        create(&home, &["--name", "twin"]),
    ];
    let single = create(&home, &["--name", "single"]);
    assert_refused(
        &key(&home, &["revoke", "twin"]),
        "2 active keys have the name `twin`",
    );
    let id = twins[0]["id"].as_str().unwrap();
    assert_eq!(key(&home, &["revoke", id]).code, 0);
    assert_refused(&key(&home, &["revoke", id]), "the key was revoked before");
    // Now the name means one.
    assert_eq!(key(&home, &["revoke", "twin"]).code, 0);
    let states: Vec<Value> = list(&home).iter().map(|key| key["state"].clone()).collect();
    assert_eq!(states, ["revoked", "revoked", "active"]);
    // A key that is typed by mistake is not repeated.
    let text = single["key"].as_str().unwrap();
    let refused = key(&home, &["revoke", text]);
    assert_refused(&refused, "there is no key with that id");
    assert!(!refused.stderr.contains(text), "{refused:#?}");
}

#[test]
fn a_rotation_prints_the_new_key_and_when_the_old_one_ends() {
    let home = TestHome::empty();
    let old = create(&home, &["--name", "ci"]);
    let rotated = key(&home, &["rotate", "ci", "--grace", "2h", "--json"]).json();
    assert_ne!(rotated["key"], old["key"]);
    let grace =
        rotated["old_expires_at_ms"].as_i64().unwrap() - rotated["created_at_ms"].as_i64().unwrap();
    assert_eq!(grace, 2 * 3_600_000);
    let old_id = old["id"].as_str().unwrap();
    assert_refused(
        &key(&home, &["rotate", old_id]),
        "rotated or revoked before",
    );
    // Without grace the old one ends now.
    let new_id = rotated["id"].as_str().unwrap();
    assert_eq!(key(&home, &["rotate", new_id, "--grace", "0"]).code, 0);
    let states: Vec<Value> = list(&home).iter().map(|key| key["state"].clone()).collect();
    assert_eq!(states, ["active", "expired", "active"]);
}

#[test]
fn homes_that_cannot_be_trusted_are_refused_with_advice() {
    let home = TestHome::empty();
    create(&home, &[]);
    let secret = home.path().join("secret");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    assert_refused(&key(&home, &["list"]), "can be read or written by others");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let kept = fs::read(&secret).unwrap();
    fs::remove_file(&secret).unwrap();
    assert_refused(&key(&home, &["create"]), "not the one that the keys");
    fs::write(&secret, kept).unwrap();
    assert_eq!(list(&home).len(), 1, "as it was");

    let other = TestHome::empty();
    fs::write(other.path().join("atoll.db"), "no database").unwrap();
    assert_refused(&key(&other, &["list"]), "is not a SQLite database");
    fs::write(
        other.path().join("config.toml"),
        "database = \"mysql://h/d\"\n",
    )
    .unwrap();
    assert_refused(&key(&other, &["list"]), "names no database");
}

#[test]
fn bad_names_and_durations_are_refused() {
    let home = TestHome::empty();
    assert_refused(&key(&home, &["create", "--name", ""]), "name of a key");
    assert_refused(
        &key(&home, &["create", "--tenant", "A b"]),
        "name of a tenant",
    );
    assert_eq!(key(&home, &["create", "--expires", "0"]).code, 2);
    assert_eq!(key(&home, &["create", "--expires", "soon"]).code, 2);
    assert_eq!(list(&home), Vec::<Value>::new());
}

#[test]
fn commands_at_once_on_a_new_home_all_succeed() {
    let home = TestHome::empty();
    let created: Vec<Value> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..6).map(|_| scope.spawn(|| create(&home, &[]))).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    assert_eq!(created.len(), 6);
    let tenants: std::collections::BTreeSet<String> = list(&home)
        .iter()
        .map(|key| key["tenant_id"].to_string())
        .collect();
    assert_eq!((list(&home).len(), tenants.len()), (6, 1));
}
