//! Writes a new image from its first byte to its last. Reads the base and the root; writes the file `out` only.

use std::{collections::HashMap, os::unix::fs::FileExt, path::Path};

use super::{
    NotPossible, Options, Rebased, Unpacked,
    base::{Base, Content, Fragment},
    codec::Codec,
    compare,
    fields::Put,
    metadata::Writer,
    pack::Packer,
    reuse::Reuse,
    stop::{Stop, damaged, unfit},
    superblock::{self, COMPRESSOR_OPTIONS, DUPLICATES, EXPORTABLE, NO_XATTRS, Superblock},
    tables,
    tree::Tree,
};

/// Images are padded to a multiple of this, so that they can be attached as block devices.
const PAGE: u64 = 4096;

/// Makes the image.
pub fn make(base: &Path, unpacked: &Unpacked, root: &Path, out: &Path, options: &Options) -> Result<Rebased, Stop> {
    let base = Base::read(base, Some(&options.squashfs))?;
    if !unpacked.is_of(&base) {
        return Err(NotPossible::OtherBase.into());
    }
    let mut tree = Tree::scan(root)?;
    for device in options.devices.iter().filter(|device| device.belongs(root)) {
        tree.add_device(device)?;
    }
    let mut taken = taken_files(&base, unpacked, &tree);
    taken.extend(compare::equal_files(&base, &tree, &taken, options.cpus)?);
    let mut live = vec![false; base.files.len()];
    for index in taken.values() {
        live[*index] = true;
    }
    let reuse = Reuse::plan(&base, &live)?;
    let out = fs_err::File::create(out)?;
    let out = out.file();
    reuse.copy(&base, out)?;

    let mut packer = Packer::new(
        out,
        base.superblock.inode_table,
        base.codec,
        base.superblock.block_size,
        options.cpus,
        vec![Content::default(); tree.nodes.len()],
    );
    let renumbered = pack_fragments(&base, &reuse, &mut packer)?;
    let mut rebased = Rebased::default();
    for (node, found) in tree.files() {
        if let Some(index) = taken.get(&node) {
            packer.contents[node] = moved(&base.files[*index].content, &renumbered)?;
            rebased.reused_files += 1;
        } else if found.size > 0 {
            packer.add_file(node, &tree.path(node), found)?;
            rebased.new_files += 1;
        }
    }
    packer.finish()?;

    let (tables, superblock) = write_tables(&base, &tree, &packer, options)?;
    out.write_all_at(&tables, packer.at)?;
    out.write_all_at(&superblock.bytes(), 0)?;
    let size = superblock.end.next_multiple_of(PAGE);
    out.set_len(size)?;
    Ok(Rebased {
        reused_bytes: reuse.bytes,
        new_bytes: packer.written,
        dead_bytes: base.data_size() - reuse.bytes,
        prefix_bytes: base.superblock.inode_table,
        size,
        ..rebased
    })
}

/// The unchanged files of the tree: nodes, and the matching files of the base.
fn taken_files(base: &Base, unpacked: &Unpacked, tree: &Tree) -> HashMap<usize, usize> {
    let known = unpacked.by_key(base);
    tree.files()
        .filter(|(_, found)| found.size > 0)
        .filter_map(|(node, found)| Some((node, *known.get(&found.key)?)))
        .collect()
}

/// Adds the kept fragments to the packer. Returns the new number of each, by its old number.
fn pack_fragments(base: &Base, reuse: &Reuse, packer: &mut Packer<'_>) -> Result<HashMap<u32, u32>, Stop> {
    let mut renumbered = HashMap::new();
    for (number, content) in reuse.fragments(base) {
        let new = u32::try_from(packer.fragments.len()).map_err(unfit)?;
        renumbered.insert(number, new);
        match content? {
            Some(raw) => packer.add_fragment(raw)?,
            None => packer.fragments.push(base.fragments[number as usize]),
        }
    }
    Ok(renumbered)
}

/// A file's content, with the fragment number it has in the new image.
fn moved(content: &Content, renumbered: &HashMap<u32, u32>) -> Result<Content, Stop> {
    let mut content = content.clone();
    if let Some(tail) = &mut content.tail {
        let number = renumbered.get(&tail.fragment);
        tail.fragment = *number.ok_or_else(|| damaged("a fragment is lost"))?;
    }
    Ok(content)
}

/// Writes everything that follows the data, and the superblock. The kernel insists on this order, without gaps.
fn write_tables(
    base: &Base,
    tree: &Tree,
    packer: &Packer<'_>,
    options: &Options,
) -> Result<(Vec<u8>, Superblock), Stop> {
    let (codec, start) = (base.codec, packer.at);
    let block_size = base.superblock.block_size;
    let tables::Tables {
        inodes,
        directories,
        references,
    } = tables::write(tree, &packer.contents, codec, block_size)?;
    let root = *references.first().ok_or_else(|| unfit("it has no top directory"))?;
    let mut out = inodes;
    let directory_table = start + out.len() as u64;
    out.extend(directories);
    let fragments = packer.fragments.iter().flat_map(|Fragment { start, size }| {
        let mut entry = Vec::new();
        entry.put_u64(*start);
        entry.put_u32(*size);
        entry.put_u32(0);
        entry
    });
    let fragment_table = put_indexed(codec, &fragments.collect::<Vec<u8>>(), &mut out, start)?;
    let references: Vec<u8> = references.iter().flat_map(|place| place.to_le_bytes()).collect();
    let export_table = put_indexed(codec, &references, &mut out, start)?;
    let ids: Vec<u8> = tree.ids.list.iter().flat_map(|id| id.to_le_bytes()).collect();
    let id_table = put_indexed(codec, &ids, &mut out, start)?;
    let xattr_table = tree.xattrs.write(codec, &mut out, start)?;
    let superblock = Superblock {
        inodes: u32::try_from(tree.nodes.len()).map_err(unfit)?,
        made: options.made,
        block_size,
        fragments: u32::try_from(packer.fragments.len()).map_err(unfit)?,
        compressor: base.superblock.compressor,
        flags: (base.superblock.flags & COMPRESSOR_OPTIONS)
            | DUPLICATES
            | EXPORTABLE
            | if xattr_table.is_some() { 0 } else { NO_XATTRS },
        ids: u16::try_from(tree.ids.list.len()).map_err(unfit)?,
        root,
        end: start + out.len() as u64,
        id_table,
        xattr_table: xattr_table.unwrap_or(superblock::ABSENT),
        inode_table: start,
        directory_table,
        fragment_table,
        export_table,
    };
    Ok((out, superblock))
}

/// Appends a table and the list of its blocks' offsets to `out`, which begins at `start` in the image. Returns the
/// offset of the list.
fn put_indexed(codec: Codec, table: &[u8], out: &mut Vec<u8>, start: u64) -> Result<u64, Stop> {
    let mut writer = Writer::new(codec);
    writer.write(table)?;
    let (bytes, blocks) = writer.finish()?;
    let at = start + out.len() as u64;
    out.extend(bytes);
    let list = start + out.len() as u64;
    for block in blocks {
        out.put_u64(at + block);
    }
    Ok(list)
}
