//! Images made from the blocks of others, read by `unsquashfs` and by the kernel.

use std::{
    ffi::OsStr,
    fs::{FileTimes, Permissions},
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, chown, lchown, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, UNIX_EPOCH},
};

use kiln_agent::squashfs::{Device, NotPossible, Options, Outcome, Rebased, Unpacked, rebase};
use kiln_records::protocol::{Compressor, SquashfsOptions};
use nix::{
    sys::stat::{Mode, SFlag, makedev, mknod},
    unistd::Uid,
};
use tempfile::TempDir;

use kiln_agent::verify::tree;

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Bytes that can be compressed, but not to nothing.
    fn bytes(&mut self, size: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(size + 64);
        while bytes.len() < size {
            let word = self.next();
            if word.is_multiple_of(4) {
                bytes.extend(word.to_le_bytes());
            } else {
                bytes.extend(format!("line {} of a file\n", word % 1000).bytes());
            }
        }
        bytes.truncate(size);
        bytes
    }
}

fn run(program: &str, args: &[&OsStr]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {text}{errors}");
    assert!(
        !errors.contains("FATAL") && !errors.contains("rror"),
        "{program}: {errors}"
    );
    text
}

struct Job {
    dir: TempDir,
    root: PathBuf,
    base: PathBuf,
    out: PathBuf,
    unpacked: Option<Unpacked>,
}

impl Job {
    /// Packs the directory that `fill` fills, unpacks it again, and records the unpacked files.
    fn new(mksquashfs: &[&str], fill: impl FnOnce(&Path)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("source");
        fs_err::create_dir(&source).unwrap();
        fill(&source);
        let base = dir.path().join("base");
        let mut args = vec![source.as_os_str(), base.as_os_str()];
        args.extend(["-quiet", "-no-progress", "-xattrs"].map(OsStr::new));
        args.extend(mksquashfs.iter().map(OsStr::new));
        run("mksquashfs", &args);
        Self::from(dir, base)
    }

    fn from(dir: TempDir, base: PathBuf) -> Self {
        let mut job = Self {
            root: dir.path().join("root"),
            out: dir.path().join("out"),
            dir,
            base,
            unpacked: None,
        };
        unpack(&job.base, &job.root);
        job.unpacked = Some(Unpacked::record(&job.base, &job.root).unwrap());
        job
    }

    fn unpacked(&self) -> &Unpacked {
        self.unpacked.as_ref().unwrap()
    }

    fn try_rebase(&self, cpus: u32) -> Outcome {
        self.rebase_with(&options(cpus))
    }

    fn rebase_with(&self, options: &Options) -> Outcome {
        rebase(&self.base, self.unpacked(), &self.root, &self.out, options).unwrap()
    }

    fn rebase(&self) -> Rebased {
        match self.try_rebase(2) {
            Outcome::Rebased(rebased) => rebased,
            Outcome::NotPossible(why) => panic!("{why}"),
        }
    }

    /// Checks that the new image has the same content as the root.
    fn check(&self) {
        let again = self.dir.path().join("again");
        unpack(&self.out, &again);
        assert_same(&self.root, &again);
        fs_err::remove_dir_all(&again).unwrap();
        if Uid::effective().is_root() {
            self.check_mounted();
        }
    }

