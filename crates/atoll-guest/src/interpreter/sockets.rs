//! The sockets of a Jupyter kernel: where they will be, and the first words
//! through them.

use std::io;
use std::net::{Ipv4Addr, TcpListener as StdTcpListener};
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep, timeout_at};

use super::ear::Ear;
use super::kernel::{Listeners, Speech, hear, send};
use super::kernelspec::{InterruptMode, Transport};
use super::message::{Kind, Signer};
use super::place::KernelDirectory;
use super::zmtp::{self, Role};

/// Between two tries to reach one that is starting.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// How long it may take until what it publishes is heard; then it is asked again.
const HEARD_BOUND: Duration = Duration::from_millis(100);

/// What a Jupyter kernel reads at its start.
#[derive(Serialize)]
struct ConnectionFile<'a> {
    transport: &'a str,
    ip: &'a str,
    shell_port: u16,
    iopub_port: u16,
    stdin_port: u16,
    control_port: u16,
    hb_port: u16,
    key: &'a str,
    signature_scheme: &'a str,
    kernel_name: &'a str,
}

/// Where the sockets of a kernel will be.
pub(super) struct Sockets {
    transport: Transport,
    /// Prefix of paths, or an address.
    ip: String,
    shell: u16,
    iopub: u16,
    stdin: u16,
    control: u16,
    heartbeat: u16,
}

impl Sockets {
    /// Where nobody else listens.
    pub(super) fn reserve(transport: Transport, directory: &KernelDirectory) -> io::Result<Self> {
        let (ip, [shell, iopub, stdin, control, heartbeat]) = match transport {
            Transport::Ipc => (directory.path("socket")?, [1, 2, 3, 4, 5]),
            Transport::Tcp => (Ipv4Addr::LOCALHOST.to_string(), free_ports()?),
        };
        Ok(Self {
            transport,
            ip,
            shell,
            iopub,
            stdin,
            control,
            heartbeat,
        })
    }

    /// What tells the kernel.
    pub(super) fn file(&self, key: &str, kernel_name: &str) -> io::Result<Vec<u8>> {
        Ok(serde_json::to_vec(&ConnectionFile {
            transport: match self.transport {
                Transport::Ipc => "ipc",
                Transport::Tcp => "tcp",
            },
            ip: &self.ip,
            shell_port: self.shell,
            iopub_port: self.iopub,
            stdin_port: self.stdin,
            control_port: self.control,
            hb_port: self.heartbeat,
            key,
            signature_scheme: "hmac-sha256",
            kernel_name,
        })?)
    }

    /// Connects as soon as the kernel listens.
    async fn open(&self, number: u16, role: Role) -> io::Result<(zmtp::Receiver, zmtp::Sender)> {
        loop {
            let opened = match self.transport {
                Transport::Ipc => {
                    let path = format!("{}-{number}", self.ip);
                    UnixStream::connect(path).await.map(boxed)
                }
                Transport::Tcp => TcpStream::connect((Ipv4Addr::LOCALHOST, number))
                    .await
                    .and_then(|stream| {
                        stream.set_nodelay(true)?;
                        Ok(boxed(stream))
                    }),
            };
            match opened {
                Ok((reading, writing)) => return zmtp::open(reading, writing, role).await,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                    ) =>
                {
                    sleep(LOOK_AGAIN).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn boxed(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> (zmtp::Reading, zmtp::Writing) {
    let (reading, writing) = tokio::io::split(stream);
    (Box::new(reading), Box::new(writing))
}

/// Ports that nobody has at this moment.
fn free_ports() -> io::Result<[u16; 5]> {
    let mut held = Vec::new();
    let mut ports = [0; 5];
    for port in &mut ports {
        let listener = StdTcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

/// A kernel that answers and is heard.
pub(super) struct Connected {
    pub(super) speech: Speech,
    pub(super) ear: Ear,
    pub(super) listeners: Listeners,
}

/// Connects, and waits until the kernel answers and is heard.
pub(super) async fn connect(
    sockets: &Sockets,
    signer: Signer,
    interrupt: InterruptMode,
) -> io::Result<Connected> {
    let (published, _) = sockets.open(sockets.iopub, Role::Subscriber).await?;
    let (answers, mut shell) = sockets.open(sockets.shell, Role::Dealer).await?;
    let (_, control) = sockets.open(sockets.control, Role::Dealer).await?;
    let (ear, mut listeners) = (Ear::new(), Listeners::default());
    let published_ear = ear.clone();
    listeners.add(async move {
        hear(published, published_ear.clone()).await;
        // Everything that it published was heard by now.
        published_ear.lose();
    });
    listeners.add(hear(answers, ear.clone()));

    #[derive(Serialize)]
    struct Empty {}
    // A subscription takes effect at some moment: asked until it has.
    for number in 0_u32.. {
        let id = format!("hello-{number}");
        let mut heard = ear.listen(&id);
        send(&mut shell, &signer, &id, "kernel_info_request", &Empty {}).await?;
        let (mut is_answered, mut is_published) = (false, false);
        let mut deadline = None;
        while !(is_answered && is_published) {
            let message = match deadline {
                None => heard.recv().await,
                Some(deadline) => match timeout_at(deadline, heard.recv()).await {
                    Ok(message) => message,
                    Err(_) => break,
                },
            };
            match message.map(|message| message.kind) {
                Some(Kind::KernelInfoReply) => {
                    is_answered = true;
                    deadline = Some(Instant::now() + HEARD_BOUND);
                }
                Some(_) => is_published = true,
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        if is_answered && is_published {
            break;
        }
    }
    let speech = Speech::Jupyter {
        shell,
        control,
        signer,
        interrupt,
    };
    Ok(Connected {
        speech,
        ear,
        listeners,
    })
}
