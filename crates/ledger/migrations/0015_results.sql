-- The answer of an attempt that was canceled and that no worker will answer for any more.
CREATE FUNCTION app.canceled_response(p_task_key text, p_cause text) RETURNS jsonb
LANGUAGE sql IMMUTABLE AS $$
  SELECT jsonb_build_object('exit', -1, 'stdout', '', 'stderr', '', 'filesOut', '[]'::jsonb,
    'metrics', '{"wallMs":0,"cpuMs":0,"memPeakMB":0}'::jsonb, 'sandboxRef', '',
    'errCode', 'CMD_NONZERO', 'taskKey', p_task_key, 'cause', p_cause)
$$;
