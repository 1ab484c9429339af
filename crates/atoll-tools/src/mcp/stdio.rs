//! One client on standard streams. Standard output carries the protocol only.

use std::sync::Arc;

use rmcp::service::serve_server;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::io::stdio_pipes;
use tokio::io::{AsyncRead, AsyncWrite};

use super::handler::{Desks, Handler, Listing};
use crate::desk::Desk;

/// Longest message; of a longer one, nothing is read.
const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Why a client was not served to its end.
#[derive(Debug, thiserror::Error)]
pub enum StdioError {
    /// What came first is not how MCP begins.
    #[error("no MCP session began: {0}")]
    Beginning(String),
    /// The session broke.
    #[error("the MCP session broke: {0}")]
    Broken(String),
}

/// Serves the client on standard input and output until its input ends, then
/// ends its sandboxes.
///
/// # Errors
/// When no session began, or it broke.
pub async fn serve_stdio(desk: Arc<Desk>, listing: Listing) -> Result<(), StdioError> {
    let (input, output) = stdio_pipes();
    serve(input, output, desk, listing).await
}

async fn serve(
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
    desk: Arc<Desk>,
    listing: Listing,
) -> Result<(), StdioError> {
    let handler = Handler {
        desks: Desks::One(desk),
        listing,
    };
    let transport =
        AsyncRwTransport::new_server(input, output).with_max_line_length(LINE_BYTES_MAX);
    let running = serve_server(handler, transport).await;
    let running = match running {
        Ok(running) => running,
        // Nobody said anything: there is nothing to complain about.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(StdioError::Beginning(error.to_string())),
    };
    match running.waiting().await {
        Ok(_) => Ok(()),
        Err(error) => Err(StdioError::Broken(error.to_string())),
    }
}
