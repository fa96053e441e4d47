-- Jobs that are made again and again. `next_run` is null while a schedule stands still.
CREATE TABLE schedules (
    id       TEXT NOT NULL PRIMARY KEY,
    revision INTEGER NOT NULL,
    position INTEGER NOT NULL,
    name     TEXT NOT NULL,
    next_run INTEGER,
    record   TEXT NOT NULL
) STRICT;
CREATE INDEX schedules_position ON schedules (position, id);
CREATE INDEX schedules_name ON schedules (name, id);
CREATE INDEX schedules_next_run ON schedules (next_run, id) WHERE next_run IS NOT NULL;

-- The times at which they were due. That there is one row for each is what makes one job of each.
CREATE TABLE schedule_ticks (
    schedule TEXT NOT NULL,
    due      INTEGER NOT NULL,
    outcome  TEXT NOT NULL,
    is_open  INTEGER, -- 1 while something is left to do, else null
    record   TEXT NOT NULL,
    PRIMARY KEY (schedule, due)
) STRICT, WITHOUT ROWID;
CREATE INDEX schedule_ticks_open ON schedule_ticks (schedule, due) WHERE is_open = 1;