    /// The kernel reads the image as well, in a namespace that ends with the check.
    fn check_mounted(&self) {
        let script = r#"
            set -eu
            list() {
                cd "$1"
                find . ! -type d -printf '%p %y %m %U %G %s %T@ %n %l\n' | sed 's/\.[0-9]* \([0-9]*\) /\1 /' | sort
                find . -type d -printf '%p %m %U %G %T@\n' | sed 's/\.[0-9]*$//' | sort
                find . -type f -exec sha256sum {} + | sort
                getfattr --recursive --no-dereference --dump --match=- . 2>/dev/null | sort || true
            }
            mount -t squashfs -o loop,ro "$2" "$3"
            (list "$1") >"$4"
            (list "$3") >"$5"
            cmp "$4" "$5"
        "#;
        let mount = self.dir.path().join("mount");
        fs_err::create_dir_all(&mount).unwrap();
        let lists = [self.dir.path().join("list"), self.dir.path().join("list-mounted")];
        run(
            "unshare",
            &[
                OsStr::new("--mount"),
                OsStr::new("sh"),
                OsStr::new("-c"),
                OsStr::new(script),
                OsStr::new("sh"),
                self.root.as_os_str(),
                self.out.as_os_str(),
                mount.as_os_str(),
                lists[0].as_os_str(),
                lists[1].as_os_str(),
            ],
        );
    }

    /// Goes on with the new image as the base of the next job.
    fn next(self) -> Self {
        fs_err::remove_dir_all(&self.root).unwrap();
        fs_err::rename(&self.out, &self.base).unwrap();
        Self::from(self.dir, self.base)
    }
}

fn options(cpus: u32) -> Options {
    Options {
        squashfs: SquashfsOptions {
            compressor: Compressor::Zstd,
            level: None,
        },
        cpus,
        devices: Vec::new(),
        made: 1_700_000_000,
    }
}

fn unpack(image: &Path, into: &Path) {
    let args = ["-no-progress", "-quiet", "-xattrs", "-d"].map(OsStr::new);
    run(
        "unsquashfs",
        &[&args[..], &[into.as_os_str(), image.as_os_str()]].concat(),
    );
}

fn assert_same(expected: &Path, found: &Path) {
    let (one, other) = (tree::read(expected).unwrap(), tree::read(found).unwrap());
    let differences = tree::differences(&one, &other, &[]);
    assert!(differences.is_empty(), "{differences:#?}");
    for path in one.keys() {
        let time = |top: &Path| {
            let path = top.join(path.strip_prefix("/").unwrap());
            fs_err::symlink_metadata(path).unwrap().mtime()
        };
        assert_eq!(time(expected), time(found), "{}", path.display());
    }
}

