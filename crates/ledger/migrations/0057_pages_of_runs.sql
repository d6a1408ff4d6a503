-- A page of runs is read in its order, however many there are: of a tenant by status, and of all tenants. The first serves every list
-- of a tenant, since a list without a status is one of each; the older index of a tenant's runs stays for what counts them.
CREATE INDEX runs_by_status ON app.runs (tenant_id, status, created_at DESC, id DESC);
CREATE INDEX runs_in_order ON app.runs (created_at DESC, id DESC);
-- The newest run of a key, and runs by the beginning of their id, which compares bytes whatever the database's collation is.
CREATE INDEX runs_by_key ON app.runs (key_id, created_at DESC, id DESC);
CREATE INDEX runs_by_prefix ON app.runs (tenant_id, id text_pattern_ops);
