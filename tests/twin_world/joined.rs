//! Tests native programs as builds start them: by `kiln-exec` in front of the emulator. Their output equals that of the
//! emulated ones.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
    time::Duration,
};

use kiln_agent::twins::{join::join, world::World};
use kiln_inside::emulation::binfmt::emulation_of;

use crate::support::{self, eventually, no_emulation, no_namespaces};
use crate::twin_world::debian::{Debian, target};

/// Shell scripts, each of which asks for something that only the architecture tells.
pub const QUESTIONS: [&str; 34] = [
    "uname -a; arch",
    "echo $MACHTYPE $HOSTTYPE $OSTYPE $BASH",
    "readlink /proc/self/exe; readlink /proc/$$/exe",
    "cat /proc/self/cmdline; (exec -a other cat /proc/self/../self/cmdline)",
    "cat /proc/self/cmdline $(seq 9000) 2> /dev/null | sha256sum",
    "cd /proc; while read -r -d '' word; do echo \"$word\"; done < $$/cmdline",
    "perl -e 'open F, q(/proc/self/environ); print join qq(\\n), grep !/^KILN_TWINS=/, split /\\0/, <F>'",
    // What the library writes for the program is no change by the program, which can still start over.
    "perl -e 'open F, q(/proc/self/cmdline); print unpack(q(H*), pack(q(D), 0.1)), <F>'",
    "cat /proc/self/comm; (exec -a other cat /proc/self/comm)",
    "perl -MPOSIX -e 'print join \"|\", (POSIX::uname())[0, 4], $^X, $0'",
    "perl -MConfig -e 'print \"$_ $Config{$_}\\n\" for sort keys %Config; print \"@INC\\n\"'",
    "perl -MSocket -MFcntl -MList::Util=sum -e 'print sum(1, 2), inet_ntoa(INADDR_LOOPBACK), LOCK_EX'",
    "perl -e 'print \"$_=$ENV{$_}\\n\" for grep !/^KILN_TWINS$/, sort keys %ENV; system q(env | grep -v KILN_TWINS=)'",
    "perl -e 'use DynaLoader; print defined DynaLoader::dl_load_file($ARGV[0])' /lib/*/security/pam_unix.so",
    "perl -e 'use DynaLoader; print DynaLoader::dl_load_file(q(/nowhere.so)) // DynaLoader::dl_error()'",
    "perl -e 'use DynaLoader; print defined DynaLoader::dl_load_file(q(libpam.so.0))'",
    "perl -e 'use DynaLoader; print DynaLoader::dl_load_file(q(libnowhere.so)) // DynaLoader::dl_error()'",
    "ls -l /usr/bin | sed 's/  */ /g' | sort | sha256sum",
    "printf '#!/usr/bin/perl -w\\nprint \"$0 @ARGV\\\\n\"; print <STDIN>' > /tmp/script; chmod +x /tmp/script; cat /tmp/script | /tmp/script 1 '2 3'",
    "cat /nowhere; echo $?; (exit 7); echo $?; nowhere; echo $?",
    // The CPUs' results differ: the twin starts over.
    "printf '%.2f %a' 1.115 0.1",
    "perl -e 'print unpack(q(H*), pack(q(D), 0.1))'",
    "perl -MPOSIX -e 'print POSIX::erf(0.3), POSIX::cbrt(2), POSIX::hypot(0.1, 0.7), POSIX::pow(1.1, 2.3)'",
    "python3 -c 'import math; print(math.erf(0.3), math.cbrt(3), (1.1 + 2j) ** 1.7)'",
    // Python sets up its standard input at its start, and differently so without buffers.
    "echo kept | (PYTHONUNBUFFERED=1 python3 -c 'import math; print(math.erf(0.3), input())')",
    "perl -e 'print unpack(q(H*), pack(q(d), 9**9**9 / 9**9**9)), join q( ), sin(9**9**9), -sin(9**9**9)'",
    "python3 -c 'import _struct; inf = float(\"inf\"); print(_struct.pack(\"d\", inf - inf).hex(), inf * 0, float(\"nan\") < 1)'",
    // A program that becomes another one leaves no trace of what it computed.
    "python3 -c 'import math, os; math.inf % 1; os.execv(\"/bin/echo\", [\"echo\", \"becomes\", \"another\"])'",
    // The signals of traps are the program's when they come from elsewhere.
    "trap 'echo own' FPE ILL; trap -p; kill -FPE $$; kill -ILL $$; (trap - FPE; kill -FPE $BASHPID) 2>/dev/null; echo $?",
    "trap '' FPE; kill -FPE $$; echo alive",
    "perl -e '$SIG{FPE} = $SIG{ILL} = sub { print qq(own @_ ) }; kill FPE => $$; kill ILL => $$; print 1e30 | 0'",
    "perl -e '$SIG{ILL} = q(IGNORE); kill ILL => $$; print qq($SIG{ILL} ); $SIG{ILL} = q(DEFAULT); system q(exec 2>/dev/null; kill -ILL $$); print $?'",
    "(perl -e '$| = 1; print q(before); kill FPE => $$; print q(not reached)'; echo $?) 2>/dev/null",
    "dpkg --print-architecture; date -u -d @0; printf 'a\\344' | iconv -f LATIN1 -t UTF-16LE | od -c",
];

