//! The builder with a workshop that only pretends.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use atoll_engine::Outcome;
use atoll_store::{Digest, no_progress};
use bytes::Bytes;
use tempfile::TempDir;

use super::{BuildError, BuildOptions, Builder, Builtin, CacheUse};
use crate::templates::workshop::{Boxed, Job, Output, Performed, Task, Workshop};
use crate::templates::{
    BuildEvent, CatalogError, OutputStream, Resources, Template, TemplateId, TemplateSpec,
    WorkshopError,
};

/// Remembers jobs; each changes one file. A command with `fail` in it fails.
#[derive(Default)]
struct Pretend {
    jobs: Mutex<Vec<String>>,
}

impl Pretend {
    fn jobs(&self) -> Vec<String> {
        std::mem::take(&mut self.jobs.lock().unwrap())
    }
}

impl Workshop for Pretend {
    fn perform<'step>(
        &'step self,
        job: Job<'step>,
        output: Output<'step>,
    ) -> Boxed<'step, Result<Performed, WorkshopError>> {
        Box::pin(async move {
            let task = match &job.task {
                Task::Run(command) => format!("run {command}"),
                Task::Copy { selection, to } => format!("copy {} to {to}", selection.entries.len()),
                Task::MakeWorkdir => "mkdir".to_owned(),
            };
            let text = format!(
                "{task} as {} in {} over {}",
                job.user,
                job.workdir,
                job.layers.len()
            );
            self.jobs.lock().unwrap().push(text.clone());
            output(OutputStream::Stdout, Bytes::from(format!("{text}\n")));
            if task.contains("fail") {
                return Err(WorkshopError::Ended(Outcome::Exited { code: 7 }));
            }
            assert!(job.layers.iter().all(|layer| layer.is_dir()));
            let changes = tempfile::tempdir().unwrap();
            let directory = changes.path().to_owned();
            fs::write(directory.join("changed"), format!("{text} {:?}", job.env)).unwrap();
            let discard = Box::pin(async move {
                changes.close().unwrap();
                Ok(())
            });
            Ok(Performed { directory, discard })
        })
    }
}

struct Setting {
    home: TempDir,
    context: TempDir,
    workshop: Arc<Pretend>,
    builder: Builder,
    parent: Template,
}

/// A home with a template `parent` of one layer.
async fn setting() -> Setting {
    let home = tempfile::tempdir().unwrap();
    let workshop = Arc::new(Pretend::default());
    let builder =
        Builder::with_workshop(home.path(), Arc::clone(&workshop) as Arc<dyn Workshop>).unwrap();
    let tree = tempfile::tempdir().unwrap();
    fs::write(tree.path().join("parent"), "parent").unwrap();
    let layer = builder
        .catalog()
        .layers()
        .import_tree(tree.path(), no_progress())
        .await
        .unwrap();
    let parent = Template {
        name: "parent".parse().unwrap(),
        id: TemplateId::random().unwrap(),
        layers: vec![layer.digest],
        env: [("FROM".to_owned(), "parent".to_owned())].into(),
        user: "root".to_owned(),
        workdir: "/".to_owned(),
        start_cmd: None,
        ready_cmd: None,
        resources: Resources::default(),
        created_at_ms: 1,
        spec_hash: Digest::of(b"parent"),
        total_bytes: layer.bytes,
        memory: None,
    };
    builder.catalog().save(&parent).unwrap();
    Setting {
        home,
        context: tempfile::tempdir().unwrap(),
        workshop,
        builder,
        parent,
    }
}

impl Setting {
    fn spec(&self, name: &str, steps: &str) -> TemplateSpec {
        let text = format!("name = \"{name}\"\nfrom = {{ template = \"parent\" }}\n{steps}");
        let spec = TemplateSpec::parse(&text, "test").unwrap();
        TemplateSpec {
            context: Some(self.context.path().to_owned()),
            ..spec
        }
    }

    async fn build(&self, spec: &TemplateSpec) -> Result<Template, BuildError> {
        self.builder
            .build(spec, &BuildOptions::default(), &mut |_| {})
            .await
    }
}

