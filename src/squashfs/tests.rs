use std::{
    io::Cursor,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::Command,
};

use super::*;

/// Packs a directory with these options of mksquashfs.
fn pack(root: &Path, options: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("root");
    let output = Command::new("mksquashfs")
        .args([root, &file])
        .args([
            "-noappend",
            "-quiet",
            "-no-progress",
            "-force-uid",
            "7",
            "-force-gid",
            "70000",
        ])
        .args(options)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    fs_err::read(file).unwrap()
}

/// Bytes that do not compress.
fn noise(size: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..size).map(|_| next()).collect()
}

/// A root with something of each kind.
fn root() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs_err::create_dir_all(path("usr/bin")).unwrap();
    fs_err::create_dir_all(path("etc/many")).unwrap();
    fs_err::write(path("usr/bin/ls"), "a program").unwrap();
    fs_err::set_permissions(path("usr/bin/ls"), PermissionsExt::from_mode(0o4755)).unwrap();
    fs_err::write(path("usr/big"), noise(300_001)).unwrap();
    fs_err::write(path("usr/empty"), "").unwrap();
    let holes = fs_err::File::create(path("usr/holes")).unwrap();
    holes.set_len(600_000).unwrap();
    for number in 0..2000 {
        fs_err::write(path(&format!("etc/many/{number:04}")), number.to_string()).unwrap();
    }
    for (name, target) in [
        ("bin", "usr/bin"),
        ("usr/bin/up", "../../../../etc"),
        ("etc/absolute", "/usr/bin/ls"),
        ("etc/nowhere", "/not/there"),
        ("etc/loop", "loop"),
        ("long", &"x/".repeat(200)),
    ] {
        symlink(target, path(name)).unwrap();
    }
    dir
}

fn open(bytes: Vec<u8>) -> Result<Image<Cursor<Vec<u8>>>, Unread> {
    Image::open(Cursor::new(bytes))
}

fn content(image: &mut Image<Cursor<Vec<u8>>>, path: &str) -> Result<Vec<u8>, Unread> {
    let Kind::File(content) = image.find(path.as_bytes(), true)?.inode.kind else {
        panic!("{path} is no file");
    };
    let (mut pieces, mut all) = (image.pieces(content), Vec::new());
    while let Some(piece) = pieces.next_piece()? {
        all.extend(piece);
    }
    assert_eq!(all.len() as u64, content.size);
    Ok(all)
}

/// The paths of a list.
fn paths(listed: &[Found]) -> Vec<&str> {
    listed
        .iter()
        .map(|found| str::from_utf8(&found.path).unwrap())
        .collect()
}

fn list(image: &mut Image<Cursor<Vec<u8>>>, path: &str, deep: bool) -> Result<Vec<Found>, Unread> {
    let found = image.find(path.as_bytes(), false)?;
    image.list(found, deep)
}

#[test]
fn every_compressor_and_form_gives_the_files_that_were_packed() {
    let root = root();
    for options in [
        &["-comp", "gzip"][..],
        &["-comp", "xz", "-Xbcj", "x86"],
        &["-comp", "lz4"],
        &["-comp", "zstd", "-b", "4K"],
        &["-comp", "zstd", "-b", "1M", "-always-use-fragments"],
        &["-comp", "gzip", "-noI", "-noD", "-noF", "-no-fragments"],
    ] {
        let mut image = open(pack(root.path(), options)).unwrap();
        for name in ["usr/big", "usr/bin/ls", "usr/empty", "usr/holes", "etc/many/1999"] {
            let expected = fs_err::read(root.path().join(name)).unwrap();
            assert!(content(&mut image, name).unwrap() == expected, "{name} {options:?}");
        }
        let all = list(&mut image, "/", true).unwrap();
        assert_eq!(all.len(), 2000 + 14, "{options:?}");
        let top = list(&mut image, "", false).unwrap();
        assert_eq!(paths(&top), ["/bin", "/etc", "/long", "/usr"]);
        assert_eq!(top[2].inode.kind, Kind::Link("x/".repeat(200).into_bytes()));
        let ls = image.find(b"/usr/bin/ls", false).unwrap().inode;
        assert_eq!((ls.mode, ls.uid, ls.gid), (0o4755, 7, 70_000));
    }
}

