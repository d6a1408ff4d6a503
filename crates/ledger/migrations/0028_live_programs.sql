-- The program of a template that ended without success after its sandbox was up: when, and how with its last words. The sandbox
-- goes on; its owner is told. The next life begins without it.
ALTER TABLE app.live_sandboxes
  ADD COLUMN program_failed_at timestamptz,
  ADD COLUMN program_failed text CHECK (program_failed <> ''),
  ADD CHECK ((program_failed_at IS NULL) = (program_failed IS NULL));
