-- Changes of channels count for who has made them, as records do: a set may have any number of channels.
ALTER TABLE promotions ADD COLUMN caller TEXT;
CREATE INDEX promotions_caller ON promotions (caller) WHERE caller IS NOT NULL;
