//! Spec files: a template as its author writes it.
//!
//! Steps begin as `root` in `/`, or with what the parent template has. The
//! `env` at the top is in force from the first step on; `user` and `workdir`
//! at the top are what sandboxes of the finished template get.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use atoll_engine::Limits;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::step::Step;
use super::{Resources, TemplateName};

/// What a template is made of, checked.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TemplateSpec {
    /// Its name.
    pub name: TemplateName,
    /// What it starts from.
    pub from: Source,
    /// Environment, in force from the first step on.
    pub env: BTreeMap<String, String>,
    /// User of sandboxes; `None` takes the one in force after the last step.
    pub user: Option<String>,
    /// Directory of sandboxes; `None` takes the one in force after the last step.
    pub workdir: Option<String>,
    /// Command that runs from the start of each sandbox.
    pub start_cmd: Option<String>,
    /// Command that succeeds once the start command is ready.
    pub ready_cmd: Option<String>,
    /// Limits it wants instead of the defaults.
    pub resources: Resources,
    /// What happens after the source, in order.
    pub steps: Vec<Step>,
    /// Directory that copy steps read from; `None` when there is none.
    #[serde(skip)]
    pub context: Option<PathBuf>,
}

/// What a template starts from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A fresh Debian (or Ubuntu) of the host's release, from the host's mirrors.
    Debian(DebianSource),
    /// A copy of an allow-listed part of the host's own packages.
    Host,
    /// Another template of this home.
    Template(TemplateName),
}

/// A fresh Debian.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DebianSource {
    /// Packages beside the essential ones and `apt`.
    pub packages: Vec<String>,
}

/// Why a spec was refused.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is not TOML, or a field is unknown, missing or of another type.
    /// The message has the line and shows it.
    #[error("{origin}: {message}")]
    Syntax {
        /// File name or other origin.
        origin: String,
        /// What is wrong and where.
        message: String,
    },
    /// A field has a value that cannot be.
    #[error("{origin}, line {line}: `{field}` {problem}")]
    Field {
        /// File name or other origin.
        origin: String,
        /// Where, from 1.
        line: usize,
        /// The field.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSpec {
    name: Spanned<String>,
    from: Spanned<Source>,
    #[serde(default)]
    env: Option<Spanned<BTreeMap<String, String>>>,
    user: Option<Spanned<String>>,
    workdir: Option<Spanned<String>>,
    start_cmd: Option<String>,
    ready_cmd: Option<String>,
    resources: Option<Spanned<Resources>>,
    #[serde(default)]
    steps: Vec<Spanned<RawStep>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStep {
    run: Option<String>,
    copy: Option<RawCopy>,
    env: Option<BTreeMap<String, String>>,
    user: Option<String>,
    workdir: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCopy {
    from: String,
    to: String,
}

impl TemplateSpec {
    /// Reads a spec file; its directory is what copy steps read from.
    ///
    /// # Errors
    /// When it cannot be read or is refused.
    pub fn load(path: &Path) -> Result<Self, SpecError> {
        let read = |source| SpecError::Read { path: path.to_owned(), source };
        let text = fs::read_to_string(path).map_err(read)?;
        let context = path.canonicalize().map_err(read)?.parent().map(Path::to_owned);
        Ok(Self { context, ..Self::parse(&text, &path.display().to_string())? })
    }

    /// Reads a spec from text; `origin` names it in messages.
    ///
    /// # Errors
    /// When it is refused.
    pub fn parse(text: &str, origin: &str) -> Result<Self, SpecError> {
        let raw: RawSpec = toml::from_str(text)
            .map_err(|error| SpecError::Syntax { origin: origin.to_owned(), message: error.to_string() })?;
        let check = Check { text, origin };
        let name = check.field("name", &raw.name, |name| name.parse().map_err(|error| format!("is refused: {error}")))?;
        let from = check.field("from", &raw.from, |from| checked_source(from, &raw.name))?;
        let env = match &raw.env {
            Some(env) => check.field("env", env, checked_env)?,
            None => BTreeMap::new(),
        };
        let user = raw.user.as_ref().map(|user| check.field("user", user, |user| checked_user(user))).transpose()?;
        let workdir =
            raw.workdir.as_ref().map(|path| check.field("workdir", path, |path| checked_directory(path))).transpose()?;
        let resources = match &raw.resources {
            Some(resources) => check.field("resources", resources, |resources| {
                let limits = resources.apply(Limits::default());
                limits.validate().map(|()| resources.clone()).map_err(|error| format!("cannot be: {error}"))
            })?,
            None => Resources::default(),
        };
        let mut steps = Vec::with_capacity(raw.steps.len());
        for (index, step) in raw.steps.iter().enumerate() {
            steps.push(check.field(&format!("steps[{index}]"), step, checked_step)?);
        }
        let (start_cmd, ready_cmd) = (raw.start_cmd, raw.ready_cmd);
        Ok(Self { name, from, env, user, workdir, start_cmd, ready_cmd, resources, steps, context: None })
    }
}

/// Where a message points to.
struct Check<'text> {
    text: &'text str,
    origin: &'text str,
}

impl Check<'_> {
    fn field<Raw, Checked>(
        &self,
        field: &str,
        value: &Spanned<Raw>,
        check: impl FnOnce(&Raw) -> Result<Checked, String>,
    ) -> Result<Checked, SpecError> {
        check(value.get_ref()).map_err(|problem| SpecError::Field {
            origin: self.origin.to_owned(),
            line: self.line(&value.span()),
            field: field.to_owned(),
            problem,
        })
    }

    fn line(&self, span: &Range<usize>) -> usize {
        self.text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1
    }
}

