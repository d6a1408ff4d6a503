CREATE TABLE app.executors (
  id           text PRIMARY KEY,
  host_id      text NOT NULL,
  pid          integer NOT NULL,
  app_version  text NOT NULL,
  state        text NOT NULL DEFAULT 'live' CHECK (state IN ('live','dead','left')),
  started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  ended_at     timestamptz
);
CREATE INDEX executors_live ON app.executors (heartbeat_at) WHERE state = 'live';
