-- What was seen of sandboxes: lines of their logs and samples of their use.
-- Both are bounded per sandbox, and go with its tombstone.

CREATE TABLE sandbox_logs (
    sandbox_id TEXT NOT NULL,
    sequence BIGINT NOT NULL,
    tenant_id TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    level TEXT NOT NULL,
    message TEXT NOT NULL,
    -- JSON.
    fields TEXT NOT NULL,
    node_id TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    PRIMARY KEY (sandbox_id, sequence)
);

-- A ring: a sample takes the place of the one that was taken a lap before.
CREATE TABLE metric_samples (
    sandbox_id TEXT NOT NULL,
    slot BIGINT NOT NULL,
    tenant_id TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    cpu_count BIGINT NOT NULL,
    cpu_used_millipercent BIGINT NOT NULL,
    memory_used_bytes BIGINT NOT NULL,
    memory_total_bytes BIGINT NOT NULL,
    memory_cache_bytes BIGINT NOT NULL,
    disk_used_bytes BIGINT NOT NULL,
    disk_total_bytes BIGINT NOT NULL,
    node_id TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    PRIMARY KEY (sandbox_id, slot)
);
