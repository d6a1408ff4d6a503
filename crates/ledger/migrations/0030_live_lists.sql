-- A page of a tenant's sandboxes that are not over is read in its order, however many there are. The older index has another order.
CREATE INDEX live_sandboxes_listed ON app.live_sandboxes (tenant_id, app.ms(created_at), id) WHERE ended_at IS NULL;
DROP INDEX app.live_sandboxes_by_tenant;
