-- Images of services, bound by their digests: what an intent bound, once for all of its runs, retries and forks.
CREATE TABLE app.intent_images (
  intent_id  text NOT NULL REFERENCES app.intents,
  -- As the recipe names it, with a tag.
  reference  text NOT NULL CHECK (length(reference) BETWEEN 1 AND 512),
  -- The same with the digest that the registry gave when the plan was compiled.
  pinned     text NOT NULL CHECK (pinned ~ '@sha256:[a-f0-9]{64}$' AND starts_with(pinned, reference)),
  origin     text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (intent_id, reference)
);
CREATE TRIGGER intent_images_append_only BEFORE UPDATE OR DELETE ON app.intent_images
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();
