-- Pairs of programs whose native twin died in a job that then succeeded without twins. They are not used again. A job adds
-- one at most.

CREATE TABLE failed_twins (
    job     TEXT NOT NULL PRIMARY KEY, -- the job, which may be deleted
    package TEXT NOT NULL,
    version TEXT NOT NULL,
    path    TEXT NOT NULL, -- the program
    target  TEXT NOT NULL, -- the architecture of the image
    host    TEXT NOT NULL, -- the architecture of the twin
    code    TEXT NOT NULL, -- of the failure
    since   INTEGER NOT NULL,
    UNIQUE (package, version, path, target, host)
) STRICT, WITHOUT ROWID;
CREATE INDEX failed_twins_since ON failed_twins (since);
