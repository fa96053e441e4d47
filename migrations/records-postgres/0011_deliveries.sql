-- Deliveries of webhooks: those that wait, and the latest of those that do not.
CREATE TABLE deliveries (
    number   BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id       TEXT COLLATE "C" NOT NULL,
    receiver TEXT COLLATE "C" NOT NULL,
    event    TEXT NOT NULL,
    about    TEXT COLLATE "C" NOT NULL, -- the fact that a receiver is told once
    body     TEXT NOT NULL,
    created  BIGINT NOT NULL,
    state    TEXT COLLATE "C" NOT NULL,
    attempts BIGINT NOT NULL,
    next_try BIGINT, -- null unless it waits
    status   BIGINT,
    error    TEXT
);
CREATE UNIQUE INDEX deliveries_about ON deliveries (receiver, about);
CREATE INDEX deliveries_due ON deliveries (receiver, next_try, number) WHERE next_try IS NOT NULL;
CREATE INDEX deliveries_receiver ON deliveries (receiver, number);
CREATE INDEX deliveries_state ON deliveries (state, number);
