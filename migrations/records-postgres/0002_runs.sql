-- How Kiln carries jobs out. `run` is the whole of it as JSON; a job without one is carried out by somebody else.
ALTER TABLE jobs ADD COLUMN run TEXT;
ALTER TABLE jobs ADD COLUMN artifact TEXT COLLATE "C"; -- the recipe or image that it starts from
ALTER TABLE jobs ADD COLUMN is_open BIGINT; -- 1 while something of the job is left to do or to clear away, else null
CREATE INDEX jobs_open ON jobs (position, id) WHERE is_open = 1;
CREATE INDEX jobs_artifact ON jobs (artifact, position) WHERE run IS NOT NULL;

-- Jobs that were deleted, until all that they left is cleared away.
CREATE TABLE deleted_jobs (
    id       TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    revision BIGINT NOT NULL,
    position BIGINT NOT NULL,
    record   TEXT NOT NULL,
    run      TEXT NOT NULL
);

-- Servers that share this database, and when each was last alive.
CREATE TABLE servers (
    id   TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    seen BIGINT NOT NULL
);
