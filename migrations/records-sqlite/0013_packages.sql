-- The packages of images, as their own documents list them: an index that can be made again from S3.
-- What is known of an image. An image without a row was not looked at yet.
CREATE TABLE package_lists (
    image  TEXT NOT NULL PRIMARY KEY REFERENCES images (id) ON DELETE CASCADE,
    format TEXT, -- null if it has no database of packages, or nobody knows
    fault  TEXT, -- why its packages are not known; null if they are
    looked INTEGER NOT NULL
) STRICT;
CREATE TABLE image_packages (
    image   TEXT NOT NULL REFERENCES package_lists (image) ON DELETE CASCADE,
    name    TEXT NOT NULL,
    version TEXT NOT NULL,
    arch    TEXT NOT NULL
) STRICT;
CREATE INDEX image_packages_name ON image_packages (image, name);
