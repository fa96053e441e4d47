-- Whether an object's key is that of one of the record's own objects: 1 or 0. Only these go with the record.

ALTER TABLE object_refs ADD COLUMN own INTEGER NOT NULL DEFAULT 0;

-- Of the objects that were doomed before, those in Kiln's own buckets go.
ALTER TABLE doomed_objects ADD COLUMN own INTEGER NOT NULL DEFAULT 1;

-- The key begins behind `s3://bucket/`. IMS puts `deleted/` before the keys of deleted records.
UPDATE object_refs SET own = 1
WHERE kind = 'images' AND (
    substr(path, 6 + instr(substr(path, 6), '/'), length(owner) + 1) = owner || '/'
    OR substr(path, 6 + instr(substr(path, 6), '/'), length(owner) + 9) = 'deleted/' || owner || '/');
UPDATE object_refs SET own = 1
WHERE kind = 'recipes' AND (
    substr(path, 6 + instr(substr(path, 6), '/'), length(owner) + 9) = 'recipes/' || owner || '/'
    OR substr(path, 6 + instr(substr(path, 6), '/'), length(owner) + 17) = 'deleted/recipes/' || owner || '/');

-- The log beside an image that a job has made goes with the image.
INSERT INTO object_refs (kind, owner, path, own)
SELECT 'images', id, substr(link_path, 1, length(link_path) - length('manifest.json')) || 'build.log.zst', 1
FROM images WHERE link_path LIKE '%/' || id || '/manifest.json' AND json_extract(record, '$.metadata."kiln.job"') IS NOT NULL
ON CONFLICT DO NOTHING;
