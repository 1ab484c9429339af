//! Attack programs: their headers, how they are put together, and what they say.
//!
//! A program is a file `attacks/<group>/<name>.py` that begins with a header:
//!
//! ```text
//! # tried: what the attacker does
//! # wall: what should stop it
//! # control: room | room in net,mount | room pivoted | room leak | inside pid=own | neighbour | observer | looser pids=256
//! ```
//!
//! and may have `user: user` (else root), `limits: pids=32` (a sandbox of its
//! own), `alone`, `cwd:` directories, `target: name=value`, and for gVisor
//! `wall-gvisor:` and `skip-gvisor:` (or `skip-gvisor-<variant>:`). A `{variant}` in it is replaced.

use serde::Deserialize;

use crate::case::{Attack, Case, Control, Namespace, Numbers, Place, Program, Target, User};

/// What all programs have in common.
const PRELUDE: &str = include_str!("../attacks/prelude.py");

/// What a program reports, in one line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Report {
    pub(crate) success: bool,
    pub(crate) got: String,
    #[serde(default)]
    pub(crate) detail: String,
    /// What this kernel or host does not have, so that nothing could be tried.
    #[serde(default)]
    pub(crate) absent: Option<String>,
}

impl Report {
    pub(crate) fn failed(got: impl Into<String>) -> Self {
        Self {
            success: false,
            got: got.into(),
            detail: String::new(),
            absent: None,
        }
    }

    pub(crate) fn succeeded(got: impl Into<String>) -> Self {
        Self {
            success: true,
            ..Self::failed(got)
        }
    }

    /// The last line of `output` that is a report.
    pub(crate) fn find(output: &[u8]) -> Option<Self> {
        String::from_utf8_lossy(output)
            .lines()
            .rev()
            .find_map(|line| serde_json::from_str(line).ok())
    }
}

/// The whole text that Python gets.
pub(crate) fn text(body: &str, target: &serde_json::Map<String, serde_json::Value>) -> String {
    let target = serde_json::Value::Object(target.clone()).to_string();
    // JSON twice: the second time as a literal that Python reads the same way.
    let literal = serde_json::Value::String(target).to_string();
    format!("{PRELUDE}\nTARGET = json.loads({literal})\n{body}")
}

/// Makes the case of the program at `<group>/<name>`; with `variant`, one of several from it.
pub(crate) fn case(
    path: &str,
    variant: Option<&str>,
    body: &'static str,
) -> Result<Case, HeaderError> {
    let header = Header::read(body, variant);
    let (group, name) = path.split_once('/').unwrap_or((path, path));
    let name = match variant {
        Some(variant) => format!("{group}.{name}-{variant}"),
        None => format!("{group}.{name}"),
    };
    let bad = |what: &str| HeaderError(format!("{name}: {what}"));
    let required = |key: &str| header.get(key).ok_or_else(|| bad(&format!("no `{key}:`")));
    let mut target: Target = pairs(header.get("target").unwrap_or_default())
        .ok_or_else(|| bad("`target:` is not a list of name=value"))?;
    if let Some(variant) = variant {
        target.insert("variant".to_owned(), variant.to_owned());
    }
    let control = control(required("control")?).ok_or_else(|| bad("`control:` is not one"))?;
    let place = match (header.get("limits"), header.get("alone")) {
        _ if control == Control::Observer => Place::Observed,
        (Some(limits), _) => Place::Alone(numbers(limits).ok_or_else(|| bad("`limits:`"))?),
        (None, Some(_)) => Place::Alone(Numbers::new()),
        (None, None) => Place::Shared,
    };
    let user = match header.get("user") {
        None | Some("root") => User::Root,
        Some("user") => User::Template,
        Some(other) => return Err(bad(&format!("no user `{other}`"))),
    };
    Ok(Case {
        group: group.to_owned(),
        tried: required("tried")?.to_owned(),
        wall: required("wall")?.to_owned(),
        wall_gvisor: header.get("wall-gvisor").map(str::to_owned),
        skip_gvisor: variant
            .and_then(|variant| header.get(&format!("skip-gvisor-{variant}")))
            .or_else(|| header.get("skip-gvisor"))
            .map(str::to_owned),
        attack: Attack::Program(Program {
            body,
            target,
            user,
            place,
            directories: header
                .get("cwd")
                .map(|list| list.split_whitespace().map(str::to_owned).collect())
                .unwrap_or_default(),
        }),
        control,
        name,
    })
}

