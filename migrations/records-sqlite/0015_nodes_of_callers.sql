-- Remote build nodes count for who has registered them, as other records do. Null where Kiln acted by itself, and in rows of
-- earlier versions.
ALTER TABLE remote_build_nodes ADD COLUMN caller TEXT;
CREATE INDEX remote_build_nodes_caller ON remote_build_nodes (caller) WHERE caller IS NOT NULL;
