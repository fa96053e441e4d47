-- Records. Times are microseconds since 1970 in UTC. `revision` grows with each change, `position` is the order of the
-- list: when the record came to its side, live or deleted. Lists and maps are JSON.
-- Identifiers and names compare by bytes, as they do in SQLite: pages and prefixes depend on it.

CREATE TABLE recipes (
    id                  TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    revision            BIGINT NOT NULL,
    position            BIGINT NOT NULL,
    created             BIGINT NOT NULL,
    deleted             BIGINT,
    name                TEXT COLLATE "C" NOT NULL,
    arch                TEXT NOT NULL,
    link_path           TEXT COLLATE "C",
    link_etag           TEXT,
    recipe_type         TEXT NOT NULL,
    linux_distribution  TEXT NOT NULL,
    require_dkms        BOOLEAN NOT NULL,
    template_dictionary TEXT -- JSON
);
CREATE INDEX recipes_live_position ON recipes (position, id) WHERE deleted IS NULL;
CREATE INDEX recipes_live_name ON recipes (name, id) WHERE deleted IS NULL;
CREATE INDEX recipes_deleted_position ON recipes (position, id) WHERE deleted IS NOT NULL;
CREATE INDEX recipes_deleted_name ON recipes (name, id) WHERE deleted IS NOT NULL;
CREATE UNIQUE INDEX recipes_live_link_path ON recipes (link_path) WHERE deleted IS NULL;

CREATE TABLE images (
    id        TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    revision  BIGINT NOT NULL,
    position  BIGINT NOT NULL,
    created   BIGINT NOT NULL,
    deleted   BIGINT,
    name      TEXT COLLATE "C" NOT NULL,
    arch      TEXT NOT NULL,
    link_path TEXT COLLATE "C",
    link_etag TEXT,
    metadata  TEXT NOT NULL -- JSON
);
CREATE INDEX images_live_position ON images (position, id) WHERE deleted IS NULL;
CREATE INDEX images_live_name ON images (name, id) WHERE deleted IS NULL;
CREATE INDEX images_deleted_position ON images (position, id) WHERE deleted IS NOT NULL;
CREATE INDEX images_deleted_name ON images (name, id) WHERE deleted IS NOT NULL;
CREATE UNIQUE INDEX images_live_link_path ON images (link_path) WHERE deleted IS NULL;

CREATE TABLE public_keys (
    id         TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    revision   BIGINT NOT NULL,
    position   BIGINT NOT NULL,
    created    BIGINT NOT NULL,
    deleted    BIGINT,
    name       TEXT COLLATE "C" NOT NULL,
    public_key TEXT NOT NULL
);
CREATE INDEX public_keys_live_position ON public_keys (position, id) WHERE deleted IS NULL;
CREATE INDEX public_keys_live_name ON public_keys (name, id) WHERE deleted IS NULL;
CREATE INDEX public_keys_deleted_position ON public_keys (position, id) WHERE deleted IS NOT NULL;
CREATE INDEX public_keys_deleted_name ON public_keys (name, id) WHERE deleted IS NOT NULL;

CREATE TABLE jobs (
    id                          TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    revision                    BIGINT NOT NULL,
    position                    BIGINT NOT NULL,
    created                     BIGINT NOT NULL,
    name                        TEXT COLLATE "C" NOT NULL, -- image_root_archive_name
    arch                        TEXT NOT NULL,
    status                      TEXT NOT NULL,
    job_type                    TEXT NOT NULL,
    artifact_id                 TEXT NOT NULL,
    public_key_id               TEXT NOT NULL,
    enable_debug                BOOLEAN NOT NULL,
    build_env_size              BIGINT NOT NULL,
    job_mem_size                BIGINT NOT NULL,
    kernel_file_name            TEXT NOT NULL,
    initrd_file_name            TEXT NOT NULL,
    kernel_parameters_file_name TEXT NOT NULL,
    ssh_containers              TEXT, -- JSON
    require_dkms                BOOLEAN NOT NULL,
    resultant_image_id          TEXT,
    kubernetes_job              TEXT NOT NULL,
    kubernetes_service          TEXT NOT NULL,
    kubernetes_configmap        TEXT NOT NULL,
    kubernetes_pvc              TEXT NOT NULL,
    kubernetes_secret           TEXT,
    kubernetes_namespace        TEXT NOT NULL,
    remote_build_node           TEXT NOT NULL
);
CREATE INDEX jobs_position ON jobs (position, id);
CREATE INDEX jobs_name ON jobs (name, id);
CREATE INDEX jobs_status ON jobs (status, position, id);
CREATE INDEX jobs_type ON jobs (job_type, position, id);
CREATE INDEX jobs_created ON jobs (created);

CREATE TABLE remote_build_nodes (
    xname    TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    position BIGINT NOT NULL
);
CREATE INDEX remote_build_nodes_position ON remote_build_nodes (position, xname);

-- The token itself is not kept.
CREATE TABLE tokens (
    id       TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    position BIGINT NOT NULL,
    sha256   TEXT NOT NULL UNIQUE, -- lower-case hexadecimal
    created  BIGINT NOT NULL,
    name     TEXT NOT NULL,
    role     TEXT NOT NULL,
    expires  BIGINT
);
CREATE INDEX tokens_position ON tokens (position, id);

-- Which S3 objects a record refers to. A deleted record still does: it can be restored.
CREATE TABLE object_refs (
    kind  TEXT NOT NULL, -- the table that the owner is in
    owner TEXT COLLATE "C" NOT NULL,
    path  TEXT COLLATE "C" NOT NULL, -- s3://bucket/key
    PRIMARY KEY (kind, owner, path)
);
CREATE INDEX object_refs_path ON object_refs (path);

-- Objects that no record refers to any more, until somebody has removed them from S3.
CREATE TABLE doomed_objects (
    path  TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    since BIGINT NOT NULL
);
CREATE INDEX doomed_objects_since ON doomed_objects (since, path);
