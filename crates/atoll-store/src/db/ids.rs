//! Ids that the database gives out: UUIDs, as E2B's clients expect of keys.
//! Ids of sandboxes and templates belong to others and are text here.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The text is no id of this kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an id")]
pub struct InvalidId(String);

macro_rules! uuid_id {
    ($(#[doc = $doc:literal])* $name:ident) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// A fresh id from the kernel's random source.
            #[must_use]
            pub fn random() -> Self {
                Self(Uuid::new_v4())
            }

            /// Its sixteen bytes.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }

            /// The id that has these bytes.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(out)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                // Only the form that is written: two texts are never one id.
                Uuid::try_parse(text)
                    .ok()
                    .filter(|id| id.to_string() == text)
                    .map(Self)
                    .ok_or_else(|| InvalidId(text.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;

            fn try_from(text: String) -> Result<Self, InvalidId> {
                text.parse()
            }
        }
    };
}

uuid_id! {
    /// A tenant: everything belongs to exactly one, and none sees another's.
    TenantId
}

uuid_id! {
    /// An API key, without being one.
    KeyId
}

uuid_id! {
    /// A session of an agent.
    SessionId
}

uuid_id! {
    /// One run of code or of a command.
    ExecutionId
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_parse_back_and_have_one_form() {
        let id = KeyId::random();
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(KeyId::from_bytes(*id.as_bytes()), id);
        for text in [
            "",
            "no",
            &id.to_string().to_uppercase(),
            &id.to_string().replace('-', ""),
            &format!("{{{id}}}"),
        ] {
            assert!(text.parse::<KeyId>().is_err(), "{text}");
        }
    }
}
