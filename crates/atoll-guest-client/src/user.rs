//! Whose rights a request has: a user's name, in the form of
//! `Authorization: Basic base64("name:")`. There is no password in it, ours
//! or a client's; the token is what opens the guest.

use atoll_protocol::connect::Code;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, header};

use crate::client::bad_request;
use crate::error::GuestError;

/// Whose rights a forwarded request has in the sandbox.
///
/// Whoever may only do what a signed URL says must not choose a user beside
/// it: the signature covers the `username` in the query and nothing else. Pass
/// such requests on with [`ForwardedUser::NotNamed`].
///
/// On `/files` a `username` in the query comes before all of these.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ForwardedUser {
    /// Whom its `Authorization` header names; the sandbox's default user
    /// when it names nobody.
    #[default]
    AsNamed,
    /// The sandbox's default user, whatever its `Authorization` header says.
    NotNamed,
    /// This one, whatever its `Authorization` header says.
    Always(String),
}

impl ForwardedUser {
    /// The header that names the user to the guest.
    ///
    /// # Errors
    /// `Rpc { code: Unauthenticated }` when the client's header is broken: it
    /// wanted somebody's rights, and would get another's.
    pub(crate) fn authorization(
        &self,
        given: &HeaderMap,
    ) -> Result<Option<HeaderValue>, GuestError> {
        let name = match self {
            Self::AsNamed => named_by(given)?,
            Self::NotNamed => None,
            // It would be read as the default user.
            Self::Always(name) if name.is_empty() => {
                return Err(bad_request("a user's name is empty"));
            }
            Self::Always(name) => Some(name.clone()),
        };
        name.map(|name| authorization(&name)).transpose()
    }
}

/// The header that names a user.
///
/// # Errors
/// When the name would be read as another.
pub(crate) fn authorization(name: &str) -> Result<HeaderValue, GuestError> {
    if name.contains(':') {
        return Err(bad_request("a user's name has a colon"));
    }
    let value = format!("Basic {}", STANDARD.encode(format!("{name}:")));
    HeaderValue::from_str(&value).map_err(bad_request)
}

/// The user that a client names; `None` when it names nobody, or shows
/// somebody's key, which is none of the guest's business.
fn named_by(given: &HeaderMap) -> Result<Option<String>, GuestError> {
    let broken = || GuestError::Rpc {
        code: Code::Unauthenticated,
        message: "the Authorization header names no user".to_owned(),
    };
    let mut values = given.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        // Two readers of it could see two users.
        return Err(broken());
    }
    let value = value.to_str().map_err(|_| broken())?;
    let (scheme, encoded) = value.split_once(' ').unwrap_or((value, ""));
    if !scheme.eq_ignore_ascii_case("basic") {
        return Ok(None);
    }
    let decoded = STANDARD.decode(encoded.trim()).map_err(|_| broken())?;
    let decoded = String::from_utf8(decoded).map_err(|_| broken())?;
    let (name, _password) = decoded.split_once(':').ok_or_else(broken)?;
    if name.contains(char::is_control) {
        return Err(broken());
    }
    Ok((!name.is_empty()).then(|| name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(values: &[&'static str]) -> HeaderMap {
        values
            .iter()
            .map(|value| (header::AUTHORIZATION, HeaderValue::from_static(value)))
            .collect()
    }

    fn passed(user: &ForwardedUser, values: &[&'static str]) -> Option<String> {
        let value = user.authorization(&given(values)).unwrap()?;
        Some(value.to_str().unwrap().to_owned())
    }

    #[test]
    fn names_pass_and_secrets_do_not() {
        for (value, expected) in [
            ("Basic dXNlcjo=", Some("Basic dXNlcjo=")),
            // `user:password:with colons`
            (
                "bASIC dXNlcjpwYXNzd29yZDp3aXRoIGNvbG9ucw==",
                Some("Basic dXNlcjo="),
            ),
            ("Basic Og==", None),
            ("Bearer dXNlcjo=", None),
            ("Bearer", None),
            ("", None),
        ] {
            assert_eq!(
                passed(&ForwardedUser::AsNamed, &[value]).as_deref(),
                expected,
                "{value}"
            );
        }
        assert_eq!(passed(&ForwardedUser::AsNamed, &[]), None);
    }

    #[test]
    fn broken_names_are_nobodys() {
        for values in [
            &["Basic dXNlcjo=", "Basic cm9vdDo="][..],
            &["Basic dXNlcjo=", "Bearer key"],
            &["Basic"],
            &["Basic "],
            &["Basic %%%"],
            // `user`, without its colon
            &["Basic dXNlcg=="],
            // `user\n:`
            &["Basic dXNlcgo6"],
            // `\xff:`
            &["Basic /zo="],
        ] {
            let error = ForwardedUser::AsNamed
                .authorization(&given(values))
                .unwrap_err();
            assert!(
                matches!(
                    error,
                    GuestError::Rpc {
                        code: Code::Unauthenticated,
                        ..
                    }
                ),
                "{values:?}: {error:?}"
            );
        }
    }

    #[test]
    fn the_server_has_the_last_word() {
        let always = ForwardedUser::Always("user".to_owned());
        for values in [&["Basic cm9vdDo="][..], &["Basic %%%"], &[]] {
            assert_eq!(passed(&ForwardedUser::NotNamed, values), None);
            assert_eq!(passed(&always, values).unwrap(), "Basic dXNlcjo=");
        }
        for name in ["", "root:x"] {
            let user = ForwardedUser::Always(name.to_owned());
            assert!(user.authorization(&given(&[])).is_err(), "{name:?}");
        }
    }
}
