//! The way to a guest: straight into its sandbox, or through a server that
//! stands before many sandboxes.

use std::fmt;
use std::io;
use std::net::TcpStream as StdTcpStream;
use std::pin::Pin;
use std::sync::Arc;

use atoll_protocol::{ENVD_PORT, lane};
use atoll_siphon::nearby;
use http::{HeaderMap, HeaderValue, header};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Where files are read and written in plain HTTP.
pub(crate) const FILES_PATH: &str = "/files";

/// Opens a byte stream to a port of the sandbox. May block for a moment.
pub type Dialer = Arc<dyn Fn(u16) -> io::Result<StdTcpStream> + Send + Sync>;

/// Bytes in both directions.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// What a connection is made of.
pub enum GuestStream {
    /// Kept as it is: large files leave HTTP on it.
    Socket(TcpStream),
    /// Something around one, such as TLS.
    Other(Box<dyn ByteStream>),
}

/// A connection that is being made.
pub type Connecting = Pin<Box<dyn Future<Output = io::Result<GuestStream>> + Send>>;

/// Whether large files may leave HTTP on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lanes {
    /// Where the other side agrees to it.
    #[default]
    WherePossible,
    /// Nowhere: it is not asked for.
    Never,
}

/// A server that passes requests on to the guests of many sandboxes.
#[derive(Clone)]
pub struct Gateway {
    /// Connects to it, with encryption where it wants that.
    pub connect: Arc<dyn Fn() -> Connecting + Send + Sync>,
    /// Its name in requests.
    pub host: HeaderValue,
    /// What tells it which sandbox is meant, and whatever else it wants.
    pub headers: HeaderMap,
}

impl fmt::Debug for Gateway {
    /// Without the headers, which may be secret.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Gateway")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

/// How a guest is reached.
pub(crate) enum Way {
    Straight(Dialer),
    Through(Gateway),
}

impl Way {
    pub(crate) async fn open(&self) -> io::Result<GuestStream> {
        match self {
            Self::Straight(dial) => {
                let dial = Arc::clone(dial);
                let dialed = tokio::task::spawn_blocking(move || dial(ENVD_PORT)).await;
                let stream = dialed.map_err(io::Error::other)??;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                nearby::without_pacing(&stream);
                Ok(GuestStream::Socket(TcpStream::from_std(stream)?))
            }
            Self::Through(gateway) => {
                let stream = (gateway.connect)().await?;
                if let GuestStream::Socket(socket) = &stream
                    && is_nearby(socket)
                {
                    nearby::without_pacing(socket);
                    nearby::with_a_short_queue(socket);
                }
                Ok(stream)
            }
        }
    }

    /// The headers of every request.
    pub(crate) fn headers(&self) -> HeaderMap {
        let (host, mut headers) = match self {
            Self::Straight(_) => (HeaderValue::from_static("guest"), HeaderMap::new()),
            Self::Through(gateway) => (gateway.host.clone(), gateway.headers.clone()),
        };
        headers.insert(header::HOST, host);
        headers
    }

    /// Where lanes are asked for.
    pub(crate) fn lane_path(&self) -> &'static str {
        match self {
            Self::Straight(_) => FILES_PATH,
            Self::Through(_) => lane::PATH,
        }
    }
}

/// Whether the other end is a server on this host.
fn is_nearby(socket: &TcpStream) -> bool {
    let peer = socket.peer_addr();
    peer.is_ok_and(|peer| peer.ip().to_canonical().is_loopback())
}
