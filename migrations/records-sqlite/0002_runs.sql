-- How Kiln carries jobs out. `run` is the whole of it as JSON; a job without one is carried out by somebody else.
ALTER TABLE jobs ADD COLUMN run TEXT;
ALTER TABLE jobs ADD COLUMN artifact TEXT; -- the recipe or image that it starts from
ALTER TABLE jobs ADD COLUMN is_open INTEGER; -- 1 while something of the job is left to do or to clear away, else null
CREATE INDEX jobs_open ON jobs (position, id) WHERE is_open = 1;
CREATE INDEX jobs_artifact ON jobs (artifact, position) WHERE run IS NOT NULL;

-- Jobs that were deleted, until all that they left is cleared away.
CREATE TABLE deleted_jobs (
    id       TEXT NOT NULL PRIMARY KEY,
    revision INTEGER NOT NULL,
    position INTEGER NOT NULL,
    record   TEXT NOT NULL,
    run      TEXT NOT NULL
) STRICT;

-- Servers that share this database, and when each was last alive.
CREATE TABLE servers (
    id   TEXT NOT NULL PRIMARY KEY,
    seen INTEGER NOT NULL
) STRICT;
