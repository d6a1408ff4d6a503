-- A key of a creation names at most one sandbox that is being made or was made. One that ended without having started,
-- for want of room, gives its key back: who repeats the request may have one.
ALTER TABLE app.live_sandboxes DROP CONSTRAINT live_sandboxes_tenant_id_dedup_key;
CREATE UNIQUE INDEX live_sandboxes_dedup ON app.live_sandboxes (tenant_id, dedup)
  WHERE ended_at IS NULL OR started_at IS NOT NULL;
