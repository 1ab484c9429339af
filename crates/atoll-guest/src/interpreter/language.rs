//! Languages: what clients call them, which kernel runs them, and how a
//! variable of the environment is set and taken away in each.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::ascii::push_text;

/// Longest name of a language.
const NAME_BYTES_MAX: usize = 64;

/// What code is written in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Language {
    Python,
    JavaScript,
    TypeScript,
    R,
    Java,
    Bash,
    /// A kernel by its own name.
    Kernel(String),
}

/// A name that no language and no kernel can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not the name of a language\nhint: python, javascript, typescript, r, java and bash are, and names of installed kernels"
)]
pub(super) struct NoLanguage(String);

/// A variable that the language cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' cannot be an environment variable here, or not with this value\nhint: names have neither `=` nor zero bytes, in Bash nothing but letters, digits and `_`; values have no zero bytes"
)]
pub(super) struct NoVariable(String);

impl Language {
    /// The language that a client means.
    pub(super) fn parse(name: &str) -> Result<Self, NoLanguage> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "python" | "python3" => Self::Python,
            "javascript" | "js" => Self::JavaScript,
            "typescript" | "ts" => Self::TypeScript,
            "r" | "ir" => Self::R,
            "java" => Self::Java,
            "bash" => Self::Bash,
            _ => {
                let is_name = !name.is_empty()
                    && name.len() <= NAME_BYTES_MAX
                    && !name.starts_with('.')
                    && name
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
                if !is_name {
                    return Err(NoLanguage(name.chars().take(NAME_BYTES_MAX).collect()));
                }
                Self::Kernel(name.to_owned())
            }
        })
    }

    /// What clients are told.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
            Self::TypeScript => "typescript",
            Self::R => "r",
            Self::Java => "java",
            Self::Bash => "bash",
            Self::Kernel(name) => name,
        }
    }

    /// The name of its kernel, as kernels are installed.
    pub(super) fn kernel(&self) -> &str {
        match self {
            Self::Python => "python3",
            Self::JavaScript | Self::TypeScript => "javascript",
            Self::R => "ir",
            Self::Java => "java",
            Self::Bash => "bash",
            Self::Kernel(name) => name,
        }
    }

    /// Whether variables of the process are out of its programs' reach, so
    /// that they have to be told all of them.
    pub(super) fn needs_telling(&self) -> bool {
        // Programs look for properties, as E2B's interpreter sets them.
        matches!(self, Self::Java)
    }

    /// Refuses variables that it could not have.
    pub(super) fn check<'a>(
        &self,
        variables: impl Iterator<Item = (&'a String, &'a String)>,
    ) -> Result<(), NoVariable> {
        for (name, value) in variables {
            if !self.can_have(name, value) {
                return Err(NoVariable(name.chars().take(100).collect()));
            }
        }
        Ok(())
    }

    /// Whether its programs could have this variable.
    pub(super) fn can_have(&self, name: &str, value: &str) -> bool {
        !name.is_empty()
            && !name.contains(['=', '\0'])
            && !value.contains('\0')
            && (!matches!(self, Self::Bash) || is_identifier(name))
    }

    /// Code that seeds the generators of random numbers anew that a program has for itself,
    /// where there are such.
    pub(super) fn seed(&self) -> Option<&'static str> {
        match self {
            Self::Python => Some(
                "__import__('random').seed()\n\
                 [m.seed() for m in [__import__('sys').modules.get('numpy.random')] if m]",
            ),
            Self::JavaScript
            | Self::TypeScript
            | Self::R
            | Self::Java
            | Self::Bash
            | Self::Kernel(_) => None,
        }
    }

    /// Code that gives variables these values, and takes those away that have
    /// none. Nothing where there is no way to do that.
    pub(super) fn set(&self, variables: &BTreeMap<&str, Option<&str>>) -> Option<String> {
        if variables.is_empty() {
            return None;
        }
        let set = variables
            .iter()
            .filter_map(|(name, value)| Some((*name, (*value)?)));
        let unset = variables
            .iter()
            .filter_map(|(name, value)| value.is_none().then_some(*name));
        let mut code = String::new();
        match self {
            Self::Python => {
                // As JSON within a literal: Python and JSON differ in how they
                // write characters beyond the first 65536.
                let (mut values, mut names) = (String::new(), String::new());
                push_text(&mut values, &object(set));
                push_text(&mut names, &array(unset));
                let _ = write!(
                    code,
                    "__import__('os').environ.update(__import__('json').loads({values}))\n\
                     [__import__('os').environ.pop(n, None) for n in __import__('json').loads({names})]"
                );
            }
            Self::JavaScript | Self::TypeScript => {
                let _ = write!(
                    code,
                    "Object.assign(process.env, {});\n\
                     for (const n of {}) {{ delete process.env[n]; }}",
                    object(set),
                    array(unset)
                );
            }
            Self::R => {
                for (name, value) in set {
                    let _ = writeln!(
                        code,
                        "invisible(do.call(Sys.setenv, setNames(list({}), {})))",
                        r_literal(value),
                        r_literal(name)
                    );
                }
                for name in unset {
                    let _ = writeln!(code, "invisible(Sys.unsetenv({}))", r_literal(name));
                }
            }
            Self::Java => {
                // One block: each statement by itself would be compiled by itself.
                code.push_str("{\n");
                for (name, value) in set {
                    let (name, value) = (java_literal(name), java_literal(value));
                    let _ = writeln!(code, "System.setProperty({name}, {value});");
                }
                for name in unset {
                    let _ = writeln!(code, "System.clearProperty({});", java_literal(name));
                }
                code.push_str("}\n");
            }
            Self::Bash => {
                for (name, value) in set {
                    let _ = writeln!(code, "export {name}='{}'", value.replace('\'', "'\\''"));
                }
                for name in unset {
                    let _ = writeln!(code, "unset {name}");
                }
            }
            Self::Kernel(_) => return None,
        }
        Some(code)
    }
}

