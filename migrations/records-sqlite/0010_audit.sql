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
    status     INTEGER -- null while there is no answer
) STRICT;
CREATE INDEX audit_at ON audit (at, number);
CREATE INDEX audit_who ON audit (who, at, number);
CREATE INDEX audit_record ON audit (record_id, at, number) WHERE record_id IS NOT NULL;
