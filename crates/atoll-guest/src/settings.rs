//! What `/init` said: the sandbox's variables, default user and directory,
//! and the secret.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_protocol::InitRequest;
use atoll_protocol::signature::{SignatureError, SignedUrl, equal_in_constant_time};

use crate::boot::connections::Crowd;
use crate::paths::{self, PathError};
use crate::users::{User, UserError, Users};

/// User of requests that name none, when `/init` named none either.
const DEFAULT_USER: &str = "user";

/// How many may say the first `/init` at once.
const FIRST_INITS_MAX: usize = 8;

/// Shared settings of the guest.
#[derive(Debug)]
pub(crate) struct Settings {
    current: Mutex<Current>,
    /// Who tries to be the first.
    pub(crate) first_inits: Arc<Crowd>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            current: Mutex::default(),
            first_inits: Arc::new(Crowd::new(FIRST_INITS_MAX)),
        }
    }
}

#[derive(Debug, Default, Clone)]
struct Current {
    token: Option<String>,
    env: BTreeMap<String, String>,
    default_user: Option<String>,
    default_workdir: Option<String>,
}

/// Whether a request may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Its token is the one.
    Granted,
    /// Its token is missing or wrong.
    Denied,
    /// There is no token yet.
    Uninitialized,
}

impl Settings {
    fn with<T>(&self, work: impl FnOnce(&mut Current) -> T) -> T {
        work(&mut self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Compares a presented token with the secret.
    pub(crate) fn check(&self, presented: Option<&[u8]>) -> Access {
        self.with(|current| match (&current.token, presented) {
            (None, _) => Access::Uninitialized,
            (Some(token), Some(presented))
                if equal_in_constant_time(token.as_bytes(), presented) =>
            {
                Access::Granted
            }
            (Some(_), _) => Access::Denied,
        })
    }

    /// Checks a signature that is presented instead of the token.
    pub(crate) fn verify(
        &self,
        url: &SignedUrl<'_>,
        signature: &str,
        now: i64,
    ) -> Result<(), SignatureError> {
        self.with(|current| match &current.token {
            Some(token) => url.verify(token, Some(signature), now),
            None => Err(SignatureError::Invalid),
        })
    }

    /// Takes over what an admitted `/init` says.
    pub(crate) fn apply(&self, init: InitRequest) {
        self.with(|current| {
            let InitRequest {
                env_vars,
                access_token,
                default_user,
                default_workdir,
                timestamp: _,
                lifecycle_id: _,
                warm_kernels: _,
            } = init;
            if let Some(env) = env_vars {
                current.env = env;
            }
            if let Some(token) = access_token.filter(|token| !token.is_empty()) {
                current.token = Some(token);
            }
            if let Some(user) = default_user.filter(|user| !user.is_empty()) {
                current.default_user = Some(user);
            }
            if let Some(workdir) = default_workdir.filter(|workdir| !workdir.is_empty()) {
                current.default_workdir = Some(workdir);
            }
        });
    }

    /// Variables of every command.
    pub(crate) fn env(&self) -> BTreeMap<String, String> {
        self.with(|current| current.env.clone())
    }

    /// The user a request acts as: the one it names, else the default one.
    pub(crate) fn user(&self, requested: Option<&str>) -> Result<User, UserError> {
        let users = Users::load();
        match requested.filter(|name| !name.is_empty()) {
            Some(name) => users.find(name),
            None => match self.with(|current| current.default_user.clone()) {
                Some(name) => users.find(&name),
                None => users.find(DEFAULT_USER).or_else(|_| users.find("root")),
            },
        }
    }

    /// The absolute path that a request means.
    pub(crate) fn resolve(&self, path: &str, user: &User) -> Result<String, PathError> {
        let workdir = self.with(|current| current.default_workdir.clone());
        paths::resolve(path, &user.home, workdir.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_decides_once_it_is_set() {
        let settings = Settings::default();
        assert_eq!(settings.check(Some(b"x")), Access::Uninitialized);
        settings.apply(InitRequest {
            access_token: Some("secret".to_owned()),
            ..InitRequest::default()
        });
        assert_eq!(settings.check(Some(b"secret")), Access::Granted);
        assert_eq!(settings.check(Some(b"secreT")), Access::Denied);
        assert_eq!(settings.check(Some(b"secret2")), Access::Denied);
        assert_eq!(settings.check(Some(b"")), Access::Denied);
        assert_eq!(settings.check(None), Access::Denied);
    }

    #[test]
    fn variables_are_replaced_as_a_whole_and_only_when_given() {
        let settings = Settings::default();
        let vars = |name: &str| Some(BTreeMap::from([(name.to_owned(), "1".to_owned())]));
        settings.apply(InitRequest {
            env_vars: vars("A"),
            ..InitRequest::default()
        });
        settings.apply(InitRequest::default());
        assert_eq!(settings.env(), vars("A").unwrap());
        settings.apply(InitRequest {
            env_vars: vars("B"),
            ..InitRequest::default()
        });
        assert_eq!(settings.env(), vars("B").unwrap());
    }
}
