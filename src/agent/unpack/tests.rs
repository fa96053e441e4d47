use std::{os::unix::fs::MetadataExt, path::Component};

use proptest::prelude::*;
use tar::{Builder, Header};

use kiln_records::{
    archive::{check_target, clean},
    compression::Compression,
};
use tar::EntryType;

use super::*;
use crate::packing;

/// One entry, built by hand so that no library corrects a hostile header.
fn raw(kind: EntryType, name: &[u8], target: &[u8], mode: u32, content: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    let gnu = header.as_gnu_mut().unwrap();
    gnu.name[..name.len()].copy_from_slice(name);
    gnu.linkname[..target.len()].copy_from_slice(target);
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(1_000_000_000);
    header.set_size(content.len() as u64);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn file(name: &str, content: &str) -> Vec<u8> {
    raw(EntryType::Regular, name.as_bytes(), b"", 0o644, content.as_bytes())
}

fn dir(name: &str) -> Vec<u8> {
    raw(EntryType::Directory, name.as_bytes(), b"", 0o755, b"")
}

fn link(name: &str, target: &str) -> Vec<u8> {
    raw(EntryType::Symlink, name.as_bytes(), target.as_bytes(), 0o777, b"")
}

fn hard_link(name: &str, target: &str) -> Vec<u8> {
    raw(EntryType::Link, name.as_bytes(), target.as_bytes(), 0o644, b"")
}

fn tar_of(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = entries.concat();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn top(&self) -> PathBuf {
        self.dir.path().join("recipe")
    }

    fn unpack_with(&self, archive: &[u8], limits: &Limits) -> Result<Contents, Failure> {
        let path = self.dir.path().join("recipe.tar");
        fs_err::write(&path, archive).unwrap();
        unpack(&path, &self.top(), limits, &mut Lost::default())
    }

    fn unpack(&self, entries: &[Vec<u8>]) -> Result<Contents, Failure> {
        self.unpack_with(&tar_of(entries), &Limits::default())
    }

    fn text(&self, path: &str) -> String {
        fs_err::read_to_string(self.top().join(path)).unwrap()
    }

    /// Only the archive and the recipe's directory may be there.
    fn nothing_escaped(&self) {
        let mut names: Vec<_> = fs_err::read_dir(self.dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["recipe", "recipe.tar"]);
    }
}

#[test]
fn every_compression_is_recognised() {
    let plain = tar_of(&[file("config.xml", "<image/>"), file("./sub/a", "b")]);
    let packed = packing::ALL
        .into_iter()
        .filter(|compression| *compression != Compression::Lzma)
        .map(|compression| packing::pack(compression, &plain));
    for archive in std::iter::once(plain.clone()).chain(packed) {
        let place = Place::new();
        let unpacked = place.unpack_with(&archive, &Limits::default()).unwrap();
        assert_eq!(unpacked.entries, 2);
        assert_eq!(place.text("config.xml"), "<image/>");
        assert_eq!(place.text("sub/a"), "b");
    }
}

#[test]
fn hostile_archives_are_refused() {
    let fifo = |kind| raw(kind, b"x", b"", 0o644, b"");
    let corpus: &[(&str, Vec<Vec<u8>>)] = &[
        ("absolute path", vec![file("/etc/x", "")]),
        ("parent", vec![file("../x", "")]),
        ("parent within", vec![file("a/../../x", "")]),
        ("parent that stays inside", vec![file("a/../x", "")]),
        ("directory outside", vec![dir("../x/")]),
        ("device", vec![fifo(EntryType::Char)]),
        ("block device", vec![fifo(EntryType::Block)]),
        ("fifo", vec![fifo(EntryType::Fifo)]),
        ("unknown kind", vec![fifo(EntryType::new(b'V'))]),
        ("absolute link", vec![link("a", "/etc/passwd")]),
        ("absolute link named as the overlay", vec![link("root", "/etc")]),
        ("link outside", vec![link("a", "../x")]),
        (
            "link outside beside the description",
            vec![file("d/config.xml", ""), link("d/a", "../../x")],
        ),
        ("link that goes down and up", vec![link("a", "b/../../x")]),
        (
            "up through another link",
            vec![link("d/up", ".."), link("a", "d/up/../x")],
        ),
        ("empty link", vec![link("a", "")]),
        ("write through a link", vec![link("a", "."), file("a/b", "")]),
        ("write through a later link", vec![file("a/b", ""), link("a", ".")]),
        ("directory in place of a link", vec![link("a", "."), dir("a")]),
        ("file in place of a directory", vec![dir("a"), file("a", "")]),
        ("file below a file", vec![file("a", ""), file("a/b", "")]),
        ("file as the top", vec![file(".", "")]),
        ("link as the top", vec![link("./", "a")]),
        ("hard link outside", vec![hard_link("a", "../x")]),
        ("absolute hard link", vec![hard_link("a", "/etc/passwd")]),
        ("hard link to nothing", vec![hard_link("a", "b")]),
        ("hard link to a directory", vec![dir("d"), hard_link("a", "d")]),
        (
            "hard link to a link",
            vec![link("l", "/etc/passwd"), hard_link("a", "l")],
        ),
        (
            "hard link through a link",
            vec![link("l", "."), file("b", ""), hard_link("a", "l/b")],
        ),
    ];
    for (what, entries) in corpus {
        let place = Place::new();
        let failure = place.unpack(entries).expect_err(what);
        assert_eq!(failure.code, Code::RecipeUnsafe, "{what}: {failure}");
        assert!(failure.hint.is_some());
        place.nothing_escaped();
    }
}

#[test]
fn hostile_long_names_are_refused() {
    let long = |name: &[u8]| {
        [
            raw(EntryType::GNULongName, b"././@LongLink", b"", 0o644, name),
            file("x", ""),
        ]
        .concat()
    };
    for name in [&[b'a'; 300][..], &b"ab/".repeat(2000), b"a/../b\0", b"/etc/x"] {
        let failure = Place::new().unpack(&[long(name)]).unwrap_err();
        assert_eq!(failure.code, Code::RecipeUnsafe, "{failure}");
    }
    let pax = raw(EntryType::XHeader, b"x", b"", 0o644, b"12 path=a\0b\n");
    let failure = Place::new().unpack(&[pax, file("x", "")]).unwrap_err();
    assert_eq!(failure.code, Code::RecipeUnsafe, "{failure}");
}

#[test]
fn bombs_are_refused() {
    let zeros = tar_of(&[raw(EntryType::Regular, b"x", b"", 0o644, &vec![0; 70 << 20])]);
    let gzip = packing::pack(Compression::Zstd, &zeros);
    assert_eq!(
        Place::new().unpack_with(&gzip, &Limits::default()).unwrap_err().code,
        Code::RecipeBomb
    );

    let small = Limits {
        bytes: 4000,
        entries: 2,
        ..Limits::default()
    };
    let place = Place::new();
    assert!(
        place
            .unpack_with(&tar_of(&[file("a", "1"), file("b", "2")]), &small)
            .is_ok()
    );
    for entries in [
        vec![file("a", ""), file("b", ""), file("c", "")],
        vec![file("a", &"x".repeat(3000)), file("b", &"x".repeat(3000))],
        vec![raw(EntryType::Directory, b"a", b"", 0o755, &[0; 5000])],
        vec![raw(EntryType::XHeader, b"a", b"", 0o755, &[0; 5000]), file("c", "")],
    ] {
        let failure = Place::new().unpack_with(&tar_of(&entries), &small).unwrap_err();
        assert_eq!(failure.code, Code::RecipeBomb, "{failure}");
    }

    let name = raw(
        EntryType::GNULongName,
        b"././@LongLink",
        b"",
        0o644,
        &vec![b'a'; 2 << 20],
    );
    let failure = Place::new().unpack(&[name, file("x", "")]).unwrap_err();
    assert_eq!(failure.code, Code::RecipeBomb, "{failure}");
}

#[test]
fn a_sparse_file_counts_with_its_holes() {
    let mut header = Header::new_gnu();
    header.set_path("sparse").unwrap();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_mode(0o644);
    header.set_size(0);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.realsize[..12].copy_from_slice(b"00100000000\0");
    gnu.sparse[0].offset[..12].copy_from_slice(b"00100000000\0");
    gnu.sparse[0].numbytes[..12].copy_from_slice(b"00000000000\0");
    header.set_cksum();
    let entry = header.as_bytes().to_vec();
    let limits = Limits {
        bytes: 1 << 20,
        ..Limits::default()
    };
    let failure = Place::new()
        .unpack_with(&tar_of(std::slice::from_ref(&entry)), &limits)
        .unwrap_err();
    assert_eq!(failure.code, Code::RecipeBomb, "{failure}");
    let place = Place::new();
    place.unpack(&[entry]).unwrap();
    assert_eq!(fs_err::metadata(place.top().join("sparse")).unwrap().len(), 1 << 24);
}

#[test]
fn what_is_no_archive_is_named() {
    for (content, code) in [
        (Vec::new(), Code::RecipeNotArchive),
        (vec![0; 1024], Code::RecipeNotArchive),
        (b"just text".repeat(100), Code::RecipeNotArchive),
        (b"PK\x03\x04".repeat(200), Code::RecipeDamaged),
        (
            packing::pack(Compression::Gzip, &b"text".repeat(300)),
            Code::RecipeNotArchive,
        ),
        (b"\x1f\x8bbroken".to_vec(), Code::RecipeNotArchive),
        (
            tar_of(&[file("a", &"x".repeat(2000))])[..1024].to_vec(),
            Code::RecipeDamaged,
        ),
        (tar_of(&[file("a", ""), b"x".repeat(512)]), Code::RecipeDamaged),
    ] {
        let failure = Place::new().unpack_with(&content, &Limits::default()).unwrap_err();
        assert_eq!(failure.code, code, "{failure}");
    }
}

#[test]
fn a_truncated_compressed_archive_is_damaged() {
    // Numbers do not compress to nothing, so the cut falls into the file.
    let content: String = (0..50_000).map(|n| (n * 7919 % 99_991).to_string()).collect();
    let plain = tar_of(&[file("a", ""), file("b", &content)]);
    for compression in [Compression::Gzip, Compression::Xz, Compression::Zstd] {
        let packed = packing::pack(compression, &plain);
        let cut = &packed[..packed.len() / 2];
        let failure = Place::new().unpack_with(cut, &Limits::default()).unwrap_err();
        assert!(
            [Code::RecipeDamaged, Code::RecipeNotArchive].contains(&failure.code),
            "{failure}"
        );
    }
}

#[test]
fn a_single_top_directory_is_the_recipe() {
    for (entries, expected) in [
        (vec![dir("my-recipe/"), file("my-recipe/config.xml", "x")], "my-recipe"),
        (vec![file("config.xml", "x"), dir("root")], ""),
        (
            vec![file("README", "x"), file("._my", "x"), file("my/a.kiwi", "x")],
            "my",
        ),
    ] {
        let unpacked = Place::new().unpack(&entries).unwrap();
        assert_eq!(unpacked.description.unwrap().dir, Path::new(expected));
    }
}

#[test]
fn permissions_times_and_links_are_kept() {
    let place = Place::new();
    place
        .unpack(&[
            raw(
                EntryType::XGlobalHeader,
                b"pax_global_header",
                b"",
                0o644,
                b"15 comment=abc\n",
            ),
            dir("./"),
            raw(EntryType::Directory, b"root/tmp/", b"", 0o3777, b""),
            raw(EntryType::Regular, b"run.sh", b"", 0o6755, b"x"),
            hard_link("same.sh", "./run.sh"),
            link("root/etc/localtime", "/usr/share/zoneinfo/UTC"),
            link("a/b/c", "../../run.sh"),
            link("old", "gone"),
            link("again", "gone"),
            file("again", "a file now"),
            file("twice", "1"),
            file("twice", "2"),
        ])
        .unwrap();
    let found = |path: &str| fs_err::symlink_metadata(place.top().join(path)).unwrap();
    assert_eq!(found("run.sh").mode() & 0o7777, 0o6755);
    assert_eq!(found("run.sh").mtime(), 1_000_000_000);
    assert_eq!(found("run.sh").ino(), found("same.sh").ino());
    assert_eq!(found("root/tmp").mode() & 0o7777, 0o3777);
    assert_eq!(place.text("a/b/c"), "x");
    assert!(found("root/etc/localtime").is_symlink());
    assert!(found("old").is_symlink());
    assert_eq!(place.text("again"), "a file now");
    assert_eq!(place.text("twice"), "2");
}

#[test]
fn links_of_an_overlay_keep_their_texts() {
    let place = Place::new();
    let links = [
        ("root/a", "/etc/passwd"),
        ("root/etc/b", "v1/../v1/c"),
        ("profile/c", "../../../../x"),
        ("root/d", "./x//y/"),
    ];
    let mut entries = vec![file("config.xml", "x")];
    entries.extend(links.map(|(at, target)| link(at, target)));
    place.unpack(&entries).unwrap();
    for (at, target) in links {
        let found = fs_err::read_link(place.top().join(at)).unwrap();
        assert_eq!(found.as_os_str(), target);
    }
    // What follows such a link is refused, in whatever order it comes.
    for entries in [
        vec![link("root/a", "/tmp"), file("root/a/evil", "x")],
        vec![file("root/a/evil", "x"), link("root/a", "/tmp")],
        vec![link("root/a", "/tmp"), hard_link("root/b", "root/a")],
    ] {
        let place = Place::new();
        assert_eq!(place.unpack(&entries).unwrap_err().code, Code::RecipeUnsafe);
        place.nothing_escaped();
    }
}

#[test]
fn zeros_become_holes_and_nothing_else_changes() {
    let mut content = vec![0_u8; 300_000];
    content[70_000] = 1;
    let place = Place::new();
    let sizes = [0, 1, 65_536, 65_537, 131_072, 300_000];
    let entries: Vec<_> = sizes
        .iter()
        .map(|size| {
            raw(
                EntryType::Regular,
                format!("f{size}").as_bytes(),
                b"",
                0o644,
                &content[..*size],
            )
        })
        .collect();
    place.unpack(&entries).unwrap();
    for size in sizes {
        let unpacked = fs_err::read(place.top().join(format!("f{size}"))).unwrap();
        assert!(unpacked == content[..size], "{size}");
    }
}

#[test]
fn an_overwritten_file_does_not_change_its_hard_links() {
    let place = Place::new();
    place
        .unpack(&[
            file("a", "old"),
            hard_link("b", "a"),
            file("a", "new"),
            hard_link("a", "a"),
        ])
        .unwrap();
    assert_eq!((place.text("a"), place.text("b")), ("new".into(), "old".into()));
}

#[test]
fn only_an_empty_directory_is_unpacked_into() {
    let place = Place::new();
    fs_err::create_dir_all(place.top().join("x")).unwrap();
    assert_eq!(place.unpack(&[file("a", "")]).unwrap_err().code, Code::Io);
}

#[test]
fn what_tar_makes_is_unpacked() {
    let content = "long".repeat(60);
    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(3);
    header.set_mode(0o600);
    builder
        .append_data(&mut header, format!("d/{content}"), &b"abc"[..])
        .unwrap();
    let archive = builder.into_inner().unwrap();
    let place = Place::new();
    place.unpack_with(&archive, &Limits::default()).unwrap();
    assert_eq!(place.text(&format!("d/{content}")), "abc");
}

#[test]
fn a_fetched_archive_is_checked() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"abc").unwrap();
    let sha256 = "BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD";
    let mut source = RecipeSource {
        url: String::new(),
        sha256: sha256.to_owned(),
        size: 3,
    };
    check_fetched(file.path(), &source).unwrap();
    source.size = 4;
    assert_eq!(
        check_fetched(file.path(), &source).unwrap_err().code,
        Code::RecipeMismatch
    );
    (source.size, source.sha256) = (3, sha256.replace('B', "C"));
    assert_eq!(
        check_fetched(file.path(), &source).unwrap_err().code,
        Code::RecipeMismatch
    );
}

