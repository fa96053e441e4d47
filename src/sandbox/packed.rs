//! Packs a toolbox's tree for images, and says what entries of archives look like. Runs the host's tar in a namespace sandbox.

use std::process::Stdio;

use kiln_inside::room::IdMap;
use kiln_records::{Code, Failure};
use tar::{EntryType, Header};
use tokio::net::unix::pipe;

use super::{
    namespace::{Handle, NamespaceDriver},
    toolbox::Toolbox,
};

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

/// Begins to pack the tree, as `tree/…` with owners shifted by `ids`. Returns the running tar and its output.
///
/// # Errors
///
/// `toolbox_image` when that cannot be begun.
pub(super) async fn tree(
    packer: &NamespaceDriver,
    toolbox: &Toolbox,
    ids: Option<IdMap>,
) -> Result<(Handle, pipe::Receiver), Failure> {
    let io = |error: std::io::Error| unpackable(error);
    let dir = toolbox.tree.parent().ok_or_else(|| unpackable("it has no directory"))?;
    let (writer, reader) = pipe::pipe().map_err(io)?;
    let writer = writer.into_blocking_fd().map_err(io)?;
    let bases = ids.map_or((0, 0), |ids| (ids.uid_base, ids.gid_base));
    let (users, groups) = (bases.0.to_string(), bases.1.to_string());
    let argv = ["sh", "-c", PACK, "sh", &users, &groups];
    let tar = packer
        .start_host_command(dir, &argv, &PATH, Stdio::from(writer))
        .await?;
    Ok((tar, reader))
}

/// The failure for a toolbox that cannot be packed.
pub(super) fn unpackable(why: impl std::fmt::Display) -> Failure {
    Failure::new(Code::ToolboxImage, format!("cannot pack the toolbox: {why}"))
}

/// The header of an entry that belongs to root and has no time, so that equal content makes equal archives.
pub(super) fn header(kind: EntryType, size: u64, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}
