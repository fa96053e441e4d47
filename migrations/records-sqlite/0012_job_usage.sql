-- What each job used over time, as JSON.
CREATE TABLE job_usage (
    job    TEXT NOT NULL PRIMARY KEY,
    record TEXT NOT NULL
) STRICT;
