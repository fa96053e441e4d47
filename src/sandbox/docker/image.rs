//! Loads the toolbox into the engine as an image, once per digest. Runs the host's tar in a namespace sandbox, and
//! talks to the engine.

use std::process::Stdio;

use bollard::{
    Docker, body_try_stream,
    query_parameters::{CreateImageOptionsBuilder, RemoveImageOptions, TagImageOptionsBuilder},
};
use futures::TryStreamExt;
use kiln_inside::room::IdMap;
use kiln_records::{Code, Failure};
use tokio::net::unix::pipe;
use tokio_util::io::ReaderStream;

use super::{
    connect::patient,
    fault::{failure, is_missing},
};
use crate::sandbox::{namespace::NamespaceDriver, toolbox::Toolbox};

/// The image's repository; its tag is the toolbox's digest.
const REPOSITORY: &str = "kiln-toolbox";

/// Packs the directory `tree` with each id shifted by the given base. It runs with the ids of sandboxes, which own the
/// files, and with its own `/tmp`.
const PACK: &str = r#"
map() { awk -v base="$1" 'BEGIN { for (id = 0; id < 65536; id++) printf "+%d kiln:%.0f\n", id, base + id }'; }
map "$1" > /tmp/users && map "$2" > /tmp/groups &&
    exec tar --create --format=gnu --numeric-owner --owner-map=/tmp/users --group-map=/tmp/groups -C /tmp/kiln tree
"#;

/// The search path for the host's tools.
const PATH: [(&str, &str); 2] = [
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("LC_ALL", "C"),
];

/// The name of a toolbox's image. Its files belong to `ids`, if given: root of a user namespace has no rights over
/// files of the host's root.
pub(super) fn name(toolbox: &Toolbox, ids: Option<IdMap>) -> String {
    let owner = ids.map_or_else(|| "0".to_owned(), |ids| ids.uid_base.to_string());
    format!("{REPOSITORY}:{}-{owner}", toolbox.facts.sha256)
}

/// Makes sure that the engine has the toolbox. Returns the image's name.
///
/// # Errors
///
/// `engine_gone`, or another error of the engine; `toolbox_image` when the toolbox cannot be packed.
pub(super) async fn ensure(
    engine: &Docker,
    packer: &NamespaceDriver,
    toolbox: &Toolbox,
    ids: Option<IdMap>,
) -> Result<String, Failure> {
    let name = name(toolbox, ids);
    match engine.inspect_image(&name).await {
        Ok(_) => return Ok(name),
        Err(error) if is_missing(&error) => {}
        Err(error) => return Err(failure("cannot look for the toolbox's image", &error)),
    }
    let unpackable = |why: String| Failure::new(Code::ToolboxImage, format!("cannot pack the toolbox: {why}"));
    let io = |error: std::io::Error| unpackable(error.to_string());
    let dir = toolbox
        .tree
        .parent()
        .ok_or_else(|| unpackable("it has no directory".to_owned()))?;
    let (writer, reader) = pipe::pipe().map_err(io)?;
    let writer = writer.into_blocking_fd().map_err(io)?;
    let bases = ids.map_or((0, 0), |ids| (ids.uid_base, ids.gid_base));
    let (users, groups) = (bases.0.to_string(), bases.1.to_string());
    let argv = ["sh", "-c", PACK, "sh", &users, &groups];
    let mut tar = packer
        .start_host_command(dir, &argv, &PATH, Stdio::from(writer))
        .await?;

    let body = body_try_stream(ReaderStream::with_capacity(reader, 1 << 20));
    let options = CreateImageOptionsBuilder::default().from_src("-").build();
    let patient = patient(engine);
    let taken_in: Result<Vec<_>, _> = patient
        .create_image(Some(options), Some(body), None)
        .try_collect()
        .await;
    let report = tar.wait().await?;
    if let Some(failure) = report.failure {
        return Err(failure);
    }
    let said = taken_in.map_err(|error| failure("cannot load the toolbox as an image", &error))?;
    let id = said
        .into_iter()
        .filter_map(|info| info.status)
        .find(|status| status.starts_with("sha256:"));
    let id = id.ok_or_else(|| unpackable("the engine did not report the id of the image".to_owned()))?;
    if report.exit_code != 0 {
        // The loaded image is incomplete.
        let _ = engine.remove_image(&id, None::<RemoveImageOptions>, None).await;
        return Err(unpackable(format!("tar failed with code {}", report.exit_code)));
    }
    // The name is set last, so an image with the name is complete.
    let (repository, tag) = name.split_once(':').unwrap_or((&name, "latest"));
    let tag = TagImageOptionsBuilder::default().repo(repository).tag(tag).build();
    engine
        .tag_image(&id, Some(tag))
        .await
        .map_err(|error| failure("cannot tag the toolbox's image", &error))?;
    Ok(name)
}
