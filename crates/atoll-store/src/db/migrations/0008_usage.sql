-- What sandboxes have used.

-- The last reading of each sandbox that is there.
CREATE TABLE usage_readings (
    sandbox_id TEXT NOT NULL PRIMARY KEY,
    at_ms BIGINT NOT NULL,
    cpu_usec BIGINT NOT NULL,
    sent_bytes BIGINT NOT NULL,
    received_bytes BIGINT NOT NULL,
    memory_bytes BIGINT NOT NULL,
    disk_bytes BIGINT NOT NULL,
    node_id TEXT NOT NULL,
    epoch BIGINT NOT NULL
);

-- Sums, also of sandboxes that are gone.
CREATE TABLE usage_minutes (
    sandbox_id TEXT NOT NULL,
    minute_ms BIGINT NOT NULL,
    tenant_id TEXT NOT NULL,
    agent_id TEXT,
    task_id TEXT,
    running_ms BIGINT NOT NULL,
    cpu_usec BIGINT NOT NULL,
    memory_kib_s BIGINT NOT NULL,
    disk_kib_s BIGINT NOT NULL,
    sent_bytes BIGINT NOT NULL,
    received_bytes BIGINT NOT NULL,
    node_id TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    PRIMARY KEY (sandbox_id, minute_ms)
);

CREATE INDEX usage_of_tenant ON usage_minutes (tenant_id, minute_ms);
