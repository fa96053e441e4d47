-- What each job used over time, as JSON.
CREATE TABLE job_usage (
    job    TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    record TEXT NOT NULL
);