#[test]
fn a_tree_is_listed_with_each_directory_before_its_files() {
    let root = root();
    let mut image = open(pack(root.path(), &[])).unwrap();
    let usr = list(&mut image, "usr/", true).unwrap();
    let expected = [
        "/usr/big",
        "/usr/bin",
        "/usr/bin/ls",
        "/usr/bin/up",
        "/usr/empty",
        "/usr/holes",
    ];
    assert_eq!(paths(&usr), expected);
    assert_eq!(paths(&list(&mut image, "/usr/big", true).unwrap()), ["/usr/big"]);
}

#[test]
fn links_lead_where_they_lead_in_the_image() {
    let root = root();
    let mut image = open(pack(root.path(), &[])).unwrap();
    let mut found = |path: &str, follow| match image.find(path.as_bytes(), follow) {
        Ok(found) => String::from_utf8(found.path).unwrap(),
        Err(Unread::Missing(why)) => why,
        Err(other) => panic!("{path}: {other}"),
    };
    for (path, follow, expected) in [
        ("/", false, "/"),
        ("../..", false, "/"),
        ("bin", false, "/bin"),
        ("bin", true, "/usr/bin"),
        ("/bin/", false, "/usr/bin"),
        ("bin/./ls", false, "/usr/bin/ls"),
        ("//bin//up/many/../absolute", true, "/usr/bin/ls"),
        ("etc/absolute/", false, "/usr/bin/ls is not a directory"),
        ("etc/absolute/x", false, "/usr/bin/ls is not a directory"),
        ("etc/nowhere", false, "/etc/nowhere"),
        ("etc/nowhere", true, "there is no /not"),
        ("etc/loop", true, "etc/loop leads through more than 40 links"),
        ("etc/many/2000", false, "there is no /etc/many/2000"),
    ] {
        assert_eq!(found(path, follow), expected, "{path}");
    }
}

#[test]
fn devices_and_times_are_those_of_the_image() {
    let root = tempfile::tempdir().unwrap();
    let definitions = [
        "null c 666 0 0 1 3",
        "disk b 660 0 6 259 300000",
        "pipe i 600 0 0 f",
        "when F 86400 644 0 0 true",
    ];
    let options: Vec<&str> = definitions.iter().flat_map(|definition| ["-p", definition]).collect();
    let mut image = open(pack(root.path(), &options)).unwrap();
    let mut inode = |name: &str| image.find(name.as_bytes(), false).unwrap().inode;
    assert_eq!(inode("null").kind, Kind::Character(1, 3));
    assert_eq!(inode("disk").kind, Kind::Block(259, 300_000));
    assert_eq!(inode("pipe").kind, Kind::Pipe);
    assert_eq!(inode("when").modified, 86_400);
}

/// All that can be read of an image, and whether all of it could.
fn read_all(bytes: Vec<u8>) -> Result<(), Unread> {
    let mut image = open(bytes)?;
    let listed = list(&mut image, "/", true)?;
    for found in listed {
        let Kind::File(content) = found.inode.kind else {
            continue;
        };
        if content.size > 1 << 20 {
            continue;
        }
        let mut pieces = image.pieces(content);
        while pieces.next_piece()?.is_some() {}
    }
    Ok(())
}

