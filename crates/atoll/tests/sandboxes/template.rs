//! `atoll template`: specs become templates, once, and failures cost only what failed.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Finished, TestHome, eventually, home_for_builds};

const WEB: &str = r#"
name = "web"
from = { template = "base" }
env = { FROM_TOP = "top" }
user = "user"
workdir = "/srv/app"

[[steps]]
user = "root"
run = "mkdir -p /srv/app && echo \"built by $(id -un) with $FROM_TOP\" > /srv/note"

[[steps]]
user = "root"

[[steps]]
copy = { from = "site", to = "/srv/app/" }

[[steps]]
env = { FROM_STEP = "step" }

[[steps]]
workdir = "/srv"

[[steps]]
run = "echo $PWD $FROM_STEP >> note"
"#;

fn write_spec(home: &TestHome) {
    home.file("web.toml", WEB);
    home.file("site/index.html", "hello");
    home.file("site/below/page.html", "page");
}

/// Events of a build, each as its kind and the number of its step.
fn events(finished: &Finished) -> Vec<(String, u64)> {
    let events = finished.stdout.lines().map(|line| {
        let event: Value = serde_json::from_str(line).unwrap();
        let number = event["number"].as_u64().unwrap_or(0);
        (event["event"].as_str().unwrap().to_owned(), number)
    });
    events
        .filter(|(kind, _)| !matches!(kind.as_str(), "storing" | "progress" | "step" | "output"))
        .collect()
}

fn kinds(list: &[(&str, u64)]) -> Vec<(String, u64)> {
    list.iter()
        .map(|(kind, number)| ((*kind).to_owned(), *number))
        .collect()
}

/// Names of layers, of either form.
fn layers(home: &TestHome) -> BTreeSet<String> {
    let entries = fs::read_dir(home.path().join("layers")).unwrap().flatten();
    entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect()
}

