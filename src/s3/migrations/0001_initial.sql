-- Names of the embedded object store. Times are microseconds since 1970 in UTC. Keys are BLOBs, so that they
-- compare by bytes, which is the order S3 lists them in.

CREATE TABLE bucket (
    name       TEXT    NOT NULL PRIMARY KEY,
    created_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE object (
    id          INTEGER PRIMARY KEY,
    bucket      TEXT    NOT NULL REFERENCES bucket (name),
    key         BLOB    NOT NULL,
    size        INTEGER NOT NULL,
    etag        TEXT    NOT NULL,
    attributes  TEXT    NOT NULL, -- JSON: content type and the like, user metadata
    modified_us INTEGER NOT NULL,
    UNIQUE (bucket, key)
) STRICT;

-- What an object consists of. The parts of an upload become its pieces without being copied, and a copied object
-- shares the bodies of its source; a body file goes when its last row goes.
CREATE TABLE piece (
    object  INTEGER NOT NULL REFERENCES object (id) ON DELETE CASCADE,
    ordinal INTEGER NOT NULL,
    body    TEXT    NOT NULL, -- file name
    size    INTEGER NOT NULL,
    PRIMARY KEY (object, ordinal)
) STRICT, WITHOUT ROWID;
CREATE INDEX piece_body ON piece (body);

CREATE TABLE upload (
    id             TEXT    NOT NULL PRIMARY KEY,
    bucket         TEXT    NOT NULL REFERENCES bucket (name) ON DELETE CASCADE,
    key            BLOB    NOT NULL,
    attributes     TEXT    NOT NULL,
    initiated_us   INTEGER NOT NULL,
    completed_etag TEXT,             -- set once completed; the row stays a while to answer a repeated request
    completed_us   INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX upload_key ON upload (bucket, key, id);

CREATE TABLE part (
    upload      TEXT    NOT NULL REFERENCES upload (id) ON DELETE CASCADE,
    number      INTEGER NOT NULL,
    body        TEXT    NOT NULL,
    size        INTEGER NOT NULL,
    etag        TEXT    NOT NULL,
    modified_us INTEGER NOT NULL,
    sums        TEXT    NOT NULL DEFAULT '{}', -- checksums, JSON; those of an object are among its attributes
    PRIMARY KEY (upload, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX part_body ON part (body);
