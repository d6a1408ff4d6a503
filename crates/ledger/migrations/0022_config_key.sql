ALTER TABLE app.dynamic_config
  DROP CONSTRAINT dynamic_config_pkey,
  ADD PRIMARY KEY (tenant_id, key, version);
