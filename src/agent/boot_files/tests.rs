use std::os::unix::fs::symlink;

use proptest::prelude::*;

use super::{super::kernel::tests::sample, *};

fn names(required: bool) -> BootFiles {
    BootFiles {
        kernel: "vmlinuz".into(),
        initrd: "initrd".into(),
        parameters: "kernel-parameters".into(),
        required,
    }
}

struct Root {
    dir: tempfile::TempDir,
}

impl Root {
    /// A root with these files; `a -> b` makes a link. Kernels have the content of x86_64 ones.
    fn new(files: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let (name, target) = file
                .split_once(" -> ")
                .map_or((*file, None), |(name, target)| (name, Some(target)));
            let path = dir.path().join(name);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            match target {
                Some(target) => symlink(target, path).unwrap(),
                None if name.contains("init") || name.contains("param") => fs_err::write(path, "x").unwrap(),
                None => fs_err::write(path, sample(Arch::X86_64)).unwrap(),
            }
        }
        Self { dir }
    }

    fn find(&self, names: &BootFiles) -> Result<Option<BootSet>, Failure> {
        find_boot_files(self.dir.path(), Arch::X86_64, names)
    }

    fn relative(&self, path: &Path) -> String {
        path.strip_prefix(self.dir.path()).unwrap().to_str().unwrap().to_owned()
    }
}

#[test]
fn distributions_are_understood() {
    for (what, files, kernel, initrd) in [
        (
            "named",
            &["boot/vmlinuz", "boot/initrd"][..],
            "boot/vmlinuz",
            "boot/initrd",
        ),
        (
            "Debian",
            &[
                "boot/vmlinuz-6.1.0-9-amd64",
                "boot/vmlinuz-6.1.0-18-amd64",
                "boot/initrd.img-6.1.0-18-amd64",
                "boot/initrd.img-6.1.0-9-amd64",
                "boot/config-6.1.0-18-amd64",
                "boot/System.map-6.1.0-18-amd64",
            ],
            "boot/vmlinuz-6.1.0-18-amd64",
            "boot/initrd.img-6.1.0-18-amd64",
        ),
        (
            "Debian with links in the root",
            &[
                "boot/vmlinuz-6.1.0-9-amd64",
                "boot/vmlinuz-6.1.0-18-amd64",
                "boot/initrd.img-6.1.0-9-amd64",
                "vmlinuz -> boot/vmlinuz-6.1.0-9-amd64",
                "initrd.img -> boot/initrd.img-6.1.0-9-amd64",
            ],
            "boot/vmlinuz-6.1.0-9-amd64",
            "boot/initrd.img-6.1.0-9-amd64",
        ),
        (
            "openSUSE",
            &[
                "boot/vmlinuz -> vmlinuz-6.4.0-default",
                "boot/vmlinuz-6.4.0-default -> ../usr/lib/modules/6.4.0-default/vmlinuz",
                "usr/lib/modules/6.4.0-default/vmlinuz",
                "boot/initrd -> initrd-6.4.0-default",
                "boot/initrd-6.4.0-default",
                "boot/vmlinux-6.4.0-default.gz",
            ],
            "usr/lib/modules/6.4.0-default/vmlinuz",
            "boot/initrd-6.4.0-default",
        ),
        (
            "openSUSE without the initrd's link",
            &[
                "boot/vmlinuz -> vmlinuz-6.4.0-default",
                "boot/vmlinuz-6.4.0-default -> /usr/lib/modules/6.4.0-default/vmlinuz",
                "usr/lib/modules/6.4.0-default/vmlinuz",
                "boot/initrd-6.4.0-default",
                "boot/initrd-6.4.0-default-kdump",
            ],
            "usr/lib/modules/6.4.0-default/vmlinuz",
            "boot/initrd-6.4.0-default",
        ),
        (
            "Fedora",
            &[
                "boot/vmlinuz-0-rescue-1234",
                "boot/initramfs-0-rescue-1234.img",
                "boot/.vmlinuz-6.9.4-200.fc40.x86_64.hmac",
                "boot/vmlinuz-6.9.4-200.fc40.x86_64",
                "boot/initramfs-6.9.4-200.fc40.x86_64.img",
                "boot/initramfs-6.9.4-200.fc40.x86_64kdump.img",
            ],
            "boot/vmlinuz-6.9.4-200.fc40.x86_64",
            "boot/initramfs-6.9.4-200.fc40.x86_64.img",
        ),
        (
            "a chosen kernel beside the distribution's links",
            &[
                "boot/vmlinuz-6.1.0-40-std",
                "boot/vmlinuz-6.1.0-38-rt",
                "boot/initrd.img-6.1.0-40-std",
                "boot/initrd.img-6.1.0-38-rt",
                "vmlinuz -> boot/vmlinuz-6.1.0-40-std",
                "initrd.img -> boot/initrd.img-6.1.0-40-std",
                "boot/vmlinuz -> vmlinuz-6.1.0-38-rt",
                "boot/initrd -> initrd.img-6.1.0-40-std",
            ],
            "boot/vmlinuz-6.1.0-38-rt",
            "boot/initrd.img-6.1.0-38-rt",
        ),
        (
            "a package's kernel that nothing copied to /boot",
            &[
                "usr/lib/modules/6.12.0-9.el10/vmlinuz",
                "usr/lib/modules/6.12.0-55.el10/vmlinuz",
                "usr/lib/modules/6.13.0-1.el10/kernel/loop.ko",
                "boot/initramfs-6.12.0-9.el10.img",
                "boot/initramfs-6.12.0-55.el10.img",
                "lib -> usr/lib",
            ],
            "usr/lib/modules/6.12.0-55.el10/vmlinuz",
            "boot/initramfs-6.12.0-55.el10.img",
        ),
        (
            "bootc",
            &[
                "usr/lib/modules/6.12.0-55.el10/vmlinuz",
                "usr/lib/modules/6.12.0-55.el10/initramfs.img",
            ],
            "usr/lib/modules/6.12.0-55.el10/vmlinuz",
            "usr/lib/modules/6.12.0-55.el10/initramfs.img",
        ),
        (
            "modules outside of /usr",
            &["lib/modules/6.1.0/Image", "lib/modules/6.1.0/initrd"],
            "lib/modules/6.1.0/Image",
            "lib/modules/6.1.0/initrd",
        ),
        (
            "a link to an initrd without a version",
            &["boot/vmlinuz-6", "boot/initrd.img -> site.img", "boot/site.img"],
            "boot/vmlinuz-6",
            "boot/site.img",
        ),
        (
            "the site's own initrd under the usual name",
            &["boot/vmlinuz-6", "boot/initrd", "boot/initrd-6"],
            "boot/vmlinuz-6",
            "boot/initrd",
        ),
        (
            "one kernel without a version",
            &[
                "boot/bzImage",
                "boot/initramfs-custom.img",
                "boot/initramfs-custom-kdump.img",
            ],
            "boot/bzImage",
            "boot/initramfs-custom.img",
        ),
        (
            "vmlinuz before vmlinux of the same version",
            &[
                "boot/vmlinux-6.4",
                "boot/vmlinuz-6.4",
                "boot/vmlinuz-6.4.old",
                "boot/initrd-6.4",
            ],
            "boot/vmlinuz-6.4",
            "boot/initrd-6.4",
        ),
        (
            "a broken link is passed over",
            &[
                "boot/vmlinuz -> gone",
                "boot/vmlinuz-7 -> gone",
                "boot/vmlinuz-6",
                "boot/initrd -> initrd",
                "boot/initrd-6",
            ],
            "boot/vmlinuz-6",
            "boot/initrd-6",
        ),
    ] {
        let root = Root::new(files);
        let found = root.find(&names(true)).unwrap().unwrap();
        assert_eq!(root.relative(found.kernel.ready().unwrap()), kernel, "{what}");
        assert_eq!(root.relative(&found.initrd), initrd, "{what}");
        assert_eq!(found.parameters, None);
    }
}

