//! What the server lets in and out by each of its doors, whoever stands before it. A file for each kind of harm; most of
//! them go through everything that the API's description lists, so that a door that is added later is tried, too.

mod addresses;
mod budgets;
mod channels;
mod files;
mod headers;
mod lines;
mod lists;
mod shells;
mod times;

use serde_json::{Map, Value};

use crate::support::server::{NOBODY, Server};

/// A method, its path with an id that no record has, and its description.
struct Operation {
    method: String,
    path: String,
    described: Value,
}

/// Every operation that the API describes.
async fn operations(api: &Server) -> Vec<Operation> {
    let document = api.read("/openapi.json").await;
    let paths = document["paths"].as_object().unwrap();
    let each = paths.iter().flat_map(|(path, item)| {
        let methods: &Map<String, Value> = item.as_object().unwrap();
        methods.iter().map(|(method, described)| Operation {
            method: method.to_uppercase(),
            path: filled(path),
            described: described.clone(),
        })
    });
    each.collect()
}

/// A path whose parameters have values.
fn filled(path: &str) -> String {
    let parts = path.split('/').map(|part| match part {
        "{arch}" => "x86_64",
        part if part.starts_with('{') => NOBODY,
        part => part,
    });
    parts.collect::<Vec<_>>().join("/")
}
