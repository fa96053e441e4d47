//! Tests `kiln export disk`: disks that real firmware boots, for two architectures, and what is refused.

use std::{
    io::Read,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::support::{
    self, HOST, Kiln, PATIENCE,
    bootable::{lacking, tiny},
    tool,
    wait::try_within,
};

/// The firmware and the machine of an architecture.
fn machine(arch: &str) -> (&'static str, &'static [&'static str]) {
    match arch {
        "aarch64" => (
            "/usr/share/qemu-efi-aarch64/QEMU_EFI.fd",
            &["-machine", "virt", "-cpu", "max"],
        ),
        _ => ("/usr/share/ovmf/OVMF.fd", &["-machine", "q35", "-cpu", "max"]),
    }
}

/// Why no disk can be booted here, if so.
fn no_disks(arch: &str) -> Option<String> {
    let platform = if arch == "aarch64" { "arm64-efi" } else { "x86_64-efi" };
    let needed = [
        (machine(arch).0.to_owned(), "its firmware"),
        (format!("/usr/lib/grub/{platform}/moddep.lst"), "GRUB for it"),
        ("/usr/bin/grub-mkimage".to_owned(), "grub-common"),
        ("/usr/bin/qemu-img".to_owned(), "qemu-utils"),
        ("/usr/bin/xorriso".to_owned(), "xorriso"),
    ];
    let missing = needed.into_iter().find(|(path, _)| !Path::new(path).exists());
    lacking(arch)
        .or(missing.map(|(path, what)| format!("{what} is not installed ({path}): `.ci/install-packages test`")))
}

/// What a machine takes a file for.
#[derive(Debug, Clone, Copy)]
enum Drive {
    Disk(&'static str),
    Cd,
}

impl Drive {
    fn options(self, file: &Path) -> Vec<String> {
        let file = file.display();
        match self {
            Drive::Disk(format) => vec!["-drive".to_owned(), format!("if=virtio,format={format},file={file}")],
            Drive::Cd => [
                "-device",
                "virtio-scsi-pci",
                "-device",
                "scsi-cd,drive=cd",
                "-drive",
                &format!("if=none,id=cd,media=cdrom,readonly=on,format=raw,file={file}"),
            ]
            .map(str::to_owned)
            .to_vec(),
        }
    }
}

/// Starts a machine with a drive as firmware does it, and reads the console up to a text.
fn boot(arch: &str, file: &Path, drive: Drive, until: &str) -> String {
    let (firmware, options) = machine(arch);
    let mut qemu = Command::new(format!("qemu-system-{arch}"))
        .args([
            "-nodefaults",
            "-display",
            "none",
            "-serial",
            "stdio",
            "-m",
            "1G",
            "-smp",
            "2",
        ])
        .args(["-accel", "tcg", "-no-reboot", "-bios", firmware])
        .args(options)
        .arg("-snapshot")
        .args(drive.options(file))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut console = qemu.stdout.take().unwrap();
    let reader = std::thread::spawn({
        let until = until.to_owned();
        move || {
            let (mut said, mut buffer) = (Vec::new(), [0; 4096]);
            while let Ok(count @ 1..) = console.read(&mut buffer) {
                said.extend_from_slice(&buffer[..count]);
                if String::from_utf8_lossy(&said).contains(&until) {
                    break;
                }
            }
            String::from_utf8_lossy(&said).into_owned()
        }
    });
    // What was said by then shows what is missing.
    let _ = try_within(PATIENCE, || reader.is_finished());
    qemu.kill().unwrap();
    qemu.wait().unwrap();
    reader.join().unwrap()
}

fn export(kiln: &Kiln, image: &Path, file: &Path, options: &[&str]) -> support::Ran {
    let mut command = kiln.command(["export", "disk"]);
    command.arg(image).arg(file).args(options);
    support::run(command)
}

fn disk_of(kiln: &Kiln, arch: &str, name: &str) -> PathBuf {
    let file = kiln.data().join(name);
    let console = if arch == "aarch64" {
        "console=ttyAMA0"
    } else {
        "console=ttyS0 no_timer_check"
    };
    export(kiln, &tiny(arch), &file, &["--append", console]).ok();
    file
}

#[test]
fn a_disk_boots_by_its_firmware() {
    for arch in [HOST, support::foreign()] {
        needs!(no_disks(arch));
        let kiln = Kiln::bare();
        let disk = disk_of(&kiln, arch, "disk.qcow2");
        assert!(tool("/usr/bin/qemu-img", &["check", disk.to_str().unwrap()]).contains("No errors"));
        let said = boot(arch, &disk, Drive::Disk("qcow2"), "tiny login:");
        assert!(said.contains("Tiny root"), "{said}");
        assert!(said.contains("root=live:/dev/disk/by-partuuid/"), "{said}");
    }
}

#[test]
fn an_iso_boots_as_a_cd_and_from_a_stick() {
    let kiln = Kiln::bare();
    for arch in [HOST, support::foreign()] {
        needs!(no_disks(arch));
        let name = format!("{arch}.iso");
        let iso = disk_of(&kiln, arch, &name);
        let drives = if arch == HOST {
            &[
                (Drive::Cd, "live CD on /dev/sr0"),
                (Drive::Disk("raw"), "live CD on /dev/vda"),
            ][..]
        } else {
            &[(Drive::Cd, "live CD on /dev/sr0")]
        };
        for (drive, device) in drives {
            let said = boot(arch, &iso, *drive, "tiny login:");
            assert!(said.contains("Tiny root") && said.contains(device), "{drive:?}: {said}");
            assert!(said.contains("rd.live.dir=/LiveOS rd.live.squashimg=rootfs"), "{said}");
        }
    }
    let again = kiln.data().join("again.iso");
    fs_err::rename(kiln.data().join(format!("{HOST}.iso")), &again).unwrap();
    let iso = disk_of(&kiln, HOST, &format!("{HOST}.iso"));
    assert!(
        fs_err::read(&iso).unwrap() == fs_err::read(&again).unwrap(),
        "the images differ"
    );
    // Another reader of the file system.
    let root = kiln.data().join("rootfs");
    let paths = [&iso, &root].map(|path| path.to_str().unwrap());
    tool(
        "xorriso",
        &[
            "-no_rc",
            "-osirrox",
            "on",
            "-indev",
            paths[0],
            "-extract",
            "/LiveOS/rootfs",
            paths[1],
        ],
    );
    assert!(fs_err::read(&root).unwrap() == fs_err::read(tiny(HOST).join("rootfs")).unwrap());
    let left: Vec<_> = fs_err::read_dir(kiln.data())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 4, "{left:?}");
}

#[test]
fn equal_images_make_equal_disks_with_the_root_as_it_was() {
    needs!(no_disks(HOST));
    let kiln = Kiln::bare();
    let disks = ["a.raw", "b.raw"].map(|name| fs_err::read(disk_of(&kiln, HOST, name)).unwrap());
    assert!(disks[0] == disks[1], "the disks differ");
    let path = kiln.data().join("a.raw");
    // Another reader of partition tables, which checks both copies.
    let table = tool("/sbin/sfdisk", &["--json", path.to_str().unwrap()]);
    let table: serde_json::Value = serde_json::from_str(&table).unwrap();
    let partitions = table["partitiontable"]["partitions"].as_array().unwrap();
    assert_eq!((partitions.len(), &partitions[0]["start"]), (2, &2048.into()));
    assert!(tool("/sbin/sfdisk", &["--verify", path.to_str().unwrap()]).contains("No errors detected"));
    let begin = usize::try_from(partitions[1]["start"].as_u64().unwrap()).unwrap() * 512;
    let root = fs_err::read(tiny(HOST).join("rootfs")).unwrap();
    assert!(disks[0][begin..].starts_with(&root), "the root differs");
    let qcow2 = disk_of(&kiln, HOST, "c.qcow2");
    let compared = tool(
        "/usr/bin/qemu-img",
        &["compare", path.to_str().unwrap(), qcow2.to_str().unwrap()],
    );
    assert!(compared.contains("identical"), "{compared}");
    let left: Vec<_> = fs_err::read_dir(kiln.data())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

#[test]
fn what_makes_no_disk_is_refused_and_nothing_is_left() {
    let kiln = Kiln::bare();
    let dir = tempfile::tempdir().unwrap();
    let (image, file) = (dir.path().join("s390x"), dir.path().join("disk.raw"));
    fs_err::create_dir(&image).unwrap();
    for (name, content) in [("rootfs", "x"), ("vmlinuz", "x"), ("initrd", "\u{2}an initrd")] {
        fs_err::write(image.join(name), content).unwrap();
    }
    let failed = |options: &[&str]| export(&kiln, &image, &file, options).failed();
    insta::assert_snapshot!(failed(&[]), @"disk images are not made for s390x: it does not boot by UEFI");
    // An archive that ends at once: no file in it.
    let mut empty = b"070701".to_vec();
    empty.extend(format!("{:0104}", 0).into_bytes());
    empty[94..102].copy_from_slice(b"0000000B");
    empty.extend(b"TRAILER!!!\0\0\0\0");
    fs_err::write(image.join("initrd"), &empty).unwrap();
    insta::assert_snapshot!(failed(&["--arch", HOST]), @"the initrd cannot boot a squashfs from a disk: it has no `dmsquash-live`");
    assert!(!file.exists());
    fs_err::write(&file, "mine").unwrap();
    fs_err::write(image.join("initrd"), "\u{2}an initrd").unwrap();
    let said = failed(&["--arch", HOST]);
    assert!(said.ends_with("disk.raw exists already"), "{said}");
    assert_eq!(fs_err::read_to_string(&file).unwrap(), "mine");
    // Before an image is looked for, and perhaps downloaded.
    let said = export(&kiln, &dir.path().join("nothing"), &file, &[]).failed();
    assert!(said.ends_with("disk.raw exists already"), "{said}");
}
