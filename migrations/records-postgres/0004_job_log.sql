-- What is said while a job runs. Lines are numbered from 0 without holes, over all attempts. A log may outlive its job for
-- a while: one can have millions of lines, too many to remove in the transaction that forgets the job.

CREATE TABLE job_log (
    job        TEXT COLLATE "C" NOT NULL,
    seq        BIGINT NOT NULL,
    time       BIGINT NOT NULL, -- when it was kept, by the server's clock
    agent_time BIGINT NOT NULL, -- when it was said, by the clock of who said it
    step       TEXT,            -- null outside the steps
    stream     TEXT NOT NULL,   -- server, agent, stdout, stderr
    text       TEXT NOT NULL,
    PRIMARY KEY (job, seq)
);

-- One row for each job that has a log. It changes with every heartbeat; the space lets the new row lie beside the old.
CREATE TABLE job_pulses (
    job        TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    next       BIGINT NOT NULL, -- the number of the next line
    attempt    BIGINT NOT NULL, -- the last one whose agent was heard; -1 before any was
    agent_next BIGINT NOT NULL, -- the agent's own number of its next event
    heard      BIGINT,          -- when the agent was last heard
    progressed BIGINT           -- when it last got on; at first, when it was first heard
) WITH (fillfactor = 50);
