-- A request that counts tokens is a call: it sends the context to the provider. Nothing is set aside for it, and nothing is paid.
ALTER TABLE app.model_calls DROP CONSTRAINT model_calls_outcome_check;
ALTER TABLE app.model_calls ADD CONSTRAINT model_calls_outcome_check
  CHECK (outcome IN ('ok','refused','provider_error','unreachable','cut','unknown','counted'));