const STEPS: &str = r#"
    env = { A = "1" }
    user = "user"
    workdir = "/home/user"
    [[steps]]
    run = "one"
    [[steps]]
    env = { B = "2" }
    [[steps]]
    user = "builder"
    [[steps]]
    workdir = "/srv"
    [[steps]]
    run = "two"
    user = "root"
    [[steps]]
    run = "three"
"#;

#[tokio::test]
async fn steps_run_in_order_and_only_once() {
    let setting = setting().await;
    let spec = setting.spec("app", STEPS);
    let mut events = Vec::new();
    let template = setting
        .builder
        .build(&spec, &BuildOptions::default(), &mut |event| {
            events.push(event);
        })
        .await
        .unwrap();
    let expected = [
        "run one as root in / over 1",
        "mkdir as builder in /srv over 2",
        "run two as root in /srv over 3",
        "run three as builder in /srv over 4",
    ];
    assert_eq!(setting.workshop.jobs(), expected);
    assert_eq!(
        (template.layers.len(), template.layers.last()),
        (5, setting.parent.layers.last())
    );
    let env: Vec<_> = template
        .env
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    assert_eq!(env, ["A=1", "B=2", "FROM=parent"]);
    assert_eq!(
        (template.user.as_str(), template.workdir.as_str()),
        ("user", "/home/user")
    );
    assert!(template.total_bytes > setting.parent.total_bytes);
    assert_eq!(
        setting.builder.catalog().get(&spec.name).unwrap(),
        Some(template.clone())
    );
    assert!(matches!(
        events.first(),
        Some(BuildEvent::Started { steps: 6, .. })
    ));
    assert!(matches!(events.last(), Some(BuildEvent::Finished { .. })));

    // The top layer holds what the last step changed, and saw all variables.
    let top = setting.builder.catalog().layers().path(&template.layers[0]);
    let changed = fs::read_to_string(top.join("changed")).unwrap();
    assert!(
        changed.starts_with("run three") && changed.contains("\"B\": \"2\""),
        "{changed}"
    );

    let again = setting.build(&spec).await.unwrap();
    assert_eq!(setting.workshop.jobs(), Vec::<String>::new());
    assert_eq!((&again.layers, &again.id), (&template.layers, &template.id));
    let options = BuildOptions {
        cache: CacheUse::Ignore,
        ..BuildOptions::default()
    };
    setting
        .builder
        .build(&spec, &options, &mut |_| {})
        .await
        .unwrap();
    assert_eq!(setting.workshop.jobs(), expected);
}