fn names(home: &TestHome) -> Vec<String> {
    let list = home.run(["template", "list", "--json"]).json();
    list.as_array()
        .unwrap()
        .iter()
        .map(|template| template["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_spec_becomes_a_template_that_sandboxes_start_from() {
    let home = home_for_builds();
    write_spec(&home);
    let built = home.run(["template", "build", "web.toml"]);
    assert_eq!(
        (built.code, built.stdout.as_str()),
        (0, "web\n"),
        "{built:#?}"
    );

    let look =
        "echo $PWD $FROM_TOP $FROM_STEP; cat /srv/note; cat index.html below/page.html; id -un";
    let seen = home.run(["run", "--template", "web", "--lang", "bash", "-c", look]);
    let expected = "/srv/app top step\nbuilt by root with top\n/srv step\nhellopageuser\n";
    assert_eq!(
        (seen.code, seen.stdout.as_str()),
        (0, expected),
        "{seen:#?}"
    );

    let base = home.run(["template", "inspect", "base"]).json();
    let mut web = home.run(["template", "inspect", "web"]).json();
    let own = web["layers"].as_array().unwrap().len() - base["layers"].as_array().unwrap().len();
    assert_eq!(own, 4, "one layer for each step that may change files");
    assert_eq!(
        web["layers"].as_array().unwrap()[own..],
        base["layers"].as_array().unwrap()[..]
    );
    let mut env = base["env"].clone();
    env["FROM_TOP"] = json!("top");
    env["FROM_STEP"] = json!("step");
    for field in ["id", "layers", "spec_hash", "created_at_ms", "total_bytes"] {
        assert!(!web[field].take().is_null(), "{field}");
    }
    assert_eq!(
        web,
        json!({
            "name": "web", "id": null, "layers": null, "env": env, "user": "user", "workdir": "/srv/app",
            "start_cmd": null, "ready_cmd": null, "resources": {},
            "created_at_ms": null, "spec_hash": null, "total_bytes": null,
        })
    );
}

#[test]
fn a_second_build_takes_every_step_from_the_cache() {
    let home = home_for_builds();
    write_spec(&home);
    let first = home.run(["template", "build", "web.toml", "--json"]);
    let whole = [
        ("started", 0),
        ("done", 1),
        ("done", 2),
        ("done", 3),
        ("done", 4),
        ("done", 5),
        ("done", 6),
        ("finished", 0),
    ];
    assert_eq!(events(&first), kinds(&whole), "{first:#?}");
    let inspected = home.run(["template", "inspect", "web"]).json();

    let second = home.run(["template", "build", "web.toml", "--json"]);
    let cached = [
        ("started", 0),
        ("cached", 1),
        ("done", 2),
        ("cached", 3),
        ("done", 4),
        ("cached", 5),
        ("cached", 6),
        ("finished", 0),
    ];
    assert_eq!(events(&second), kinds(&cached), "{second:#?}");
    let again = home.run(["template", "inspect", "web"]).json();
    assert_eq!(
        (&again["id"], &again["layers"]),
        (&inspected["id"], &inspected["layers"])
    );

    // A changed file makes its step, and those after it, run again.
    home.file("site/index.html", "other");
    let third = home.run(["template", "build", "web.toml", "--json"]);
    let partly = [
        ("started", 0),
        ("cached", 1),
        ("done", 2),
        ("done", 3),
        ("done", 4),
        ("done", 5),
        ("done", 6),
        ("finished", 0),
    ];
    assert_eq!(events(&third), kinds(&partly), "{third:#?}");

    let anew = home.run(["template", "build", "web.toml", "--json", "--no-cache"]);
    assert_eq!(events(&anew), kinds(&whole), "{anew:#?}");
}

#[test]
fn a_failed_step_is_explained_and_the_next_build_goes_on_there() {
    let home = home_for_builds();
    let spec = |second: &str| {
        format!(
            "name = \"half\"\nfrom = {{ template = \"base\" }}\n[[steps]]\nrun = \"echo one > ~/one\"\n[[steps]]\nrun = \"{second}\"\n"
        )
    };
    home.file(
        "half.toml",
        spec("echo before; echo the reason >&2; exit 9"),
    );
    let failed = home.run(["template", "build", "half.toml"]);
    assert_eq!(
        (failed.code, failed.stdout.as_str()),
        (125, ""),
        "{failed:#?}"
    );
    let error = failed.stderr.split("error: ").nth(1).unwrap();
    let said: Vec<&str> = error.lines().collect();
    assert!(
        said[0].starts_with("step 2 (run echo before; ")
            && said[0].ends_with("exited with status 9"),
        "{said:#?}"
    );
    assert_eq!(said[1..3], ["before", "the reason"]);
    let log = said[3].strip_prefix("The whole output is in ").unwrap();
    let logged = fs::read_to_string(log).unwrap();
    assert!(
        logged.contains("before") && logged.contains("the reason"),
        "{logged}"
    );
    assert_eq!(names(&home), ["base"]);
    home.assert_nothing_left("after a failed build");

    home.file("half.toml", spec("cat ~/one && echo two > ~/two"));
    let fixed = home.run(["template", "build", "half.toml", "--json"]);
    let expected = [("started", 0), ("cached", 1), ("done", 2), ("finished", 0)];
    assert_eq!(events(&fixed), kinds(&expected), "{fixed:#?}");
    let seen = home.run([
        "run",
        "-t",
        "half",
        "--lang",
        "bash",
        "-c",
        "cat ~/one ~/two",
    ]);
    assert_eq!(seen, Finished::printed("one\ntwo\n"));
}

#[test]
fn a_build_that_was_killed_leaves_nothing_in_the_way_of_the_next() {
    let home = home_for_builds();
    home.file(
        "slow.toml",
        "name = \"slow\"\nfrom = { template = \"base\" }\n[[steps]]\nrun = \"echo one > ~/one\"\n[[steps]]\nrun = \"echo reached; test -e /tmp/go || sleep 1000\"\n",
    );
    let mut running = home
        .atoll(["template", "build", "slow.toml", "--json"])
        .start();
    running.wait_for("\"text\":\"reached\\n\"");
    running.signal_group(Signal::KILL);
    assert_eq!(running.finish().code, -9);
    home.assert_nothing_left("after SIGKILL of a build");
    assert_eq!(names(&home), ["base"]);

    let spec = fs::read_to_string(home.work().join("slow.toml")).unwrap();
    home.file("slow.toml", spec.replace("sleep 1000", "true"));
    let built = home.run(["template", "build", "slow.toml", "--json"]);
    let expected = [("started", 0), ("cached", 1), ("done", 2), ("finished", 0)];
    assert_eq!(events(&built), kinds(&expected), "{built:#?}");
    let seen = home.run(["run", "-t", "slow", "--lang", "bash", "-c", "cat ~/one"]);
    assert_eq!(seen, Finished::printed("one\n"));
}

#[test]
fn ctrl_c_ends_a_build_and_leaves_nothing() {
    let home = home_for_builds();
    home.file("slow.toml", "name = \"slow\"\nfrom = { template = \"base\" }\n[[steps]]\nrun = \"echo reached; sleep 1000\"\n");
    let mut running = home
        .atoll(["template", "build", "slow.toml", "--json"])
        .start();
    running.wait_for("\"text\":\"reached\\n\"");
    running.signal_group(Signal::INT);
    let code = running.finish().code;
    assert!([130, -2].contains(&code), "{code}");
    home.assert_nothing_left("after Ctrl-C of a build");
}

#[test]
fn two_builds_of_the_same_template_wait_for_each_other() {
    let home = home_for_builds();
    home.file("go.toml", "name = \"go\"\nfrom = { template = \"base\" }\n[[steps]]\nrun = \"echo reached; sleep 1\"\n");
    let mut first = home
        .atoll(["template", "build", "go.toml", "--json"])
        .start();
    first.wait_for("\"text\":\"reached\\n\"");
    let second = home.run(["template", "build", "go.toml", "--json"]);
    assert_eq!(first.finish().code, 0);
    let waited = [
        ("waiting", 0),
        ("started", 0),
        ("cached", 1),
        ("finished", 0),
    ];
    let not = [("started", 0), ("cached", 1), ("finished", 0)];
    assert!(
        [kinds(&waited), kinds(&not)].contains(&events(&second)),
        "{second:#?}"
    );
}

#[test]
fn files_come_only_from_the_directory_of_the_spec() {
    let home = home_for_builds();
    home.file("secret", "not for the template");
    home.file("specs/inside/file", "fine");
    symlink("../secret", home.work().join("specs/link")).unwrap();
    symlink("/etc", home.work().join("specs/inside/etc")).unwrap();
    for from in [
        "../secret",
        "/etc/passwd",
        "link",
        "inside",
        "inside/../../secret",
        "missing",
    ] {
        home.file(
            "specs/bad.toml",
            format!("name = \"bad\"\nfrom = {{ template = \"base\" }}\n[[steps]]\ncopy = {{ from = \"{from}\", to = \"/tmp/\" }}\n"),
        );
        let refused = home.run(["template", "build", "specs/bad.toml"]);
        assert_eq!(refused.code, 125, "{from}: {refused:#?}");
        let error = refused.stderr.lines().last().unwrap_or_default();
        assert!(
            refused.stderr.contains("error: ")
                && refused.stderr.contains(from.rsplit('/').next().unwrap()),
            "{from}: {error}"
        );
    }
    assert_eq!(names(&home), ["base"]);
    assert_eq!(home.endings(), Vec::<Value>::new(), "a sandbox was made");
}

#[test]
fn mistakes_in_a_spec_are_named_with_their_line() {
    let home = home_for_builds();
    let head = "name = \"bad\"\nfrom = { template = \"base\" }\n";
    for (spec, parts) in [
        (
            format!("{head}colour = \"red\"\n"),
            vec!["unknown field `colour`", "line 3"],
        ),
        (
            format!("{head}[[steps]]\nrum = \"true\"\n"),
            vec!["unknown field `rum`", "line 4"],
        ),
        (
            format!("{head}[[steps]]\nrun = \"true\"\nworkdir = \"/\"\n"),
            vec!["steps[0]", "exactly one of"],
        ),
        (format!("{head}user = \"a b\"\n"), vec!["`user`", "line 3"]),
        (
            format!("{head}resources = {{ memory_mib = 1 }}\n"),
            vec!["`resources`", "line 3", "16..="],
        ),
        (
            "name = \"x y\"\nfrom = \"host\"\n".to_owned(),
            vec!["`name`", "line 1"],
        ),
        (
            "name = \"bad\"\nfrom = { template = \"bad\" }\n".to_owned(),
            vec!["names the template itself"],
        ),
        (
            "name = \"bad\"\nfrom = { template = \"nobody\" }\n".to_owned(),
            vec!["nobody"],
        ),
        ("name = \"bad\"\n".to_owned(), vec!["missing field `from`"]),
        ("name = ".to_owned(), vec!["line 1"]),
    ] {
        home.file("bad.toml", &spec);
        let refused = home.run(["template", "build", "bad.toml"]);
        assert_eq!(
            (refused.code, refused.stdout.as_str()),
            (125, ""),
            "{spec}{refused:#?}"
        );
        for part in ["error: "].iter().chain(&parts) {
            assert!(
                refused.stderr.contains(part),
                "{part:?} for {spec}: {}",
                refused.stderr
            );
        }
    }
    assert_eq!(names(&home), ["base"]);
}

#[test]
fn removing_frees_what_no_other_template_uses() {
    let home = home_for_builds();
    let before = layers(&home);
    for (name, own) in [("one", "own of one"), ("two", "own of two")] {
        home.file(
            &format!("{name}.toml"),
            format!("name = \"{name}\"\nfrom = {{ template = \"base\" }}\n[[steps]]\nrun = \"echo shared > ~/shared\"\n[[steps]]\nrun = \"echo {own} > ~/own\"\n"),
        );
        home.run(["template", "build", &format!("{name}.toml")])
            .succeeded();
    }
    assert_eq!(names(&home), ["base", "one", "two"]);
    let table = home.run(["template", "list"]).succeeded();
    let shown: Vec<&str> = table
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(shown, ["NAME", "base", "one", "two"]);
    let both = layers(&home);

    assert_eq!(home.run(["template", "rm", "one"]), Finished::printed(""));
    let fewer = layers(&home);
    assert!(fewer.is_subset(&both) && before.is_subset(&fewer));
    assert!(fewer.len() < both.len(), "nothing was freed");
    let look = [
        "run",
        "-t",
        "two",
        "--lang",
        "bash",
        "-c",
        "cat ~/shared ~/own",
    ];
    assert_eq!(home.run(look), Finished::printed("shared\nown of two\n"));

    assert_eq!(
        home.run(["template", "remove", "two"]),
        Finished::printed("")
    );
    assert_eq!(layers(&home), before);
    assert_eq!(names(&home), ["base"]);
    assert_eq!(home.python("print(6*7)"), Finished::printed("42\n"));
    // What the cache remembers of removed layers does not mislead a new build.
    home.run(["template", "build", "one.toml"]).succeeded();
    let look = [
        "run",
        "-t",
        "one",
        "--lang",
        "bash",
        "-c",
        "cat ~/shared ~/own",
    ];
    assert_eq!(home.run(look), Finished::printed("shared\nown of one\n"));

    let gone = home.run(["template", "rm", "two"]);
    assert_eq!(gone.code, 125);
    assert_eq!(
        gone.stderr,
        "error: there is no template `two`\nhint: templates: base, code-interpreter-v1, code-interpreter-v1-slim, code-interpreter-v1-tiny, one\n"
    );
}

#[test]
fn a_template_is_not_removed_under_a_build() {
    let home = home_for_builds();
    home.file("go.toml", "name = \"go\"\nfrom = { template = \"base\" }\n[[steps]]\nrun = \"echo reached; sleep 1000\"\n");
    let mut running = home
        .atoll(["template", "build", "go.toml", "--json"])
        .start();
    running.wait_for("\"text\":\"reached\\n\"");
    let refused = home.run(["template", "rm", "base"]);
    assert_eq!(refused.code, 125);
    assert!(refused.stderr.contains("is being built"), "{refused:#?}");
    running.signal_group(Signal::KILL);
    running.finish();
    eventually("the end of the build", || {
        home.leases().is_empty().then_some(())
    });
    assert_eq!(names(&home), ["base"]);
}

/// A host without a network: no mirror, no name server, not even a loopback that is up.
const UNPLUGGED: [&str; 2] = ["unshare", "--net"];

#[test]
fn a_mirror_out_of_reach_leads_to_the_way_without_one() {
    let home = home_for_builds();
    let failed = home
        .atoll(["template", "build", "base"])
        .through(UNPLUGGED)
        .finish();
    assert_eq!(failed.code, 125, "{failed:#?}");
    assert!(
        failed
            .stderr
            .contains("error: cannot make the first layer: `mmdebstrap` failed"),
        "{failed:#?}"
    );
    let hints: Vec<&str> = failed
        .stderr
        .lines()
        .filter(|line| line.starts_with("hint: "))
        .collect();
    assert_eq!(hints.len(), 1, "{failed:#?}");
    assert!(
        hints[0].contains("template build base --offline"),
        "{hints:?}"
    );
    assert_eq!(
        home.python("print(6*7)"),
        Finished::printed("42\n"),
        "the template of before is as it was"
    );
}

#[test]
#[ignore = "long: copies hundreds of megabytes of packages"]
fn a_host_without_a_network_builds_a_template_that_works() {
    let home = TestHome::empty();
    let unplugged = |arguments: &[&str]| home.atoll(arguments).through(UNPLUGGED).finish();
    let built = unplugged(&["template", "build", "base", "--offline"]);
    assert_eq!(
        (built.code, built.stdout.as_str()),
        (0, "base\n"),
        "{built:#?}"
    );
    let run = |language: &str, text: &str| unplugged(&["run", "--lang", language, "-c", text]);
    assert_eq!(
        run("python", "import json, ssl; print(json.dumps(6 * 7))"),
        Finished::printed("42\n")
    );
    assert_eq!(
        run("bash", "id -un; pwd; echo made > file; cat file"),
        Finished::printed("user\n/home/user\nmade\n")
    );
    // What the host lacks, the template lacks.
    if std::path::Path::new("/usr/bin/sudo").exists() {
        assert_eq!(run("bash", "sudo id -u"), Finished::printed("0\n"));
    }
    let inspected = home.run(["template", "inspect", "base"]).json();
    assert_eq!(inspected["user"], "user", "{inspected:#}");
}
