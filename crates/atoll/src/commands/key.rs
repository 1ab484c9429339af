//! `atoll key`: API keys, with or without a running server: both open the
//! same database.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use atoll_control::identity::{
    Identity, IssueError, IssuedKey, KeyInfo, KeyState, Keys, RevokeError, RotateError, now_ms,
};
use atoll_store::db::{Database, KeyId, NodeId};
use serde_json::json;

use crate::arguments::{KeyCommand, KeyCreateArguments};
use crate::failure::Hinted;
use crate::home::Home;
use crate::terminal::{self, relative};

/// Where to look for what was not found.
const LIST: &str = "`atoll key list` shows the keys and their ids";

pub(crate) async fn key(home: &Home, command: &KeyCommand) -> anyhow::Result<ExitCode> {
    let node = NodeId::of_home(home.path())?;
    let database = Database::open(&home.database()?, node)
        .await
        .context("cannot open the database")?;
    let identity = Identity::open(home.path(), database.clone()).await?;
    let done = run(&identity.keys, command).await;
    database.close().await;
    done.map(|()| ExitCode::SUCCESS)
}

async fn run(keys: &Keys, command: &KeyCommand) -> anyhow::Result<()> {
    match command {
        KeyCommand::Create(arguments) => create(keys, arguments).await,
        KeyCommand::List { tenant, json } => list(keys, tenant.as_deref(), *json).await,
        KeyCommand::Revoke { key } => revoke(keys, key).await,
        KeyCommand::Rotate { key, grace, json } => rotate(keys, key, *grace, *json).await,
    }
}

async fn create(keys: &Keys, arguments: &KeyCreateArguments) -> anyhow::Result<()> {
    let KeyCreateArguments {
        name,
        tenant,
        role,
        expires,
        json,
    } = arguments;
    let issued = keys
        .create_for(name, tenant, *role, *expires)
        .await
        .map_err(explain_issue)?;
    show(&issued, *json, None);
    Ok(())
}

/// The key on standard output, everything else beside it.
fn show(issued: &IssuedKey, json: bool, old_expires_at_ms: Option<i64>) {
    let (key, info) = (issued.key.reveal(), &issued.info);
    if json {
        let mut object = json!({
            "key": key,
            "id": info.id,
            "name": info.name,
            "tenant": info.tenant,
            "role": info.role,
            "created_at_ms": info.created_at_ms,
            "expires_at_ms": info.expires_at_ms,
        });
        if let Some(end) = old_expires_at_ms {
            object["old_expires_at_ms"] = end.into();
        }
        println!("{object}");
        return;
    }
    println!("{key}");
    let now_ms = now_ms();
    let end = info
        .expires_at_ms
        .map_or("never expires".to_owned(), |end| {
            format!("expires {}", relative(end, now_ms))
        });
    eprintln!(
        "key `{}` of tenant `{}` for the role `{}`, {end}",
        info.name, info.tenant, info.role
    );
    if let Some(end) = old_expires_at_ms {
        eprintln!("the old key expires {}", relative(end, now_ms));
    }
    eprintln!("hint: keep it now, it cannot be shown again");
}

async fn list(keys: &Keys, tenant: Option<&str>, json: bool) -> anyhow::Result<()> {
    let tenant = match tenant {
        None => None,
        Some(name) => Some(keys.tenant(name).await?.ok_or_else(|| {
            Hinted::error(
                format!("there is no tenant `{name}`"),
                "`atoll key list` without `--tenant` shows the keys of all",
            )
        })?),
    };
    let listed = keys.list(tenant.map(|tenant| tenant.tenant_id)).await?;
    if json {
        println!("{}", serde_json::to_string(&listed)?);
        return Ok(());
    }
    if listed.is_empty() {
        eprintln!("no keys yet");
        eprintln!("hint: `atoll key create --name NAME` makes one");
        return Ok(());
    }
    let now_ms = now_ms();
    let moment = |at: Option<i64>, never: &str| {
        at.map_or_else(|| never.to_owned(), |at| relative(at, now_ms))
    };
    let mut table = terminal::table();
    table.set_header([
        "ID", "NAME", "TENANT", "ROLE", "KEY", "STATE", "CREATED", "EXPIRES", "USED",
    ]);
    for key in &listed {
        table.add_row([
            key.id.to_string(),
            key.name.clone(),
            key.tenant.clone(),
            key.role.clone(),
            key.mask.to_string(),
            word(key.state).to_owned(),
            relative(key.created_at_ms, now_ms),
            moment(key.expires_at_ms, "never"),
            moment(key.last_used_at_ms, "never"),
        ]);
    }
    println!("{table}");
    Ok(())
}

async fn revoke(keys: &Keys, text: &str) -> anyhow::Result<()> {
    let key = find(keys, text).await?;
    match keys.revoke(key.id).await {
        Ok(()) => {
            eprintln!("key `{}` ({}) is revoked", key.name, key.id);
            Ok(())
        }
        Err(error @ (RevokeError::NotFound | RevokeError::Already)) => {
            Err(Hinted::error(error.to_string(), LIST))
        }
        Err(RevokeError::Database(error)) => Err(error.into()),
    }
}

async fn rotate(keys: &Keys, text: &str, grace: Duration, json: bool) -> anyhow::Result<()> {
    let key = find(keys, text).await?;
    match keys.rotate(key.id, grace).await {
        Ok(rotated) => {
            show(&rotated.issued, json, Some(rotated.old_expires_at_ms));
            Ok(())
        }
        Err(error @ RotateError::NotFound) => Err(Hinted::error(error.to_string(), LIST)),
        Err(error @ RotateError::Over) => Err(Hinted::error(
            error.to_string(),
            "`atoll key create` makes a new one",
        )),
        Err(RotateError::Issue(error)) => Err(explain_issue(error)),
    }
}

/// The key with this id, or the one active key with this name.
async fn find(keys: &Keys, text: &str) -> anyhow::Result<KeyInfo> {
    let listed = keys.list(None).await?;
    if let Ok(id) = text.parse::<KeyId>() {
        let by_id = listed.into_iter().find(|key| key.id == id);
        return by_id
            .ok_or_else(|| Hinted::error(format!("there is no key with the id `{id}`"), LIST));
    }
    let mut named: Vec<KeyInfo> = listed
        .into_iter()
        .filter(|key| key.name == text && key.state == KeyState::Active)
        .collect();
    match named.len() {
        1 => Ok(named.remove(0)),
        // What was typed is not repeated: it may be a key.
        0 => Err(Hinted::error(
            "there is no key with that id, and no active one with that name",
            LIST,
        )),
        count => Err(Hinted::error(
            format!("{count} active keys have the name `{text}`"),
            "name one of them by its id: `atoll key list` shows it",
        )),
    }
}

fn explain_issue(error: IssueError) -> anyhow::Error {
    match error {
        IssueError::KeyName(_) | IssueError::TenantName(_) => {
            Hinted::error(error.to_string(), "choose another name")
        }
        IssueError::Random(_) | IssueError::Database(_) => error.into(),
    }
}

fn word(state: KeyState) -> &'static str {
    match state {
        KeyState::Active => "active",
        KeyState::Expired => "expired",
        KeyState::Revoked => "revoked",
    }
}
