//! `/kiln/v1/images/{id}/customize`: an image becomes another by commands, scripts and playbooks, without anybody at hand.

use axum::{Extension, Json, extract::State, http::StatusCode};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use crate::{
    api::{
        Api,
        address::Path,
        auth::Principal,
        body::{Answer, RawBody},
        fields::{self, FieldError, Fields, Parsed, checked, error, object, one_of},
        problem::{Problem, Result},
        v3::{
            find, id,
            new_job::{self, Planned, Request},
        },
    },
    orchestrate::{NewRun, Orchestrator},
    records::{
        Change, ChangeKind, Image, ImageId, Job, JobId, TwinLevel,
        names::{check_file_name, check_name},
    },
    store::Side,
};

/// Changes that one job makes at most.
const MOST_CHANGES: usize = 100;

/// How an image is to be changed.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "documentation; fields are read by api::fields")]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct Customize {
    /// The name of the image that comes out.
    #[schema(min_length = 1, max_length = 255)]
    image_root_archive_name: String,
    /// What is run in the image, in this order. The first that fails ends the job.
    #[schema(min_items = 1, max_items = 100)]
    changes: Vec<NewChange>,
    /// Disk for the job, GiB.
    #[schema(nullable = false, minimum = 1, maximum = 1_048_576)]
    build_env_size: Option<u32>,
    /// Memory for the job, GiB.
    #[schema(nullable = false, minimum = 1, maximum = 1_048_576)]
    job_mem_size: Option<u32>,
    /// The kernel's file name in `/boot`.
    #[schema(nullable = false, max_length = 255)]
    kernel_file_name: Option<String>,
    /// The initial RAM disk's file name in `/boot`.
    #[schema(nullable = false, min_length = 1, max_length = 255)]
    initrd_file_name: Option<String>,
    /// The file of kernel parameters in `/boot`; it need not be there.
    #[schema(nullable = false, min_length = 1, max_length = 255)]
    kernel_parameters_file_name: Option<String>,
    /// Whether the job needs a kernel of its own.
    #[schema(nullable = false)]
    require_dkms: Option<bool>,
    /// Which tools may run as native twins if programs of the image are emulated.
    #[schema(nullable = false)]
    twins: Option<TwinLevel>,
}

/// One change. Its content is given as `text` or as `base64`.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "documentation; fields are read by api::fields")]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct NewChange {
    /// `run`: a command line for the image's `/bin/sh`. `script`: a file that is run in the image. `ansible`: a tar.gz of
    /// playbooks and what belongs to them.
    kind: ChangeKind,
    /// What it is called; of a playbook, its path in the archive. A command needs none.
    #[schema(nullable = false, max_length = 255)]
    name: Option<String>,
    /// What is run.
    #[schema(nullable = false)]
    text: Option<String>,
    /// What is run, if it is no text.
    #[schema(nullable = false, content_encoding = "base64")]
    base64: Option<String>,
}

/// A change and its content.
struct Given {
    kind: ChangeKind,
    name: String,
    content: Bytes,
}

/// Make an image from another one by running commands, scripts and Ansible playbooks in it. The job's architecture is that
/// of the image.
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
    let (request, changes) = read(image, body.json()?)?;
    let orchestrator = super::jobs::orchestrator(&api)?;
    let Planned { job, mut run } = new_job::plan(&api, JobId::new(), request).await?;
    run.who = principal.map(|Extension(principal)| principal.name);
    let id = job.id;
    let made = async {
        if let Some(base) = &mut run.image {
            base.changes = keep(&api, id, changes).await?;
        }
        accept(orchestrator, job, run).await
    };
    match made.await {
        Ok(job) => Ok((StatusCode::CREATED, Json(job))),
        Err(problem) => {
            // No job will ever need them.
            if let Err(failure) = api.artifacts.discard_changes(id).await {
                tracing::warn!(
                    job.id = %id, code = failure.code.name(), hint = failure.hint,
                    "what a job was to run is left in S3: {failure}"
                );
            }
            Err(problem.into())
        }
    }
}

async fn accept(orchestrator: &Orchestrator, job: Job, run: NewRun) -> Result<Job> {
    Ok(orchestrator.accept(job, run).await?)
}

/// Puts what is to be run where the job finds it.
async fn keep(api: &Api, job: JobId, changes: Vec<Given>) -> Result<Vec<Change>> {
    let mut kept = Vec::with_capacity(changes.len());
    for (number, Given { kind, name, content }) in changes.into_iter().enumerate() {
        kept.push(Change {
            kind,
            name,
            sha256: hex::encode(Sha256::digest(&content)),
            size: content.len() as u64,
            object: api.artifacts.put_change(job, number, content).await?,
        });
    }
    Ok(kept)
}

fn read(image: ImageId, body: Value) -> Result<(Request, Vec<Given>)> {
    let mut fields = Fields::of(body)?;
    let name = fields.required("image_root_archive_name", checked(check_file_name));
    let changes = fields.required("changes", changes);
    let options = new_job::options(&mut fields);
    fields.finish()?;
    Ok((Request::customize(image, name?, options?), changes?))
}

fn changes(value: &Value) -> Parsed<Vec<Given>> {
    let changes = fields::list(value, change)?;
    match changes.len() {
        0 => Err(error("At least one change is needed.")),
        more if more > MOST_CHANGES => Err(error("These are too many changes for one job.")),
        _ => Ok(changes),
    }
}

fn change(value: &Value) -> Parsed<Given> {
    let (kind, name, text, base64) = object(value, |fields| {
        let kind = fields.required("kind", one_of(&ChangeKind::ALL, ChangeKind::name));
        let name = fields.optional("name", checked(check_name));
        let text = fields.optional("text", fields::text);
        let base64 = fields.optional("base64", decoded);
        Ok((kind?, name?, text?, base64?))
    })?;
    let content = match (text, base64) {
        (Some(text), None) => Bytes::from(text),
        (None, Some(content)) => content,
        _ => return Err(error("Give either `text` or `base64`.")),
    };
    let name = match (kind, name) {
        (_, Some(name)) => name,
        (ChangeKind::Run, None) => first_line(&content),
        (ChangeKind::Script, None) => "script".to_owned(),
        (ChangeKind::Ansible, None) => return Err(error("A playbook needs its `name`: the path in the archive.")),
    };
    if kind == ChangeKind::Ansible && !is_plain_path(&name) {
        return Err(error("`name` has to be a path inside the archive, without `..`."));
    }
    Ok(Given { kind, name, content })
}

fn decoded(value: &Value) -> Parsed<Bytes> {
    let text = fields::text(value)?;
    let content = STANDARD
        .decode(text)
        .map_err(|_| -> FieldError { error("Not valid base64.") })?;
    Ok(content.into())
}

/// What a command is called: its beginning.
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
        let given = change(&json!({"kind": "run", "text": "  apt-get update\napt-get upgrade"}))
            .ok()
            .unwrap();
        assert_eq!((given.name.as_str(), given.content.len()), ("apt-get update", 32));
        let given = change(&json!({"kind": "ansible", "name": "site.yml", "base64": "AAE="}))
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
            assert!(change(&wrong).is_err(), "{wrong}");
        }
    }
}
