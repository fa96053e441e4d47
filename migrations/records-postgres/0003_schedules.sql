-- Jobs that are made again and again. `next_run` is null while a schedule stands still.
CREATE TABLE schedules (
    id       TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    revision BIGINT NOT NULL,
    position BIGINT NOT NULL,
    name     TEXT COLLATE "C" NOT NULL,
    next_run BIGINT,
    record   TEXT NOT NULL
);
CREATE INDEX schedules_position ON schedules (position, id);
CREATE INDEX schedules_name ON schedules (name, id);
CREATE INDEX schedules_next_run ON schedules (next_run, id) WHERE next_run IS NOT NULL;

-- The times at which they were due. That there is one row for each is what makes one job of each.
CREATE TABLE schedule_ticks (
    schedule TEXT COLLATE "C" NOT NULL,
    due      BIGINT NOT NULL,
    outcome  TEXT NOT NULL,
    is_open  BIGINT, -- 1 while something is left to do, else null
    record   TEXT NOT NULL,
    PRIMARY KEY (schedule, due)
);
CREATE INDEX schedule_ticks_open ON schedule_ticks (schedule, due) WHERE is_open = 1;