proptest! {
    /// A name that passes leads to the same place when the kernel resolves it below the top.
    #[test]
    fn clean_paths_stay_inside(name in r"([a-c.]{0,3}/?){0,6}") {
        if let Ok(path) = clean(name.as_bytes()) {
            prop_assert!(path.components().all(|part| matches!(part, Component::Normal(_))));
            prop_assert!(!name.starts_with('/') && !name.split('/').any(|part| part == ".."));
        }
    }

    /// Links that pass never lead the kernel out of the top, whatever their number and order.
    #[test]
    fn links_stay_inside(links in prop::collection::vec((r"([ab]/){0,2}[cd]", r"(\.\./){0,3}([abcd./]{0,2}/){0,3}[abcd]"), 1..8)) {
        let place = Place::new();
        let mut entries = vec![file("a/b/file", ""), file("b/a/file", ""), dir("a/a"), dir("b/b")];
        let before = entries.len();
        entries.extend(links.iter().filter(|(at, target)| check_target(Path::new(at), Path::new(target)).is_ok())
            .map(|(at, target)| link(at, target)));
        prop_assume!(entries.len() > before);
        place.unpack(&entries).unwrap();
        let top = place.top().canonicalize().unwrap();
        for (at, _) in &links {
            if let Ok(real) = top.join(at).canonicalize() {
                prop_assert!(real.starts_with(&top), "{at} leads to {}", real.display());
            }
        }
    }
}

