//! `atoll serve`: the server of a home.
//!
//! SIGTERM and Ctrl-C stop it, and leave its sandboxes to their monitors and
//! to the next start.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use atoll_control::identity::DEFAULT_TENANT;
use atoll_control::isolation::Choice;
use atoll_control::templates::TemplateCatalog;
use atoll_server::control_plane::{ControlPlane, router};
use atoll_server::tls::Certificates;
use atoll_server::webhooks::Webhooks;
use atoll_server::{Bounds, Entrance, Mcp, McpSettings, Names, Services};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::inputs::DEFAULT_CELL_TEMPLATE;
use super::isolation;
use super::node::Node;
use super::template::ensure_template;
use crate::arguments::ServeArguments;
use crate::endpoint::{Endpoint, local_key};
use crate::failure::Hinted;
use crate::home::{Home, require_root};

/// The port that `https://` means.
const HTTPS_PORT: u16 = 443;
/// The template that clients use when they name none.
const DEFAULT_TEMPLATE: &str = "base";
/// How long members of pools may take to end with the server; the next start ends what is left.
const POOLS_BOUND: Duration = Duration::from_secs(20);

pub(crate) async fn serve(home: &Home, arguments: &ServeArguments) -> anyhow::Result<ExitCode> {
    require_root()?;
    raise_open_files();
    let mut stop = Stop::listen()?;
    let hooks = Webhooks::new(home.webhooks()?).map_err(|error| {
        Hinted::error(
            format!("webhooks with `https://` cannot be told: {error}"),
            "install the certificates that this system trusts, often the package `ca-certificates`",
        )
    })?;
    let node = Node::take(home).await?;
    let listener = bind(arguments.listen, "--listen").await?;
    let address = listener.local_addr()?;
    let names = Named::of(home, arguments).await?;
    let isolation = tokio::select! {
        isolation = prepare(home, arguments) => isolation?,
        () = stop.next() => return Ok(ExitCode::SUCCESS),
    };
    let lifecycle = node.lifecycle(home, home.runtime(isolation.tier)?)?;
    let found = tokio::select! {
        found = lifecycle.reconcile() => found?,
        () = stop.next() => return Ok(ExitCode::SUCCESS),
    };
    if found.taken_up + found.buried + found.reaped > 0 {
        eprintln!(
            "sandboxes of the server before: {} run on, {} had ended or were undone, {} waited in a pool or were unknown and are ended",
            found.taken_up, found.buried, found.reaped
        );
    }
    if found.unreached > 0 {
        eprintln!(
            "{} sandboxes of the server before do not answer yet, and are asked again",
            found.unreached
        );
    }
    // Before the key of local clients is made: it is for who has none.
    let first_key = first_key(&node).await?;
    let local = local_key(home.path(), &node.identity.keys).await?;
    let agents = node.agent_services(home, &lifecycle).await?;
    let (executions, sessions) = (agents.executions.clone(), agents.sessions.clone());
    let plane = Arc::new(ControlPlane::new(
        lifecycle.clone(),
        node.identity.keys.clone(),
        node.database.clone(),
        agents,
        names
            .as_ref()
            .map_or_else(|| local_domain(address), |names| Some(names.domain())),
    ));
    let url = url(address);
    let endpoint = Endpoint {
        url: url.clone(),
        api_key: local,
        pid: std::process::id(),
    };
    let published = endpoint
        .publish(home.path())
        .context("cannot write `endpoint.json`")?;
    let access = Arc::clone(&node.access);
    let fresh = tokio::spawn(async move { access.keep_fresh().await });
    let compared = {
        let lifecycle = lifecycle.clone();
        tokio::spawn(async move { lifecycle.keep_reconciled().await })
    };
    let told = tokio::spawn(hooks.deliver(node.database.clone(), node.fence.clone()));
    let swept = tokio::spawn(async move { sessions.keep_swept().await });
    let cleaned = {
        let executions = executions.clone();
        tokio::spawn(async move { executions.keep_clean().await })
    };

    plane.become_ready();
    announce(&Announcement {
        url: &url,
        isolation: &isolation,
        domain: names.as_ref().map(Named::domain),
        first_key: first_key.as_deref(),
        machine: arguments.json,
    });
    let pools = {
        let lifecycle = lifecycle.clone();
        tokio::spawn(async move { lifecycle.keep_pools().await })
    };
    let mcp = Mcp::new(Arc::clone(&plane), mcp_settings(home, &url, names.as_ref()));
    let tidied = {
        let mcp = Arc::clone(&mcp);
        tokio::spawn(async move { mcp.keep_tidy().await })
    };
    let services = Services {
        control: mcp.beside(router(Arc::clone(&plane))),
        running: Arc::clone(&node.running),
        access: Arc::clone(&node.access),
        names: names
            .as_ref()
            .map(|named| named.names.clone())
            .unwrap_or_default(),
        bounds: Bounds::default(),
    };
    let mut entrances = vec![Entrance::Plain(listener)];
    entrances.extend(names.map(|named| named.entrance));
    let ended = atoll_server::serve(entrances, services, async {
        stop.next().await;
        plane.become_unready();
        mcp.stop();
    });
    let ended = ended.await;
    drop(published);
    tidied.abort();
    mcp.close().await;
    fresh.abort();
    compared.abort();
    swept.abort();
    cleaned.abort();
    executions.flush().await;
    lifecycle.close_pools();
    if tokio::time::timeout(POOLS_BOUND, pools).await.is_err() {
        tracing::warn!("members of pools are left to the next start");
    }
    told.abort();
    node.database.close().await;
    ended.context("cannot accept connections any more")?;
    Ok(ExitCode::SUCCESS)
}

