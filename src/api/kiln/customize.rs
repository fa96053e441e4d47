//! `/kiln/v1/images/{id}/customize`: changes an image by commands, scripts and playbooks, without a login. Writes to S3
//! and the database.

use axum::{Extension, Json, extract::State, http::StatusCode};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use kiln_records::{ChangeKind, Image, ImageId, Job, JobId, JobType, job::JobOptions};
use serde_json::Value;
use utoipa::openapi::{ArrayBuilder, RefOr, Schema};

use crate::{
    api::{
        Api,
        address::Path,
        auth::Principal,
        body::{Answer, RawBody},
        fields::{Components, Field, FileName, Flatten, List, Name, Parsed, Text, body, error, string, text},
        problem::Problem,
        v3::{find, id},
    },
    orchestrate::ask::{Ask, GivenChange, NewJob},
    store::Side,
};

/// The most changes of one job.
const MOST_CHANGES: usize = 100;

body! {
    /// The changes to an image, and the options of the job that makes them.
    pub(in crate::api) struct Customize {
        /// The name of the resulting image.
        image_root_archive_name: FileName,
        /// The changes, in the order in which they are made. The job fails with the first one that fails.
        changes: Changes,
        options: Flatten<JobOptions>,
    }
}

body! {
    /// A change. Its content is given as `text` or as `base64`.
    pub(in crate::api) struct NewChange {
        /// `run`: a command line for the image's `/bin/sh`. `script`: a file to run in the image. `ansible`: a tar.gz
        /// of playbooks and the files that they use.
        kind: ChangeKind,
        /// The name of the script, or the path of the playbook in the archive. A command needs none.
        name: Option<Name>,
        /// The content as text.
        text: Option<Text>,
        /// The content in base64, if it is not text.
        base64: Option<Base64>,
    }
}

/// Create a job that makes a new image from an existing one by running commands, scripts and Ansible playbooks in it.
/// The architecture is that of the image.
#[utoipa::path(post, path = "/images/{id}/customize", tag = "images", request_body = Customize,
    params(("id" = String, Path, description = "The image to start from")),
    responses((status = 201, body = Job), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 502, body = Problem)))]
pub(in crate::api) async fn create(
    State(api): State<Api>,
    principal: Option<Extension<Principal>>,
    Path(text): Path<String>,
    body: RawBody,
) -> Answer<(StatusCode, Json<Job>)> {
    let image: ImageId = id(&text)?;
    find::<Image>(&*api.store, Side::Live, &image.to_string()).await?;
    let given: Customize = body.read()?;
    let new = NewJob {
        job_type: JobType::Customize,
        artifact_id: image.into(),
        // Nobody logs in.
        public_key_id: None,
        image_root_archive_name: given.image_root_archive_name,
        enable_debug: false,
        shells: Vec::new(),
        changes: given.changes,
        options: given.options,
    };
    let who = Principal::name_of(principal);
    let job = api.asker.ask(JobId::new(), Ask::New(Box::new(new)), who).await?;
    Ok((StatusCode::CREATED, Json(job)))
}

/// The changes of a job. Each one has a content and a name.
#[derive(Debug)]
pub(in crate::api) enum Changes {}

impl Field for Changes {
    type Read = Vec<GivenChange>;

    fn read(value: &Value) -> Parsed<Vec<GivenChange>> {
        let changes = List::<GivenChange>::read(value)?;
        match changes.len() {
            0 => Err(error("At least one change is needed.")),
            more if more > MOST_CHANGES => Err(error("These are too many changes for one job.")),
            _ => Ok(changes),
        }
    }

    fn schema() -> RefOr<Schema> {
        ArrayBuilder::new()
            .items(GivenChange::schema())
            .min_items(Some(1))
            .max_items(Some(MOST_CHANGES))
            .into()
    }

    fn components(components: &mut Components) {
        GivenChange::components(components);
    }
}

impl Field for GivenChange {
    type Read = Self;

    fn read(value: &Value) -> Parsed<Self> {
        let given = NewChange::read(value)?;
        let content = match (given.text, given.base64) {
            (Some(text), None) => Bytes::from(text),
            (None, Some(content)) => content,
            _ => return Err(error("Give either `text` or `base64`.")),
        };
        let name = match (given.kind, given.name) {
            (_, Some(name)) => name,
            (ChangeKind::Run, None) => first_line(&content),
            (ChangeKind::Script, None) => "script".to_owned(),
            (ChangeKind::Ansible, None) => return Err(error("A playbook needs its `name`: the path in the archive.")),
        };
        let kind = given.kind;
        if kind == ChangeKind::Ansible && !is_plain_path(&name) {
            return Err(error("`name` has to be a path inside the archive, without `..`."));
        }
        Ok(Self { kind, name, content })
    }

    fn schema() -> RefOr<Schema> {
        <NewChange as Field>::schema()
    }

    fn components(components: &mut Components) {
        <NewChange as Field>::components(components);
    }
}

/// Bytes as base64.
#[derive(Debug)]
pub(in crate::api) enum Base64 {}

impl Field for Base64 {
    type Read = Bytes;

    fn read(value: &Value) -> Parsed<Bytes> {
        let content = STANDARD.decode(text(value)?);
        Ok(content.map_err(|_| error("Not valid base64."))?.into())
    }

    fn schema() -> RefOr<Schema> {
        string().content_encoding("base64").into()
    }
}

/// The name of a command: its first line, cut.
fn first_line(command: &[u8]) -> String {
    let text = String::from_utf8_lossy(command);
    let line = text.trim().lines().next().unwrap_or_default();
    line.chars().filter(|letter| !letter.is_control()).take(100).collect()
}

fn is_plain_path(name: &str) -> bool {
    use std::path::{Component, Path};
    // A playbook's name becomes an argument of ansible-playbook.
    !name.starts_with('-')
        && Path::new(name)
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_has_one_content_and_a_name() {
        let given = GivenChange::read(&json!({"kind": "run", "text": "  apt-get update\napt-get upgrade"}))
            .ok()
            .unwrap();
        assert_eq!((given.name.as_str(), given.content.len()), ("apt-get update", 32));
        let given = GivenChange::read(&json!({"kind": "ansible", "name": "site.yml", "base64": "AAE="}))
            .ok()
            .unwrap();
        assert_eq!(given.content, [0, 1][..]);
        for wrong in [
            json!({"kind": "run"}),
            json!({"kind": "run", "text": "a", "base64": "AAE="}),
            json!({"kind": "script", "base64": "%"}),
            json!({"kind": "ansible", "base64": "AAE="}),
            json!({"kind": "ansible", "name": "../site.yml", "base64": "AAE="}),
            json!({"kind": "ansible", "name": "-e@x", "base64": "AAE="}),
            json!({"kind": "magic", "text": "a"}),
            json!("run"),
        ] {
            assert!(GivenChange::read(&wrong).is_err(), "{wrong}");
        }
    }
}
