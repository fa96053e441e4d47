-- What the servers that share this database say of themselves, so that each knows what the others can do. `seen` changes
-- with every sign of life, by the clock of the database: other servers compare it with itself only.
ALTER TABLE servers ADD COLUMN offers TEXT; -- the places on the server's own host, as JSON; null before it knows them

-- One row: the id of all servers on this database together, by which they know the sandboxes on engines that they share.
CREATE TABLE site (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    id  TEXT NOT NULL
) STRICT;
