//! What handlers take, said exactly in the API's description: the types in Rust are what comes out of reading, not all
//! that can be read.

use serde_json::{Value, json};
use utoipa::openapi::OpenApi;

/// Any text but the null character.
const TEXT: &str = r"^[^\u0000]*$";

/// A name, see [`check_name`](crate::records::names::check_name).
const NAME: &str = r"^[^\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]+$";

/// Any character of a name that does not begin a new directory.
const IN_FILE: &str = r"[^\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069/]";

/// Likewise, and neither a dot nor a hyphen.
const FIRST_IN_FILE: &str = r"[^\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069/.-]";

/// One line of `authorized_keys` that is not blank.
const KEY: &str = r"^[^\u0000-\u0008\u000a-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]*[^\s\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069][^\u0000-\u0008\u000a-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]*(\r?\n)?$";

/// A path in S3.
const PATH: &str = r"^s3://[A-Za-z0-9._-]{3,255}/[^\u0000-\u001f\u007f-\u009f]{1,1024}$";

/// How IMS writes moments: `date-time` needs a zone.
const MOMENT: &str = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{6})?$";

/// Ages, as filters of jobs say them. Units may also come in another order and be written out.
const AGE: &str = r"^([0-9]{1,6}w([0-9]{1,6}d)?([0-9]{1,6}h)?([0-9]{1,6}m)?|[0-9]{1,6}d([0-9]{1,6}h)?([0-9]{1,6}m)?|[0-9]{1,6}h([0-9]{1,6}m)?|[0-9]{1,6}m)$";

/// Five fields; what they may hold is in docs/schedules.md.
const CRON: &str = r"^\s*\S+(\s+\S+){4}\s*$";

/// Records, which bear moments.
const RECORDS: [&str; 4] = ["Recipe", "Image", "PublicKey", "Job"];

/// The description with what the types cannot say.
pub(super) fn refine(document: &OpenApi) -> Value {
    // What was made of plain structs can be written.
    let mut document = serde_json::to_value(document).unwrap_or_default();
    let schemas = &mut document["components"]["schemas"];
    schemas["Boolean"] = json!({
        "description": "A boolean, or what IMS takes for one.",
        "anyOf": [{"type": "boolean"}, {"enum": [
            0, 1, "1", "t", "T", "true", "True", "TRUE", "on", "On", "ON", "y", "Y", "yes", "Yes", "YES",
            "0", "f", "F", "false", "False", "FALSE", "off", "Off", "OFF", "n", "N", "no", "No", "NO",
        ]}],
    });
    schemas["Size"] = json!({
        "description": "GiB. Fractions are cut, and decimal texts are read.",
        "anyOf": [
            {"type": "number", "minimum": 1, "exclusiveMaximum": 1_048_577},
            {"type": "string", "pattern": r"^\s*\+?0{0,9}[1-9][0-9]{0,5}\s*$"},
        ],
    });
    let file = format!("{FIRST_IN_FILE}{IN_FILE}*|\\.{FIRST_IN_FILE}{IN_FILE}*|\\.-{IN_FILE}*|\\.\\.{IN_FILE}+");
    let (file, file_or_none) = (format!("^({file})$"), format!("^({file})?$"));
    for (schema, member, pattern) in [
        ("PublicKeyCreate", "name", NAME),
        ("PublicKeyCreate", "public_key", KEY),
        ("RecipeCreate", "name", NAME),
        ("ImageCreate", "name", NAME),
        ("ImageUpdate", "name", NAME),
        ("MetadataUpdate", "key", TEXT),
        ("MetadataUpdate", "value", TEXT),
        ("TemplateValue", "key", TEXT),
        ("TemplateValue", "value", TEXT),
        ("SshContainerCreate", "name", TEXT),
        ("Link", "path", PATH),
        ("Link", "etag", TEXT),
        ("JobCreate", "image_root_archive_name", &file),
        ("JobCreate", "initrd_file_name", &file),
        ("JobCreate", "kernel_parameters_file_name", &file),
        ("JobCreate", "kernel_file_name", &file_or_none),
        ("ScheduleCreate", "name", NAME),
        ("ScheduleUpdate", "name", NAME),
        ("ScheduleCreate", "cron", CRON),
        ("ScheduleUpdate", "cron", CRON),
        ("ScheduleCreate", "initrd_file_name", &file),
        ("ScheduleUpdate", "initrd_file_name", &file),
        ("ScheduleCreate", "kernel_parameters_file_name", &file),
        ("ScheduleUpdate", "kernel_parameters_file_name", &file),
        ("ScheduleCreate", "kernel_file_name", &file),
        ("ScheduleUpdate", "kernel_file_name", &file),
    ] {
        schemas[schema]["properties"][member]["pattern"] = json!(pattern);
    }
    for record in RECORDS {
        for member in ["created", "deleted"] {
            if let Some(moment) = schemas[record]["properties"].get_mut(member) {
                moment["pattern"] = json!(MOMENT);
            }
        }
    }
    for (schema, member, kind) in [
        ("RecipeCreate", "require_dkms", "Boolean"),
        ("RecipeUpdate", "require_dkms", "Boolean"),
        ("JobCreate", "require_dkms", "Boolean"),
        ("JobCreate", "enable_debug", "Boolean"),
        ("SshContainerCreate", "jail", "Boolean"),
        ("JobCreate", "build_env_size", "Size"),
        ("JobCreate", "job_mem_size", "Size"),
    ] {
        let member = &mut schemas[schema]["properties"][member];
        *member = json!({"$ref": format!("#/components/schemas/{kind}"), "description": member["description"]});
    }
    for schema in ["ScheduleCreate", "ScheduleUpdate"] {
        let members = &mut schemas[schema]["properties"];
        // Null is what is usual.
        for (member, kind) in [
            ("build_env_size", "Size"),
            ("job_mem_size", "Size"),
            ("require_dkms", "Boolean"),
        ] {
            let kinds = json!([{"$ref": format!("#/components/schemas/{kind}")}, {"type": "null"}]);
            members[member] = json!({"anyOf": kinds, "description": members[member]["description"]});
        }
        let boolean = json!({"$ref": "#/components/schemas/Boolean", "description": members["paused"]["description"]});
        members["paused"] = boolean;
    }
    for schema in ["Link", "TemplateValue"] {
        schemas[schema]["additionalProperties"] = json!(false);
    }
    // A body that says nothing is refused.
    for schema in ["RecipeUpdate", "ImageUpdate", "JobUpdate", "ScheduleUpdate"] {
        schemas[schema]["minProperties"] = json!(1);
    }
    let tags = &mut schemas["ImageCreate"]["properties"]["metadata"];
    tags["additionalProperties"]["pattern"] = json!(TEXT);
    tags["propertyNames"]["pattern"] = json!(TEXT);

    let operations = document["paths"].as_object_mut().into_iter().flatten();
    let operations = operations.flat_map(|(_, item)| item.as_object_mut().into_iter().flatten());
    let parameters = operations.filter_map(|(_, operation)| operation.get_mut("parameters")?.as_array_mut());
    for parameter in parameters.flatten().filter(|parameter| parameter["in"] == "query") {
        let pattern = match parameter["name"].as_str() {
            Some("name" | "id_prefix") => TEXT,
            Some("age") => AGE,
            Some("cursor") => r"^[A-Za-z0-9_-]+$",
            _ => continue,
        };
        parameter["schema"]["pattern"] = json!(pattern);
    }
    document
}
