-- How large a log is, so that no agent can fill the database. Sizes count the text of each line in bytes, and a fixed amount
-- for the rest of its row. The lines of the server itself count for nothing, and neither does a log of an earlier Kiln.

ALTER TABLE job_pulses ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0;        -- of all attempts
ALTER TABLE job_pulses ADD COLUMN bytes_before BIGINT NOT NULL DEFAULT 0; -- of the attempts before this one
ALTER TABLE job_pulses ADD COLUMN refused BIGINT NOT NULL DEFAULT 0;      -- the number of lines of this attempt that were too many
