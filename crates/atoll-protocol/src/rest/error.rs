//! The only shape of an error.

use serde::{Deserialize, Serialize};

/// What every answer that is no success carries. Clients read `code` and not
/// the status, so the two are the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The HTTP status.
    pub code: u16,
    /// For people.
    pub message: String,
    /// For programs, where the status says too little.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
}
