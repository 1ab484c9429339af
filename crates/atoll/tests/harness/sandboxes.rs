//! Sandboxes made straight by the engine, for tests of what is below the
//! command line.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use atoll_engine::{
    Attachment, EngineConfig, Limits, MonitoredRuntime, NetworkPolicy, OciRuntimeChoice,
    Runtime as _, Sandbox, SandboxId, SandboxSpec, SlotRange,
};
use atoll_guest_client::{GuestClient, InitRequest};

use super::{BOUND, TestHome, binary, second_home, tier};

/// Lifetime of sandboxes that do not reach its end.
pub const LIFETIME: Duration = Duration::from_secs(3600);

/// The template `base`, and a home of its own to make sandboxes in.
pub struct Sandboxes {
    pub config: EngineConfig,
    pub template_id: String,
    layers: Vec<PathBuf>,
    /// Last, for it looks at what is left.
    pub home: TestHome,
}

impl Sandboxes {
    pub fn new() -> Self {
        let home = second_home();
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
        Self {
            layers: layers.collect(),
            template_id: template["id"].as_str().unwrap().to_owned(),
            config: EngineConfig {
                home: home.path().to_owned(),
                guest,
                program: binary(),
                oci_runtime: OciRuntimeChoice::Builtin,
                runsc: PathBuf::from("runsc"),
                slot_range: SlotRange::default(),
            },
            home,
        }
    }

    /// A sandbox without a network.
    pub fn spec(&self, attachment: Attachment, lifetime: Duration, limits: Limits) -> SandboxSpec {
        let id = SandboxId::random().unwrap();
        SandboxSpec {
            hostname: id.to_string(),
            id,
            layers: self.layers.clone(),
            limits,
            network: NetworkPolicy::None,
            env: BTreeMap::new(),
            lifetime: Some(lifetime),
            attachment,
            memory: None,
        }
    }

    /// Makes a sandbox that ends with the test.
    pub fn create(&self, limits: Limits) -> Arc<dyn Sandbox> {
        let spec = self.spec(Attachment::Client, LIFETIME, limits);
        let runtime = MonitoredRuntime::new(self.config.clone(), tier());
        Arc::from(runtime.create(&spec).unwrap())
    }
}

/// A client of a sandbox's guest that nobody has told its secret.
pub fn client(sandbox: &Arc<dyn Sandbox>, token: &str) -> GuestClient {
    let target = Arc::clone(sandbox);
    GuestClient::new(Arc::new(move |port| target.dial(port)), token.to_owned())
}

/// Waits for the guest and tells it what a control plane would.
pub async fn initialise(client: &GuestClient, token: &str, variables: &[(&str, &str)]) {
    let variables = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let init = InitRequest {
        access_token: Some(token.to_owned()),
        default_user: Some("user".to_owned()),
        env_vars: Some(variables.collect()),
        ..InitRequest::default()
    };
    client.wait_ready(*BOUND).await.unwrap();
    client.init(&init).await.unwrap();
}
