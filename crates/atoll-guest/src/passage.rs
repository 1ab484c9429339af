//! The way from the host to ports of the sandbox, where it has a network stack
//! that the host cannot enter: services bound to 127.0.0.1 are reached from
//! inside, by the guest.
//!
//! Two bytes of a port come in, one byte of answer goes back (see
//! [`atoll_protocol::passage`]), then bytes go both ways until both sides have
//! said their end. Only the host's end of the network may ask.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use atoll_protocol::{ENVD_PORT, PASSAGE_PORT, passage};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::Network;

/// Most connections at once.
const CONNECTIONS_MAX: usize = 512;

/// How long the host may take to name a port, and a service to answer.
const OPEN_BOUND: Duration = Duration::from_secs(4);

/// Pause after the kernel could not hand over a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A passage that listens.
pub(crate) struct Passage {
    listener: TcpListener,
    gateway: Ipv4Addr,
}

/// Opens the passage for who calls from the host's end of `network`.
pub(crate) async fn bind(network: Network) -> io::Result<Passage> {
    Ok(Passage {
        listener: TcpListener::bind((network.address, PASSAGE_PORT)).await?,
        gateway: network.gateway,
    })
}

/// Serves the host, for ever.
pub(crate) async fn serve(open: Passage) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok((mut stream, peer)) = open.listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        if peer.ip() != IpAddr::V4(open.gateway) {
            continue;
        }
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            // One byte fits into any buffer; one that does not is not heard.
            let _ = timeout(OPEN_BOUND, stream.write_all(&[passage::FAILED])).await;
            continue;
        };
        tokio::spawn(async move {
            // How a connection ends is for its two sides to tell.
            let _ = pass(stream).await;
            drop(place);
        });
    }
}

async fn pass(mut host: TcpStream) -> io::Result<()> {
    host.set_nodelay(true)?;
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let port = timeout(OPEN_BOUND, host.read_u16()).await.map_err(late)??;
    match timeout(OPEN_BOUND, connect(port)).await.map_err(late)? {
        Ok(mut service) => {
            host.write_all(&[passage::OPEN]).await?;
            copy_bidirectional(&mut host, &mut service).await?;
            Ok(())
        }
        Err(error) => host.write_all(&[answer(&error)]).await,
    }
}

async fn connect(port: u16) -> io::Result<TcpStream> {
    // The guest itself is reached without a detour, and the passage not by itself.
    if matches!(port, 0 | ENVD_PORT | PASSAGE_PORT) {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    let service = match TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
        // What listens on `localhost` may have chosen the other one.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            let other = TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await;
            other.map_err(|_| error)?
        }
        connected => connected?,
    };
    service.set_nodelay(true)?;
    Ok(service)
}

fn answer(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => passage::REFUSED,
        _ => passage::FAILED,
    }
}
