-- Limits of sessions.

-- JSON; what is in it belongs to the layers above.
ALTER TABLE sessions ADD COLUMN limits TEXT NOT NULL DEFAULT '{}';
