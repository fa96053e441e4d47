//! Archives that would write, link or grow where they must not. They are unpacked in the sandbox, and never by the
//! server.

use tar::EntryType;

use crate::hostile::{case::Case, site::Site};
use crate::support::archive::{Archive, bomb, gzip_bomb};

pub fn cases(site: &Site) -> Vec<Case> {
    let archive = Archive::with_config;
    let unsafe_ones = [
        (
            "parent directories",
            "writes a file above the recipe's directory",
            archive().file("a/../../evil", b"x"),
            "`a/../../evil`",
        ),
        (
            "absolute path",
            "writes a file anywhere",
            archive().file("/etc/cron.d/evil", b"x"),
            "`/etc/cron.d/evil`",
        ),
        (
            "link out",
            "lets the next reader of the link read a file of the host",
            archive().link(EntryType::Symlink, "out", "../../../../etc/shadow"),
            "`out`",
        ),
        (
            "file through a link",
            "writes where the link leads, which a look at the file's own name does not show",
            archive()
                .link(EntryType::Symlink, "door", "sub")
                .file("door/evil", b"x"),
            "`door`",
        ),
        (
            "hard link out",
            "makes a file of the system part of the recipe, to be changed",
            archive().link(EntryType::Link, "passwd", "/etc/passwd"),
            "`passwd`",
        ),
        (
            "block device",
            "is the host's disk",
            archive().link(EntryType::Block, "disk", ""),
            "device node",
        ),
    ];
    let bombs = [
        (
            "hole",
            "is an archive of a kilobyte with a file of a terabyte",
            archive().hole("hole", 1 << 40).made(),
        ),
        ("gzip bomb", "fills the disk", gzip_bomb(512 << 20)),
        ("zstd bomb", "fills the disk", bomb(2 << 30)),
    ];
    let mut cases: Vec<Case> = unsafe_ones
        .into_iter()
        .map(|(name, danger, archive, says)| {
            Case::archive(name, danger, archive.made())
                .fails("recipe_unsafe")
                .says(&[says])
        })
        .collect();
    cases.extend(
        bombs
            .into_iter()
            .map(|(name, danger, made)| Case::archive(name, danger, made).fails("recipe_bomb")),
    );
    // The job's own limit of files is below that of archives, and is met first.
    let many = archive().empty_files(1_000_000).made();
    cases.push(
        Case::archive("many files", "uses up the inodes", many)
            .fails("disk_full")
            .says(&["many/"]),
    );
    // Odd, and harmless: the sandbox's root owns the program, and names are bytes.
    let config = site.config();
    let odd = Archive::empty()
        .file("config.xml", config.as_bytes())
        .named(b"setuid", 0o6755, b"#!/bin/sh\nid\n")
        .named(b"two\nlines\x1b[2J", 0o644, b"x")
        .named(b"no text \xff\xfe", 0o644, b"x");
    cases.push(Case::archive(
        "odd files",
        "confuses who takes names for lines or for text, or gains rights by a setuid program",
        odd.made(),
    ));
    cases
}