/// How the tools at `/mcp` reach this server, and which pages may call them.
fn mcp_settings(home: &Home, url: &str, names: Option<&Named>) -> McpSettings {
    let loopback = ["localhost", "127.0.0.1", "[::1]"];
    let mut origins: Vec<String> = loopback
        .iter()
        .flat_map(|host| [format!("http://{host}:*"), format!("https://{host}:*")])
        .collect();
    if let Some(domain) = names.and_then(|named| named.names.domain()) {
        // Not the names below it: pages of sandboxes are there.
        origins.extend([
            format!("https://{domain}:*"),
            format!("https://api.{domain}:*"),
        ]);
    }
    let path = home.path().to_owned();
    McpSettings {
        url: url.to_owned(),
        is_encrypted: names.is_some(),
        template: Arc::new(move || {
            let built = TemplateCatalog::open(&path).ok().and_then(|catalog| {
                let name = DEFAULT_CELL_TEMPLATE.parse().ok()?;
                catalog.get(&name).ok().flatten()
            });
            match built {
                Some(_) => DEFAULT_CELL_TEMPLATE.to_owned(),
                None => DEFAULT_TEMPLATE.to_owned(),
            }
        }),
        origins,
    }
}

/// Lets this process have as many open files as it may: every sandbox and
/// every connection takes some. What it starts gets limits of its own.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!("the limit of open files stays as it is: {error}");
    }
}

/// A domain that leads to this server.
struct Named {
    names: Names,
    address: SocketAddr,
    entrance: Entrance,
}

impl Named {
    /// What was asked for, if anything was.
    async fn of(home: &Home, arguments: &ServeArguments) -> anyhow::Result<Option<Self>> {
        let Some(domain) = &arguments.domain else {
            return Ok(None);
        };
        let names = Names::default()
            .with_domain(domain)
            .map_err(|error| Hinted::error(error.to_string(), error.hint()))?;
        let domain = names.domain().unwrap_or_default().to_owned();
        let certificates = match (&arguments.certificate, &arguments.key) {
            (Some(chain), Some(key)) => Certificates::from_files(chain, key)?,
            _ => Certificates::made(home.path(), &domain)?,
        };
        let listener = bind(arguments.tls_listen, "--tls-listen").await?;
        Ok(Some(Self {
            names,
            address: listener.local_addr()?,
            entrance: Entrance::Tls {
                listener,
                certificates: Arc::new(certificates),
            },
        }))
    }