/// A bit of everything that a root can have.
fn fill(top: &Path) {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let root = Uid::effective().is_root();
    for dir in 0..12 {
        let dir = top.join(format!("dir{dir}"));
        fs_err::create_dir(&dir).unwrap();
        for file in 0..40 {
            let size = match numbers.below(10) {
                0 => 0,
                1 => 131_072 * (1 + numbers.below(3)),
                2 | 3 => numbers.below(600_000),
                _ => numbers.below(9_000),
            };
            let path = dir.join(format!("file{file}"));
            fs_err::write(&path, numbers.bytes(usize::try_from(size).unwrap())).unwrap();
            let mode = [0o644, 0o4755, 0o600, 0o2711, 0][usize::try_from(numbers.below(5)).unwrap()];
            fs_err::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
    }
    let many = top.join("many");
    fs_err::create_dir(&many).unwrap();
    for file in 0..1_200 {
        fs_err::write(many.join(format!("{file:->180}")), format!("{file}")).unwrap();
    }
    symlink("dir1/file3", top.join("link")).unwrap();
    symlink("x".repeat(1000), top.join("long link")).unwrap();
    fs_err::hard_link(top.join("dir1/file2"), top.join("dir2/another name")).unwrap();
    fs_err::hard_link(top.join("dir3/file8"), top.join("dir0/before")).unwrap();
    fs_err::hard_link(top.join("link"), top.join("same link")).unwrap();
    fs_err::write(top.join(OsStr::from_bytes(b"\xff\n odd")), "odd").unwrap();
    nix::unistd::mkfifo(&top.join("fifo"), Mode::from_bits_truncate(0o640)).unwrap();
    UnixListener::bind(top.join("socket")).unwrap();
    let sparse = fs_err::File::create(top.join("sparse")).unwrap();
    sparse.set_len(3 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(sparse.file(), b"island", 1_500_000).unwrap();
    xattr::set(top.join("dir4/file1"), "user.note", b"remember").unwrap();
    xattr::set(top.join("dir4"), "user.note", b"a directory").unwrap();
    if root {
        for (name, kind, number) in [
            ("null", SFlag::S_IFCHR, makedev(1, 3)),
            ("disk", SFlag::S_IFBLK, makedev(259, 700_001)),
        ] {
            mknod(&top.join(name), kind, Mode::from_bits_truncate(0o666), number).unwrap();
        }
        chown(top.join("dir5/file5"), Some(70_000), Some(42)).unwrap();
        lchown(top.join("link"), Some(33), Some(33)).unwrap();
        // cap_net_raw=ep, as setcap writes it.
        let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        xattr::set(top.join("dir6/file6"), "security.capability", &capability).unwrap();
        xattr::set(top.join("dir6/file7"), "security.capability", &capability).unwrap();
    }
    let file = fs_err::File::open(top.join("dir7/file7")).unwrap();
    let time = UNIX_EPOCH + Duration::from_mins(50_000_000);
    file.file().set_times(FileTimes::new().set_modified(time)).unwrap();
}

/// Changes of every kind.
fn change(top: &Path, seed: u64) {
    let mut numbers = Numbers(seed);
    let file = |numbers: &mut Numbers| {
        top.join(format!("dir{}", numbers.below(4)))
            .join(format!("file{}", numbers.below(40)))
    };
    for _ in 0..8 {
        let (path, size) = (file(&mut numbers), numbers.below(400_000));
        let _ = fs_err::remove_file(file(&mut numbers));
        fs_err::write(&path, numbers.bytes(usize::try_from(size).unwrap())).unwrap();
        let new = top.join(format!("new{}", numbers.next()));
        let size = numbers.below(5_000);
        fs_err::write(new, numbers.bytes(usize::try_from(size).unwrap())).unwrap();
        let touched = file(&mut numbers);
        if touched.exists() {
            fs_err::set_permissions(touched, Permissions::from_mode(0o700)).unwrap();
        }
    }
    let (old, new) = (top.join("dir8"), top.join(format!("dir8 of {seed}")));
    if old.exists() {
        fs_err::rename(old, new).unwrap();
    }
    let sparse = fs_err::File::create(top.join(format!("sparse{seed}"))).unwrap();
    sparse.set_len(900_000).unwrap();
    std::os::unix::fs::FileExt::write_all_at(sparse.file(), b"island", 300_000).unwrap();
    fs_err::File::create(top.join(format!("nothing{seed}")))
        .unwrap()
        .set_len(400_000)
        .unwrap();
    fs_err::hard_link(top.join("dir9/file9"), top.join(format!("name of {seed}"))).unwrap();
    xattr::set(top.join("dir9"), "user.seed", &seed.to_le_bytes()).unwrap();
}

fn every_kind_of_tree(arguments: &[&str]) {
    let job = Job::new(arguments, fill);
    change(&job.root, 5);
    let rebased = job.rebase();
    job.check();
    assert!(rebased.reused_files > 1_500 && rebased.new_files < 60, "{rebased:?}");
    assert!(rebased.reused_bytes > rebased.new_bytes, "{rebased:?}");
    let first = fs_err::read(&job.out).unwrap();
    for cpus in [1, 7] {
        assert!(matches!(job.try_rebase(cpus), Outcome::Rebased(_)));
        assert!(
            fs_err::read(&job.out).unwrap() == first,
            "{cpus} threads make another image"
        );
    }
    let old = fs_err::read(&job.base).unwrap();
    let prefix = usize::try_from(rebased.prefix_bytes).unwrap();
    let kept = (96..prefix).all(|at| first[at] == old[at] || first[at] == 0);
    assert!(kept, "the prefix is not the base's");
    // Another job on top of it.
    let job = job.next();
    change(&job.root, 77);
    job.rebase();
    job.check();
}

#[test]
fn gzip() {
    every_kind_of_tree(&["-comp", "gzip"]);
}

#[test]
fn xz() {
    every_kind_of_tree(&["-comp", "xz", "-Xdict-size", "50%"]);
}

#[test]
fn lz4() {
    every_kind_of_tree(&["-comp", "lz4", "-Xhc"]);
}

#[test]
fn zstd() {
    every_kind_of_tree(&["-comp", "zstd", "-Xcompression-level", "3"]);
}

#[test]
fn other_blocks_and_no_compression() {
    every_kind_of_tree(&[
        "-b",
        "16K",
        "-always-use-fragments",
        "-noI",
        "-noD",
        "-noF",
        "-no-exports",
    ]);
    every_kind_of_tree(&["-b", "1M", "-comp", "zstd", "-no-fragments"]);
}

/// A job whose root has a little of everything that the next tests ask for.
fn small_job() -> Job {
    Job::new(&["-comp", "zstd", "-Xcompression-level", "3"], |top| {
        let mut numbers = Numbers(99);
        for file in 0..40 {
            fs_err::write(top.join(format!("small{file}")), numbers.bytes(3_000)).unwrap();
            fs_err::write(top.join(format!("large{file}")), numbers.bytes(200_000)).unwrap();
        }
    })
}

#[test]
fn device_nodes_come_back_that_were_never_in_the_root() {
    let job = Job::new(&[], |top| {
        fs_err::create_dir_all(top.join("dev/mapper")).unwrap();
        fs_err::write(top.join("dev/taken"), "a file").unwrap();
        fs_err::write(top.join("large"), Numbers(3).bytes(500_000)).unwrap();
    });
    let device = |path: &str, kind, number| Device {
        path: path.to_owned(),
        kind,
        mode: 0o660,
        owner: (0, 6),
        number,
        time: 1_600_000_000,
    };
    let mut options = options(1);
    options.devices = vec![
        device("dev/null", 'c', (1, 3)),
        device("dev/mapper/root", 'b', (253, 70_001)),
        device("top", 'c', (5, 1)),
        device("dev/taken", 'c', (1, 5)),
        device("gone/null", 'c', (1, 3)),
        device("large/null", 'c', (1, 3)),
        device("../outside", 'c', (1, 3)),
    ];
    assert!(matches!(job.rebase_with(&options), Outcome::Rebased(_)));
    let list = run(
        "unsquashfs",
        &["-lln", "-UTC"]
            .map(OsStr::new)
            .into_iter()
            .chain([job.out.as_os_str()])
            .collect::<Vec<_>>(),
    );
    let devices: Vec<String> = list
        .lines()
        .filter(|line| line.starts_with(['b', 'c']))
        .map(|line| line.rsplit_once(' ').unwrap().1.to_owned())
        .collect();
    assert_eq!(
        devices,
        [
            "squashfs-root/dev/mapper/root",
            "squashfs-root/dev/null",
            "squashfs-root/top",
        ]
    );
    // The kernel finds them, too, where mksquashfs would have put them.
    if Uid::effective().is_root() {
        for Device {
            path,
            kind,
            number,
            owner,
            ..
        } in &options.devices[..3]
        {
            let path = job.root.join(path);
            let dir = path.parent().unwrap();
            let times = fs_err::metadata(dir).unwrap().modified().unwrap();
            let flag = if *kind == 'b' { SFlag::S_IFBLK } else { SFlag::S_IFCHR };
            mknod(&path, flag, Mode::empty(), makedev(number.0.into(), number.1.into())).unwrap();
            fs_err::set_permissions(&path, Permissions::from_mode(0o660)).unwrap();
            chown(&path, Some(owner.0), Some(owner.1)).unwrap();
            run("touch", &["--date=@1600000000".as_ref(), path.as_os_str()]);
            let dir = fs_err::File::open(dir).unwrap();
            dir.file().set_times(FileTimes::new().set_modified(times)).unwrap();
        }
        job.check_mounted();
    }
}

#[test]
fn what_was_deleted_is_not_in_the_image() {
    let secret = b"a secret that nobody can guess";
    // Blocks without compression show their content.
    let job = Job::new(&["-noD", "-noF"], |top| {
        let mut numbers = Numbers(3);
        for file in 0..30 {
            fs_err::write(top.join(format!("small{file}")), numbers.bytes(3_000)).unwrap();
            fs_err::write(top.join(format!("large{file}")), numbers.bytes(300_000)).unwrap();
        }
        fs_err::write(top.join("small15"), secret).unwrap();
        fs_err::write(top.join("large15"), [numbers.bytes(250_000), secret.to_vec()].concat()).unwrap();
    });
    let secrets = |image: &Path| {
        let image = fs_err::read(image).unwrap();
        image.windows(secret.len()).filter(|window| window == secret).count()
    };
    assert_eq!(secrets(&job.base), 2);
    fs_err::remove_file(job.root.join("small15")).unwrap();
    fs_err::write(job.root.join("large15"), "nothing").unwrap();
    let rebased = job.rebase();
    job.check();
    assert_eq!(secrets(&job.out), 0);
    assert!(rebased.dead_bytes > 250_000, "{rebased:?}");
}

#[test]
fn a_changed_file_is_found_whatever_its_times_and_size_say() {
    let job = small_job();
    let path = job.root.join("small7");
    let stat = fs_err::symlink_metadata(&path).unwrap();
    let other = Numbers(1).bytes(3_000);
    fs_err::write(&path, &other).unwrap();
    let file = fs_err::File::options().write(true).open(&path).unwrap();
    let times = FileTimes::new().set_modified(stat.modified().unwrap());
    file.file().set_times(times).unwrap();
    // Files that change places.
    let (one, two) = (job.root.join("large1"), job.root.join("large2"));
    fs_err::rename(&one, job.root.join("third")).unwrap();
    fs_err::rename(&two, &one).unwrap();
    fs_err::rename(job.root.join("third"), &two).unwrap();
    job.rebase();
    job.check();
}

#[test]
fn touched_files_with_their_old_content_are_taken_from_the_base() {
    let job = Job::new(&["-comp", "zstd", "-Xcompression-level", "3"], fill);
    for dir in 0..12 {
        for file in 0..40 {
            let path = job.root.join(format!("dir{dir}/file{file}"));
            match file % 3 {
                0 => fs_err::set_permissions(&path, Permissions::from_mode(0o640)).unwrap(),
                1 => {
                    let content = fs_err::read(&path).unwrap();
                    fs_err::remove_file(&path).unwrap();
                    fs_err::write(&path, content).unwrap();
                }
                _ => {}
            }
        }
    }
    let path = job.root.join("dir11/file39");
    let mut content = [fs_err::read(&path).unwrap(), vec![1]].concat();
    fs_err::write(&path, &content).unwrap();
    let path = job.root.join("sparse");
    content = fs_err::read(&path).unwrap();
    content[3 << 19] = 1;
    fs_err::write(&path, content).unwrap();
    let rebased = job.rebase();
    assert_eq!(rebased.new_files, 2, "{rebased:?}");
    job.check();
}

#[test]
fn a_record_that_was_written_down_is_as_good() {
    let mut job = small_job();
    let json = serde_json::to_string(job.unpacked()).unwrap();
    let again: Unpacked = serde_json::from_str(&json).unwrap();
    assert_eq!(&again, job.unpacked());
    job.unpacked = Some(again);
    assert_eq!(job.rebase().new_files, 0);
    job.check();
}

#[test]
fn sizes_may_need_more_than_32_bits() {
    let job = small_job();
    let end = (5 << 30) + 17;
    let write = |path: &Path| {
        let file = fs_err::File::create(path).unwrap();
        for (text, at) in [(&b"middle"[..], 3 << 30), (b"end", end - 3)] {
            std::os::unix::fs::FileExt::write_all_at(file.file(), text, at).unwrap();
        }
    };
    let check = |path: &Path| {
        let file = fs_err::File::open(path).unwrap();
        let stat = file.metadata().unwrap();
        assert_eq!(stat.len(), end);
        // Only where something is written.
        assert!(stat.blocks() < 4_096, "{}", stat.blocks());
        let mut found = [0; 9];
        std::os::unix::fs::FileExt::read_exact_at(file.file(), &mut found[..6], 3 << 30).unwrap();
        std::os::unix::fs::FileExt::read_exact_at(file.file(), &mut found[6..], end - 3).unwrap();
        assert_eq!(&found, b"middleend");
    };
    write(&job.root.join("huge"));
    assert_eq!(job.rebase().new_files, 1);
    let job = job.next();
    check(&job.root.join("huge"));
    fs_err::write(job.root.join("small1"), "other").unwrap();
    assert_eq!(job.rebase().new_files, 1);
    let job = job.next();
    check(&job.root.join("huge"));
}

#[test]
fn little_left_is_not_worth_it() {
    let job = small_job();
    for file in 0..30 {
        fs_err::write(job.root.join(format!("large{file}")), "other").unwrap();
    }
    let outcome = job.try_rebase(2);
    assert!(
        matches!(outcome, Outcome::NotPossible(NotPossible::NotWorthIt { .. })),
        "{outcome:?}"
    );
    assert!(!job.out.exists());
}

#[test]
fn another_base_is_refused() {
    let (one, other) = (small_job(), Job::new(&[], fill));
    let outcome = rebase(&other.base, one.unpacked(), &one.root, &one.out, &options(1)).unwrap();
    assert_eq!(outcome, Outcome::NotPossible(NotPossible::OtherBase));
}

#[test]
fn a_compressor_that_kiln_has_not_is_named() {
    let job = Job::new(&["-comp", "lzo"], |top| {
        fs_err::write(top.join("file"), "content").unwrap();
    });
    assert_eq!(job.try_rebase(1), Outcome::NotPossible(NotPossible::Compressor(3)));
}

#[test]
fn damaged_images_are_refused_or_read_and_nothing_else() {
    let job = Job::new(&["-comp", "gzip", "-noI"], |top| {
        for file in 0..300 {
            fs_err::write(top.join(format!("file{file}")), vec![7; 100 * file]).unwrap();
        }
    });
    let good = fs_err::read(&job.base).unwrap();
    let tables = usize::try_from(u64::from_le_bytes(good[64..72].try_into().unwrap())).unwrap();
    let mut numbers = Numbers(11);
    let damaged = job.dir.path().join("damaged");
    let mut refused = 0;
    for round in 0..900 {
        let mut image = good.clone();
        for _ in 0..=numbers.below(3) {
            let anywhere = usize::try_from(numbers.next() >> 8).unwrap();
            let at = if round % 3 == 0 {
                anywhere % 96
            } else {
                tables + anywhere % (good.len() - tables)
            };
            image[at] = [numbers.below(256).to_le_bytes()[0], 0xff, 0, image[at] ^ 1][anywhere % 4];
        }
        if round % 50 == 0 {
            image.truncate(usize::try_from(numbers.below(good.len() as u64)).unwrap());
        }
        fs_err::write(&damaged, image).unwrap();
        let unpacked = Unpacked::record(&damaged, &job.root).unwrap();
        let outcome = rebase(&damaged, &unpacked, &job.root, &job.out, &options(1)).unwrap();
        refused += usize::from(matches!(outcome, Outcome::NotPossible(_)));
    }
    assert!(refused > 300, "{refused}");
}
