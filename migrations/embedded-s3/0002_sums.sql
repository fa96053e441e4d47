-- The checksums of a part, JSON. Those of an object are among its attributes.
ALTER TABLE part ADD COLUMN sums TEXT NOT NULL DEFAULT '{}';
