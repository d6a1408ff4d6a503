-- What was asked of the sandbox and what was enforced. Harmless when run twice; rows that were there
-- before have neither.
ALTER TABLE app.dispatches ADD COLUMN IF NOT EXISTS sandbox_spec jsonb;
ALTER TABLE app.dispatches ADD COLUMN IF NOT EXISTS sandbox_effective jsonb;
