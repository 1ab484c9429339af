-- What happened to sandboxes, in the order in which it was written.

-- Who adds an event takes the next number here and holds the row until its
-- transaction is over: numbers become visible in their order, so a reader who
-- goes on after the last one it saw misses none.
CREATE TABLE event_counter (
    name TEXT NOT NULL PRIMARY KEY,
    newest BIGINT NOT NULL,
    -- The highest number that is not kept any more.
    forgotten BIGINT NOT NULL
);

INSERT INTO event_counter (name, newest, forgotten) VALUES ('events', 0, 0);

CREATE TABLE events (
    sequence BIGINT NOT NULL PRIMARY KEY,
    at_ms BIGINT NOT NULL,
    -- None: of the node itself, and no tenant's to see.
    tenant_id TEXT,
    sandbox_id TEXT,
    kind TEXT NOT NULL,
    -- JSON.
    detail TEXT NOT NULL,
    -- What it stands for, where a repair might write it a second time.
    mark TEXT UNIQUE,
    node_id TEXT NOT NULL,
    epoch BIGINT NOT NULL
);

CREATE INDEX events_of_tenant ON events (tenant_id, sequence);

-- How far each webhook of a node has been told.
CREATE TABLE webhook_cursors (
    node_id TEXT NOT NULL,
    hook TEXT NOT NULL,
    sequence BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    PRIMARY KEY (node_id, hook)
);
