-- What providers answered within prompts, and the bodies that a recipe has kept, fill the database as artifacts do: they
-- count for their tenant's quota.
CREATE FUNCTION app.model_answer_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.bytes_used(c.tenant_id, octet_length(NEW.body)) FROM app.model_calls c WHERE c.op_key = NEW.call_key;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER prompt_answers_use_quota AFTER INSERT ON app.prompt_answers DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION app.model_answer_used();

CREATE FUNCTION app.model_body_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.bytes_used(c.tenant_id, octet_length(NEW.body)) FROM app.model_calls c WHERE c.op_key = NEW.op_key;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER model_bodies_use_quota AFTER INSERT ON app.model_bodies DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION app.model_body_used();

SELECT app.bytes_used(c.tenant_id, sum(octet_length(a.body))::bigint)
  FROM app.prompt_answers a JOIN app.model_calls c ON c.op_key = a.call_key GROUP BY c.tenant_id;
SELECT app.bytes_used(c.tenant_id, sum(octet_length(b.body))::bigint)
  FROM app.model_bodies b JOIN app.model_calls c USING (op_key) GROUP BY c.tenant_id;
