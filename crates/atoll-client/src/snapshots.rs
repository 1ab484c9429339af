//! Files of sandboxes at one moment, and sandboxes that begin with them.

use std::time::Duration;

use atoll_protocol::rest::{ErrorBody, ForkResult, SnapshotInfo};
use http::{HeaderMap, Method};
use serde_json::{Map, Value, json};

use crate::client::{Client, target};
use crate::error::ClientError;
use crate::list::{encoded, next_token};
use crate::options::whole_seconds;
use crate::sandbox::Sandbox;

/// Pages of a list; a server that always has another one must not hold us for ever.
const PAGES_MAX: usize = 1000;

/// Which snapshots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// Of this sandbox.
    pub sandbox: Option<String>,
    /// Of this name, and of this tag if it has one.
    pub name: Option<String>,
}

impl Client {
    /// Makes a template of what a sandbox has on its disk right now, under a
    /// name of the form `[namespace/]name[:tag]` if one is given. The sandbox
    /// holds still meanwhile and runs on; [`Client::create`] takes the id.
    ///
    /// # Errors
    /// [`ClientError::NotFound`] when there is no such sandbox; [`ClientError::Api`]
    /// with status 409 when it is paused.
    pub async fn create_snapshot(
        &self,
        sandbox: &str,
        name: Option<&str>,
    ) -> Result<SnapshotInfo, ClientError> {
        let body = match name {
            Some(name) => json!({ "name": name }),
            None => json!({}),
        };
        let target = target(sandbox, "/snapshots");
        let reply = self
            .rest()
            .tell(Method::POST, &target, &body, HeaderMap::new());
        reply.await?.json()
    }

    /// Snapshots, the newest first.
    ///
    /// # Errors
    /// When the server cannot be asked, or refuses.
    pub async fn snapshots(
        &self,
        options: &SnapshotOptions,
    ) -> Result<Vec<SnapshotInfo>, ClientError> {
        let mut query = String::new();
        for (name, value) in [("sandboxID", &options.sandbox), ("name", &options.name)] {
            if let Some(value) = value {
                query.push_str(&format!("{name}={}&", encoded(value)));
            }
        }
        let (mut all, mut next) = (Vec::new(), String::new());
        for _ in 0..PAGES_MAX {
            let target = format!("/snapshots?{query}{next}");
            let reply = self.rest().ask(Method::GET, &target).await?;
            let page: Vec<SnapshotInfo> = reply.json()?;
            let is_last = page.is_empty();
            all.extend(page);
            match next_token(&reply).token() {
                Some(token) if !is_last => next = format!("nextToken={}", encoded(token)),
                _ => break,
            }
        }
        Ok(all)
    }

    /// Deletes the snapshot of a tag, or all of a name. Sandboxes that were made
    /// of it run on.
    ///
    /// # Errors
    /// [`ClientError::NotFound`] when there is none.
    pub async fn delete_snapshot(&self, snapshot: &str) -> Result<(), ClientError> {
        let target = format!("/templates/{}", encoded(snapshot));
        self.rest().ask(Method::DELETE, &target).await.map(drop)
    }

    /// Makes sandboxes that begin with what a sandbox has on its disk, with its
    /// environment and settings. What became of each is in the list.
    ///
    /// # Errors
    /// [`ClientError::NotFound`] when there is no such sandbox.
    pub async fn fork(
        &self,
        sandbox: &str,
        count: usize,
        timeout: Option<Duration>,
    ) -> Result<Vec<Result<Sandbox, ClientError>>, ClientError> {
        let mut body = Map::from_iter([("count".to_owned(), json!(count))]);
        if let Some(timeout) = timeout {
            body.insert("timeout".to_owned(), json!(whole_seconds(timeout)));
        }
        let target = target(sandbox, "/fork");
        let body = Value::Object(body);
        let reply = self
            .rest()
            .tell(Method::POST, &target, &body, HeaderMap::new());
        let forks: Vec<ForkResult> = reply.await?.json()?;
        let opened = forks.into_iter().map(|fork| match fork {
            ForkResult::Sandbox(answered) => self.opened(answered),
            ForkResult::Error(error) => Err(refused(error)),
        });
        Ok(opened.collect())
    }
}

fn refused(error: ErrorBody) -> ClientError {
    ClientError::Api {
        code: error.code,
        message: crate::rest::harmless(&error.message),
        error_code: error.error_code,
    }
}
