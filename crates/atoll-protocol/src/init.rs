//! What the host tells a guest before it lets anybody in: body of `POST /init`.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

/// Body of `POST /init`. Absent fields leave what was set before, but
/// variables are replaced as a whole when they are given.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InitRequest {
    /// Variables of every command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env_vars: Option<BTreeMap<String, String>>,
    /// Secret that every later request must present.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_token: Option<String>,
    /// User of commands and files when a request names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_user: Option<String>,
    /// Directory of commands when a request names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_workdir: Option<String>,
    /// When the host sent it (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
    /// Name of the current span of the sandbox's life.
    #[serde(rename = "lifecycleID", skip_serializing_if = "Option::is_none")]
    pub lifecycle_id: Option<String>,
    /// Whether code is likely to be run: the kernel that most of it needs is then started
    /// before anybody asks for it. `POST /warm` waits for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_kernels: Option<bool>,
}

impl fmt::Debug for InitRequest {
    /// Without the secret and without the values of variables.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("InitRequest")
            .field(
                "env_vars",
                &self
                    .env_vars
                    .as_ref()
                    .map(|vars| vars.keys().collect::<Vec<_>>()),
            )
            .field(
                "access_token",
                &self.access_token.as_ref().map(|_| "<secret>"),
            )
            .field("default_user", &self.default_user)
            .field("default_workdir", &self.default_workdir)
            .field("timestamp", &self.timestamp)
            .field("lifecycle_id", &self.lifecycle_id)
            .field("warm_kernels", &self.warm_kernels)
            .finish()
    }
}

/// What E2B's own host may ask for in the same body, and no guest of Atoll does.
///
/// Left out in silence, a sandbox would run without its volumes, or without trusting
/// what it should.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UnkeptWishes {
    volume_mounts: Option<Vec<IgnoredAny>>,
    ca_bundle: Option<String>,
}

impl UnkeptWishes {
    /// Why such a body is refused, if it asks for any of it.
    #[must_use]
    pub fn refusal(&self) -> Option<&'static str> {
        if self
            .volume_mounts
            .as_ref()
            .is_some_and(|mounts| !mounts.is_empty())
        {
            return Some("volumeMounts: volumes are not supported; copy files in instead");
        }
        if self
            .ca_bundle
            .as_ref()
            .is_some_and(|bundle| !bundle.is_empty())
        {
            return Some(
                "caBundle: certificates are part of the template; add them to /usr/local/share/ca-certificates there and run update-ca-certificates",
            );
        }
        None
    }
}

/// What came of having the first kernel ready: answer of `POST /warm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Warmth {
    /// Whether there is one at all.
    pub has_kernel: bool,
    /// What its start took, or waiting for it.
    pub start_ms: u64,
    /// What its first execution took.
    pub proof_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speaks_camel_case_and_ignores_what_it_does_not_know() {
        let init: InitRequest = serde_json::from_str(
            r#"{"envVars":{"A":"1"},"accessToken":"t","defaultUser":"user","hyperloopIP":"1.2.3.4"}"#,
        )
        .unwrap();
        let expected = InitRequest {
            env_vars: Some(BTreeMap::from([("A".to_owned(), "1".to_owned())])),
            access_token: Some("t".to_owned()),
            default_user: Some("user".to_owned()),
            ..InitRequest::default()
        };
        assert_eq!(init, expected);
        assert_eq!(
            serde_json::to_string(&init).unwrap(),
            r#"{"envVars":{"A":"1"},"accessToken":"t","defaultUser":"user"}"#
        );
    }

    #[test]
    fn volumes_and_certificates_are_wishes_that_nobody_keeps() {
        let refusal = |text: &str| {
            let wishes: UnkeptWishes = serde_json::from_str(text).unwrap();
            wishes.refusal()
        };
        for empty in [
            r#"{}"#,
            r#"{"volumeMounts":[],"caBundle":""}"#,
            r#"{"volumeMounts":null,"caBundle":null,"hyperloopIP":"1.2.3.4"}"#,
        ] {
            assert_eq!(refusal(empty), None, "{empty}");
        }
        let volume = r#"{"volumeMounts":[{"nfs_target":"10.0.0.1:/","path":"/data"}]}"#;
        assert!(refusal(volume).is_some_and(|why| why.starts_with("volumeMounts: ")));
        let bundle = r#"{"caBundle":"-----BEGIN CERTIFICATE-----"}"#;
        assert!(refusal(bundle).is_some_and(|why| why.starts_with("caBundle: ")));
    }

    #[test]
    fn debug_output_keeps_the_secrets() {
        let init = InitRequest {
            env_vars: Some(BTreeMap::from([(
                "KEY".to_owned(),
                "hidden-value".to_owned(),
            )])),
            access_token: Some("hidden-token".to_owned()),
            ..InitRequest::default()
        };
        assert!(!format!("{init:?}").contains("hidden"));
    }
}
