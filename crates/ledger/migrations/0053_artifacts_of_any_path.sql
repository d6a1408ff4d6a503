-- A b-tree holds no key above 2,704 bytes, and a path has up to 4,096: the row of such an artifact was refused, and
-- its task never ended. An artifact is only ever looked for by its whole address, which a hash serves.
DROP INDEX app.artifacts_by_uri;
CREATE INDEX artifacts_by_uri ON app.artifacts USING hash (uri);