fn checked_source(source: &Source, name: &Spanned<String>) -> Result<Source, String> {
    match source {
        Source::Debian(debian) => {
            for package in &debian.packages {
                let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte);
                let starts = package.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
                if !starts || !package.bytes().all(allowed) {
                    return Err(format!("has `{package}`, which is not the name of a package"));
                }
            }
        }
        Source::Template(parent) if parent.as_str() == name.get_ref() => {
            return Err("names the template itself".to_owned());
        }
        Source::Host | Source::Template(_) => {}
    }
    Ok(source.clone())
}

fn checked_env(env: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, String> {
    for (name, value) in env {
        let valid = !name.is_empty()
            && !name.starts_with(|first: char| first.is_ascii_digit())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !valid {
            return Err(format!("has `{name}`, which is not the name of a variable"));
        }
        if value.contains('\0') {
            return Err(format!("has a zero byte in `{name}`"));
        }
    }
    Ok(env.clone())
}

fn checked_user(user: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let valid = (1..=32).contains(&user.len()) && user.bytes().all(allowed) && !user.starts_with(['-', '.']);
    if valid { Ok(user.to_owned()) } else { Err(format!("is `{}`, which is not the name of a user", user.escape_debug())) }
}

fn checked_directory(path: &str) -> Result<String, String> {
    let climbs = Path::new(path).components().any(|part| part == Component::ParentDir);
    if !path.starts_with('/') || climbs || path.contains('\0') || path.len() > 4000 {
        return Err(format!("is `{}`, but must be an absolute path without `..`", path.escape_debug()));
    }
    Ok(path.to_owned())
}

fn checked_step(step: &RawStep) -> Result<Step, String> {
    let user = step.user.as_deref().map(checked_user).transpose()?;
    match step {
        RawStep { run: Some(command), copy: None, env: None, workdir: None, .. } => {
            if command.trim().is_empty() || command.contains('\0') {
                return Err("has an empty `run`".to_owned());
            }
            Ok(Step::Run { command: command.clone(), user })
        }
        RawStep { run: None, copy: Some(copy), env: None, workdir: None, .. } => {
            let from = checked_context_path(&copy.from)?;
            let climbs = Path::new(&copy.to).components().any(|part| part == Component::ParentDir);
            if copy.to.is_empty() || climbs || copy.to.contains('\0') {
                return Err(format!("copies to `{}`, but that must be a path without `..`", copy.to.escape_debug()));
            }
            Ok(Step::Copy { from, to: copy.to.clone(), user })
        }
        RawStep { run: None, copy: None, env: Some(env), user: None, workdir: None } => checked_env(env).map(Step::Env),
        RawStep { run: None, copy: None, env: None, workdir: Some(path), user: None } => {
            checked_directory(path).map(Step::Workdir)
        }
        RawStep { run: None, copy: None, env: None, workdir: None, user: Some(_) } => {
            user.map(Step::User).ok_or_else(|| "has no user".to_owned())
        }
        _ => Err("must have exactly one of `run`, `copy`, `env`, `user` and `workdir` \
                  (`user` may stand beside `run` and `copy`)"
            .to_owned()),
    }
}

fn checked_context_path(from: &str) -> Result<PathBuf, String> {
    let path = Path::new(from);
    let inside = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if from.is_empty() || !inside || from.contains('\0') {
        return Err(format!("copies `{}`, but files come from the directory of the spec only", from.escape_debug()));
    }
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_spec_is_read() {
        let text = r#"
            name = "web"
            from = { template = "base" }
            env = { LANG = "C.UTF-8" }
            user = "user"
            workdir = "/home/user"
            start_cmd = "npm start"
            ready_cmd = "curl -f localhost:3000"
            resources = { memory_mib = 2048 }
            [[steps]]
            run = "apt-get update"
            [[steps]]
            user = "user"
            [[steps]]
            copy = { from = "app", to = "/srv/" }
            user = "root"
            [[steps]]
            env = { A = "b" }
            [[steps]]
            workdir = "/srv"
        "#;
        let expected = TemplateSpec {
            name: "web".parse().unwrap(),
            from: Source::Template("base".parse().unwrap()),
            env: [("LANG".to_owned(), "C.UTF-8".to_owned())].into(),
            user: Some("user".to_owned()),
            workdir: Some("/home/user".to_owned()),
            start_cmd: Some("npm start".to_owned()),
            ready_cmd: Some("curl -f localhost:3000".to_owned()),
            resources: Resources { memory_mib: Some(2048), ..Resources::default() },
            steps: vec![
                Step::Run { command: "apt-get update".to_owned(), user: None },
                Step::User("user".to_owned()),
                Step::Copy { from: "app".into(), to: "/srv/".to_owned(), user: Some("root".to_owned()) },
                Step::Env([("A".to_owned(), "b".to_owned())].into()),
                Step::Workdir("/srv".to_owned()),
            ],
            context: None,
        };
        assert_eq!(TemplateSpec::parse(text, "web.toml").unwrap(), expected);
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        let head = "name = \"x\"\nfrom = \"host\"\n";
        let cases = [
            ("name = \"X/y\"\nfrom = \"host\"", "s.toml, line 1: `name` is refused: `X/y` is not a template name"),
            ("name = \"x\"\nfrom = \"moon\"", "unknown variant `moon`"),
            ("name = \"x\"\nfrom = { template = \"x\" }", "line 2: `from` names the template itself"),
            ("name = \"x\"\nfrom = { debian = { packages = [\"a b\"] } }", "`a b`, which is not the name of a package"),
            ("name = \"x\"\nfrom = { debian = { packages = [], mirror = \"m\" } }", "unknown field `mirror`"),
            (&format!("{head}colour = 1"), "unknown field `colour`"),
            (&format!("{head}env = {{ \"1A\" = \"\" }}"), "line 3: `env` has `1A`"),
            (&format!("{head}workdir = \"home\""), "line 3: `workdir` is `home`, but must be an absolute path"),
            (&format!("{head}resources = {{ memory_mib = 1 }}"), "line 3: `resources` cannot be: memory (MiB) = 1"),
            (&format!("{head}[[steps]]\nrun = \"a\"\nenv = {{}}"), "line 3: `steps[0]` must have exactly one of"),
            (&format!("{head}[[steps]]"), "line 3: `steps[0]` must have exactly one of"),
            (&format!("{head}[[steps]]\nuser = \"a b\""), "which is not the name of a user"),
            (&format!("{head}[[steps]]\ncopy = {{ from = \"../x\", to = \"/x\" }}"), "copies `../x`, but files come from"),
            (&format!("{head}[[steps]]\ncopy = {{ from = \"/etc/passwd\", to = \"/x\" }}"), "copies `/etc/passwd`, but"),
            (&format!("{head}[[steps]]\ncopy = {{ from = \"x\", to = \"/../x\" }}"), "copies to `/../x`, but"),
        ];
        for (text, expected) in cases {
            let message = TemplateSpec::parse(text, "s.toml").unwrap_err().to_string();
            assert!(message.contains(expected), "{text}\n{message}");
        }
    }
}
