//! Native twins on a host of the other architecture: QEMU emulates the whole machine, which has this one's as the foreign
//! architecture. It takes minutes, and programs that are compiled for that machine, so it is asked for by a variable.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use kiln_agent::twins::join::join;
use kiln_inside::emulation::binfmt::emulation_of;
use kiln_records::arch::Arch;

use crate::{
    support::{
        self, ANSWERS, KILN_AGENT, KILN_EXEC,
        bootable::{lacking, tiny},
    },
    twin_world::{
        debian::{Debian, fetch_to, run, target},
        joined::QUESTIONS,
    },
};

/// The directory of the agent, `kiln-exec` and `answers.so` for the other architecture, as `make agent ARCH=…` leaves them.
const SWITCH: &str = "KILN_TEST_OTHER_HOST";

/// In the questions whose answers are the host's: nothing traps there, so a NaN has another sign. The watcher sees it, and an
/// agent makes the root again.
const UNEQUAL: [&str; 2] = ["inf - inf", "inf % 1"];

/// What that machine does: it answers each question twice, under its emulator and with twins. A line has the question's
/// number, how it was answered, how many twins were not equal by the watcher's account, the exit code, the digest of the
/// answer and the counters of starts; then follows the answer.
const RUN: &str = r#"
b=/bin/busybox
$b mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
$b cat /mnt/registration > /proc/sys/fs/binfmt_misc/register
$b mount -t proc proc /mnt/root/proc
$b mount -o bind /dev /mnt/root/dev
$b ln -sf /proc/self/fd /dev/fd
for question in $($b ls /mnt/questions); do
    for twins in off on; do
        # The watcher reports on what it was given as standard input.
        $b rm -f /mnt/reports
        $b env -i PATH=/usr/sbin:/usr/bin "KILN_TWINS=$twins" /mnt/kiln-agent watch /mnt/joined $b chroot /mnt/root \
            /bin/bash -c "$($b cat "/mnt/questions/$question")" 0<> /mnt/reports > /mnt/said 2>&1
        code=$?
        unequal=$($b grep -c -e twin_unequal -e twin_gave_up /mnt/reports)
        # Two numbers of eight bytes; the high halves stay zero.
        counts=$($b od -A n -t u4 /mnt/root/.kiln/counts | $b awk '{ print $1, $3 }')
        $b printf '\n@@ %s %s %s %s %s %s ' \
            "$question" "$twins" "$unequal" "$code" "$($b sha256sum < /mnt/said | $b cut -c 1-16)" "$counts"
        $b head -c 600 /mnt/said | $b base64 | $b tr -d '\n'
        $b printf '\n'
    done
done
"#;

/// A static emulator of this machine's architecture for the other one, from the release of the toolbox.
fn emulator(host: Arch, to: &Path) -> PathBuf {
    let site = run("apt-get", ["indextargets", "--format", "$(SITE)"]).done();
    let site = site.lines().next().unwrap_or("http://deb.debian.org/debian");
    let list = to.join("sources.list");
    fs_err::create_dir_all(to).unwrap();
    let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
    fs_err::write(&list, format!("deb [signed-by={keys}] {site} trixie main\n")).unwrap();
    let archives = fetch_to(to, host, Some(&list), &["qemu-user"]);
    let mut debs = fs_err::read_dir(archives).unwrap().map(|entry| entry.unwrap().path());
    let is_it = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("qemu-user_");
    let unpacked = to.join("unpacked");
    run("dpkg-deb", ["--extract"])
        .arg(debs.find(is_it).unwrap())
        .arg(&unpacked)
        .done();
    unpacked.join(format!("usr/bin/qemu-{}", support::HOST))
}