#[test]
fn names_of_the_job_come_first() {
    let root = Root::new(&[
        "boot/vmlinuz",
        "boot/initrd.img",
        "boot/mykernel",
        "boot/myinitrd",
        "boot/myparams",
    ]);
    let names = BootFiles {
        kernel: "mykernel".into(),
        initrd: "myinitrd".into(),
        parameters: "myparams".into(),
        required: true,
    };
    let found = root.find(&names).unwrap().unwrap();
    assert_eq!(root.relative(found.kernel.ready().unwrap()), "boot/mykernel");
    assert_eq!(root.relative(&found.initrd), "boot/myinitrd");
    assert_eq!(root.relative(&found.parameters.unwrap()), "boot/myparams");
}

#[test]
fn what_is_missing_is_named() {
    for files in [
        &[][..],
        &["boot/initrd"],
        &["etc/passwd", "boot/vmlinuz -> /etc/shadow"],
    ] {
        let root = Root::new(files);
        assert_eq!(root.find(&names(false)).unwrap(), None);
        assert_eq!(root.find(&names(true)).unwrap_err().code, Code::KernelMissing);
    }
    for files in [
        &["boot/vmlinuz"][..],
        &["boot/vmlinuz-6", "boot/initrd-5"],
        &["boot/vmlinuz", "boot/initrd-5", "boot/initrd-6"],
    ] {
        let failure = Root::new(files).find(&names(false)).unwrap_err();
        assert_eq!(failure.code, Code::InitrdMissing);
        assert!(failure.hint.is_some());
    }
    let root = Root::new(&["boot/vmlinuz", "boot/initrd"]);
    let failure = find_boot_files(root.dir.path(), Arch::Riscv64, &names(true)).unwrap_err();
    assert_eq!(failure.code, Code::KernelWrongArch);
}

