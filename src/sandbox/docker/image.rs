//! Loads the toolbox into the engine as an image, once per digest. Runs the host's tar in a namespace sandbox, and
//! talks to the engine.

use bollard::query_parameters::{RemoveImageOptions, TagImageOptionsBuilder};
use kiln_inside::room::IdMap;
use kiln_records::Failure;
use tokio_util::io::ReaderStream;

use super::{
    connect::Open,
    dialect::LOAD,
    fault::{failure, failure_within, is_missing},
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
    open: &Open,
    packer: &NamespaceDriver,
    toolbox: &Toolbox,
    ids: Option<IdMap>,
) -> Result<String, Failure> {
    let engine = &open.client;
    let name = name(toolbox, ids);
    match engine.inspect_image(&name).await {
        Ok(_) => return Ok(name),
        Err(error) if is_missing(&error) => {}
        Err(error) => return Err(failure("cannot look for the toolbox's image", &error)),
    }
    let (mut tar, reader) = packed::tree(packer, toolbox, ids).await?;
    let archive = ReaderStream::with_capacity(reader, 1 << 20);
    let taken_in = open.dialect.import(engine, archive).await;
    let report = tar.wait().await?;
    if let Some(failure) = report.failure {
        return Err(failure);
    }
    let id = taken_in.map_err(|error| failure_within(LOAD, "cannot load the toolbox as an image", &error))?;
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
