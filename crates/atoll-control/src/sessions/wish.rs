//! A session as it is asked for, checked before anything is made.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_engine::Limits;

use super::SessionError;
use crate::lifecycle::Traffic;
use crate::templates::Resources;

/// Longest name of an agent, a task or a user.
const NAME_LEN_MAX: usize = 128;
/// Most bytes of metadata, names and values together.
const METADATA_BYTES_MAX: usize = 32 * 1024;
/// Most bytes of variables, names and values together.
const ENVIRONMENT_BYTES_MAX: usize = 256 * 1024;
/// Longest time that a session lives.
const LIFETIME_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A session as it is asked for.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// The agent it is for.
    pub agent_id: String,
    /// Its task. An agent has one session per task.
    pub task_id: Option<String>,
    /// The user that the agent works for.
    pub user_id: Option<String>,
    /// What its sandboxes are made from.
    pub template: String,
    /// What its owner writes on it, and on its sandboxes.
    pub metadata: BTreeMap<String, String>,
    /// Environment of its sandboxes.
    pub environment: BTreeMap<String, String>,
    /// What its sandboxes may use, where their template does not say it.
    pub limits: Resources,
    /// What its sandboxes may reach.
    pub traffic: Traffic,
    /// How long nobody may use it before it ends.
    pub idle: Duration,
    /// How long it lives.
    pub lifetime: Duration,
}

impl NewSession {
    pub(super) fn check(&self) -> Result<(), SessionError> {
        let invalid = |what: String| Err(SessionError::Invalid(what));
        let names = [
            ("agent_id", Some(&self.agent_id)),
            ("task_id", self.task_id.as_ref()),
            ("user_id", self.user_id.as_ref()),
        ];
        for (what, name) in names {
            if name.is_some_and(|name| !is_name(name)) {
                return invalid(format!(
                    "'{what}' has 1 to {NAME_LEN_MAX} bytes and no control characters"
                ));
            }
        }
        for (what, time) in [("idle_timeout_s", self.idle), ("lifetime_s", self.lifetime)] {
            if time < Duration::from_secs(1) || time > LIFETIME_MAX {
                return invalid(format!("'{what}' lies between 1 second and 30 days"));
            }
        }
        // Also where the agent has a session, and nothing is made.
        let limits = self.limits.apply(&Limits::default());
        if let Err(error) = limits.validate() {
            return invalid(error.to_string());
        }
        let bytes = |map: &BTreeMap<String, String>| -> usize {
            map.iter()
                .map(|(name, value)| name.len() + value.len())
                .sum()
        };
        if bytes(&self.metadata) > METADATA_BYTES_MAX {
            return invalid(format!(
                "'metadata' has more than {METADATA_BYTES_MAX} bytes"
            ));
        }
        if self
            .metadata
            .iter()
            .any(|(name, value)| name.contains('\0') || value.contains('\0'))
        {
            return invalid("'metadata' has a NUL in it".to_owned());
        }
        if bytes(&self.environment) > ENVIRONMENT_BYTES_MAX {
            return invalid(format!(
                "'environment' has more than {ENVIRONMENT_BYTES_MAX} bytes"
            ));
        }
        Ok(())
    }
}

/// Whether a text can be the name of an agent, a task or a user.
pub(super) fn is_name(text: &str) -> bool {
    (1..=NAME_LEN_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new() -> NewSession {
        NewSession {
            agent_id: "agent".to_owned(),
            task_id: None,
            user_id: None,
            template: "base".to_owned(),
            metadata: BTreeMap::new(),
            environment: BTreeMap::new(),
            limits: Resources::default(),
            traffic: Traffic::default(),
            idle: Duration::from_secs(1),
            lifetime: Duration::from_secs(1),
        }
    }

    #[test]
    fn names_and_times_have_bounds() {
        assert!(new().check().is_ok());
        for wrong in [
            NewSession {
                agent_id: String::new(),
                ..new()
            },
            NewSession {
                task_id: Some("a\nb".to_owned()),
                ..new()
            },
            NewSession {
                user_id: Some("a".repeat(NAME_LEN_MAX + 1)),
                ..new()
            },
            NewSession {
                idle: Duration::ZERO,
                ..new()
            },
            NewSession {
                lifetime: LIFETIME_MAX + Duration::from_secs(1),
                ..new()
            },
            NewSession {
                limits: Resources {
                    shm_mib: Some(0),
                    ..Resources::default()
                },
                ..new()
            },
            NewSession {
                metadata: [("a".to_owned(), "\0".to_owned())].into(),
                ..new()
            },
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }
}
