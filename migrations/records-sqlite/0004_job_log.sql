-- What is said while a job runs. Lines are numbered from 0 without holes, over all attempts. A log may outlive its job for
-- a while: one can have millions of lines, too many to remove in the transaction that forgets the job.

CREATE TABLE job_log (
    job        TEXT NOT NULL,
    seq        INTEGER NOT NULL,
    time       INTEGER NOT NULL, -- when it was kept, by the server's clock
    agent_time INTEGER NOT NULL, -- when it was said, by the clock of who said it
    step       TEXT,             -- null outside the steps
    stream     TEXT NOT NULL,    -- server, agent, stdout, stderr
    text       TEXT NOT NULL,
    PRIMARY KEY (job, seq)
) STRICT, WITHOUT ROWID;

-- One row for each job that has a log.
CREATE TABLE job_pulses (
    job        TEXT NOT NULL PRIMARY KEY,
    next       INTEGER NOT NULL, -- the number of the next line
    attempt    INTEGER NOT NULL, -- the last one whose agent was heard; -1 before any was
    agent_next INTEGER NOT NULL, -- the agent's own number of its next event
    heard      INTEGER,          -- when the agent was last heard
    progressed INTEGER           -- when it last got on; at first, when it was first heard
) STRICT, WITHOUT ROWID;
