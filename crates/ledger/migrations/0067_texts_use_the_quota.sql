-- What a tenant brings as text fills the database like its artifacts do: inputs of intents, recipes and answers to gates that
-- are no smaller than an artifact that is not inline count too. The sum is kept as in 0059.
CREATE FUNCTION app.text_used(p_tenant text, p_bytes bigint) RETURNS void LANGUAGE sql AS $$
  INSERT INTO app.blob_usage (tenant_id, bytes) VALUES (p_tenant, p_bytes)
  ON CONFLICT (tenant_id) DO UPDATE SET bytes = app.blob_usage.bytes + EXCLUDED.bytes
$$;

CREATE FUNCTION app.intent_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.text_used(NEW.tenant_id, octet_length(NEW.inputs::text) + octet_length(NEW.goal));
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER intents_use_quota AFTER INSERT ON app.intents DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  WHEN (octet_length(NEW.inputs::text) + octet_length(NEW.goal) > 8192) EXECUTE FUNCTION app.intent_used();

CREATE FUNCTION app.recipe_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.text_used(NEW.tenant_id, octet_length(NEW.json::text));
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER recipes_use_quota AFTER INSERT ON app.recipe_versions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  WHEN (octet_length(NEW.json::text) > 8192) EXECUTE FUNCTION app.recipe_used();

CREATE FUNCTION app.answer_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.text_used(r.tenant_id, octet_length(NEW.payload::text)) FROM app.runs r WHERE r.id = NEW.run_id;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER answers_use_quota AFTER INSERT ON app.human_interactions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  WHEN (octet_length(NEW.payload::text) > 8192) EXECUTE FUNCTION app.answer_used();

SELECT app.text_used(t.tenant_id, sum(t.bytes)::bigint) FROM (
  SELECT tenant_id, octet_length(inputs::text) + octet_length(goal) AS bytes FROM app.intents
  UNION ALL SELECT tenant_id, octet_length(json::text) FROM app.recipe_versions
  UNION ALL SELECT r.tenant_id, octet_length(i.payload::text) FROM app.human_interactions i JOIN app.runs r ON r.id = i.run_id
) t WHERE t.bytes > 8192 GROUP BY t.tenant_id;
