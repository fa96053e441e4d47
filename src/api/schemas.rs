//! Adds to the API's description the rules that the types of records and parameters cannot express. Pure: no I/O.

use kiln_records::{Link, TemplateValue};
use serde_json::{Value, json};
use utoipa::openapi::OpenApi;

use super::fields::{Components, Field};

/// IMS's form of moments; `date-time` would need a zone.
const MOMENT: &str = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{6})?$";

/// The records with moments.
const RECORDS: [&str; 4] = ["Recipe", "Image", "PublicKey", "Job"];

/// The description, with the form of moments and the rules for parts of bodies that are also parts of records.
pub(super) fn refine(document: &OpenApi) -> Value {
    // A description made from plain structs can always be serialised.
    let mut document = serde_json::to_value(document).unwrap_or_default();
    let schemas = &mut document["components"]["schemas"];
    for record in RECORDS {
        for member in ["created", "deleted"] {
            if let Some(moment) = schemas[record]["properties"].get_mut(member) {
                moment["pattern"] = json!(MOMENT);
            }
        }
    }
    let mut parts = Components::new();
    Link::components(&mut parts);
    TemplateValue::components(&mut parts);
    for (name, schema) in parts {
        schemas[name] = json!(schema);
    }
    document
}