/// The disk of that machine: the root with its twins, the joined emulator and the questions.
fn disk(programs: &Path, dir: &Path) -> PathBuf {
    let (host, here) = (target(), Arch::host());
    let debian = Debian::unpack(host, here);
    let mut world = debian.world_with(&programs.join(ANSWERS));
    for trial in world.add(&debian.packages).unwrap().trials {
        world.accept(&trial.key).unwrap();
    }
    let content = dir.join("content");
    fs_err::create_dir_all(content.join("questions")).unwrap();
    run("cp", ["--archive"])
        .arg(debian.root())
        .arg(content.join("root"))
        .done();
    let place = content.join("root/.kiln");
    run("cp", ["--archive", "--no-target-directory"])
        .arg(world.mounted())
        .arg(place)
        .done();
    fs_err::create_dir_all(content.join("root/tmp")).unwrap();
    let emulator = emulator(host, &Path::new(env!("CARGO_TARGET_TMPDIR")).join("other-host"));
    fs_err::copy(programs.join(KILN_AGENT), content.join(KILN_AGENT)).unwrap();
    join(&emulator, &programs.join(KILN_EXEC), &content.join("joined")).unwrap();
    let mut entry = emulation_of(here).unwrap().entry;
    "/mnt/joined".clone_into(&mut entry.interpreter);
    fs_err::write(content.join("registration"), entry.registration()).unwrap();
    fs_err::write(content.join("run"), RUN).unwrap();
    for (number, question) in QUESTIONS.iter().enumerate() {
        fs_err::write(content.join(format!("questions/{number:02}")), question).unwrap();
    }
    let disk = dir.join("disk");
    run("mksquashfs", [])
        .arg(content)
        .arg(&disk)
        .arg("-quiet")
        .arg("-no-progress")
        .arg("-all-root")
        .done();
    disk
}

/// Why the test cannot run, if so.
fn not_asked() -> Option<String> {
    let is_set = std::env::var_os(SWITCH).is_some();
    (!is_set).then(|| format!("{SWITCH} does not name a directory of programs for {}", target()))
}

/// An answer: whether the watcher saw that it is none, exit code and digest, starts of twins and of the emulator so far, and
/// how it begins, in base64.
struct Answer {
    is_unequal: bool,
    said: [String; 2],
    counts: [u64; 2],
    begin: String,
}

#[test]
fn twins_of_another_host_say_what_the_emulated_programs_say() {
    needs!(not_asked(), lacking(support::foreign()));
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let disk = disk(Path::new(&std::env::var_os(SWITCH).unwrap()), dir.path());
    let machine = tiny(support::foreign());
    let mut qemu = Command::new(format!("qemu-system-{}", support::foreign()));
    let (kind, cpu, console) = if support::foreign() == "aarch64" {
        ("virt", "max,pauth-impdef=on", "ttyAMA0")
    } else {
        ("q35", "max", "ttyS0")
    };
    qemu.args([
        "-machine",
        kind,
        "-cpu",
        cpu,
        "-m",
        "3072",
        "-smp",
        "2",
        "-nographic",
        "-no-reboot",
    ]);
    qemu.args(["-accel", "tcg,thread=multi", "-nic", "none"]);
    qemu.arg("-kernel").arg(machine.join("kernel"));
    qemu.arg("-initrd").arg(machine.join("initrd"));
    qemu.args(["-append", &format!("console={console} quiet panic=-1 tiny.do=run")]);
    qemu.arg("-drive").arg(format!(
        "if=none,id=disk,format=raw,readonly=on,file={}",
        disk.display()
    ));
    qemu.args(["-device", "virtio-blk,drive=disk"]);
    let output = Command::new("timeout")
        .arg("1500")
        .arg(qemu.get_program())
        .args(qemu.get_args())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let console = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    let mut answers: BTreeMap<(usize, &str), Answer> = BTreeMap::new();
    for line in console.lines() {
        let words: Vec<_> = line.split(' ').collect();
        if let ["@@", number, how, unequal, code, digest, twins, emulated, begin @ ..] = &words[..] {
            let answer = Answer {
                is_unequal: *unequal != "0",
                said: [code, digest].map(|word| (*word).to_owned()),
                counts: [twins, emulated].map(|number| number.parse().unwrap()),
                begin: begin.concat(),
            };
            answers.insert((number.parse().unwrap(), *how), answer);
        }
    }
    assert_eq!(answers.len(), 2 * QUESTIONS.len(), "{console}");
    let mut wrong = String::new();
    for (number, question) in QUESTIONS.iter().enumerate() {
        let (emulated, twin) = (&answers[&(number, "off")], &answers[&(number, "on")]);
        let is_to_be_unequal = UNEQUAL.iter().any(|part| question.contains(part));
        let is_right = twin.is_unequal || emulated.said == twin.said;
        if !is_right || twin.is_unequal != is_to_be_unequal || emulated.is_unequal {
            writeln!(wrong, "{question}").unwrap();
            for Answer {
                is_unequal,
                said,
                counts,
                begin,
            } in [emulated, twin]
            {
                writeln!(wrong, "    {is_unequal} {said:?} {counts:?} in base64: {begin}").unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    // Shells and perl are emulated there, but not what they start.
    let last = &answers[&(QUESTIONS.len() - 1, "on")];
    assert!(last.counts[0] > 15, "{:?}", last.counts);
}
