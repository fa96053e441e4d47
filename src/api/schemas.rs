//! What the types of records and parameters cannot say in the API's description.

use serde_json::{Value, json};
use utoipa::openapi::OpenApi;

/// How IMS writes moments: `date-time` needs a zone.
const MOMENT: &str = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{6})?$";

/// Records, which bear moments.
const RECORDS: [&str; 4] = ["Recipe", "Image", "PublicKey", "Job"];

/// The description with the form of moments.
pub(super) fn refine(document: &OpenApi) -> Value {
    // What was made of plain structs can be written.
    let mut document = serde_json::to_value(document).unwrap_or_default();
    let schemas = &mut document["components"]["schemas"];
    for record in RECORDS {
        for member in ["created", "deleted"] {
            if let Some(moment) = schemas[record]["properties"].get_mut(member) {
                moment["pattern"] = json!(MOMENT);
            }
        }
    }
    document
}
