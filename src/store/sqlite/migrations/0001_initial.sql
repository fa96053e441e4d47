-- Records. Times are microseconds since 1970 in UTC. `revision` grows with each change, `position` is the order of the
-- list: when the record came to its side, live or deleted. `record` is the record itself, the JSON that the API answers but
-- for the time when it was deleted; beside it are the columns that it is looked for by. The name of a job is its
-- `image_root_archive_name`. `caller` is who has made a record: each caller has a part of each budget. It is null where Kiln acted
-- by itself.

CREATE TABLE recipes (
    id        TEXT NOT NULL PRIMARY KEY,
    revision  INTEGER NOT NULL,
    position  INTEGER NOT NULL,
    deleted   INTEGER,
    name      TEXT NOT NULL,
    arch      TEXT NOT NULL,
    link_path TEXT,
    record    TEXT NOT NULL,
    caller    TEXT
) STRICT;
CREATE INDEX recipes_live_position ON recipes (position, id) WHERE deleted IS NULL;
CREATE INDEX recipes_live_name ON recipes (name, id) WHERE deleted IS NULL;
CREATE INDEX recipes_deleted_position ON recipes (position, id) WHERE deleted IS NOT NULL;
CREATE INDEX recipes_deleted_name ON recipes (name, id) WHERE deleted IS NOT NULL;
CREATE UNIQUE INDEX recipes_live_link_path ON recipes (link_path) WHERE deleted IS NULL;

CREATE TABLE images (
    id        TEXT NOT NULL PRIMARY KEY,
    revision  INTEGER NOT NULL,
    position  INTEGER NOT NULL,
    deleted   INTEGER,
    name      TEXT NOT NULL,
    arch      TEXT NOT NULL,
    link_path TEXT,
    record    TEXT NOT NULL,
    caller    TEXT
) STRICT;
CREATE INDEX images_live_position ON images (position, id) WHERE deleted IS NULL;
CREATE INDEX images_live_name ON images (name, id) WHERE deleted IS NULL;
CREATE INDEX images_deleted_position ON images (position, id) WHERE deleted IS NOT NULL;
CREATE INDEX images_deleted_name ON images (name, id) WHERE deleted IS NOT NULL;
CREATE UNIQUE INDEX images_live_link_path ON images (link_path) WHERE deleted IS NULL;

CREATE TABLE public_keys (
    id       TEXT NOT NULL PRIMARY KEY,
    revision INTEGER NOT NULL,
    position INTEGER NOT NULL,
    deleted  INTEGER,
    name     TEXT NOT NULL,
    record   TEXT NOT NULL,
    caller   TEXT
) STRICT;
CREATE INDEX public_keys_live_position ON public_keys (position, id) WHERE deleted IS NULL;
CREATE INDEX public_keys_live_name ON public_keys (name, id) WHERE deleted IS NULL;
CREATE INDEX public_keys_deleted_position ON public_keys (position, id) WHERE deleted IS NOT NULL;
CREATE INDEX public_keys_deleted_name ON public_keys (name, id) WHERE deleted IS NOT NULL;

-- Jobs. `run` is how Kiln carries one out, the whole of it as JSON; a job without one is carried out by another program.
CREATE TABLE jobs (
    id       TEXT NOT NULL PRIMARY KEY,
    revision INTEGER NOT NULL,
    position INTEGER NOT NULL,
    created  INTEGER NOT NULL,
    name     TEXT NOT NULL,
    arch     TEXT NOT NULL,
    status   TEXT NOT NULL,
    job_type TEXT NOT NULL,
    record   TEXT NOT NULL,
    run      TEXT,
    artifact TEXT, -- the recipe or image that it starts from
    is_open  INTEGER, -- 1 while something of the job is left to do or to clear away, else null
    caller   TEXT
) STRICT;
CREATE INDEX jobs_position ON jobs (position, id);
CREATE INDEX jobs_name ON jobs (name, id);
CREATE INDEX jobs_status ON jobs (status, position, id);
CREATE INDEX jobs_type ON jobs (job_type, position, id);
CREATE INDEX jobs_created ON jobs (created);

CREATE TABLE remote_build_nodes (
    xname    TEXT NOT NULL PRIMARY KEY,
    position INTEGER NOT NULL,
    caller   TEXT
) STRICT;
CREATE INDEX remote_build_nodes_position ON remote_build_nodes (position, xname);