/// Runs a shell script of the root. The sandbox's own `binfmt_misc` knows the `interpreter`.
fn ask(debian: &Debian, world: &Path, interpreter: &Path, twins: &str, script: &str) -> Output {
    let prepare = r#"
        root=$0 world=$1 registration=$2 twins=$3 script=$4
        mount -t proc proc /proc
        mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
        printf %s "$registration" > /proc/sys/fs/binfmt_misc/register
        mount --bind "$world" "$root/.kiln"
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        exec env -i PATH=/usr/sbin:/usr/bin KILN_TWINS="$twins" chroot "$root" /bin/bash -c "$script""#;
    let mut entry = emulation_of(target()).unwrap().entry;
    entry.interpreter = interpreter.display().to_string();
    Command::new("unshare")
        .args([
            "--map-root-user",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-ec",
            prepare,
        ])
        .args([debian.root().as_os_str(), world.as_os_str()])
        .args([&entry.registration(), twins, script])
        .output()
        .unwrap()
}

fn counts(world: &Path) -> [u64; 2] {
    let bytes = fs_err::read(world.join("counts")).unwrap();
    [0, 8].map(|at| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap()))
}

/// A root with everything that can have a twin, and the joined emulator.
fn ready(debian: &Debian) -> (World, tempfile::TempDir, PathBuf) {
    let mut world = debian.world();
    for trial in world.add(&debian.packages).unwrap().trials {
        world.accept(&trial.key).unwrap();
    }
    let (dir, joined) = joined(debian);
    (world, dir, joined)
}

/// The joined emulator.
fn joined(debian: &Debian) -> (tempfile::TempDir, PathBuf) {
    fs_err::create_dir_all(debian.root().join("tmp")).unwrap();
    let emulator: PathBuf = support::toolbox_tree().join(format!("usr/bin/qemu-{}", target().name()));
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let joined = dir.path().join("joined");
    join(
        &emulator,
        &support::kiln_program().with_file_name(support::KILN_EXEC),
        &joined,
    )
    .unwrap();
    (dir, joined)
}

#[test]
fn a_module_without_a_twin_is_loaded_by_the_emulated_program() {
    needs!(no_namespaces(), no_emulation());
    let debian = Debian::shared();
    let (world, _dir, joined) = ready(debian);
    let mounted = world.mounted();
    // A copy is not the package's file, as modules from elsewhere are not.
    let copy = "cd /usr/lib/*/perl-base; mkdir -p /opt/own/auto/List/Util /opt/own/List; \
        cat auto/List/Util/Util.so > /opt/own/auto/List/Util/Util.so; cp List/Util.pm /opt/own/List;";
    let sum = format!(
        "{copy} exec perl -I/opt/own -MList::Util=sum -e 'print sum(1, 2), qq($INC{{\"List/Util.pm\"}} @ARGV)' 'a b' c"
    );
    let before = counts(mounted);
    let ran = ask(debian, mounted, &joined, "on", &sum);
    assert_eq!(
        String::from_utf8_lossy(&ran.stdout),
        "3/opt/own/List/Util.pm a b c",
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    let after = counts(mounted);
    assert!(after[0] > before[0], "perl was a twin first");
    assert_eq!(after[1], before[1] + 1);

    // What was done or read before is neither done twice nor lost: the program ends, and says why.
    let input = "(echo line; sleep 0.2) |";
    for (what, before_it, done) in [
        ("output", "", "$| = 1; print qq(once\\n);"),
        ("a directory", "", "mkdir q(/opt/once) or die;"),
        ("a removed file", "", "unlink q(/opt/left) or die;"),
        ("another directory", "", "chdir q(/opt) or die;"),
        ("a child", "", "system q(true);"),
        (
            "a socket",
            "",
            "use Socket; socket my $s, PF_UNIX, SOCK_STREAM, 0 or die;",
        ),
        ("a line of a pipe", input, "<STDIN> eq qq(line\\n) or die;"),
    ] {
        let script = format!(
            "{copy} rm -rf /opt/once; : > /opt/left; {before_it} perl -I/opt/own -e '{done} eval {{ require List::Util }}; exit 0' -- own"
        );
        let ran = ask(debian, mounted, &joined, "on", &script);
        let said = String::from_utf8_lossy(&ran.stderr);
        let explains = said.contains("/opt/own/auto/List/Util/Util.so has no native twin");
        assert!(
            explains && ran.status.code() != Some(0),
            "{what}: {:?}: {said}",
            ran.status
        );
        assert!(
            ["", "once\n"].contains(&&*String::from_utf8_lossy(&ran.stdout)),
            "{what}"
        );
    }
    // Nor is a script lost that was read from standard input, whatever the arguments look like.
    let script = format!("{copy} perl -I /opt/own <<'X'\nuse List::Util; print 1\nX");
    let ran = ask(debian, mounted, &joined, "on", &script);
    assert_ne!(ran.status.code(), Some(0), "{}", String::from_utf8_lossy(&ran.stderr));
    // A pipe that nobody has read from does no harm.
    let script = format!("{copy} {input} perl -I/opt/own -MList::Util=sum -e 'print sum(1, 2), <STDIN>' own 2>&1");
    let ran = ask(debian, mounted, &joined, "on", &script);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "3line\n", "{:?}", ran.status);
}

