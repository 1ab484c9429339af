//! Spec files: a template as its author writes it.
//!
//! Steps begin as `root` in `/`, or with what the parent template has. The
//! `env` at the top is in force from the first step on; `user` and `workdir`
//! at the top are what sandboxes of the finished template get.

mod check;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use atoll_engine::Limits;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use check::{Check, checked_directory, checked_env, checked_source, checked_step, checked_user};

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
        let read = |source| SpecError::Read {
            path: path.to_owned(),
            source,
        };
        let text = fs::read_to_string(path).map_err(read)?;
        let context = path
            .canonicalize()
            .map_err(read)?
            .parent()
            .map(Path::to_owned);
        Ok(Self {
            context,
            ..Self::parse(&text, &path.display().to_string())?
        })
    }

    /// Reads a spec from text; `origin` names it in messages.
    ///
    /// # Errors
    /// When it is refused.
    pub fn parse(text: &str, origin: &str) -> Result<Self, SpecError> {
        let raw: RawSpec = toml::from_str(text).map_err(|error| SpecError::Syntax {
            origin: origin.to_owned(),
            message: error.to_string(),
        })?;
        let check = Check { text, origin };
        let name = check.field("name", &raw.name, |name| {
            name.parse().map_err(|error| format!("is refused: {error}"))
        })?;
        let from = check.field("from", &raw.from, |from| checked_source(from, &raw.name))?;
        let env = match &raw.env {
            Some(env) => check.field("env", env, checked_env)?,
            None => BTreeMap::new(),
        };
        let user = raw
            .user
            .as_ref()
            .map(|user| check.field("user", user, |user| checked_user(user)))
            .transpose()?;
        let workdir = raw
            .workdir
            .as_ref()
            .map(|path| check.field("workdir", path, |path| checked_directory(path)))
            .transpose()?;
        let resources = match &raw.resources {
            Some(resources) => check.field("resources", resources, |resources| {
                let limits = resources.apply(&Limits::default());
                limits
                    .validate()
                    .map(|()| resources.clone())
                    .map_err(|error| format!("cannot be: {error}"))
            })?,
            None => Resources::default(),
        };
        let mut steps = Vec::with_capacity(raw.steps.len());
        for (index, step) in raw.steps.iter().enumerate() {
            steps.push(check.field(&format!("steps[{index}]"), step, checked_step)?);
        }
        let (start_cmd, ready_cmd) = (raw.start_cmd, raw.ready_cmd);
        Ok(Self {
            name,
            from,
            env,
            user,
            workdir,
            start_cmd,
            ready_cmd,
            resources,
            steps,
            context: None,
        })
    }
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
            resources: Resources {
                memory_mib: Some(2048),
                ..Resources::default()
            },
            steps: vec![
                Step::Run {
                    command: "apt-get update".to_owned(),
                    user: None,
                },
                Step::User("user".to_owned()),
                Step::Copy {
                    from: "app".into(),
                    to: "/srv/".to_owned(),
                    user: Some("root".to_owned()),
                },
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
            (
                "name = \"X/y\"\nfrom = \"host\"",
                "s.toml, line 1: `name` is refused: `X/y` is not a template name",
            ),
            ("name = \"x\"\nfrom = \"moon\"", "unknown variant `moon`"),
            (
                "name = \"x\"\nfrom = { template = \"x\" }",
                "line 2: `from` names the template itself",
            ),
            (
                "name = \"x\"\nfrom = { debian = { packages = [\"a b\"] } }",
                "`a b`, which is not the name of a package",
            ),
            (
                "name = \"x\"\nfrom = { debian = { packages = [], mirror = \"m\" } }",
                "unknown field `mirror`",
            ),
            (&format!("{head}colour = 1"), "unknown field `colour`"),
            (
                &format!("{head}env = {{ \"1A\" = \"\" }}"),
                "line 3: `env` has `1A`",
            ),
            (
                &format!("{head}workdir = \"home\""),
                "line 3: `workdir` is `home`, but must be an absolute path",
            ),
            (
                &format!("{head}resources = {{ memory_mib = 1 }}"),
                "line 3: `resources` cannot be: memory (MiB) = 1",
            ),
            (
                &format!("{head}[[steps]]\nrun = \"a\"\nenv = {{}}"),
                "line 3: `steps[0]` must have exactly one of",
            ),
            (
                &format!("{head}[[steps]]"),
                "line 3: `steps[0]` must have exactly one of",
            ),
            (
                &format!("{head}[[steps]]\nuser = \"a b\""),
                "which is not the name of a user",
            ),
            (
                &format!("{head}[[steps]]\ncopy = {{ from = \"../x\", to = \"/x\" }}"),
                "copies `../x`, but files come from",
            ),
            (
                &format!("{head}[[steps]]\ncopy = {{ from = \"/etc/passwd\", to = \"/x\" }}"),
                "copies `/etc/passwd`, but",
            ),
            (
                &format!("{head}[[steps]]\ncopy = {{ from = \"x\", to = \"/../x\" }}"),
                "copies to `/../x`, but",
            ),
        ];
        for (text, expected) in cases {
            let message = TemplateSpec::parse(text, "s.toml").unwrap_err().to_string();
            assert!(message.contains(expected), "{text}\n{message}");
        }
    }
}