#[test]
fn damage_anywhere_is_an_error_or_another_name_but_never_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    fs_err::create_dir(dir.path().join("sub")).unwrap();
    fs_err::write(dir.path().join("sub/file"), noise(5000)).unwrap();
    symlink("file", dir.path().join("sub/link")).unwrap();
    for options in [&["-noI", "-b", "4K"][..], &["-comp", "zstd", "-b", "4K"]] {
        let good = pack(dir.path(), options);
        read_all(good.clone()).unwrap();
        let used = usize::try_from(u64::from_le_bytes(good[40..48].try_into().unwrap())).unwrap();
        for length in (0..used).step_by(7) {
            read_all(good[..length].to_vec()).unwrap_err();
        }
        let mut noticed = 0;
        let places = (0..96).chain(5000..used);
        for place in places.clone() {
            for mask in [1, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[place] ^= mask;
                noticed += u32::from(read_all(bad).is_err());
            }
        }
        assert!(noticed > 100, "{noticed} of {}", places.count());
    }
}

/// An image of directories, each of which has an entry `a` that is the inode with the number that `next` says. Nothing is
/// compressed.
fn nested(count: u32, next: impl Fn(u32) -> Option<u32>) -> Vec<u8> {
    fn place(at: u32) -> (u32, u16) {
        (at / 8192 * 8194, u16::try_from(at % 8192).unwrap())
    }
    fn table(bytes: &[u8]) -> Vec<u8> {
        let block = |block: &[u8]| {
            let header = 0x8000 | u16::try_from(block.len()).unwrap();
            [&header.to_le_bytes(), block].concat()
        };
        bytes.chunks(8192).flat_map(block).collect()
    }
    let (mut inodes, mut listings) = (Vec::<u8>::new(), Vec::<u8>::new());
    for number in 0..count {
        let (block, offset) = place(u32::try_from(listings.len()).unwrap());
        let mut size = 3_u16;
        if let Some(next) = next(number) {
            let (block, offset) = place(next * 32);
            for value in [0, block, next + 1] {
                listings.extend(value.to_le_bytes());
            }
            for value in [offset, 0, 1, 0] {
                listings.extend(value.to_le_bytes());
            }
            listings.push(b'a');
            size += 21;
        }
        for value in [1, 0o755, 0, 0] {
            inodes.extend(u16::to_le_bytes(value));
        }
        for value in [0, number + 1, block, 2] {
            inodes.extend(value.to_le_bytes());
        }
        inodes.extend([size.to_le_bytes(), offset.to_le_bytes()].concat());
        inodes.extend(count.to_le_bytes());
    }
    let (inodes, listings, owners) = (table(&inodes), table(&listings), table(&[0; 4]));
    let listings_at = 96 + inodes.len() as u64;
    let owners_at = listings_at + listings.len() as u64;
    let end = owners_at + owners.len() as u64;
    let mut image = Vec::new();
    for value in [0x7371_7368, count, 0, 131_072, 0] {
        image.extend(value.to_le_bytes());
    }
    for value in [1, 17, 0x210, 1, 4, 0] {
        image.extend(u16::to_le_bytes(value));
    }
    let absent = u64::MAX;
    for value in [0, end + 8, end, absent, 96, listings_at, absent, absent] {
        image.extend(u64::to_le_bytes(value));
    }
    image.extend([inodes, listings, owners, owners_at.to_le_bytes().to_vec()].concat());
    image
}

#[test]
fn no_depth_of_directories_is_too_much_for_the_stack() {
    let deep = 10_000;
    let image = nested(deep, |number| (number + 1 < deep).then_some(number + 1));
    let listed = list(&mut open(image).unwrap(), "/", true);
    assert_eq!(listed.unwrap().len(), deep as usize - 1);
    // Their paths would take 10 GB.
    let deep = 100_000;
    let image = nested(deep, |number| (number + 1 < deep).then_some(number + 1));
    let listed = list(&mut open(image).unwrap(), "/", true);
    assert!(matches!(listed, Err(Unread::TooMuch(_))), "{listed:?}");
}

#[test]
fn a_directory_in_itself_is_refused() {
    let image = nested(3, |number| Some((number + 1) % 3));
    let mut image = open(image).unwrap();
    assert_eq!(image.find(&b"a/".repeat(100), false).unwrap().path.len(), 200);
    assert!(matches!(list(&mut image, "/", true), Err(Unread::Damaged(_))));
}
