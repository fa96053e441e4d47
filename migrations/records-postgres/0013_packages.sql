-- The packages of images, as their own documents list them: an index that can be made again from S3.
-- What is known of an image. An image without a row was not looked at yet.
CREATE TABLE package_lists (
    image  TEXT COLLATE "C" NOT NULL PRIMARY KEY REFERENCES images (id) ON DELETE CASCADE,
    format TEXT, -- null if it has no database of packages, or nobody knows
    fault  TEXT, -- why its packages are not known; null if they are
    looked BIGINT NOT NULL
);
CREATE TABLE image_packages (
    image   TEXT COLLATE "C" NOT NULL REFERENCES package_lists (image) ON DELETE CASCADE,
    name    TEXT COLLATE "C" NOT NULL,
    version TEXT COLLATE "C" NOT NULL,
    arch    TEXT COLLATE "C" NOT NULL
);
CREATE INDEX image_packages_name ON image_packages (image, name);
