CREATE TABLE app.recipes (
  tenant_id  text NOT NULL,
  id         text NOT NULL,
  title      text,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant_id, id)
);

-- A draft may be imported again with other content; each content stays readable by its hash, since
-- runs pin the hash. At most one row of an (id, v) is stable, and then no other content may come.
CREATE TABLE app.recipe_versions (
  tenant_id   text NOT NULL,
  id          text NOT NULL,
  v           text NOT NULL,
  hash        text NOT NULL CHECK (hash ~ '^[a-f0-9]{64}$'),
  status      text NOT NULL CHECK (status IN ('draft','candidate','stable')),
  json        jsonb NOT NULL,
  imported_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant_id, id, v, hash),
  FOREIGN KEY (tenant_id, id) REFERENCES app.recipes
);
CREATE UNIQUE INDEX recipe_versions_one_stable ON app.recipe_versions (tenant_id, id, v) WHERE status = 'stable';
CREATE INDEX recipe_versions_newest ON app.recipe_versions (tenant_id, id, imported_at DESC);
