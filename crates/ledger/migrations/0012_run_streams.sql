-- An adjunct, never truth. `run_id` is a run's id for `status`, a task's key for `stdout` and `stderr`.
CREATE TABLE app.run_streams (
  run_id     text NOT NULL,
  key        text NOT NULL CHECK (key IN ('status','stdout','stderr')),
  seq        integer NOT NULL CHECK (seq >= 0),
  chunk      text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, key, seq)
);
