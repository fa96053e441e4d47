//! The kinds of records that the API has, and what people want to see of them.

/// One list of records of the API.
#[derive(Debug, Clone, Copy)]
pub struct Collection {
    /// Its path below the server's address.
    pub path: &'static [&'static str],
    /// What one of its records is called.
    pub noun: &'static str,
    /// The command that works with it.
    pub command: &'static str,
    /// The member that identifies a record.
    pub id: &'static str,
    /// The member that people call a record by.
    pub name: &'static str,
    /// The columns of a table: heading and member.
    pub columns: &'static [(&'static str, &'static str)],
}

/// Where the version is.
pub const VERSION: &[&str] = &["version"];

/// Recipes.
pub const RECIPES: Collection = Collection {
    path: &["v3", "recipes"],
    noun: "recipe",
    command: "recipes",
    id: "id",
    name: "name",
    columns: &[
        ("ID", "id"),
        ("NAME", "name"),
        ("TYPE", "recipe_type"),
        ("DISTRIBUTION", "linux_distribution"),
        ("ARCH", "arch"),
        ("CREATED", "created"),
    ],
};

/// Images.
pub const IMAGES: Collection = Collection {
    path: &["v3", "images"],
    noun: "image",
    command: "images",
    id: "id",
    name: "name",
    columns: &[
        ("ID", "id"),
        ("NAME", "name"),
        ("ARCH", "arch"),
        ("CREATED", "created"),
        ("METADATA", "metadata"),
    ],
};

/// Public keys.
pub const PUBLIC_KEYS: Collection = Collection {
    path: &["v3", "public-keys"],
    noun: "public key",
    command: "public-keys",
    id: "id",
    name: "name",
    columns: &[("ID", "id"), ("NAME", "name"), ("CREATED", "created")],
};

/// Jobs.
pub const JOBS: Collection = Collection {
    path: &["v3", "jobs"],
    noun: "job",
    command: "jobs",
    id: "id",
    name: "image_root_archive_name",
    columns: &[
        ("ID", "id"),
        ("IMAGE NAME", "image_root_archive_name"),
        ("TYPE", "job_type"),
        ("STATUS", "status"),
        ("ARCH", "arch"),
        ("CREATED", "created"),
    ],
};

/// Remote build nodes.
pub const REMOTE_BUILD_NODES: Collection = Collection {
    path: &["v3", "remote-build-nodes"],
    noun: "remote build node",
    command: "remote-build-nodes",
    id: "xname",
    name: "xname",
    columns: &[("XNAME", "xname")],
};

/// What was last found on remote build nodes.
pub const REMOTE_BUILD_NODE_STATUS: Collection = Collection {
    path: &["v3", "remote-build-nodes", "status"],
    noun: "remote build node",
    command: "remote-build-nodes status",
    id: "xname",
    name: "xname",
    columns: &[
        ("XNAME", "xname"),
        ("SSH", "sshStatus"),
        ("PODMAN", "podmanStatus"),
        ("ARCH", "nodeArch"),
        ("JOBS", "numCurrentJobs"),
        ("ABLE", "ableToRunJobs"),
    ],
};

/// Deleted recipes.
pub const DELETED_RECIPES: Collection = Collection {
    path: &["v3", "deleted", "recipes"],
    noun: "deleted recipe",
    command: "deleted recipes",
    columns: &[
        ("ID", "id"),
        ("NAME", "name"),
        ("ARCH", "arch"),
        ("CREATED", "created"),
        ("DELETED", "deleted"),
    ],
    ..RECIPES
};

/// Deleted images.
pub const DELETED_IMAGES: Collection = Collection {
    path: &["v3", "deleted", "images"],
    noun: "deleted image",
    command: "deleted images",
    columns: DELETED_RECIPES.columns,
    ..IMAGES
};

/// Deleted public keys.
pub const DELETED_PUBLIC_KEYS: Collection = Collection {
    path: &["v3", "deleted", "public-keys"],
    noun: "deleted public key",
    command: "deleted public-keys",
    columns: &[
        ("ID", "id"),
        ("NAME", "name"),
        ("CREATED", "created"),
        ("DELETED", "deleted"),
    ],
    ..PUBLIC_KEYS
};

impl Collection {
    /// Whether ids are made by the server. The others are names that people give.
    pub fn has_uuids(&self) -> bool {
        self.id == "id"
    }
}
