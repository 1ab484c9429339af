-- What keys may do.

-- `viewer`, `agent`, `operator` or `admin`. Keys that were made before there
-- were roles may what they could.
ALTER TABLE api_keys ADD COLUMN role TEXT NOT NULL DEFAULT 'operator';
