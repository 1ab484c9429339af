-- Sandboxes that live, who may reach them, and how those that are gone ended.

CREATE TABLE sandboxes (
    sandbox_id TEXT NOT NULL PRIMARY KEY,
    tenant_id TEXT NOT NULL REFERENCES tenants (tenant_id),
    key_id TEXT NOT NULL,
    template_id TEXT NOT NULL,
    template_name TEXT NOT NULL,
    state TEXT NOT NULL,
    -- What its server is about to do; written before it is done.
    intent TEXT,
    -- Grows with every change; what was read with another number is out of date.
    version BIGINT NOT NULL,
    -- JSON; what is in them belongs to the layers above.
    metadata TEXT NOT NULL,
    limits TEXT NOT NULL,
    network TEXT NOT NULL,
    lifecycle TEXT NOT NULL,
    -- How to find it again after a restart of the server.
    handle TEXT,
    -- Environment variables and the guest's token, encrypted.
    sealed TEXT NOT NULL,
    envd_version TEXT NOT NULL,
    -- What the client that made it calls itself.
    client TEXT NOT NULL,
    pause_mode TEXT,
    agent_id TEXT,
    task_id TEXT,
    created_at_ms BIGINT NOT NULL,
    started_at_ms BIGINT NOT NULL,
    end_at_ms BIGINT NOT NULL,
    -- The number of the newest entry of its log.
    log_sequence BIGINT NOT NULL,
    node_id TEXT NOT NULL,
    epoch BIGINT NOT NULL
);

CREATE INDEX sandboxes_of_tenant ON sandboxes (tenant_id, started_at_ms, sandbox_id);
CREATE INDEX sandboxes_of_node ON sandboxes (node_id);

-- Keys that were given a token for a sandbox. The token itself is computed.
CREATE TABLE envd_tokens (
    sandbox_id TEXT NOT NULL,
    key_id TEXT NOT NULL,
    tenant_id TEXT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    node_id TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    PRIMARY KEY (sandbox_id, key_id)
);

CREATE TABLE idempotency_keys (
    tenant_id TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    -- Of the request, to tell a repetition from another request.
    request_digest TEXT NOT NULL,
    sandbox_id TEXT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    node_id TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    PRIMARY KEY (tenant_id, idempotency_key)
);

CREATE TABLE tombstones (
    sandbox_id TEXT NOT NULL PRIMARY KEY,
    tenant_id TEXT NOT NULL,
    key_id TEXT NOT NULL,
    template_id TEXT NOT NULL,
    template_name TEXT NOT NULL,
    metadata TEXT NOT NULL,
    agent_id TEXT,
    task_id TEXT,
    created_at_ms BIGINT NOT NULL,
    started_at_ms BIGINT NOT NULL,
    ended_at_ms BIGINT NOT NULL,
    -- JSON: how it ended.
    outcome TEXT NOT NULL,
    node_id TEXT NOT NULL,
    epoch BIGINT NOT NULL
);

CREATE INDEX tombstones_by_end ON tombstones (ended_at_ms);
