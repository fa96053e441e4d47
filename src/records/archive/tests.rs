use std::io::{Cursor, Write};

use ::zip::{ZipWriter, write::SimpleFileOptions};
use tar::{EntryType, Header};

use super::*;

/// What is in an archive: each entry with its content, or that of a link.
fn listed(archive: &[u8], limits: &Limits) -> Result<(Vec<String>, Contents), Failure> {
    let mut entries = Vec::new();
    let contents = read(Cursor::new(archive), "x", limits, &mut |entry, content| {
        let mut text = String::new();
        let read = content.read_to_string(&mut text);
        let what = match &entry.kind {
            Kind::Directory => "/".to_owned(),
            Kind::File => format!("={text}"),
            Kind::Symlink(target) => format!("->{}", target.display()),
            Kind::HardLink(target) => format!("={}", target.display()),
        };
        entries.push(format!("{}{what} {:o}", entry.path.display(), entry.mode));
        read.map(drop).map_err(|error| Failure::io("unread", &error))
    })?;
    Ok((entries, contents))
}

fn code(archive: &[u8]) -> Result<Contents, Code> {
    listed(archive, &Limits::default())
        .map(|(_, contents)| contents)
        .map_err(|failure| failure.code)
}

fn zip_of(fill: impl FnOnce(&mut ZipWriter<Cursor<Vec<u8>>>)) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    fill(&mut zip);
    zip.finish().unwrap().into_inner()
}

fn put(zip: &mut ZipWriter<Cursor<Vec<u8>>>, name: &str, mode: u32, content: &[u8]) {
    let options = SimpleFileOptions::default().unix_permissions(mode);
    zip.start_file(name, options).unwrap();
    zip.write_all(content).unwrap();
}

fn tar_of(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (kind, path, content) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        if kind.is_file() {
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, path, content.as_bytes()).unwrap();
        } else {
            header.set_size(0);
            header.set_link_name_literal(content).unwrap();
            archive.append_data(&mut header, path, io::empty()).unwrap();
        }
    }
    archive.into_inner().unwrap()
}

#[test]
fn a_zip_file_is_read_as_a_tar_archive_is() {
    let archive = zip_of(|zip| {
        zip.add_directory("my/root/", SimpleFileOptions::default().unix_permissions(0o700))
            .unwrap();
        put(zip, "my/config.xml", 0o644, b"<image/>");
        put(zip, "my/config.sh", 0o755, b"#!/bin/sh");
        put(zip, "__MACOSX/my/._config.sh", 0o644, b"x");
        put(zip, "my/root/.DS_Store", 0o644, b"x");
        put(zip, "my/root/._motd", 0o644, b"\x00\x05\x16\x07rest");
        put(zip, "my/root/._own", 0o644, b"text");
        zip.add_symlink("my/root/link", "../../anywhere", SimpleFileOptions::default())
            .unwrap();
    });
    let (entries, contents) = listed(&archive, &Limits::default()).unwrap();
    assert_eq!(
        entries,
        [
            "my/root/ 700",
            "my/config.xml=<image/> 644",
            "my/config.sh=#!/bin/sh 755",
            "my/root/._own=text 644",
            "my/root/link->../../anywhere 777",
        ]
    );
    assert_eq!((contents.entries, contents.of_macos), (8, 3));
    assert_eq!(contents.description.unwrap().path(), Path::new("my/config.xml"));
}

#[test]
fn names_of_other_systems_are_understood() {
    let mut archive = zip_of(|zip| {
        put(zip, "my\\config.xml", 0o644, b"x");
        put(zip, "caf?", 0o644, b"y");
    });
    // As old programs of Windows say it: made on DOS, with a name in its code page.
    let mut at = 0;
    while let Some(found) = memchr::memmem::find(&archive[at..], b"PK\x01\x02") {
        at += found + 5;
        archive[at] = 0;
    }
    while let Some(found) = memchr::memmem::find(&archive, b"caf?") {
        archive[found + 3] = 0x82;
    }
    let (entries, contents) = listed(&archive, &Limits::default()).unwrap();
    assert_eq!(entries, ["my/config.xml=x 644", "café=y 644"]);
    assert_eq!(contents.description.unwrap().path(), Path::new("my/config.xml"));
}

