//! `atoll template`: build, list, inspect, remove.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use atoll_control::templates::{
    BuildEvent, BuildOptions, Builder, Builtin, CacheUse, OutputStream, Template, TemplateCatalog,
    TemplateName, TemplateSpec, builtin_minutes, builtin_names, layers_in_use,
};
use atoll_engine::Tier;
use serde_json::json;

use crate::arguments::{BuildArguments, TemplateCommand};
use crate::failure::Hinted;
use crate::home::{Home, require_root};
use crate::quantity::show_bytes;
use crate::terminal::{self, Progress};

pub(crate) async fn template(home: &Home, command: &TemplateCommand) -> anyhow::Result<ExitCode> {
    match command {
        TemplateCommand::Build(arguments) => build(home, arguments).await?,
        TemplateCommand::List { json } => list(home, *json)?,
        TemplateCommand::Inspect { name } => {
            println!("{}", serde_json::to_string_pretty(&find(home, name)?)?);
        }
        TemplateCommand::Rm { name } => remove(home, name).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The template `name`, built first if it is a built-in one that is not there yet.
pub(crate) async fn ensure_template(home: &Home, name: &str) -> anyhow::Result<Template> {
    let parsed = parse_name(name)?;
    let catalog = TemplateCatalog::open(home.path())?;
    if let Some(template) = catalog.get(&parsed)? {
        return Ok(template);
    }
    let is_built = |name: &str| {
        let name = name.parse().ok();
        name.is_some_and(|name| matches!(catalog.get(&name), Ok(Some(_))))
    };
    let Some(minutes) = builtin_minutes(name, is_built) else {
        return Err(unknown(home, name));
    };
    let (least, most) = minutes.into_inner();
    let mut screen = Screen::new();
    screen.progress.line(&format!(
        "building the template `{name}`; this happens once and takes about {least} to {most} minutes"
    ));
    let options = BuildOptions::default().with_host_mirrors();
    let builder = Builder::new(home.path(), home.runtime(Tier::Container)?)?;
    let built = builder
        .ensure_builtin(&parsed, &options, &mut |event| screen.show(&event))
        .await;
    built.with_context(|| format!("cannot build the template `{name}`"))
}

async fn build(home: &Home, arguments: &BuildArguments) -> anyhow::Result<()> {
    require_root()?;
    let builder = Builder::new(home.path(), home.runtime(Tier::Container)?)?;
    let options = BuildOptions {
        cache: if arguments.no_cache {
            CacheUse::Ignore
        } else {
            CacheUse::Take
        },
        builtin: if arguments.offline {
            Builtin::Offline
        } else {
            Builtin::Network
        },
        ..BuildOptions::default()
    }
    .with_host_mirrors();
    let mut screen = Screen::new();
    screen.machine = arguments.json;
    let mut events = |event: BuildEvent| screen.show(&event);
    let path = Path::new(&arguments.spec);
    let template = if builtin_names().contains(&arguments.spec.as_str()) {
        builder
            .build_builtin(&parse_name(&arguments.spec)?, &options, &mut events)
            .await?
    } else if path.exists() {
        let spec = TemplateSpec::load(path)?;
        builder.build(&spec, &options, &mut events).await?
    } else {
        return Err(Hinted::error(
            format!(
                "there is no spec file `{}` and no built-in template of that name",
                arguments.spec
            ),
            format!("built-in templates: {}", builtin_names().join(", ")),
        ));
    };
    drop(screen);
    if !arguments.json {
        println!("{}", template.name);
    }
    Ok(())
}

/// What a person or a program sees of a build.
struct Screen {
    progress: Progress,
    machine: bool,
    /// Unfinished line of output per stream.
    line: Vec<u8>,
}

impl Screen {
    fn new() -> Self {
        Self {
            progress: Progress::new(),
            machine: false,
            line: Vec::new(),
        }
    }

    fn show(&mut self, event: &BuildEvent) {
        if self.machine {
            let mut out = std::io::stdout().lock();
            // Who closes the pipe does not want to know more.
            let _ = writeln!(out, "{}", as_json(event));
            return;
        }
        match event {
            BuildEvent::Waiting { name } => self
                .progress
                .line(&format!("waiting for another build of `{name}`")),
            BuildEvent::Started { .. } | BuildEvent::Finished { .. } => {}
            BuildEvent::Step { number, text } => {
                self.progress.line(&format!("[{number}] {text}"));
                self.progress.now(text);
            }
            BuildEvent::Cached { number } => self.progress.line(&format!("[{number}] cached")),
            BuildEvent::Output { bytes, .. } => self.output(bytes),
            BuildEvent::Progress { message, .. } => self.progress.now(message),
            BuildEvent::Storing { bytes, .. } => self
                .progress
                .now(&format!("storing the layer, {}", show_bytes(*bytes))),
            BuildEvent::Done {
                number,
                bytes,
                elapsed,
                ..
            } => {
                let seconds = elapsed.as_secs_f32();
                self.progress.line(&format!(
                    "[{number}] done in {seconds:.1} s, {}",
                    show_bytes(*bytes)
                ));
            }
            BuildEvent::Warning { message } => self.progress.line(&format!("warning: {message}")),
        }
    }

    fn output(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte == b'\n' {
                let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
                self.progress.line(&format!("    {}", printable(&line)));
            } else if self.line.len() < 4096 {
                self.line.push(byte);
            }
        }
    }
}

/// A line of a program's output without what would move the user's cursor.
fn printable(line: &str) -> String {
    line.chars()
        .filter(|character| !character.is_control() || *character == '\t')
        .collect()
}

fn as_json(event: &BuildEvent) -> serde_json::Value {
    match event {
        BuildEvent::Waiting { name } => json!({"event": "waiting", "template": name}),
        BuildEvent::Started { name, steps, log } => {
            json!({"event": "started", "template": name, "steps": steps, "log": log})
        }
        BuildEvent::Step { number, text } => {
            json!({"event": "step", "number": number, "text": text})
        }
        BuildEvent::Cached { number } => json!({"event": "cached", "number": number}),
        BuildEvent::Output {
            number,
            stream,
            bytes,
        } => {
            let stream = match stream {
                OutputStream::Stdout => "stdout",
                OutputStream::Stderr => "stderr",
            };
            json!({"event": "output", "number": number, "stream": stream, "text": String::from_utf8_lossy(bytes)})
        }
        BuildEvent::Progress { number, message } => {
            json!({"event": "progress", "number": number, "message": message})
        }
        BuildEvent::Storing { number, bytes } => {
            json!({"event": "storing", "number": number, "bytes": bytes})
        }
        BuildEvent::Done {
            number,
            layer,
            bytes,
            elapsed,
        } => {
            json!({"event": "done", "number": number, "layer": layer, "bytes": bytes, "elapsed_ms": elapsed.as_millis()})
        }
        BuildEvent::Warning { message } => json!({"event": "warning", "message": message}),
        BuildEvent::Finished {
            name,
            bytes,
            elapsed,
        } => {
            json!({"event": "finished", "template": name, "bytes": bytes, "elapsed_ms": elapsed.as_millis()})
        }
    }
}

fn list(home: &Home, json: bool) -> anyhow::Result<()> {
    let templates = TemplateCatalog::open(home.path())?.list()?;
    if json {
        println!("{}", serde_json::to_string(&templates)?);
        return Ok(());
    }
    if templates.is_empty() {
        eprintln!("no templates yet");
        eprintln!("hint: `atoll template build base` makes the default one");
        return Ok(());
    }
    let mut table = terminal::table();
    table.set_header(["NAME", "ID", "LAYERS", "SIZE", "USER", "WORKDIR"]);
    for template in &templates {
        table.add_row([
            template.name.as_str(),
            template.id.as_str(),
            &template.layers.len().to_string(),
            &show_bytes(template.total_bytes),
            &template.user,
            &template.workdir,
        ]);
    }
    println!("{table}");
    Ok(())
}

async fn remove(home: &Home, name: &str) -> anyhow::Result<()> {
    let template = find(home, name)?;
    let catalog = TemplateCatalog::open(home.path())?;
    catalog.remove(&template.name, &layers_in_use).await?;
    let left = catalog.garbage(&BTreeSet::new())?;
    if template.layers.iter().any(|layer| left.contains(layer)) {
        eprintln!("a running sandbox still stands on layers of `{name}`");
        eprintln!("hint: `atoll gc` removes them once it has ended");
    }
    Ok(())
}

fn find(home: &Home, name: &str) -> anyhow::Result<Template> {
    TemplateCatalog::open(home.path())?
        .get(&parse_name(name)?)?
        .ok_or_else(|| unknown(home, name))
}

fn parse_name(name: &str) -> anyhow::Result<TemplateName> {
    name.parse().map_err(|error| {
        Hinted::error(
            format!("{error}"),
            "`atoll template list` shows the templates of this home",
        )
    })
}

fn unknown(home: &Home, name: &str) -> anyhow::Error {
    let known = TemplateCatalog::open(home.path())
        .and_then(|catalog| catalog.list())
        .unwrap_or_default();
    let known: Vec<&str> = known
        .iter()
        .map(|template| template.name.as_str())
        .chain(builtin_names().iter().copied())
        .collect();
    let mut names: Vec<&str> = known;
    names.sort_unstable();
    names.dedup();
    Hinted::error(
        format!("there is no template `{name}`"),
        format!("templates: {}", names.join(", ")),
    )
}
