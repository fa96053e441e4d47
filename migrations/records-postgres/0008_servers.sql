-- What the servers that share this database say of themselves, so that each knows what the others can do. `seen` changes
-- with every sign of life, by the clock of the database: other servers compare it with itself only.
ALTER TABLE servers ADD COLUMN offers TEXT; -- the places on the server's own host, as JSON; null before it knows them

-- One row: the id of all servers on this database together, by which they know the sandboxes on engines that they share.
CREATE TABLE site (
    one BIGINT NOT NULL PRIMARY KEY CHECK (one = 1),
    id  TEXT NOT NULL
);

-- Tells all servers of a change of a job that Kiln carries out: its id, and what happened.
CREATE FUNCTION kiln_tell_of_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        PERFORM pg_notify('kiln_jobs', OLD.id || ' deleted');
    ELSIF NEW.status IN ('success', 'error') THEN
        PERFORM pg_notify('kiln_jobs', NEW.id || ' ended');
    ELSE
        PERFORM pg_notify('kiln_jobs', NEW.id || ' changed');
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_tell_of_new AFTER INSERT ON jobs
    FOR EACH ROW WHEN (NEW.run IS NOT NULL) EXECUTE FUNCTION kiln_tell_of_job();
CREATE TRIGGER jobs_tell_of_change AFTER UPDATE ON jobs
    FOR EACH ROW WHEN (NEW.run IS DISTINCT FROM OLD.run) EXECUTE FUNCTION kiln_tell_of_job();
CREATE TRIGGER jobs_tell_of_end AFTER DELETE ON jobs
    FOR EACH ROW WHEN (OLD.run IS NOT NULL) EXECUTE FUNCTION kiln_tell_of_job();
