//! Builds the parts of Kiln from its configuration: a *site* is those parts together. Makes directories and sockets,
//! and opens the database and S3.
//!
//! This is the composition root, the only place that knows both the configuration and the parts: the store of records,
//! S3, drivers, toolboxes. `kiln serve` runs all of them joined as a [`Server`], commands that carry out jobs without one
//! work on a [`Local`] site, and other commands take single parts.

mod descriptors;
mod isolation;
mod jobs;
mod local;
mod objects;
mod places;
mod proxy;
mod reading;
mod records;
mod sandboxes;
mod server;
mod shared_toolboxes;

pub use self::{
    descriptors::allow_many as allow_many_descriptors,
    isolation::Isolation,
    jobs::loopback_port,
    local::Local,
    objects::{artifact_store, embedded_s3},
    reading::read_recipe,
    records::open_store,
    sandboxes::{cluster, docker_driver, image_of, namespace_driver, node_driver, toolboxes},
    server::Server,
};
