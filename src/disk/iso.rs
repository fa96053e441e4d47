//! ISO images: what firmware boots from a CD, from the virtual drive of a management controller, or from a USB stick. Reads the
//! image's files, runs the host's xorriso, and writes one file.
//!
//! ```text
//!  ISO 9660    /LiveOS/rootfs (the squashfs, byte for byte), /boot/vmlinuz, /boot/initrd, /grub/grub.cfg
//!  appended    EFI system partition (FAT) with GRUB: the boot image for CDs (El Torito), and a partition of the GPT
//! ```
//!
//! GRUB and dracut find the rest by the volume's name, which follows from the content. The content is digested while xorriso
//! writes it, so name and loader are written last, to places that xorriso left for them.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};

use gpt::{GptConfig, partition_types::EFI};

use super::{Parts, Problem, ROOT, digest, esp, grub, parameters, partition::Partition, run};

/// The directory of the root file system, where live images have it.
const ROOT_DIR: &str = "/LiveOS";

/// The type of an EFI system partition.
const EFI_SYSTEM: &str = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b";

/// All times in the file system, in seconds since 1970: those of FAT begin in 1980.
const TIME: &str = "315532800";

/// Where xorriso writes the name of the volume: in the volume's descriptor, and in the one for the partition that begins at
/// block 16.
const NAMES: [u64; 2] = [16 * BLOCK + 40, 32 * BLOCK + 40];

/// The bytes of a CD's block.
const BLOCK: u64 = 2048;

/// Writes the image over an empty file. What it is made of is in `dir` meanwhile. Returns its size in bytes.
pub(super) fn write(parts: &Parts, dir: &Path, file: &File, to: &Path) -> Result<u64, Problem> {
    grub::supported(parts.arch)?;
    let named = || -> Result<_, Problem> {
        let volume = volume(parts)?;
        let loader = grub::loader(parts.arch, Some(&volume))?;
        Ok((volume, loader))
    };
    let (written, named) = std::thread::scope(|scope| {
        let named = scope.spawn(named);
        (write_unnamed(parts, dir, to), named.join())
    });
    let size = written?;
    let (volume, loader) = named.map_err(|_| io::Error::other("the digest of its parts was broken off"))??;
    for place in NAMES {
        file.write_all_at(volume.as_bytes(), place)?;
    }
    let serial = u32::from_str_radix(&volume[volume.len() - 8..], 16).unwrap_or_default();
    let files = [(loader.path, esp::Content::Bytes(&loader.program))];
    let partition = Partition::new(file, esp_of(file)?, size);
    esp::write(partition, size, serial, &files)?;
    Ok(file.metadata()?.len())
}

/// Where the EFI system partition of an image begins.
fn esp_of(file: &File) -> io::Result<u64> {
    let table = GptConfig::new().open_from_device(file).map_err(io::Error::other)?;
    let mut partitions = table.partitions().values();
    let esp = partitions.find(|partition| partition.part_type_guid == EFI);
    let esp = esp.ok_or_else(|| io::Error::other("xorriso wrote no EFI system partition"))?;
    esp.bytes_start(*table.logical_block_size())
}

/// Has xorriso write an image with room for the volume's name and for an EFI system partition. Returns the size of that.
fn write_unnamed(parts: &Parts, dir: &Path, to: &Path) -> Result<u64, Problem> {
    let dir = tempfile::Builder::new().prefix(".kiln-iso-").tempdir_in(dir)?;
    let partition = dir.path().join("esp");
    let size = esp::size_for(0)?;
    fs_err::File::create_new(&partition)?.set_len(size)?;

    let tree = dir.path().join("tree");
    let config = grub::config(
        &parts.title,
        &parameters(&parts.parameters, &format!("CDLABEL={}", grub::VOLUME), ROOT_DIR),
    );
    fs_err::create_dir_all(tree.join("grub"))?;
    fs_err::write(below(&tree, grub::CONFIG), config)?;
    for (name, file) in [
        (grub::KERNEL.to_owned(), &parts.kernel),
        (grub::INITRD.to_owned(), &parts.initrd),
        (format!("{ROOT_DIR}/{ROOT}"), &parts.root),
    ] {
        let link = below(&tree, &name);
        if let Some(parent) = link.parent() {
            fs_err::create_dir_all(parent)?;
        }
        fs_err::os::unix::fs::symlink(fs_err::canonicalize(file)?, link)?;
    }
    run(Command::new("xorriso")
        // Its own file of options is the user's. When all is written it sleeps until it would next say how far it is, by
        // default for a second.
        .args(["-no_rc", "-pacifier", "interval=0.1"])
        .args(["-as", "mkisofs", "-quiet"])
        .env("SOURCE_DATE_EPOCH", TIME)
        // That alone leaves the files' own times, such as those of the directories made above.
        .args(["--set_all_file_dates", &format!("={TIME}")])
        .args(["-rational-rock", "-follow-links", "-iso-level", "3"])
        .args(["-partition_offset", "16", "-appended_part_as_gpt"])
        .args(["-append_partition", "2", EFI_SYSTEM])
        .arg(&partition)
        .args(["-e", "--interval:appended_partition_2:all::", "-no-emul-boot", "-o"])
        .args([to, &tree]))?;
    Ok(size)
}

fn below(tree: &Path, path: &str) -> PathBuf {
    tree.join(path.trim_start_matches('/'))
}

/// A name for the volume that no other content has.
fn volume(parts: &Parts) -> io::Result<String> {
    let texts = [parts.arch.name().as_bytes(), parts.parameters.as_bytes()];
    let digest = digest::of(&texts, &[&parts.kernel, &parts.initrd, &parts.root])?;
    let digest = hex::encode_upper(digest);
    // Names of volumes have at most 32 capital letters, digits and underscores.
    Ok(format!("KILN_{}", &digest[..16]))
}
