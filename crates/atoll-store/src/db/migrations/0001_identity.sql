-- Who there is: nodes that write, tenants, and their API keys.
-- SQLite and PostgreSQL read the same text: TEXT, and BIGINT for milliseconds.
-- `node_id` and `epoch` on every row say which start of which server wrote it last.

CREATE TABLE nodes (
    node_id TEXT NOT NULL PRIMARY KEY,
    epoch BIGINT NOT NULL,
    started_at_ms BIGINT NOT NULL
);

-- Single values, each written once by whoever comes first.
CREATE TABLE settings (
    name TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL,
    node_id TEXT NOT NULL,
    epoch BIGINT NOT NULL
);

CREATE TABLE tenants (
    tenant_id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    created_at_ms BIGINT NOT NULL,
    -- Grows with every change of a key of this tenant, so that a server can
    -- ask cheaply whether another process revoked one.
    revision BIGINT NOT NULL,
    node_id TEXT NOT NULL,
    epoch BIGINT NOT NULL
);

CREATE TABLE api_keys (
    key_id TEXT NOT NULL PRIMARY KEY,
    tenant_id TEXT NOT NULL REFERENCES tenants (tenant_id),
    name TEXT NOT NULL,
    -- A keyed hash; the key itself is nowhere.
    hash TEXT NOT NULL UNIQUE,
    -- The end of the key, for people who have to tell keys apart.
    suffix TEXT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    expires_at_ms BIGINT,
    last_used_at_ms BIGINT,
    revoked_at_ms BIGINT,
    -- The key that took its place.
    rotated_to TEXT,
    node_id TEXT NOT NULL,
    epoch BIGINT NOT NULL
);

CREATE INDEX api_keys_of_tenant ON api_keys (tenant_id, created_at_ms);