/// A header that does not describe a case.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the attack {0}")]
pub(crate) struct HeaderError(String);

/// The comment lines at the top of a program.
struct Header(Vec<(String, String)>);

impl Header {
    fn read(body: &str, variant: Option<&str>) -> Self {
        let lines = body.lines().map_while(|line| line.strip_prefix("# "));
        let entry = |line: &str| {
            let (key, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value
                .trim()
                .replace("{variant}", variant.unwrap_or_default());
            (key.trim().to_owned(), value)
        };
        Self(lines.map(entry).collect())
    }

    fn get(&self, key: &str) -> Option<&str> {
        let found = self.0.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str())
    }
}

fn control(text: &str) -> Option<Control> {
    let mut words = text.split_whitespace();
    let kind = words.next()?;
    let rest: Vec<&str> = words.collect();
    Some(match kind {
        "room" => {
            let (mut namespaces, mut target) = (Vec::new(), Target::new());
            let (mut pivoted, mut leak) = (false, false);
            let mut rest = rest.into_iter();
            while let Some(word) = rest.next() {
                match word {
                    "in" => {
                        for name in rest.next()?.split(',') {
                            let kind = Namespace::ALL.into_iter().find(|kind| kind.name() == name);
                            namespaces.push(kind?);
                        }
                    }
                    "pivoted" => pivoted = true,
                    "leak" => leak = true,
                    other => target.extend(pairs(other)?),
                }
            }
            Control::Room {
                namespaces,
                pivoted,
                leak,
                target,
            }
        }
        "inside" => Control::Inside(pairs(&rest.join(" "))?),
        "neighbour" => Control::Neighbour,
        "observer" => Control::Observer,
        "looser" => Control::Looser(numbers(&rest.join(" "))?),
        _ => return None,
    })
}

fn pairs(text: &str) -> Option<Target> {
    text.split_whitespace()
        .map(|pair| {
            let (name, value) = pair.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        })
        .collect()
}

fn numbers(text: &str) -> Option<Numbers> {
    pairs(text)?
        .into_iter()
        .map(|(name, value)| Some((name, value.parse().ok()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_what_a_case_is() {
        let body = "# tried: knocks at {variant}\n# wall: a door\n# control: room in net,uts pid=own\n# limits: pids=32\nreport(False, '')\n";
        let case = case("doors/knock", Some("front"), body).unwrap();
        assert_eq!(case.name, "doors.knock-front");
        assert_eq!(case.tried, "knocks at front");
        assert_eq!(
            case.control(),
            "the same as root of the host in throw-away net, uts namespaces"
        );
        let Attack::Program(program) = case.attack else {
            panic!("a program");
        };
        assert_eq!(program.target["variant"], "front");
        assert_eq!(
            program.place,
            Place::Alone(Numbers::from([("pids".to_owned(), 32)]))
        );
    }

    #[test]
    fn headers_that_lack_something_are_named() {
        let error = case("doors/knock", None, "# tried: x\n# wall: y\n").unwrap_err();
        assert_eq!(error.to_string(), "the attack doors.knock: no `control:`");
        let error = case("a/b", None, "# tried: x\n# wall: y\n# control: prayer\n").unwrap_err();
        assert_eq!(error.to_string(), "the attack a.b: `control:` is not one");
    }

    #[test]
    fn the_last_report_counts_and_noise_does_not() {
        let output = b"noise\n{\"success\": false, \"got\": \"EPERM\"}\nmore {noise}\n";
        assert_eq!(Report::find(output), Some(Report::failed("EPERM")));
        assert_eq!(Report::find(b"{}\n"), None);
    }
}
