-- The limits on spawning are the operator's: what a tenant sets for itself does not count here.
CREATE OR REPLACE FUNCTION app.dispatch_limit(p_key text, p_default bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT coalesce((SELECT (value #>> '{}')::bigint FROM app.dynamic_config
                    WHERE key = p_key AND tenant_id = '*' AND jsonb_typeof(value) = 'number'
                    ORDER BY version DESC LIMIT 1), p_default)
$$;