#[test]
fn the_newest_file_gives_a_recipe_its_date() {
    let dated = |name: &str, seconds: u64| {
        let mut header = Header::new_gnu();
        header.set_path(name).unwrap();
        header.set_mode(0o644);
        header.set_size(0);
        header.set_mtime(seconds);
        header.set_cksum();
        header.as_bytes().to_vec()
    };
    // Directories have the time at which somebody put a file into them.
    let newest = |entries: &[Vec<u8>]| Place::new().unpack(entries).unwrap().newest;
    assert_eq!(newest(&[dated("a", 5), dir("b"), dated("b/c", 7), dated("d", 0)]), 7);
    assert_eq!(newest(&[dir("b"), dated("b/c", 3)]), 3);
    // Later than a squashfs can say, and than a file system may.
    assert_eq!(newest(&[dated("a", 1 << 32)]), u32::MAX);
}

#[test]
fn attributes_are_kept_and_lists_are_said_once() {
    let mut archive = Builder::new(Vec::new());
    let list = "user::rw-,user:1:rw-,group::r--,mask::rw-,other::r--";
    // As GNU tar writes it.
    let lines = "user::rw-\nuser:daemon:rw-\ngroup::r--\nmask::rw-\nother::r--\n";
    for (name, extensions) in [
        ("config.xml", &[][..]),
        (
            "root/etc/noted",
            &[
                ("SCHILY.xattr.user.note", "kept"),
                ("SCHILY.xattr.com.apple.quarantine", "x"),
            ],
        ),
        ("root/etc/listed", &[("SCHILY.acl.access", list)]),
        (
            "root/etc/listed-too",
            &[("SCHILY.acl.access", lines), ("RHT.security.selinux", "label")],
        ),
        ("root/etc/labelled", &[("SCHILY.xattr.security.selinux", "label")]),
    ] {
        archive
            .append_pax_extensions(extensions.iter().map(|(key, value)| (*key, value.as_bytes())))
            .unwrap();
        let mut header = Header::new_gnu();
        header.set_mode(0o664);
        header.set_size(1);
        archive.append_data(&mut header, name, &b"x"[..]).unwrap();
    }
    let place = Place::new();
    let (path, mut missing) = (place.dir.path().join("attributes.tar"), Lost::default());
    fs_err::write(&path, archive.into_inner().unwrap()).unwrap();
    unpack(&path, &place.top(), &Limits::default(), &mut missing).unwrap();
    let missing: Vec<_> = missing.warnings().into_iter().map(|warning| warning.message).collect();
    let mode = |path: &str| fs_err::metadata(place.top().join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("root/etc/noted"), 0o664);
    assert_eq!((mode("root/etc/listed"), mode("root/etc/listed-too")), (0o644, 0o644));
    let mut value = [0; 16];
    let length = rustix::fs::getxattr(place.top().join("root/etc/noted"), "user.note", &mut value);
    let has_note = length.is_ok_and(|length| value[..length] == *b"kept");
    let says_note = missing.iter().any(|line| line.contains("the attribute user.note"));
    // A file system may have no attributes.
    assert_ne!(has_note, says_note, "{missing:?}");
    let lists: Vec<_> = missing
        .iter()
        .filter(|line| line.contains("access control lists"))
        .collect();
    assert_eq!(lists.len(), 1, "{lists:?}");
    assert!(lists[0].contains("root/etc/listed and 1 more"), "{lists:?}");
    assert!(
        missing.iter().any(|line| line.contains("labels of SELinux")),
        "{missing:?}"
    );
    assert!(!missing.iter().any(|line| line.contains("apple")), "{missing:?}");
}
