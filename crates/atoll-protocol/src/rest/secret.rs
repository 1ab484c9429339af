//! Texts that open something, and are shown to nobody by accident.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A token or key on the wire: as text there, and hidden in logs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text, for whoever it was made for.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_text_on_the_wire_and_hidden_elsewhere() {
        let secret = Secret::from("open sesame".to_owned());
        assert_eq!(serde_json::to_string(&secret).unwrap(), r#""open sesame""#);
        assert_eq!(
            serde_json::from_str::<Secret>(r#""open sesame""#).unwrap(),
            secret
        );
        assert_eq!(format!("{secret:?}"), "Secret(…)");
        assert_eq!(secret.reveal(), "open sesame");
    }
}