fn is_identifier(name: &str) -> bool {
    !name.starts_with(|char: char| char.is_ascii_digit())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// `{"a": "b"}` in ASCII.
fn object<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut out = "{".to_owned();
    for (index, (name, value)) in pairs.enumerate() {
        if index > 0 {
            out.push(',');
        }
        push_text(&mut out, name);
        out.push(':');
        push_text(&mut out, value);
    }
    out.push('}');
    out
}

/// `["a"]` in ASCII.
fn array<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let mut out = "[".to_owned();
    for (index, text) in texts.enumerate() {
        if index > 0 {
            out.push(',');
        }
        push_text(&mut out, text);
    }
    out.push(']');
    out
}

/// A text in Java, which reads characters by their number before it looks
/// for the ends of lines: those below 128 go by their other name.
fn java_literal(text: &str) -> String {
    let mut out = "\"".to_owned();
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            ' '..='~' => out.push(char),
            char if char.is_ascii() => {
                let _ = write!(out, "\\{:03o}", u32::from(char));
            }
            char => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
    out
}

/// A text in R, which writes characters by their number.
fn r_literal(text: &str) -> String {
    let mut out = "\"".to_owned();
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            ' '..='~' => out.push(char),
            char => {
                let _ = write!(out, "\\U{{{:x}}}", u32::from(char));
            }
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_clients_use() {
        for (name, expected, kernel) in [
            ("python", "python", "python3"),
            ("js", "javascript", "javascript"),
            ("ts", "typescript", "javascript"),
            ("r", "r", "ir"),
            ("BASH", "bash", "bash"),
            ("deno", "deno", "deno"),
        ] {
            let language = Language::parse(name).unwrap();
            assert_eq!((language.name(), language.kernel()), (expected, kernel));
        }
        for name in ["", "a/b", "..", ".x", "a b", "ü", &"a".repeat(65)] {
            assert!(Language::parse(name).is_err(), "{name}");
        }
    }

    #[test]
    fn variables_are_checked_before_they_become_code() {
        let check_value = |language: &Language, name: &str, value: &str| {
            language.check([(&name.to_owned(), &value.to_owned())].into_iter())
        };
        let check = |language: &Language, name: &str| check_value(language, name, "1");
        for value in ["", "=", "\r\n", "ü"] {
            assert!(check_value(&Language::Python, "A", value).is_ok());
        }
        for language in [Language::Python, Language::Bash, Language::Java] {
            assert!(check_value(&language, "A", "a\0b").is_err());
        }
        for name in ["", "A=B", "A\0"] {
            assert!(check(&Language::Python, name).is_err(), "{name:?}");
        }
        assert!(check(&Language::Python, "a.b").is_ok());
        for name in ["a.b", "1A", "A;id", "A B", "$(id)"] {
            assert!(check(&Language::Bash, name).is_err(), "{name:?}");
        }
        assert!(check(&Language::Bash, "_A1").is_ok());
    }

    #[test]
    fn values_cannot_leave_their_literal() {
        let value = "'\"\\\n\r$(id)`${x}😀";
        let variables = BTreeMap::from([("A", Some(value)), ("B", None)]);
        let code = |language: Language| language.set(&variables).unwrap();
        assert_eq!(
            code(Language::Bash),
            "export A=''\\''\"\\\n\r$(id)`${x}😀'\nunset B\n"
        );
        assert_eq!(
            code(Language::Java),
            "{\nSystem.setProperty(\"A\", \"'\\\"\\\\\\012\\015$(id)`${x}\\ud83d\\ude00\");\nSystem.clearProperty(\"B\");\n}\n"
        );
        assert_eq!(
            code(Language::R),
            "invisible(do.call(Sys.setenv, setNames(list(\"'\\\"\\\\\\U{a}\\U{d}$(id)`${x}\\U{1f600}\"), \"A\")))\n\
             invisible(Sys.unsetenv(\"B\"))\n"
        );
        for language in [Language::Python, Language::JavaScript] {
            assert!(code(language).is_ascii());
        }
        assert_eq!(Language::Python.set(&BTreeMap::new()), None);
    }
}
