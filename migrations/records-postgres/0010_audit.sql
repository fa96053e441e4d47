-- The audit log: requests that could change something. An entry is there before its request is carried out.
CREATE TABLE audit (
    number     BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         BIGINT NOT NULL,
    who        TEXT COLLATE "C" NOT NULL,
    known_by   TEXT NOT NULL,
    identity   TEXT,
    origin     TEXT,
    method     TEXT NOT NULL,
    path       TEXT NOT NULL,
    record_id  TEXT COLLATE "C",
    request_id TEXT,
    status     BIGINT -- null while there is no answer
);
CREATE INDEX audit_at ON audit (at, number);
CREATE INDEX audit_who ON audit (who, at, number);
CREATE INDEX audit_record ON audit (record_id, at, number) WHERE record_id IS NOT NULL;
