//! One real sandbox whose guest knows its token, behind a TCP port of this
//! host that clients of any make can use.
//!
//! Bytes pass as they are: what a client sees is the guest alone.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use atoll_engine::{Limits, Sandbox};

use crate::harness::sandboxes::{Sandboxes, client, initialise};

/// Port of the guest in its sandbox.
const ENVD_PORT: u16 = 49983;

/// A sandbox with an initialised guest. Dropped, it is destroyed.
pub(crate) struct Guest {
    pub(crate) sandbox_id: String,
    pub(crate) template_id: String,
    pub(crate) token: String,
    /// Where it can be reached.
    pub(crate) address: SocketAddr,
    sandbox: Arc<dyn Sandbox>,
    /// Last, for it looks at what is left.
    pub(crate) sandboxes: Sandboxes,
}

impl Guest {
    /// Makes a sandbox of the template `base` and gives its guest `token`.
    pub(crate) fn start(token: &str) -> Self {
        let sandboxes = Sandboxes::new();
        let sandbox = sandboxes.create(Limits {
            pids: 2048,
            disk_mib: 1024,
            ..Limits::default()
        });
        let (sandbox_id, template_id) = (sandbox.id().to_string(), sandboxes.template_id.clone());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let variables = [
            ("E2B_SANDBOX", "true"),
            ("E2B_SANDBOX_ID", &sandbox_id),
            ("E2B_TEMPLATE_ID", &template_id),
            ("SUITE_VARIABLE", "from the suite"),
        ];
        let client = client(&sandbox, token);
        runtime.block_on(initialise(&client, token, &variables));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let target = Arc::clone(&sandbox);
        std::thread::spawn(move || forward(&listener, &target));
        Self {
            sandbox_id,
            template_id,
            token: token.to_owned(),
            address,
            sandbox,
            sandboxes,
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let ended = self.sandbox.destroy();
        // Wakes the listener, whose sandbox is gone.
        let _ = TcpStream::connect(self.address);
        if !std::thread::panicking() {
            ended.expect("the sandbox outlived its clients");
        }
    }
}

/// Connects every client to the guest, until the guest is gone.
fn forward(listener: &TcpListener, sandbox: &Arc<dyn Sandbox>) {
    for client in listener.incoming() {
        let Ok(client) = client else { return };
        // A client that finds no guest sees its connection closed, as it
        // would without us.
        match sandbox.dial(ENVD_PORT) {
            Ok(guest) => connect(client, guest),
            Err(_) => return,
        }
    }
}

fn connect(client: TcpStream, guest: TcpStream) {
    for stream in [&client, &guest] {
        stream.set_nodelay(true).unwrap();
    }
    let (from_client, to_guest) = (client.try_clone().unwrap(), guest.try_clone().unwrap());
    std::thread::spawn(move || pass_on(&from_client, &to_guest));
    std::thread::spawn(move || pass_on(&guest, &client));
}

/// Passes bytes on, and their end: orderly when it is, abrupt when it is not.
fn pass_on(mut from: &TcpStream, mut to: &TcpStream) {
    match io::copy(&mut from, &mut to) {
        Ok(_) => {
            let _ = to.shutdown(Shutdown::Write);
        }
        Err(_) => {
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        }
    }
}
