//! Loads the toolbox into the engine as an image, once per digest. Runs the host's tar in a namespace sandbox, and
//! talks to the engine.

use bollard::{
    Docker, body_try_stream,
    query_parameters::{CreateImageOptionsBuilder, RemoveImageOptions, TagImageOptionsBuilder},
};
use futures::TryStreamExt;
use kiln_inside::room::IdMap;
use kiln_records::Failure;
use tokio_util::io::ReaderStream;

use super::{
    connect::patient,
    fault::{failure, is_missing},
};
use crate::sandbox::{namespace::NamespaceDriver, packed, toolbox::Toolbox};

/// The image's repository; its tag is the toolbox's digest.
const REPOSITORY: &str = "kiln-toolbox";

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
    let (mut tar, reader) = packed::tree(packer, toolbox, ids).await?;
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
    let id = id.ok_or_else(|| packed::unpackable("the engine did not report the id of the image"))?;
    if report.exit_code != 0 {
        // The loaded image is incomplete.
        let _ = engine.remove_image(&id, None::<RemoveImageOptions>, None).await;
        return Err(packed::unpackable(format!("tar failed with code {}", report.exit_code)));
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
