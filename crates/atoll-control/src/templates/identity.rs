//! Names and ids of templates.

use std::fmt;
use std::io;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const NAME_BYTES: usize = 64;
const ID_LEN: usize = 20;
const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// What people call a template: `^[a-z0-9-_]+$`, so it can be a file name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TemplateName(String);

/// The text is not a template name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a template name (expected 1 to {NAME_BYTES} characters of a-z, 0-9, `-` and `_`)"
)]
pub struct InvalidTemplateName(String);

impl TemplateName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TemplateName {
    type Err = InvalidTemplateName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_'
        };
        let valid = (1..=NAME_BYTES).contains(&text.len()) && text.bytes().all(allowed);
        if valid {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidTemplateName(text.chars().take(100).collect()))
        }
    }
}

impl TryFrom<String> for TemplateName {
    type Error = InvalidTemplateName;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<TemplateName> for String {
    fn from(name: TemplateName) -> Self {
        name.0
    }
}

impl fmt::Display for TemplateName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// What clients of E2B call a template: twenty characters of `[a-z0-9]`.
/// It stays the same when the template is built again.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TemplateId(String);

impl TemplateId {
    /// A fresh id from the kernel's random source.
    ///
    /// # Errors
    /// When the kernel gives no randomness.
    pub fn random() -> io::Result<Self> {
        let mut text = String::with_capacity(ID_LEN);
        let mut byte = [0_u8; 1];
        while text.len() < ID_LEN {
            getrandom::fill(&mut byte).map_err(io::Error::other)?;
            // 252 = 7 * 36: larger values would favour the first letters.
            if byte[0] < 252 {
                text.push(char::from(ALPHABET[usize::from(byte[0]) % ALPHABET.len()]));
            }
        }
        Ok(Self(text))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TemplateId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_file_names_and_nothing_more() {
        for text in ["base", "my-template_2", "0"] {
            assert_eq!(text.parse::<TemplateName>().unwrap().as_str(), text);
        }
        let long = "a".repeat(65);
        for text in [
            "", ".", "..", "a/b", "A", "a b", "a.json", "ä", "base:tag", &long,
        ] {
            assert!(text.parse::<TemplateName>().is_err(), "{text}");
        }
    }

    #[test]
    fn ids_have_the_shape_clients_expect() {
        let id = TemplateId::random().unwrap();
        assert_eq!(id.as_str().len(), 20);
        assert!(id.as_str().bytes().all(|byte| ALPHABET.contains(&byte)));
        assert_ne!(id, TemplateId::random().unwrap());
    }
}
