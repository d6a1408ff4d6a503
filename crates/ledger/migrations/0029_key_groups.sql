ALTER TABLE app.api_keys
  ADD COLUMN groups text[] NOT NULL DEFAULT '{}' CHECK (cardinality(groups) <= 32);
