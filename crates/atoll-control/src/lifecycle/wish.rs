//! What a client asks for, checked before anything is made.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_engine::{LimitsError, Tier};
use serde::Serialize;

use super::{PauseMode, Traffic};
use crate::templates::Resources;

/// Longest idempotency key.
const KEY_LEN_MAX: usize = 255;
/// Most bytes of what an owner writes on a sandbox, names and values together.
const METADATA_BYTES_MAX: usize = 64 * 1024;
/// Most bytes of the environment of a sandbox, names and values together.
const ENVIRONMENT_BYTES_MAX: usize = 256 * 1024;
/// What is kept of how a client calls itself.
const CLIENT_LEN_MAX: usize = 256;

/// A sandbox as it is asked for.
#[derive(Debug, Clone, Serialize)]
pub struct CreateWish {
    /// Id or name of the template.
    pub template: String,
    /// How long it lives.
    pub timeout: Duration,
    /// What its owner writes on it.
    pub metadata: BTreeMap<String, String>,
    /// Environment of its commands.
    pub environment: BTreeMap<String, String>,
    /// What it may use, where its template does not say it.
    pub limits: Resources,
    /// What it may reach, and who may reach it.
    pub traffic: Traffic,
    /// Whether it is paused at the end of its time, and not ended.
    pub pauses: bool,
    /// What is kept of it then.
    pub pause_mode: PauseMode,
    /// Whether traffic wakes it up.
    pub auto_resumes: bool,
    /// What the client calls itself; no part of what is asked for.
    #[serde(skip)]
    pub client: String,
}

/// Why a wish cannot be fulfilled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidWish {
    /// No time at all.
    #[error("Timeout must be greater than 0")]
    NoTime,
    /// More time than anybody gets.
    #[error("Timeout cannot be greater than {} hours", hours(*.0))]
    TooLong(Duration),
    /// More text than a sandbox carries.
    #[error("{0} has more than {1} bytes")]
    TooMuch(&'static str, usize),
    /// A variable that no command could have.
    #[error("'{0}' cannot be an environment variable")]
    Variable(String),
    /// A limit that it cannot have here.
    #[error(transparent)]
    Limits(LimitsError),
    /// Its tier keeps files and memory together.
    #[error("the {0} tier cannot keep the files of a sandbox without its memory")]
    FilesOnly(Tier),
    /// The idempotency key has another form.
    #[error("an Idempotency-Key has 1 to {KEY_LEN_MAX} characters of a-z, 0-9 and `-`")]
    IdempotencyKey,
}

/// Hours, with a fraction only where there is one.
fn hours(duration: Duration) -> String {
    let hours = duration.as_secs_f64() / 3600.0;
    if hours.fract() == 0.0 {
        format!("{hours:.0}")
    } else {
        format!("{hours:.2}")
    }
}

impl CreateWish {
    /// Refuses what cannot be, by its own or because of `lifetime_max`.
    pub(super) fn check(&self, lifetime_max: Duration) -> Result<(), InvalidWish> {
        if self.timeout.is_zero() {
            return Err(InvalidWish::NoTime);
        }
        if self.timeout > lifetime_max {
            return Err(InvalidWish::TooLong(lifetime_max));
        }
        let bytes = |map: &BTreeMap<String, String>| -> usize {
            map.iter()
                .map(|(name, value)| name.len() + value.len())
                .sum()
        };
        if bytes(&self.metadata) > METADATA_BYTES_MAX {
            return Err(InvalidWish::TooMuch("metadata", METADATA_BYTES_MAX));
        }
        if bytes(&self.environment) > ENVIRONMENT_BYTES_MAX {
            return Err(InvalidWish::TooMuch("envVars", ENVIRONMENT_BYTES_MAX));
        }
        for (name, value) in &self.environment {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(InvalidWish::Variable(name.chars().take(100).collect()));
            }
        }
        Ok(())
    }

    /// What tells two wishes apart.
    pub(super) fn digest(&self) -> String {
        // Maps of texts and numbers always have a form in JSON.
        let text = serde_json::to_vec(self).unwrap_or_default();
        blake3::hash(&text).to_hex().to_string()
    }

    /// How the client calls itself, bounded and printable.
    pub(super) fn client(&self) -> String {
        let printable = self.client.chars().filter(|one| !one.is_control());
        printable.take(CLIENT_LEN_MAX).collect()
    }
}

/// A key by which a client says that two requests are the same one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// The key that `text` is.
    ///
    /// # Errors
    /// When it has another form.
    pub fn parse(text: &str) -> Result<Self, InvalidWish> {
        let is_valid = (1..=KEY_LEN_MAX).contains(&text.len())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if is_valid {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidWish::IdempotencyKey)
        }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish() -> CreateWish {
        CreateWish {
            template: "base".to_owned(),
            timeout: Duration::from_secs(300),
            metadata: BTreeMap::new(),
            environment: BTreeMap::new(),
            limits: Resources::default(),
            traffic: Traffic::default(),
            pauses: false,
            pause_mode: PauseMode::Full,
            auto_resumes: false,
            client: "a".to_owned(),
        }
    }

    #[test]
    fn time_and_variables_have_bounds() {
        let max = Duration::from_secs(3600);
        assert_eq!(wish().check(max), Ok(()));
        let with_time = |timeout| CreateWish { timeout, ..wish() }.check(max);
        assert_eq!(with_time(max), Ok(()));
        assert_eq!(with_time(Duration::ZERO), Err(InvalidWish::NoTime));
        let error = with_time(max + Duration::from_secs(1)).unwrap_err();
        assert_eq!(error.to_string(), "Timeout cannot be greater than 1 hours");
        for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0")] {
            let environment = [(name.to_owned(), value.to_owned())].into();
            let wish = CreateWish {
                environment,
                ..wish()
            };
            assert!(wish.check(max).is_err(), "{name:?}={value:?}");
        }
    }

    #[test]
    fn the_digest_is_of_what_is_asked_for() {
        let other_client = CreateWish {
            client: "b".to_owned(),
            ..wish()
        };
        assert_eq!(wish().digest(), other_client.digest());
        let other_time = CreateWish {
            timeout: Duration::from_secs(301),
            ..wish()
        };
        assert_ne!(wish().digest(), other_time.digest());
        let other_limits = CreateWish {
            limits: Resources {
                memory_mib: Some(512),
                ..Resources::default()
            },
            ..wish()
        };
        assert_ne!(wish().digest(), other_limits.digest());
    }

    #[test]
    fn idempotency_keys_have_one_alphabet() {
        assert!(IdempotencyKey::parse("0b5c-a1").is_ok());
        for text in ["", "A", "a b", "a_b", "ü", &"a".repeat(256)] {
            assert!(IdempotencyKey::parse(text).is_err(), "{text}");
        }
    }
}
