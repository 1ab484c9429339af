//! `atoll mcp`: the tools for one client on standard streams, with sandboxes
//! of this process. Standard output carries the protocol only.

mod forward;
mod local;

use std::process::ExitCode;
use std::sync::Arc;

use atoll_control::templates::TemplateCatalog;
use atoll_tools::Desk;
use atoll_tools::mcp::{Listing, serve_stdio};

use self::local::LocalWorkplace;
use super::inputs::{DEFAULT_CELL_TEMPLATE, DEFAULT_TEMPLATE};
use super::interruption::Interruption;
use super::template::ensure_template;
use crate::arguments::McpArguments;
use crate::home::{Home, require_root};

pub(crate) async fn mcp(home: Home, arguments: McpArguments) -> anyhow::Result<ExitCode> {
    require_root()?;
    let mut interrupted = Interruption::listen()?;
    // What is wrong with the options is said now, not to a model later.
    arguments.sandbox.network(&home.network_defaults())?;
    let template = match &arguments.sandbox.template {
        Some(template) => template.clone(),
        None => default_template(&home)?.to_owned(),
    };
    tokio::select! {
        built = ensure_template(&home, &template) => drop(built?),
        code = interrupted.next() => return Ok(code),
    }
    let listing = if arguments.aliases {
        Listing::WithAliases
    } else {
        Listing::Tools
    };
    let workplace = LocalWorkplace::new(home, arguments.sandbox, template);
    let desk = Arc::new(Desk::new(Arc::new(workplace)));
    let served = tokio::select! {
        served = serve_stdio(Arc::clone(&desk), listing) => served,
        code = interrupted.next() => {
            desk.close().await;
            return Ok(code);
        }
    };
    desk.close().await;
    served?;
    Ok(ExitCode::SUCCESS)
}

/// What has kernels for several languages, if somebody built it.
fn default_template(home: &Home) -> anyhow::Result<&'static str> {
    let catalog = TemplateCatalog::open(home.path())?;
    let is_built = catalog.get(&DEFAULT_CELL_TEMPLATE.parse()?)?.is_some();
    Ok(if is_built {
        DEFAULT_CELL_TEMPLATE
    } else {
        DEFAULT_TEMPLATE
    })
}