#[tokio::test]
async fn a_failed_build_tells_why_and_goes_on_where_it_failed() {
    let setting = setting().await;
    let broken = setting.spec(
        "app",
        "[[steps]]\nrun = \"one\"\n[[steps]]\nrun = \"fail\"\n[[steps]]\nrun = \"two\"",
    );
    match setting.build(&broken).await.unwrap_err() {
        BuildError::Step {
            number,
            text,
            exit,
            lines,
            log,
        } => {
            assert_eq!(
                (number, text.as_str(), exit.as_str()),
                (2, "run fail", "exited with status 7")
            );
            assert_eq!(lines, ["run fail as root in / over 2"]);
            let log = fs::read_to_string(log).unwrap();
            assert!(
                log.contains("==> step 1: run one\nrun one as root")
                    && log.contains("==> step 2: run fail"),
                "{log}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(setting.builder.catalog().get(&broken.name).unwrap(), None);
    setting.workshop.jobs();
    let fixed = setting.spec(
        "app",
        "[[steps]]\nrun = \"one\"\n[[steps]]\nrun = \"good\"\n[[steps]]\nrun = \"two\"",
    );
    setting.build(&fixed).await.unwrap();
    assert_eq!(
        setting.workshop.jobs(),
        [
            "run good as root in / over 2",
            "run two as root in / over 3"
        ]
    );
}

#[tokio::test]
async fn a_change_is_followed_from_its_step_on() {
    let setting = setting().await;
    let file = setting.context.path().join("app.py");
    fs::write(&file, "1").unwrap();
    let steps = "[[steps]]\nrun = \"one\"\n[[steps]]\ncopy = { from = \"app.py\", to = \"/srv/\" }\n[[steps]]\nrun = \"two\"";
    let spec = setting.spec("app", steps);
    let first = setting.build(&spec).await.unwrap();
    assert_eq!(setting.workshop.jobs().len(), 3);
    fs::write(&file, "2").unwrap();
    let second = setting.build(&spec).await.unwrap();
    assert_eq!(
        setting.workshop.jobs()[0],
        "copy 1 to /srv/ as root in / over 2"
    );
    assert_ne!(first.spec_hash, second.spec_hash);
    // Another environment for the same command is another step.
    let spec = setting.spec("app", &format!("env = {{ X = \"1\" }}\n{steps}"));
    setting.build(&spec).await.unwrap();
    assert_eq!(setting.workshop.jobs().len(), 3);
    // Variables of the build itself are not.
    let options = BuildOptions {
        build_env: [("PIP_INDEX_URL".to_owned(), "x".to_owned())].into(),
        ..BuildOptions::default()
    };
    let template = setting
        .builder
        .build(&spec, &options, &mut |_| {})
        .await
        .unwrap();
    assert_eq!(setting.workshop.jobs().len(), 0);
    assert!(!template.env.contains_key("PIP_INDEX_URL"));
    fs::remove_file(&file).unwrap();
    assert!(matches!(
        setting.build(&spec).await,
        Err(BuildError::Context { number: 2, .. })
    ));
}

#[tokio::test]
async fn removing_a_template_keeps_what_others_and_sandboxes_use() {
    let setting = setting().await;
    let catalog = setting.builder.catalog();
    let left = setting
        .build(&setting.spec(
            "left",
            "[[steps]]\nrun = \"same\"\n[[steps]]\nrun = \"left\"",
        ))
        .await
        .unwrap();
    let right = setting
        .build(&setting.spec(
            "right",
            "[[steps]]\nrun = \"same\"\n[[steps]]\nrun = \"right\"",
        ))
        .await
        .unwrap();
    assert_eq!(left.layers[1], right.layers[1]);
    catalog
        .remove(&left.name, &|| Ok(BTreeSet::new()))
        .await
        .unwrap();
    assert!(!catalog.layers().path(&left.layers[0]).exists());
    assert_eq!(catalog.layer_directories(&right).await.unwrap().len(), 3);

    let in_use = BTreeSet::from([right.layers[0].clone()]);
    catalog
        .remove(&right.name, &|| Ok(in_use.clone()))
        .await
        .unwrap();
    assert!(catalog.layers().path(&right.layers[0]).is_dir());
    assert_eq!(
        catalog
            .collect_garbage(&|| Ok(BTreeSet::new()))
            .await
            .unwrap(),
        [right.layers[0].clone()]
    );
    assert_eq!(catalog.layers().list().unwrap(), setting.parent.layers);
    assert!(matches!(
        catalog.remove(&right.name, &|| Ok(in_use.clone())).await,
        Err(CatalogError::Missing(_))
    ));

    // What is gone is made anew.
    setting.workshop.jobs();
    setting
        .build(&setting.spec("right", "[[steps]]\nrun = \"same\""))
        .await
        .unwrap();
    assert_eq!(setting.workshop.jobs().len(), 1);
    let blobs = fs::read_dir(setting.home.path().join("blobs/sha256"))
        .unwrap()
        .count();
    assert_eq!(blobs, 2);
}

#[tokio::test]
async fn a_lost_tree_is_unpacked_from_its_blob() {
    let setting = setting().await;
    let template = setting
        .build(&setting.spec("app", "[[steps]]\nrun = \"one\""))
        .await
        .unwrap();
    let catalog = setting.builder.catalog();
    fs::remove_dir_all(catalog.layers().path(&template.layers[0])).unwrap();
    let directories = crate::templates::layer_directories(setting.home.path(), &template)
        .await
        .unwrap();
    assert!(directories.iter().all(|directory| Path::is_dir(directory)));
}

#[tokio::test]
async fn two_builds_of_one_template_do_not_collide() {
    let setting = setting().await;
    let spec = setting.spec("app", STEPS);
    // Either of the two may come first; the other one waits, and says so once.
    let waited = Mutex::new(0);
    let note = |event: BuildEvent| {
        if matches!(event, BuildEvent::Waiting { .. }) {
            *waited.lock().unwrap() += 1;
        }
    };
    let options = BuildOptions::default();
    let (mut first_note, mut second_note) = (note, note);
    let (first, second) = tokio::join!(
        setting.builder.build(&spec, &options, &mut first_note),
        setting.builder.build(&spec, &options, &mut second_note),
    );
    assert_eq!(first.unwrap().layers, second.unwrap().layers);
    assert_eq!(setting.workshop.jobs().len(), 4);
    assert_eq!(*waited.lock().unwrap(), 1);
}

#[tokio::test]
async fn a_missing_parent_and_an_unknown_built_in_are_named() {
    let setting = setting().await;
    let spec = TemplateSpec::parse("name = \"x\"\nfrom = { template = \"moon\" }", "test").unwrap();
    let error = setting.build(&spec).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the template `moon`, from which this one is made, does not exist"
    );
    let options = BuildOptions::default();
    let name = "moon".parse().unwrap();
    let error = setting
        .builder
        .ensure_builtin(&name, &options, &mut |_| {})
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "there is no built-in template `moon`");
}

#[tokio::test]
async fn a_built_in_template_comes_with_what_it_is_made_from() {
    let setting = setting().await;
    let base = Template {
        name: "base".parse().unwrap(),
        ..setting.parent.clone()
    };
    setting.builder.catalog().save(&base).unwrap();
    let (full, slim) = (
        "code-interpreter-v1".parse().unwrap(),
        "code-interpreter-v1-slim".parse().unwrap(),
    );
    let options = BuildOptions::default();
    let mut begun = Vec::new();
    let template = setting
        .builder
        .build_builtin(&full, &options, &mut |event| {
            if let BuildEvent::Started { name, .. } = event {
                begun.push(name.to_string());
            }
        })
        .await
        .unwrap();
    assert_eq!(
        begun,
        [
            "code-interpreter-v1-tiny",
            "code-interpreter-v1-slim",
            "code-interpreter-v1"
        ]
    );
    // Files are copied in, although nobody has a directory of them.
    let jobs = setting.workshop.jobs();
    assert!(
        jobs.iter()
            .any(|job| job.ends_with("to /usr/local/lib/atoll-kernels as user in / over 3")),
        "{jobs:#?}"
    );
    let parent = setting.builder.catalog().get(&slim).unwrap().unwrap();
    assert!(template.layers.ends_with(&parent.layers));
    assert_eq!(template.resources.memory_mib, Some(4096));

    // What is there is taken as it is.
    let mut begun = Vec::new();
    let again = setting
        .builder
        .build_builtin(&full, &options, &mut |event| {
            if let BuildEvent::Started { name, .. } = event {
                begun.push(name.to_string());
            }
        })
        .await
        .unwrap();
    assert_eq!(begun, ["code-interpreter-v1"]);
    assert_eq!(setting.workshop.jobs(), Vec::<String>::new());
    assert_eq!(again.spec_hash, template.spec_hash);
}

#[tokio::test]
async fn a_built_in_template_that_needs_the_network_says_so() {
    let setting = setting().await;
    let options = BuildOptions {
        builtin: Builtin::Offline,
        ..BuildOptions::default()
    };
    let name = "code-interpreter-v1".parse().unwrap();
    let error = setting
        .builder
        .build_builtin(&name, &options, &mut |_| {})
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the template `code-interpreter-v1` can only be built from the network"
    );
}
