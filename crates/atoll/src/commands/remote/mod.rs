//! Commands that ask a server, one file each: the one that
//! `E2B_API_KEY` and its like name, else the one of this home.

mod create;
mod events;
mod exec;
mod inspect;
mod kill;
mod logs;
mod pause;
mod pool;
mod ps;
mod shell;
mod snapshot;
mod timeout;
mod transfer;

use std::collections::BTreeMap;

use atoll_client::{Client, ClientError, Endpoint};

use crate::failure::Hinted;
use crate::home::Home;

pub(crate) use create::create;
pub(crate) use events::events;
pub(crate) use exec::exec;
pub(crate) use inspect::inspect;
pub(crate) use kill::kill;
pub(crate) use logs::logs;
pub(crate) use pause::{pause, resume};
pub(crate) use pool::pool;
pub(crate) use ps::ps;
pub(crate) use shell::shell;
pub(crate) use snapshot::{fork, snapshot};
pub(crate) use timeout::timeout;
pub(crate) use transfer::cp;

/// The server that the user means.
fn server(home: &Home) -> anyhow::Result<Client> {
    let named = std::env::var_os("E2B_API_KEY").is_some_and(|key| !key.is_empty());
    let endpoint = if named {
        Endpoint::from_env()
    } else {
        Endpoint::local(home.path())
    };
    let endpoint = endpoint.map_err(ClientError::from)?;
    Ok(Client::new(endpoint)?)
}

/// An error about a sandbox, with what to do.
fn about(sandbox: &str, error: ClientError) -> anyhow::Error {
    match error {
        ClientError::NotFound(_) => Hinted::error(
            format!("there is no sandbox `{sandbox}`"),
            "`atoll ps` shows those that run",
        ),
        error => error.into(),
    }
}

/// `NAME=VALUE`, several times.
fn pairs(option: &str, entries: &[String]) -> anyhow::Result<BTreeMap<String, String>> {
    entries
        .iter()
        .map(|entry| match entry.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
            _ => Err(Hinted::error(
                format!("`--{option} {entry}` is not NAME=VALUE"),
                format!("example: --{option} user=ada"),
            )),
        })
        .collect()
}
