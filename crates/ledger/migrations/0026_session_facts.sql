-- What a session's sandbox really was, and when its worker last saw it alive.
ALTER TABLE app.remote_execution_sessions ADD COLUMN runtime text;
ALTER TABLE app.remote_execution_sessions ADD COLUMN runtime_version text;
ALTER TABLE app.remote_execution_sessions ADD COLUMN attestation jsonb;
ALTER TABLE app.remote_execution_sessions ADD COLUMN last_heartbeat_at timestamptz;

-- A heartbeat is no change of state: the laws of the state are asked where the state is written.
DROP TRIGGER sessions_need_evidence ON app.remote_execution_sessions;
CREATE CONSTRAINT TRIGGER sessions_need_evidence AFTER INSERT OR UPDATE OF state ON app.remote_execution_sessions
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.sessions_need_evidence();
DROP TRIGGER sessions_guard ON app.remote_execution_sessions;
CREATE TRIGGER sessions_guard BEFORE UPDATE OF state ON app.remote_execution_sessions
  FOR EACH ROW EXECUTE FUNCTION app.sessions_guard();
