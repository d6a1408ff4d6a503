-- Claim: the text of a recipe has the hash under which runs name it
-- A row means: a recipe was changed after it was imported
SELECT NULL::text AS run_id, v.tenant_id, v.id, v.v, v.hash, h.hash AS actual
  FROM app.recipe_versions v
 CROSS JOIN LATERAL (SELECT app.canonical_digest(v.json) AS hash) h
 WHERE h.hash <> v.hash;
