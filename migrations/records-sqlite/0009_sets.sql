-- Sets: one image for each of several architectures, under one name and version. `record` is the whole of it as JSON.
CREATE TABLE sets (
    id          TEXT NOT NULL PRIMARY KEY,
    revision    INTEGER NOT NULL,
    position    INTEGER NOT NULL,
    name        TEXT NOT NULL,
    version     TEXT NOT NULL,
    is_complete INTEGER,          -- 1 if it was complete at the last look, else null
    next_look   INTEGER NOT NULL, -- when it is to be looked at again
    record      TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX sets_name_version ON sets (name, version);
CREATE INDEX sets_position ON sets (position, id);
CREATE INDEX sets_name ON sets (name, id);
CREATE INDEX sets_complete ON sets (name, position) WHERE is_complete = 1;
CREATE INDEX sets_next_look ON sets (next_look, id);

-- Which set each channel of a name has led to. The highest number of a channel is where it leads now. That there is one row
-- for each number is what lets one of two promotions at the same time win.
CREATE TABLE promotions (
    name    TEXT NOT NULL,
    channel TEXT NOT NULL,
    number  INTEGER NOT NULL,
    set_id  TEXT, -- null where the channel was emptied
    record  TEXT NOT NULL,
    PRIMARY KEY (name, channel, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX promotions_set ON promotions (set_id) WHERE set_id IS NOT NULL;