#[test]
fn a_module_that_was_unpacked_a_moment_ago_is_waited_for() {
    needs!(no_namespaces(), no_emulation());
    let debian = Debian::shared();
    let mut world = debian.world();
    let is_late = |path: &Path| path.ends_with("List/Util/Util.so");
    let mut early = debian.packages.clone();
    for package in &mut early {
        package.files.retain(|path| !is_late(path));
    }
    for trial in world.add(&early).unwrap().trials {
        world.accept(&trial.key).unwrap();
    }
    world.put_looks(1).unwrap();
    let (_dir, joined) = joined(debian);
    let mounted = world.mounted().to_owned();
    let before = counts(&mounted);
    let script = "exec perl -e '$| = 1; print q(once ); require List::Util; print List::Util::sum(1, 2)'";
    let ran = thread::scope(|scope| {
        let run = scope.spawn(|| ask(debian, &mounted, &joined, "on", script));
        waits(&|words| words.iter().any(|word| word.starts_with("$| = 1; print")));
        assert!(!run.is_finished());
        for trial in world.add(&debian.packages).unwrap().trials {
            world.accept(&trial.key).unwrap();
        }
        world.put_looks(2).unwrap();
        run.join().unwrap()
    });
    assert_eq!(
        String::from_utf8_lossy(&ran.stdout),
        "once 3",
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    assert_eq!(counts(&mounted)[1], before[1]);
}

#[test]
fn a_twin_that_would_compute_otherwise_ends_when_it_cannot_start_over() {
    needs!(no_namespaces(), no_emulation());
    let debian = Debian::shared();
    let (world, _dir, joined) = ready(debian);
    let mounted = world.mounted();
    for (script, why) in [
        ("echo once; printf %.2f 1.115; exit 0", "long double has another format"),
        (
            "perl -MPOSIX -e '$| = 1; print qq(once\n); eval { POSIX::erf(1) }; exit 0'",
            "erf has other results",
        ),
        (
            "perl -e '$| = 1; print qq(once\n); eval { my $inf = 9**9**9; my $n = $inf - $inf }; exit 0'",
            "0/0, and a number too large for its integer, have other results",
        ),
    ] {
        let ran = ask(debian, mounted, &joined, "on", script);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(
            said.contains(why) && ran.status.code() != Some(0),
            "{script}: {:?}: {said}",
            ran.status
        );
        assert_eq!(ran.stdout, b"once\n", "{script}");
    }
    // What gives the same bits is computed natively.
    let before = counts(mounted);
    let script = "exec perl -MPOSIX -e 'printf q(%.3f %g %s %s), 2.0005, 1e300 * 3, exp(1) ** sin(2), 9**9**9 > 1e308'";
    let ran = ask(debian, mounted, &joined, "on", script);
    assert!(ran.status.success(), "{:?}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(counts(mounted)[1], before[1]);
}

#[test]
fn twins_say_what_the_emulated_programs_say() {
    needs!(no_namespaces(), no_emulation());
    let debian = Debian::shared();
    let (world, _dir, joined) = ready(debian);
    let mounted = world.mounted();
    for question in QUESTIONS {
        let before = counts(mounted);
        let emulated = ask(debian, mounted, &joined, "off", question);
        let between = counts(mounted);
        assert_eq!(between[0], before[0], "{question}");
        let twin = ask(debian, mounted, &joined, "on", question);
        assert!(counts(mounted)[0] > between[0], "{question}");
        assert!(!twin.stdout.is_empty(), "{question}");
        assert_eq!(
            (
                twin.status.code(),
                String::from_utf8_lossy(&twin.stdout),
                String::from_utf8_lossy(&twin.stderr)
            ),
            (
                emulated.status.code(),
                String::from_utf8_lossy(&emulated.stdout),
                String::from_utf8_lossy(&emulated.stderr)
            ),
            "{question}"
        );
    }
}

/// Waits until a process whose command line is so sleeps.
#[track_caller]
fn waits(is_it: &dyn Fn(&[&str]) -> bool) {
    eventually(|| {
        let mut processes = fs_err::read_dir("/proc").unwrap().flatten();
        processes.any(|process| {
            let read = |file: &str| fs_err::read_to_string(process.path().join(file)).unwrap_or_default();
            let line = read("cmdline");
            let words: Vec<_> = line.trim_end_matches('\0').split('\0').collect();
            is_it(&words) && read("status").lines().any(|line| line.starts_with("State:\tS"))
        })
    });
}

/// Starts `dpkg` in the root, and then does the `rest` to the world. Returns what dpkg said, and how many programs ran as
/// twins and under the emulator meanwhile.
fn started_before(
    debian: &Debian,
    world: &mut World,
    joined: &Path,
    rest: impl FnOnce(&mut World),
) -> (String, [u64; 2]) {
    let (sign, mounted) = (debian.root().join("tmp/started"), world.mounted().to_owned());
    let before = counts(&mounted);
    let _ = fs_err::remove_file(&sign);
    let ran = thread::scope(|scope| {
        let script = "> /tmp/started; dpkg --print-architecture";
        let ran = scope.spawn(|| ask(debian, &mounted, joined, "on", script));
        eventually(|| {
            assert!(!ran.is_finished(), "{ran:?}");
            sign.exists()
        });
        waits(&|words| words.last() == Some(&"--print-architecture"));
        assert!(!ran.is_finished());
        rest(world);
        ran.join().unwrap()
    });
    let after = counts(&mounted);
    let said = String::from_utf8(ran.stdout).unwrap();
    (said, [after[0] - before[0], after[1] - before[1]])
}

#[test]
fn a_program_whose_trial_is_to_come_waits_for_the_outcome() {
    needs!(no_namespaces(), no_emulation());
    let debian = Debian::shared();
    let (_dir, joined) = joined(debian);
    let mut world = debian.world();
    let (dpkg, others): (Vec<_>, Vec<_>) = debian
        .packages
        .iter()
        .cloned()
        .partition(|package| package.name == "dpkg");
    for trial in world.add(&others).unwrap().trials {
        world.accept(&trial.key).unwrap();
    }
    let key = debian.key("/usr/bin/dpkg");
    let said = format!("{}\n", target().debian());

    // Nothing came of it.
    world.expect("dpkg", vec![key.clone()]).unwrap();
    let settled = started_before(debian, &mut world, &joined, |world| world.settle("dpkg").unwrap());
    assert_eq!(settled, (said.clone(), [1, 1]));

    world.expect("dpkg", vec![key.clone()]).unwrap();
    let accepted = started_before(debian, &mut world, &joined, |world| {
        assert!(world.add(&dpkg).unwrap().trials.iter().any(|trial| trial.key == key));
        // It goes on waiting while the twin is tried, however long that takes.
        thread::sleep(Duration::from_millis(100));
        world.accept(&key).unwrap();
    });
    assert_eq!(accepted, (said.clone(), [2, 0]));
}

#[test]
fn a_program_whose_trial_goes_on_waits_for_the_outcome() {
    needs!(no_namespaces(), no_emulation());
    let debian = Debian::shared();
    let (_dir, joined) = joined(debian);
    let said = format!("{}\n", target().debian());
    let key = debian.key("/usr/bin/dpkg");
    let ends: [fn(&mut World, &str); 2] = [
        |world, key| world.refuse(key).unwrap(),
        |world, _| world.settle_all().unwrap(),
    ];
    for end in ends {
        let mut world = debian.world();
        for trial in world.add(&debian.packages).unwrap().trials {
            if trial.key != key {
                world.accept(&trial.key).unwrap();
            }
        }
        // Programs started by a trial do not wait: they might be part of the trial.
        let at_once = ask(debian, world.mounted(), &joined, "now", "dpkg --print-architecture");
        assert_eq!(String::from_utf8(at_once.stdout).unwrap(), said);
        let ended = started_before(debian, &mut world, &joined, |world| end(world, &key));
        assert_eq!(ended, (said.clone(), [1, 1]));
    }
}