#[test]
fn an_initrd_of_another_kernel_is_refused() {
    let named = |kernel: &str, initrd: &str| BootFiles {
        kernel: kernel.into(),
        initrd: initrd.into(),
        ..names(true)
    };
    let files = [
        "boot/vmlinuz-6.1.0-40-std",
        "boot/vmlinuz-6.1.0-38-rt",
        "boot/initrd.img-6.1.0-40-std",
        "initrd.img -> boot/initrd.img-6.1.0-40-std",
        "lib/modules/6.1.0-40-std/modules.dep",
        "lib/modules/6.1.0-40-std-other/modules.dep",
        "boot/initrd.img-6.1.0-40-std-site",
        "boot/initrd.img-6.1.0-40-std-other",
    ];
    let root = Root::new(&files);
    for (kernel, initrd) in [
        ("vmlinuz-6.1.0-38-rt", "initrd"),
        ("vmlinuz-6.1.0-38-rt", "initrd.img-6.1.0-40-std"),
        ("vmlinuz-6.1.0-40-std", "initrd.img-6.1.0-40-std-other"),
    ] {
        let failure = root.find(&named(kernel, initrd)).unwrap_err();
        assert_eq!(failure.code, Code::InitrdMismatch, "{kernel}, {initrd}: {failure}");
        assert!(failure.detail.contains("6.1.0-40-std"), "{failure}");
        assert!(failure.detail.contains(&kernel["vmlinuz-".len()..]), "{failure}");
    }
    for (initrd, found) in [
        ("initrd", "boot/initrd.img-6.1.0-40-std"),
        ("initrd.img-6.1.0-40-std-site", "boot/initrd.img-6.1.0-40-std-site"),
    ] {
        let set = root.find(&named("vmlinuz-6.1.0-40-std", initrd)).unwrap().unwrap();
        assert_eq!(root.relative(&set.initrd), found);
        assert_eq!(set.version.as_deref(), Some("6.1.0-40-std"));
    }
}

#[test]
fn a_kernel_without_a_version_in_its_name_has_it_inside() {
    let root = Root::new(&[
        "boot/initrd-6.1.0-9",
        "boot/initrd-6.1.0-18",
        "boot/initrd -> initrd-6.1.0-9",
    ]);
    let mut kernel = sample(Arch::X86_64);
    kernel.resize(600_000, 0);
    for (place, text) in [(0x1000, "6.1.0-18 (builder) #1 SMP"), (0x20e, "\x00\x0e")] {
        kernel[place..place + text.len()].copy_from_slice(text.as_bytes());
    }
    fs_err::write(root.dir.path().join("boot/vmlinuz"), &kernel).unwrap();
    let found = root.find(&names(true)).unwrap().unwrap();
    assert_eq!(root.relative(&found.initrd), "boot/initrd-6.1.0-18");

    let mut image = sample(Arch::Aarch64);
    image.resize(300_000, 0);
    let banner = b"Linux version %s\0Linux version 6.1.0-9 (builder) ";
    // Across the end of a piece that is read at once.
    image.truncate(262_144 - 30);
    image.extend(banner);
    let image_file = root.dir.path().join("boot/Image");
    fs_err::write(&image_file, &image).unwrap();
    let kernel = Kernel::inspect(&image_file, Arch::Aarch64).unwrap();
    assert_eq!(kernel.version().as_deref(), Some("6.1.0-9"));
}

#[test]
fn nothing_outside_the_root_is_found() {
    let outside = tempfile::tempdir().unwrap();
    fs_err::write(outside.path().join("vmlinuz"), sample(Arch::X86_64)).unwrap();
    let absolute = format!("boot -> {}", outside.path().display());
    let up = format!(
        "boot/vmlinuz -> ../../../../../../..{}/vmlinuz",
        outside.path().display()
    );
    for link in [absolute, up] {
        assert_eq!(Root::new(&[&link]).find(&names(false)).unwrap(), None);
    }
}

