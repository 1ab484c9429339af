//! What a key may do, besides for whom it stands. Each role may what the one
//! before may.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// What a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Looks at what its tenant has, and changes nothing.
    Viewer,
    /// Makes, uses and ends sandboxes and sessions of its tenant.
    Agent,
    /// Also changes what its tenant keeps: templates, snapshots, secrets.
    Operator,
    /// Also sees what all tenants have.
    Admin,
}

/// A word that is no role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no role: expected `viewer`, `agent`, `operator` or `admin`")]
pub struct InvalidRole(String);

impl Role {
    /// All of them, the least first.
    pub const ALL: [Self; 4] = [Self::Viewer, Self::Agent, Self::Operator, Self::Admin];

    /// In one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Agent => "agent",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = InvalidRole;

    fn from_str(text: &str) -> Result<Self, InvalidRole> {
        let mut all = Self::ALL.into_iter();
        all.find(|role| role.as_str() == text)
            .ok_or_else(|| InvalidRole(text.chars().take(40).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_may_more_than_the_one_before() {
        assert!(Role::ALL.is_sorted());
        for role in Role::ALL {
            assert_eq!(role.as_str().parse(), Ok(role));
        }
        for word in ["", "Admin", "root", "admin "] {
            assert!(word.parse::<Role>().is_err(), "{word:?}");
        }
    }
}
