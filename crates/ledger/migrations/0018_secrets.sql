-- Placeholder until the branch of secrets is merged.
SELECT 1;
