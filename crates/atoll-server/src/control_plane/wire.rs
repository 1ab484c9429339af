//! What the life cycle says of a sandbox, as clients read it.

use atoll_control::lifecycle::{self, Created, PortAccess, SandboxView, Traffic};
use atoll_protocol::rest::{
    CLIENT_ID, Lifecycle, ListedSandbox, NetworkDetail, OnTimeout, PauseMode, Sandbox,
    SandboxDetail, SandboxState,
};
use atoll_store::db;

use super::ControlPlane;
use super::moment::rfc3339;

impl ControlPlane {
    /// Answer to a creation and a connection.
    pub(super) fn sandbox(&self, created: Created) -> Sandbox {
        let row = created.view.row;
        Sandbox {
            template_id: row.template_id,
            sandbox_id: row.sandbox_id,
            client_id: CLIENT_ID.to_owned(),
            alias: Some(row.template_name),
            envd_version: row.envd_version,
            envd_access_token: created.token.reveal().to_owned().into(),
            traffic_access_token: created.traffic_token.map(Into::into),
            domain: self.domain.clone(),
        }
    }

    /// Everything about one.
    pub(super) fn detail(&self, created: Created) -> SandboxDetail {
        let Created { view, token, .. } = created;
        let traffic = &view.traffic;
        SandboxDetail {
            envd_access_token: token.reveal().to_owned().into(),
            allow_internet_access: traffic.egress.internet,
            domain: self.domain.clone(),
            network: (*traffic != Traffic::default()).then(|| network(traffic)),
            lifecycle: Lifecycle {
                auto_resume: view.lifecycle.auto_resumes,
                on_timeout: if view.lifecycle.pauses {
                    OnTimeout::Pause
                } else {
                    OnTimeout::Kill
                },
            },
            // Also on its way there: that is what the list says of it.
            pause_mode: (state(view.row.state) == SandboxState::Paused).then(|| {
                match lifecycle::PauseMode::of(&view.row) {
                    lifecycle::PauseMode::Full => PauseMode::Full,
                    lifecycle::PauseMode::Filesystem => PauseMode::Filesystem,
                }
            }),
            listed: listed(view),
        }
    }
}

/// Where a sandbox stands, as far as clients know.
fn state(state: db::SandboxState) -> SandboxState {
    match state {
        // Until it can be reached again.
        db::SandboxState::Pausing | db::SandboxState::Paused | db::SandboxState::Resuming => {
            SandboxState::Paused
        }
        // The others are not shown to anybody, or run.
        db::SandboxState::Creating | db::SandboxState::Running | db::SandboxState::Killing => {
            SandboxState::Running
        }
    }
}

fn network(traffic: &Traffic) -> NetworkDetail {
    let Traffic { egress, ingress } = traffic;
    NetworkDetail {
        allow_out: egress.allow.clone(),
        deny_out: egress.deny.clone(),
        allow_public_traffic: ingress.access == PortAccess::Everybody,
        mask_request_host: ingress.mask_host.clone(),
        https_ports: ingress.https_ports.clone(),
    }
}

/// One entry of a list.
pub(super) fn listed(view: SandboxView) -> ListedSandbox {
    let SandboxView { row, limits, .. } = view;
    ListedSandbox {
        template_id: row.template_id,
        alias: Some(row.template_name),
        sandbox_id: row.sandbox_id,
        client_id: CLIENT_ID.to_owned(),
        started_at: rfc3339(row.started_at_ms),
        end_at: rfc3339(row.end_at_ms),
        cpu_count: limits.cpu_millis.div_ceil(1000),
        memory_mb: limits.memory_mib,
        disk_size_mb: limits.disk_mib,
        metadata: row.metadata.0,
        state: state(row.state),
        envd_version: row.envd_version,
    }
}
