//! Teams, as E2B calls tenants.

use super::Secret;
use serde::{Deserialize, Serialize};

/// One entry of `GET /teams`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Team {
    /// Its id.
    #[serde(rename = "teamID")]
    pub team_id: String,
    /// Its name.
    pub name: String,
    /// The key that was asked with; nobody else's can be shown.
    pub api_key: Secret,
    /// Whether it is the one that is meant when nothing is said.
    pub is_default: bool,
}
