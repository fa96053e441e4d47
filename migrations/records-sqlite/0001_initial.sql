-- Records. Times are microseconds since 1970 in UTC. `revision` grows with each change, `position` is the order of the
-- list: when the record came to its side, live or deleted. `record` is the record itself, the JSON that the API answers but
-- for the time when it was deleted; beside it are the columns that it is looked for by. The name of a job is its
-- `image_root_archive_name`.

CREATE TABLE recipes (
    id        TEXT NOT NULL PRIMARY KEY,
    revision  INTEGER NOT NULL,
    position  INTEGER NOT NULL,
    deleted   INTEGER,
    name      TEXT NOT NULL,
    arch      TEXT NOT NULL,
    link_path TEXT,
    record    TEXT NOT NULL
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
    record    TEXT NOT NULL
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
    record   TEXT NOT NULL
) STRICT;
CREATE INDEX public_keys_live_position ON public_keys (position, id) WHERE deleted IS NULL;
CREATE INDEX public_keys_live_name ON public_keys (name, id) WHERE deleted IS NULL;
CREATE INDEX public_keys_deleted_position ON public_keys (position, id) WHERE deleted IS NOT NULL;
CREATE INDEX public_keys_deleted_name ON public_keys (name, id) WHERE deleted IS NOT NULL;

CREATE TABLE jobs (
    id       TEXT NOT NULL PRIMARY KEY,
    revision INTEGER NOT NULL,
    position INTEGER NOT NULL,
    created  INTEGER NOT NULL,
    name     TEXT NOT NULL,
    arch     TEXT NOT NULL,
    status   TEXT NOT NULL,
    job_type TEXT NOT NULL,
    record   TEXT NOT NULL
) STRICT;
CREATE INDEX jobs_position ON jobs (position, id);
CREATE INDEX jobs_name ON jobs (name, id);
CREATE INDEX jobs_status ON jobs (status, position, id);
CREATE INDEX jobs_type ON jobs (job_type, position, id);
CREATE INDEX jobs_created ON jobs (created);

CREATE TABLE remote_build_nodes (
    xname    TEXT NOT NULL PRIMARY KEY,
    position INTEGER NOT NULL
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

-- Which S3 objects a record refers to. A deleted record still does: it can be restored.
CREATE TABLE object_refs (
    kind  TEXT NOT NULL, -- the table that the owner is in
    owner TEXT NOT NULL,
    path  TEXT NOT NULL, -- s3://bucket/key
    PRIMARY KEY (kind, owner, path)
) STRICT, WITHOUT ROWID;
CREATE INDEX object_refs_path ON object_refs (path);

-- Objects that no record refers to any more, until somebody has removed them from S3.
CREATE TABLE doomed_objects (
    path  TEXT NOT NULL PRIMARY KEY,
    since INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX doomed_objects_since ON doomed_objects (since, path);