-- The token itself is not kept.
CREATE TABLE tokens (
    id       TEXT NOT NULL PRIMARY KEY,
    position INTEGER NOT NULL,
    sha256   TEXT NOT NULL UNIQUE, -- lower-case hexadecimal
    created  INTEGER NOT NULL,
    name     TEXT NOT NULL,
    role     TEXT NOT NULL,
    expires  INTEGER
) STRICT;
CREATE INDEX tokens_position ON tokens (position, id);

-- Which S3 objects a record refers to. A deleted record still does: it can be restored. `own` says whether an object's key is that
-- of one of the record's own objects: only these go with the record.
CREATE TABLE object_refs (
    kind  TEXT NOT NULL, -- the table that the owner is in
    owner TEXT NOT NULL,
    path  TEXT NOT NULL, -- s3://bucket/key
    own   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, owner, path)
) STRICT, WITHOUT ROWID;
CREATE INDEX object_refs_path ON object_refs (path);

-- Objects that no record refers to any more, until somebody has removed them from S3.
CREATE TABLE doomed_objects (
    path  TEXT NOT NULL PRIMARY KEY,
    since INTEGER NOT NULL,
    own   INTEGER NOT NULL DEFAULT 1
) STRICT, WITHOUT ROWID;
CREATE INDEX doomed_objects_since ON doomed_objects (since, path);

CREATE INDEX jobs_open ON jobs (position, id) WHERE is_open = 1;
CREATE INDEX jobs_artifact ON jobs (artifact, position) WHERE run IS NOT NULL;

-- Jobs that were deleted, until all that they left is cleared away.
CREATE TABLE deleted_jobs (
    id       TEXT NOT NULL PRIMARY KEY,
    revision INTEGER NOT NULL,
    position INTEGER NOT NULL,
    record   TEXT NOT NULL,
    run      TEXT NOT NULL,
    caller   TEXT
) STRICT;

-- Servers that share this database, and what they say of themselves, so that each knows what the others can do. `seen` changes
-- with every sign of life, by the clock of the database: other servers compare it with itself only.
CREATE TABLE servers (
    id     TEXT NOT NULL PRIMARY KEY,
    seen   INTEGER NOT NULL,
    offers TEXT -- the places on the server's own host, as JSON; null before it knows them
) STRICT;

