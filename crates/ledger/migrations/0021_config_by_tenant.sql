-- '*' is the host's own value; a tenant's id never has that shape.
ALTER TABLE app.dynamic_config ADD COLUMN tenant_id text NOT NULL DEFAULT '*';