#[test]
fn links_resolve_as_in_a_chroot() {
    let root = Root::new(&[
        "a/file",
        "b -> /a",
        "c -> b/../a",
        "d -> ../../../a",
        "loop -> loop2",
        "loop2 -> /loop",
    ]);
    for path in [
        "a/file",
        "/a/file",
        "b/file",
        "c/file",
        "d/file",
        "../../a/file",
        "b/../b/file",
    ] {
        let real = resolve(root.dir.path(), Path::new(path)).unwrap();
        assert_eq!(root.relative(&real), "a/file", "{path}");
    }
    assert_eq!(
        resolve(root.dir.path(), Path::new("loop")).unwrap_err().raw_os_error(),
        Some(nix::libc::ELOOP)
    );
    assert!(resolve(root.dir.path(), Path::new("a/file/x")).is_err());
    assert!(resolve(root.dir.path(), Path::new("missing/../a")).is_err());
}

#[test]
fn versions_sort() {
    let sorted = [
        "",
        "0-rescue-1",
        "4.18.0-553.el8",
        "5.15.0-9-generic",
        "5.15.0-101-generic",
        "6.1.0-0.deb11.5",
        "6.1.0-9-amd64",
        "6.1.0-18-amd64",
        "6.1.0-18-cloud",
        "6.9-rc2",
        "6.9-rc10",
        "6.9",
        "6.9.1",
        "6.10.0",
        "10.0",
    ];
    for pair in sorted.windows(2) {
        assert!(VersionKey::new(pair[0]) < VersionKey::new(pair[1]), "{pair:?}");
    }
    assert_eq!(VersionKey::new("6.01"), VersionKey::new("6.1"));
}

proptest! {
    #[test]
    fn numbers_sort_as_numbers(a in any::<u64>(), b in any::<u64>()) {
        let key = |n: u64| VersionKey::new(&format!("6.{n}-x"));
        prop_assert_eq!(key(a).cmp(&key(b)), a.cmp(&b));
    }

    #[test]
    fn any_text_is_a_version(text in ".{0,40}") {
        let _ = VersionKey::new(&text);
    }

    /// Wherever the links of a root lead, every file found is inside the root.
    #[test]
    fn resolving_never_leaves(links in prop::collection::btree_map("[a-c]", r"/?(\.\./){0,3}[a-d](/[a-d.]{1,2}){0,2}", 1..4), path in r"(\.\./)?[a-d](/[a-d]){0,3}") {
        let root = Root::new(&["d/a/file", "d/b/c/d"]);
        for (name, target) in &links {
            symlink(target, root.dir.path().join(name)).unwrap();
            symlink(target, root.dir.path().join("d/b").join(name)).ok();
        }
        if let Ok(real) = resolve(root.dir.path(), Path::new(&path)) {
            prop_assert!(real.starts_with(root.dir.path()));
            prop_assert_eq!(real.canonicalize().unwrap(), real);
        }
    }
}

#[test]
fn the_release_of_a_root_is_that_of_its_newest_kernel_with_modules() {
    for (what, files, expected) in [
        ("no kernel", &["usr/lib/modules/6.1.0-40-amd64/modules.dep"][..], None),
        ("no modules", &["boot/vmlinuz-6.1.0-40-amd64"], None),
        (
            "two of Debian's, and one without modules",
            &[
                "lib -> usr/lib",
                "boot/vmlinuz-6.1.0-9-amd64",
                "boot/vmlinuz-6.1.0-18-amd64",
                "boot/vmlinuz-6.9.0-1-amd64",
                "usr/lib/modules/6.1.0-9-amd64/modules.dep",
                "usr/lib/modules/6.1.0-18-amd64/modules.dep",
                "usr/lib/modules/6.5.0-1-amd64/modules.dep",
            ],
            Some("6.1.0-18-amd64"),
        ),
        (
            "beside its modules",
            &["usr/lib/modules/6.4.0-default/vmlinuz"],
            Some("6.4.0-default"),
        ),
        (
            "a link in an older layout",
            &[
                "lib/modules/6.1.0/modules.dep",
                "boot/vmlinuz-6.1.0 -> ../srv/kernel",
                "srv/kernel",
            ],
            Some("6.1.0"),
        ),
        (
            "a rescue kernel",
            &["boot/vmlinuz-6.1.0-rescue", "usr/lib/modules/6.1.0-rescue/modules.dep"],
            None,
        ),
        (
            "a kernel that says it itself",
            &[
                "boot/vmlinuz",
                "usr/lib/modules/6.1.0-own/modules.dep",
                "usr/lib/modules/6.9.0/modules.dep",
            ],
            Some("6.1.0-own"),
        ),
        (
            "one that leads out of the root",
            &[
                "boot/vmlinuz-6.1.0 -> /etc/hostname",
                "usr/lib/modules/6.1.0/modules.dep",
            ],
            None,
        ),
    ] {
        let root = Root::new(files);
        let newest = newest_release(root.dir.path(), &mut |_| Some("6.1.0-own".to_owned()));
        assert_eq!(newest.as_deref(), expected, "{what}");
    }
}
