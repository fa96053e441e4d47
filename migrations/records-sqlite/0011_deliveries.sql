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
    error    TEXT
) STRICT;
CREATE UNIQUE INDEX deliveries_about ON deliveries (receiver, about);
CREATE INDEX deliveries_due ON deliveries (receiver, next_try, number) WHERE next_try IS NOT NULL;
CREATE INDEX deliveries_receiver ON deliveries (receiver, number);
CREATE INDEX deliveries_state ON deliveries (state, number);
