-- A gate carries its recipe's law and what a yes would be bound to. Every round of a gate is a row of
-- its own: a prompt and a decision are one a key.
ALTER TABLE app.human_gates
  ADD COLUMN round integer NOT NULL DEFAULT 1 CHECK (round >= 1),
  ADD COLUMN spec jsonb,
  ADD COLUMN bindings jsonb,
  ADD COLUMN parts jsonb,
  ADD COLUMN inputs jsonb,
  ADD COLUMN groups text[] NOT NULL DEFAULT '{}',
  ADD COLUMN priority integer NOT NULL DEFAULT 0,
  ADD COLUMN escalated_at timestamptz;