-- Jobs that are made again and again. `next_run` is null while a schedule stands still.
CREATE TABLE schedules (
    id       TEXT NOT NULL PRIMARY KEY,
    revision INTEGER NOT NULL,
    position INTEGER NOT NULL,
    name     TEXT NOT NULL,
    next_run INTEGER,
    record   TEXT NOT NULL,
    caller   TEXT
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

-- One row for each job that has a log, and how large that is: the text of each line in bytes, and a fixed amount for the rest of
-- its row, so that no agent can fill the database. The lines of the server itself count for nothing.
CREATE TABLE job_pulses (
    job          TEXT NOT NULL PRIMARY KEY,
    next         INTEGER NOT NULL, -- the number of the next line
    attempt      INTEGER NOT NULL, -- the last one whose agent was heard; -1 before any was
    agent_next   INTEGER NOT NULL, -- the agent's own number of its next event
    heard        INTEGER,          -- when the agent was last heard
    progressed   INTEGER,           -- when it last got on; at first, when it was first heard
    bytes        INTEGER NOT NULL DEFAULT 0,        -- of all attempts
    bytes_before INTEGER NOT NULL DEFAULT 0, -- of the attempts before this one
    refused      INTEGER NOT NULL DEFAULT 0      -- the number of lines of this attempt that were too many
) STRICT, WITHOUT ROWID;

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

-- One row: the id of all servers on this database together, by which they know the sandboxes on engines that they share.
CREATE TABLE site (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    id  TEXT NOT NULL
) STRICT;

-- Sets: one image for each of several architectures, under one name and version. `record` is the whole of it as JSON.
CREATE TABLE sets (
    id          TEXT NOT NULL PRIMARY KEY,
    revision    INTEGER NOT NULL,
    position    INTEGER NOT NULL,
    name        TEXT NOT NULL,
    version     TEXT NOT NULL,
    is_complete INTEGER,          -- 1 if it was complete at the last look, else null
    next_look   INTEGER NOT NULL, -- when it is to be looked at again
    record      TEXT NOT NULL,
    caller      TEXT
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
    caller  TEXT,
    PRIMARY KEY (name, channel, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX promotions_set ON promotions (set_id) WHERE set_id IS NOT NULL;

-- The audit log: requests that could change something. An entry is there before its request is carried out.
CREATE TABLE audit (
    number     INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    who        TEXT NOT NULL,
    known_by   TEXT NOT NULL,
    identity   TEXT,
    origin     TEXT,
    method     TEXT NOT NULL,
    path       TEXT NOT NULL,
    record_id  TEXT,
    request_id TEXT,
    status     INTEGER, -- null while there is no answer
    caller     TEXT,
    refused    INTEGER -- 1 if the answer was a 4xx, else null
) STRICT;
CREATE INDEX audit_at ON audit (at, number);
CREATE INDEX audit_who ON audit (who, at, number);
CREATE INDEX audit_record ON audit (record_id, at, number) WHERE record_id IS NOT NULL;

-- Deliveries of webhooks: those that wait, and the latest of those that do not.
CREATE TABLE deliveries (
    number   INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id       TEXT NOT NULL,
    receiver TEXT NOT NULL,
    event    TEXT NOT NULL,
    about    TEXT NOT NULL, -- the fact that a receiver is told once
    body     TEXT NOT NULL,
    created  INTEGER NOT NULL,
    state    TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    next_try INTEGER, -- null unless it waits
    status   INTEGER,
    error    TEXT,
    caller   TEXT -- who made the job or the set that it is about
) STRICT;
CREATE UNIQUE INDEX deliveries_about ON deliveries (receiver, about);
CREATE INDEX deliveries_due ON deliveries (receiver, next_try, number) WHERE next_try IS NOT NULL;
CREATE INDEX deliveries_receiver ON deliveries (receiver, number);
CREATE INDEX deliveries_state ON deliveries (state, number);

-- What each job used over time, as JSON.
CREATE TABLE job_usage (
    job    TEXT NOT NULL PRIMARY KEY,
    record TEXT NOT NULL
) STRICT;

-- The packages of images, as their own documents list them: an index that can be made again from S3.
-- What is known of an image. An image without a row was not looked at yet.
CREATE TABLE package_lists (
    image  TEXT NOT NULL PRIMARY KEY REFERENCES images (id) ON DELETE CASCADE,
    format TEXT, -- null if it has no database of packages, or nobody knows
    fault  TEXT, -- why its packages are not known; null if they are
    looked INTEGER NOT NULL
) STRICT;
CREATE TABLE image_packages (
    image   TEXT NOT NULL REFERENCES package_lists (image) ON DELETE CASCADE,
    name    TEXT NOT NULL,
    version TEXT NOT NULL,
    arch    TEXT NOT NULL
) STRICT;
CREATE INDEX image_packages_name ON image_packages (image, name);

CREATE INDEX recipes_caller ON recipes (caller) WHERE caller IS NOT NULL;
CREATE INDEX images_caller ON images (caller) WHERE caller IS NOT NULL;
CREATE INDEX public_keys_caller ON public_keys (caller) WHERE caller IS NOT NULL;
CREATE INDEX jobs_caller ON jobs (caller) WHERE caller IS NOT NULL;
CREATE INDEX schedules_caller ON schedules (caller) WHERE caller IS NOT NULL;
CREATE INDEX sets_caller ON sets (caller) WHERE caller IS NOT NULL;

CREATE INDEX audit_caller ON audit (caller, refused, number);
CREATE INDEX audit_refused ON audit (number) WHERE refused = 1;

-- How much was dropped before its promised age, because it was too much.
CREATE TABLE dropped (
    kind   TEXT NOT NULL PRIMARY KEY,
    number INTEGER NOT NULL,
    last   INTEGER NOT NULL -- when the last of them was
) STRICT;

CREATE INDEX remote_build_nodes_caller ON remote_build_nodes (caller) WHERE caller IS NOT NULL;

CREATE INDEX promotions_caller ON promotions (caller) WHERE caller IS NOT NULL;