#[test]
fn hostile_zip_files_are_refused() {
    let one = |name: &'static str| zip_of(|zip| put(zip, name, 0o644, b"x"));
    for (name, expected) in [
        ("../x", Code::RecipeUnsafe),
        ("a/../../x", Code::RecipeUnsafe),
        ("/etc/x", Code::RecipeUnsafe),
        ("a\0b", Code::RecipeUnsafe),
    ] {
        assert_eq!(code(&one(name)), Err(expected), "{name}");
    }
    let link = zip_of(|zip| {
        put(zip, "my/config.xml", 0o644, b"x");
        zip.add_symlink("my/root", "/etc", SimpleFileOptions::default())
            .unwrap();
    });
    assert_eq!(code(&link), Err(Code::RecipeUnsafe));
    let zeros = zip_of(|zip| put(zip, "x", 0o644, &vec![0; 70 << 20]));
    assert_eq!(code(&zeros), Err(Code::RecipeBomb));
    let few = Limits {
        entries: 2,
        ..Limits::default()
    };
    let three = zip_of(|zip| ["a", "b", "c"].iter().for_each(|name| put(zip, name, 0o644, b"")));
    assert_eq!(listed(&three, &few).unwrap_err().code, Code::RecipeBomb);
    assert_eq!(code(&three[..three.len() - 30]), Err(Code::RecipeDamaged));
    assert_eq!(code(&zip_of(|_| ())), Err(Code::RecipeNotArchive));
    assert_eq!(code(b"7z\xbc\xaf\x27\x1c and more"), Err(Code::RecipeNotArchive));
    // The name is in the list only; the fifo's kind is in its mode.
    let mut fifo = one("fifo");
    let entry = memchr::memmem::find(&fifo, b"PK\x01\x02").unwrap();
    fifo[entry + 41] = 0o010_644_u16.to_be_bytes()[0];
    assert_eq!(code(&fifo), Err(Code::RecipeUnsafe));
    let mut encrypted = one("x");
    let entry = memchr::memmem::find(&encrypted, b"PK\x01\x02").unwrap();
    encrypted[entry + 8] |= 1;
    let failure = listed(&encrypted, &Limits::default()).unwrap_err();
    assert!(failure.detail.contains("`x` is encrypted"), "{failure}");
}

#[test]
fn only_links_beside_the_description_must_stay_inside() {
    use EntryType::{Regular, Symlink};
    let file = (Regular, "my/config.xml", "x");
    for (link, is_safe) in [
        ((Symlink, "my/root", "../common/root"), true),
        ((Symlink, "my/root", "../../common/root"), false),
        ((Symlink, "my/root", "/etc"), false),
        ((Symlink, "my/config.sh", "root/../../../x"), false),
        ((Symlink, "other", "/etc"), false),
        ((Symlink, "my/root/etc/a", "/srv/x"), true),
        ((Symlink, "my/root/etc/a", "v1/../v1"), true),
        ((Symlink, "my/root/a", "../../../../../.."), true),
        ((Symlink, "my/profile/a", "/"), true),
        ((Symlink, "docs/a", "/srv"), true),
        ((Symlink, "my/root/a", ""), false),
    ] {
        let found = code(&tar_of(&[file, link])).map(drop);
        assert_eq!(found.is_ok(), is_safe, "{link:?}: {found:?}");
    }
    // Without a directory around it.
    let top = (Regular, "config.xml", "x");
    assert!(code(&tar_of(&[top, (Symlink, "root/a", "/")])).is_ok());
    assert_eq!(
        code(&tar_of(&[top, (Symlink, "root", "../x")])),
        Err(Code::RecipeUnsafe)
    );
}

#[test]
fn the_ratio_does_not_hold_for_what_kiln_packed() {
    let content = vec![0; 70 << 20];
    let fill = |archive: &mut tar::Builder<flate2::write::GzEncoder<Vec<u8>>>| {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, "my/zeros.img", &content[..]).unwrap();
    };
    let mut own = builder(Vec::new());
    fill(&mut own);
    let own = own.into_inner().unwrap().finish().unwrap();
    let mut bytes = 0;
    let contents = read(Cursor::new(&own), "x", &Limits::default(), &mut |entry, _| {
        bytes += entry.size;
        Ok(())
    });
    assert_eq!((contents.unwrap().entries, bytes), (1, 70 << 20));
    let small = Limits {
        bytes: 1 << 20,
        ..Limits::default()
    };
    let refused = read(Cursor::new(&own), "x", &small, &mut |_, _| Ok(())).unwrap_err();
    assert_eq!(refused.code, Code::RecipeBomb);
    let names = ["`my/zeros.img`", "73400320"];
    assert!(names.iter().all(|name| refused.detail.contains(name)), "{refused}");
    let mut plain = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    fill(&mut plain);
    let plain = plain.into_inner().unwrap().finish().unwrap();
    assert_eq!(code(&plain), Err(Code::RecipeBomb));
}
