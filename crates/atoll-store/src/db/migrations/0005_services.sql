-- Services for agents: sessions, who else may use what, and the history of executions.

CREATE TABLE sessions (
    session_id TEXT NOT NULL PRIMARY KEY,
    tenant_id TEXT NOT NULL REFERENCES tenants (tenant_id),
    key_id TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    task_id TEXT,
    user_id TEXT,
    -- What its sandboxes are made from.
    template TEXT NOT NULL,
    -- JSON; what is in them belongs to the layers above.
    metadata TEXT NOT NULL,
    network TEXT NOT NULL,
    -- Environment variables of its sandboxes, encrypted.
    sealed TEXT NOT NULL,
    -- The sandbox it has now, and how many it has had.
    sandbox_id TEXT,
    generation BIGINT NOT NULL,
    idle_ms BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    last_used_at_ms BIGINT NOT NULL,
    expires_at_ms BIGINT NOT NULL,
    -- Both absent while it can be used.
    ended_at_ms BIGINT,
    end_reason TEXT,
    node_id TEXT NOT NULL,
    epoch BIGINT NOT NULL
);

-- An agent has one session per task at a time.
CREATE UNIQUE INDEX sessions_of_task ON sessions (tenant_id, agent_id, task_id)
    WHERE ended_at_ms IS NULL AND task_id IS NOT NULL;
CREATE INDEX sessions_of_tenant ON sessions (tenant_id, created_at_ms, session_id);

-- Agents that may use what belongs to another agent of the same tenant.
CREATE TABLE agent_grants (
    tenant_id TEXT NOT NULL,
    -- `session` or `sandbox`.
    kind TEXT NOT NULL,
    object_id TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    node_id TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    PRIMARY KEY (tenant_id, kind, object_id, agent_id)
);

CREATE TABLE executions (
    execution_id TEXT NOT NULL PRIMARY KEY,
    tenant_id TEXT NOT NULL REFERENCES tenants (tenant_id),
    key_id TEXT NOT NULL,
    agent_id TEXT,
    task_id TEXT,
    session_id TEXT,
    sandbox_id TEXT NOT NULL,
    template_id TEXT NOT NULL,
    tier TEXT NOT NULL,
    kind TEXT NOT NULL,
    language TEXT,
    -- Of the code or command, which is not kept.
    digest TEXT NOT NULL,
    code_bytes BIGINT NOT NULL,
    status TEXT NOT NULL,
    outcome TEXT,
    exit_code BIGINT,
    -- JSON: what it said, cut.
    report TEXT NOT NULL,
    stdout_bytes BIGINT NOT NULL,
    stderr_bytes BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    ended_at_ms BIGINT,
    duration_ms BIGINT,
    cpu_usec BIGINT,
    memory_peak_bytes BIGINT,
    node_id TEXT NOT NULL,
    epoch BIGINT NOT NULL
);

CREATE INDEX executions_of_tenant ON executions (tenant_id, created_at_ms, execution_id);
CREATE INDEX executions_of_node ON executions (node_id, status);
