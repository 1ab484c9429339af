//! One real sandbox whose guest knows its token, behind a TCP port of this
//! host that clients of any make can use.
//!
//! Bytes pass as they are: what a client sees is the guest alone.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use atoll_engine::{
    Attachment, ContainerRuntime, EngineConfig, Limits, NetworkMode, OciRuntimeChoice,
    Runtime as _, Sandbox, SandboxId, SandboxSpec, SlotRange,
};
use atoll_guest_client::{GuestClient, InitRequest};

use crate::harness::{BOUND, TestHome, binary, second_home};

/// Port of the guest in its sandbox.
const ENVD_PORT: u16 = 49983;

/// Ends a sandbox that outlived its test by accident.
const LIFETIME: Duration = Duration::from_secs(3600);

/// A sandbox with an initialised guest. Dropped, it is destroyed.
pub(crate) struct Guest {
    pub(crate) sandbox_id: String,
    pub(crate) template_id: String,
    pub(crate) token: String,
    /// Where it can be reached.
    pub(crate) address: SocketAddr,
    sandbox: Arc<dyn Sandbox>,
    /// Last, for it looks at what is left.
    pub(crate) home: TestHome,
}

impl Guest {
    /// Makes a sandbox of the template `base` and gives its guest `token`.
    pub(crate) fn start(token: &str) -> Self {
        let home = second_home();
        let (sandbox, template_id) = create(&home);
        let sandbox_id = sandbox.id().to_string();
        initialise(&sandbox, &sandbox_id, &template_id, token);
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
            home,
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

fn create(home: &TestHome) -> (Arc<dyn Sandbox>, String) {
    // Any run unpacks the guest that the binary carries.
    assert_eq!(home.run(["run", "--lang", "bash", "-c", "true"]).code, 0);
    let mut unpacked = fs::read_dir(home.path().join("guest")).unwrap();
    let guest = unpacked.next().unwrap().unwrap().path();
    let inspected = home.run(["template", "inspect", "base"]).succeeded();
    let template: serde_json::Value = serde_json::from_str(&inspected).unwrap();
    let layers = template["layers"].as_array().unwrap().iter().map(|digest| {
        let directory = digest.as_str().unwrap().replace(':', "-");
        home.path().join("layers").join(directory)
    });
    let id = SandboxId::random().unwrap();
    let spec = SandboxSpec {
        hostname: id.to_string(),
        id,
        layers: layers.collect(),
        limits: Limits {
            pids: 2048,
            disk_mib: 1024,
            ..Limits::default()
        },
        network: NetworkMode::None,
        env: BTreeMap::new(),
        lifetime: Some(LIFETIME),
        attachment: Attachment::Client,
    };
    let runtime = ContainerRuntime::new(EngineConfig {
        home: home.path().to_owned(),
        guest,
        program: binary(),
        oci_runtime: OciRuntimeChoice::Builtin,
        slot_range: SlotRange::default(),
    });
    let sandbox = runtime.create(&spec).unwrap();
    let template_id = template["id"].as_str().unwrap().to_owned();
    (Arc::from(sandbox), template_id)
}

/// What a control plane tells a guest before it lets anybody in.
fn initialise(sandbox: &Arc<dyn Sandbox>, sandbox_id: &str, template_id: &str, token: &str) {
    let target = Arc::clone(sandbox);
    let client = GuestClient::new(Arc::new(move |port| target.dial(port)), token.to_owned());
    let variables = [
        ("E2B_SANDBOX", "true"),
        ("E2B_SANDBOX_ID", sandbox_id),
        ("E2B_TEMPLATE_ID", template_id),
        ("SUITE_VARIABLE", "from the suite"),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let init = InitRequest {
        access_token: Some(token.to_owned()),
        default_user: Some("user".to_owned()),
        env_vars: Some(variables.into()),
        ..InitRequest::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        client.wait_ready(*BOUND).await.unwrap();
        client.init(&init).await.unwrap();
    });
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