    /// The domain as clients write it: with the port where it is not the usual one.
    fn domain(&self) -> String {
        let domain = self.names.domain().unwrap_or_default();
        match self.address.port() {
            HTTPS_PORT => domain.to_owned(),
            port => format!("{domain}:{port}"),
        }
    }
}

async fn bind(address: SocketAddr, option: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        Hinted::error(
            format!("cannot listen on {address}: {error}"),
            format!("choose another address with {option}, for example {option} 127.0.0.1:0"),
        )
    })
}

/// Builds what most clients ask for, and decides how sandboxes are kept apart.
async fn prepare(home: &Home, arguments: &ServeArguments) -> anyhow::Result<Choice> {
    let template = ensure_template(home, DEFAULT_TEMPLATE).await?;
    let catalog = TemplateCatalog::open(home.path())?;
    let _held = catalog.hold_layers().await?;
    let layers = catalog.layer_directories(&template).await?;
    isolation::choose(home, arguments.isolation, &layers, &template.user).await
}

/// A key for who has none yet: this once, it can be shown.
async fn first_key(node: &Node) -> anyhow::Result<Option<String>> {
    let keys = &node.identity.keys;
    if !keys.list(None).await?.is_empty() {
        return Ok(None);
    }
    let issued = keys.create("default", DEFAULT_TENANT, None).await?;
    Ok(Some(issued.key.reveal().to_owned()))
}

/// Under which address this host reaches a listener.
fn url(address: SocketAddr) -> String {
    let host = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(host, address.port()))
}

/// The domain of sandboxes when none was given: browsers and `curl` find every
/// name below `localhost` on this host.
fn local_domain(address: SocketAddr) -> Option<String> {
    // Clients elsewhere would look for it on their own machine.
    address
        .ip()
        .is_loopback()
        .then(|| format!("localhost:{}", address.port()))
}

/// What is said when the server is ready.
struct Announcement<'a> {
    url: &'a str,
    isolation: &'a Choice,
    domain: Option<String>,
    first_key: Option<&'a str>,
    machine: bool,
}

fn announce(what: &Announcement<'_>) {
    use std::io::Write as _;
    let Announcement {
        url,
        isolation,
        domain,
        first_key,
        machine,
    } = what;
    let text = if *machine {
        let object = json!({
            "url": url,
            "isolation": isolation.tier,
            "isolation_reason": isolation.reason,
            "domain": domain,
            "api_key": first_key,
            "pid": std::process::id(),
        });
        format!("{object}\n")
    } else {
        let key = first_key.map_or_else(
            || "# E2B_API_KEY: one that you have, or a new one of `atoll key create`".to_owned(),
            |key| format!("export E2B_API_KEY={key}   # shown this once"),
        );
        let names = domain.as_ref().map_or_else(String::new, |domain| {
            format!("\n# or, where `{domain}` leads here and `atoll ca` is trusted:\nexport E2B_DOMAIN={domain}\n")
        });
        format!(
            "serving on {url}\nisolation: {} ({})\n\n{key}\nexport E2B_API_URL={url}\nexport E2B_SANDBOX_URL={url}\n{names}",
            isolation.tier, isolation.reason
        )
    };
    let mut out = std::io::stdout().lock();
    // Whoever does not want to read it does not stop a server.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// The wish that the server ends.
struct Stop {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Stop {
    fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::url;

    #[test]
    fn a_listener_on_all_addresses_is_reached_on_the_loopback() {
        for (address, expected) in [
            ("127.0.0.1:7300", "http://127.0.0.1:7300"),
            ("0.0.0.0:80", "http://127.0.0.1:80"),
            ("[::]:80", "http://[::1]:80"),
            ("192.0.2.1:80", "http://192.0.2.1:80"),
        ] {
            assert_eq!(url(address.parse().unwrap()), expected);
        }
    }
}
