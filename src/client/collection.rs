//! Describes the kinds of records in the API, and the members that tables of them show. Pure: no I/O.

/// One list of records of the API.
#[derive(Debug)]
pub struct Collection {
    /// Its path below the server's address.
    pub path: &'static [&'static str],
    /// The name of one of its records.
    pub noun: &'static str,
    /// Whether its records are deleted ones, so that deleting them is final.
    pub is_deleted: bool,
    /// The command for it.
    pub command: &'static str,
    /// The member that identifies a record.
    pub id: &'static str,
    /// The member that names a record for users.
    pub name: &'static str,
    /// The collection of its deleted records, if they can be restored.
    pub bin: Option<&'static Collection>,
    /// The columns of a table: heading and member.
    pub columns: &'static [(&'static str, &'static str)],
}

/// The path of the version.
pub const VERSION: &[&str] = &["version"];

/// Recipes.
pub static RECIPES: Collection = Collection {
    path: &["v3", "recipes"],
    noun: "recipe",
    is_deleted: false,
    command: "recipes",
    id: "id",
    name: "name",
    bin: Some(&DELETED_RECIPES),
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
pub static IMAGES: Collection = Collection {
    path: &["v3", "images"],
    noun: "image",
    is_deleted: false,
    command: "images",
    id: "id",
    name: "name",
    bin: Some(&DELETED_IMAGES),
    columns: &[
        ("ID", "id"),
        ("NAME", "name"),
        ("ARCH", "arch"),
        ("CREATED", "created"),
        ("METADATA", "metadata"),
    ],
};

/// Programs of an emulated root, with how they were run.
pub static PROGRAMS: Collection = Collection {
    path: &[],
    noun: "program",
    is_deleted: false,
    command: "jobs explain",
    id: "path",
    name: "path",
    bin: None,
    columns: &[
        ("PROGRAM", "path"),
        ("PACKAGE", "package"),
        ("TWIN", "twin"),
        ("WHY", "why"),
    ],
};

/// The packages of an image.
pub static PACKAGES: Collection = Collection {
    path: &[],
    noun: "package",
    is_deleted: false,
    command: "images packages",
    id: "name",
    name: "name",
    bin: None,
    columns: &[
        ("PACKAGE", "name"),
        ("VERSION", "version"),
        ("ARCH", "arch"),
        ("LICENCES", "licences"),
    ],
};

/// The files of an image's root.
pub static FILES: Collection = Collection {
    path: &[],
    noun: "file",
    is_deleted: false,
    command: "images files",
    id: "path",
    name: "path",
    bin: None,
    // The path comes first: it is what a narrow terminal shortens last.
    columns: &[
        ("PATH", "path"),
        ("MODE", "mode"),
        ("OWNER", "owner"),
        ("SIZE", "size"),
        ("TIME", "time"),
        ("TARGET", "target"),
    ],
};

/// Inputs in which two images differ.
pub static INPUT_CHANGES: Collection = Collection {
    path: &[],
    noun: "input",
    is_deleted: false,
    command: "images why",
    id: "input",
    name: "input",
    bin: None,
    columns: &[("INPUT", "input"), ("OLD", "old"), ("NEW", "new")],
};

/// Packages that two images have in different versions.
pub static PACKAGE_CHANGES: Collection = Collection {
    path: &[],
    noun: "package",
    is_deleted: false,
    command: "images diff",
    id: "name",
    name: "name",
    bin: None,
    columns: &[
        ("PACKAGE", "name"),
        ("ARCH", "arch"),
        ("CHANGE", "change"),
        ("OLD", "old"),
        ("NEW", "new"),
    ],
};

/// Packages in images.
pub static FOUND_PACKAGES: Collection = Collection {
    path: &[],
    noun: "package",
    is_deleted: false,
    command: "images find-package",
    id: "id",
    name: "image",
    bin: None,
    columns: &[
        ("ID", "id"),
        ("IMAGE", "image"),
        ("ARCH", "arch"),
        ("PACKAGE", "name"),
        ("VERSION", "version"),
    ],
};

/// What pruning removes.
pub static PRUNED: Collection = Collection {
    path: &[],
    noun: "item",
    is_deleted: false,
    command: "prune",
    id: "id",
    name: "name",
    bin: None,
    columns: &[
        ("KIND", "kind"),
        ("ID", "id"),
        ("NAME", "name"),
        ("ARCH", "arch"),
        ("SINCE", "since"),
        ("WHY", "why"),
        ("BYTES", "bytes"),
    ],
};

/// Images that pruning leaves.
pub static KEPT_IMAGES: Collection = Collection {
    path: &[],
    noun: "image",
    is_deleted: false,
    command: "prune",
    id: "id",
    name: "name",
    bin: None,
    columns: &[("KEPT IMAGE", "id"), ("NAME", "name"), ("ARCH", "arch"), ("WHY", "why")],
};

/// The entries of the audit log.
pub static AUDIT: Collection = Collection {
    path: &["kiln", "v1", "audit"],
    noun: "entry",
    is_deleted: false,
    command: "audit",
    id: "number",
    name: "number",
    bin: None,
    columns: &[
        ("TIME (UTC)", "at"),
        ("WHO", "who"),
        ("FROM", "from"),
        ("METHOD", "method"),
        ("PATH", "path"),
        ("RECORD", "record_id"),
        ("STATUS", "status"),
    ],
};

/// The receivers of webhooks.
pub static RECEIVERS: Collection = Collection {
    path: &["kiln", "v1", "webhooks"],
    noun: "receiver",
    is_deleted: false,
    command: "webhooks list",
    id: "name",
    name: "name",
    bin: None,
    columns: &[
        ("RECEIVER", "name"),
        ("HOST", "host"),
        ("EVENTS", "events"),
        ("WAITING", "waiting"),
        ("DELIVERED", "delivered"),
        ("DEAD", "dead"),
    ],
};

/// The deliveries of webhooks.
pub static DELIVERIES: Collection = Collection {
    path: &["kiln", "v1", "webhooks", "deliveries"],
    noun: "delivery",
    is_deleted: false,
    command: "webhooks deliveries",
    id: "number",
    name: "number",
    bin: None,
    columns: &[
        ("NUMBER", "number"),
        ("TIME (UTC)", "created"),
        ("RECEIVER", "receiver"),
        ("EVENT", "event"),
        ("STATE", "state"),
        ("TRIES", "attempts"),
        ("STATUS", "status"),
        ("ERROR", "error"),
    ],
};

/// The places of an overview.
pub static TOP_PLACES: Collection = Collection {
    path: &[],
    noun: "place",
    is_deleted: false,
    command: "top",
    id: "name",
    name: "name",
    bin: None,
    columns: &[
        ("PLACE", "name"),
        ("ARCH", "arch"),
        ("IS", "is"),
        ("JOBS", "jobs"),
        ("CPUS", "cpus"),
        ("MEMORY", "memory"),
        ("DISK FREE", "disk"),
    ],
};

/// The jobs of an overview that have their place.
pub static TOP_JOBS: Collection = Collection {
    path: &[],
    noun: "job",
    is_deleted: false,
    command: "top",
    id: "id",
    name: "name",
    bin: None,
    columns: &[
        ("JOB", "id"),
        ("NAME", "name"),
        ("ARCH", "arch"),
        ("HOW", "how"),
        ("STEP", "step"),
        ("DONE", "done"),
        ("PLACE", "place"),
        ("FOR", "for"),
        ("HEARD", "heard"),
        ("WAITS FOR", "waits"),
    ],
};

/// The jobs of an overview that wait.
pub static TOP_QUEUE: Collection = Collection {
    path: &[],
    noun: "job",
    is_deleted: false,
    command: "top",
    id: "id",
    name: "name",
    bin: None,
    columns: &[
        ("WAITING", "id"),
        ("NAME", "name"),
        ("ARCH", "arch"),
        ("FOR", "for"),
        ("WHY", "reason"),
    ],
};

/// Public keys.
pub static PUBLIC_KEYS: Collection = Collection {
    path: &["v3", "public-keys"],
    noun: "public key",
    is_deleted: false,
    command: "public-keys",
    id: "id",
    name: "name",
    bin: Some(&DELETED_PUBLIC_KEYS),
    columns: &[("ID", "id"), ("NAME", "name"), ("CREATED", "created")],
};

/// Jobs.
pub static JOBS: Collection = Collection {
    path: &["v3", "jobs"],
    noun: "job",
    is_deleted: false,
    command: "jobs",
    id: "id",
    name: "image_root_archive_name",
    bin: None,
    columns: &[
        ("ID", "id"),
        ("IMAGE NAME", "image_root_archive_name"),
        ("TYPE", "job_type"),
        ("STATUS", "status"),
        ("ARCH", "arch"),
        ("CREATED", "created"),
    ],
};

/// Schedules.
pub static SCHEDULES: Collection = Collection {
    path: &["kiln", "v1", "schedules"],
    noun: "schedule",
    is_deleted: false,
    command: "schedules",
    id: "id",
    name: "name",
    bin: None,
    columns: &[
        ("ID", "id"),
        ("NAME", "name"),
        ("CRON", "cron"),
        ("TIMEZONE", "timezone"),
        ("PAUSED", "paused"),
        ("NEXT RUN (UTC)", "next_run"),
        ("LAST RUN (UTC)", "last_run"),
    ],
};

/// The runs of a schedule, which are below it.
pub static RUNS: Collection = Collection {
    path: &["kiln", "v1", "schedules"],
    noun: "run",
    is_deleted: false,
    command: "schedules history",
    id: "due",
    name: "number",
    bin: None,
    columns: &[
        ("N", "number"),
        ("DUE (UTC)", "due"),
        ("OUTCOME", "outcome"),
        ("JOB", "job_id"),
        ("SET", "set_id"),
        ("WHY", "why"),
    ],
};

/// Image sets.
pub static SETS: Collection = Collection {
    path: &["kiln", "v1", "sets"],
    noun: "set",
    is_deleted: false,
    command: "sets",
    id: "id",
    name: "name",
    bin: None,
    columns: &[
        ("ID", "id"),
        ("NAME", "name"),
        ("VERSION", "version"),
        ("STATE", "state"),
        ("CREATED", "created"),
        ("REMARKS", "remarks"),
    ],
};

/// The architectures of a set, which are parts of it.
pub static SET_ARCHES: Collection = Collection {
    path: &["kiln", "v1", "sets"],
    noun: "architecture",
    is_deleted: false,
    command: "sets describe",
    id: "arch",
    name: "arch",
    bin: None,
    columns: &[
        ("ARCH", "arch"),
        ("REQUIRED", "required"),
        ("STATE", "state"),
        ("HOW", "how"),
        ("SECONDS", "seconds"),
        ("IMAGE", "image_id"),
        ("MANIFEST SHA-256", "manifest_sha256"),
    ],
};

/// The complete sets of the catalogue.
pub static CATALOGUE: Collection = Collection {
    path: &["kiln", "v1", "catalogue"],
    noun: "set",
    is_deleted: false,
    command: "catalogue",
    id: "set_id",
    name: "name",
    bin: None,
    columns: &[
        ("NAME", "name"),
        ("VERSION", "version"),
        ("ARCHITECTURES", "cpu_architectures"),
        ("CHANNELS", "channels"),
        ("CREATED", "created"),
        ("SET", "set_id"),
    ],
};

/// The channels of the catalogue.
pub static CHANNELS: Collection = Collection {
    path: &["kiln", "v1", "channels"],
    noun: "channel",
    is_deleted: false,
    command: "catalogue channels",
    id: "channel",
    name: "channel",
    bin: None,
    columns: &[
        ("NAME", "name"),
        ("CHANNEL", "channel"),
        ("VERSION", "version"),
        ("CHANGE", "number"),
        ("AT (UTC)", "at"),
        ("BY", "by"),
    ],
};

/// The changes of a channel.
pub static PROMOTIONS: Collection = Collection {
    path: &["kiln", "v1", "channels"],
    noun: "change",
    is_deleted: false,
    command: "catalogue history",
    id: "number",
    name: "number",
    bin: None,
    columns: &[
        ("N", "number"),
        ("WHAT", "kind"),
        ("VERSION", "version"),
        ("AT (UTC)", "at"),
        ("BY", "by"),
        ("IMAGES", "images"),
    ],
};

/// Remote build nodes.
pub static REMOTE_BUILD_NODES: Collection = Collection {
    path: &["v3", "remote-build-nodes"],
    noun: "remote build node",
    is_deleted: false,
    command: "remote-build-nodes",
    id: "xname",
    name: "xname",
    bin: None,
    columns: &[("XNAME", "xname")],
};

/// The latest findings about remote build nodes.
pub static REMOTE_BUILD_NODE_STATUS: Collection = Collection {
    path: &["v3", "remote-build-nodes", "status"],
    noun: "remote build node",
    is_deleted: false,
    command: "remote-build-nodes status",
    id: "xname",
    name: "xname",
    bin: None,
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
pub static DELETED_RECIPES: Collection = Collection {
    path: &["v3", "deleted", "recipes"],
    noun: "recipe",
    is_deleted: true,
    command: "deleted recipes",
    bin: None,
    columns: &[
        ("ID", "id"),
        ("NAME", "name"),
        ("ARCH", "arch"),
        ("CREATED", "created"),
        ("DELETED", "deleted"),
    ],
    id: "id",
    name: "name",
};

/// Deleted images.
pub static DELETED_IMAGES: Collection = Collection {
    path: &["v3", "deleted", "images"],
    noun: "image",
    is_deleted: true,
    command: "deleted images",
    bin: None,
    columns: DELETED_RECIPES.columns,
    id: "id",
    name: "name",
};

/// Deleted public keys.
pub static DELETED_PUBLIC_KEYS: Collection = Collection {
    path: &["v3", "deleted", "public-keys"],
    noun: "public key",
    is_deleted: true,
    command: "deleted public-keys",
    bin: None,
    columns: &[
        ("ID", "id"),
        ("NAME", "name"),
        ("CREATED", "created"),
        ("DELETED", "deleted"),
    ],
    id: "id",
    name: "name",
};

impl Collection {
    /// The name of one of its records in a search: `image`, `deleted image`.
    pub fn described(&self) -> String {
        let deleted = if self.is_deleted { "deleted " } else { "" };
        format!("{deleted}{}", self.noun)
    }

    /// Whether the server makes the ids. Otherwise users choose them.
    pub fn has_uuids(&self) -> bool {
        self.id == "id"
    }
}
