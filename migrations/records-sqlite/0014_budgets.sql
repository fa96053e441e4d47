-- Whose records, audit entries and webhooks are: each caller has a part of each budget. Null where Kiln acted by itself, and
-- in rows of earlier versions.
ALTER TABLE recipes ADD COLUMN caller TEXT;
CREATE INDEX recipes_caller ON recipes (caller) WHERE caller IS NOT NULL;
ALTER TABLE images ADD COLUMN caller TEXT;
CREATE INDEX images_caller ON images (caller) WHERE caller IS NOT NULL;
ALTER TABLE public_keys ADD COLUMN caller TEXT;
CREATE INDEX public_keys_caller ON public_keys (caller) WHERE caller IS NOT NULL;
ALTER TABLE jobs ADD COLUMN caller TEXT;
CREATE INDEX jobs_caller ON jobs (caller) WHERE caller IS NOT NULL;
ALTER TABLE schedules ADD COLUMN caller TEXT;
CREATE INDEX schedules_caller ON schedules (caller) WHERE caller IS NOT NULL;
ALTER TABLE sets ADD COLUMN caller TEXT;
CREATE INDEX sets_caller ON sets (caller) WHERE caller IS NOT NULL;
ALTER TABLE deleted_jobs ADD COLUMN caller TEXT;

ALTER TABLE audit ADD COLUMN caller TEXT;
ALTER TABLE audit ADD COLUMN refused INTEGER; -- 1 if the answer was a 4xx, else null
UPDATE audit SET refused = 1 WHERE status BETWEEN 400 AND 499;
CREATE INDEX audit_caller ON audit (caller, refused, number);
CREATE INDEX audit_refused ON audit (number) WHERE refused = 1;

ALTER TABLE deliveries ADD COLUMN caller TEXT; -- who made the job or the set that it is about

-- How much was dropped before its promised age, because it was too much.
CREATE TABLE dropped (
    kind TEXT NOT NULL PRIMARY KEY,
    number INTEGER NOT NULL,
    last INTEGER NOT NULL -- when the last of them was
) STRICT;
