-- A proof of one run reads the objects of that run in the order of their ids: without this it walked over every object of the tenant.
CREATE INDEX artifacts_by_run_object ON app.artifacts (run_id, object_id) WHERE object_id IS NOT NULL;
