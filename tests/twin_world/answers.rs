//! Tests the answers that native programs get and give in a foreign root.

use std::sync::LazyLock;

use kiln_agent::twins::world::World;
use kiln_records::arch::Arch;

use crate::support::no_namespaces;
use crate::twin_world::debian::{Debian, target};

const CPUINFO: &str = "processor\t: 0\nmodel name\t: the emulator's\n";

/// A root all of whose packages have twins.
static COMPLETE: LazyLock<(&Debian, World)> = LazyLock::new(|| {
    let debian = Debian::shared();
    let mut world = debian.world();
    let added = world.add(&debian.packages).unwrap();
    assert_eq!(added.refused, []);
    for trial in added.trials {
        world.accept(&trial.key).unwrap();
    }
    world.put_cpuinfo(CPUINFO.as_bytes()).unwrap();
    (debian, world)
});

/// The output of the twin of `program`.
#[track_caller]
fn said(program: &str, arguments: &[&str]) -> String {
    let (debian, world) = &*COMPLETE;
    let output = debian.twin(world, program, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && errors.is_empty(),
        "{program} {arguments:?}: {} {errors}",
        output.status
    );
    String::from_utf8(output.stdout).unwrap()
}

fn perl(script: &str) -> String {
    said("/usr/bin/perl", &["-e", script])
}

#[test]
fn every_library_is_there() {
    let (_, world) = &*COMPLETE;
    assert_eq!(world.missing().collect::<Vec<_>>(), Vec::<&str>::new());
    let census = world.census();
    assert!(
        census.programs > 100 && census.modules > 50 && census.libraries > 20,
        "{census:?}"
    );
}

#[test]
fn uname_is_the_targets() {
    needs!(no_namespaces());
    assert_eq!(perl("use POSIX; print +(POSIX::uname())[4]"), target().name());
}

#[test]
fn cpuinfo_is_the_emulators() {
    needs!(no_namespaces());
    assert_eq!(said("/bin/cat", &["/proc/cpuinfo"]), CPUINFO);
    assert_eq!(
        said(
            "/bin/bash",
            &["-c", "while read -r line; do echo \"$line\"; done < /proc/cpuinfo"]
        ),
        CPUINFO
    );
    assert!(said("/bin/grep", &["name", "/proc/cpuinfo"]).contains("the emulator's"));
    // By other paths, of which a program can make up any number.
    for path in ["/proc/self/../cpuinfo", "/proc//./cpuinfo", "/dev/../proc/cpuinfo"] {
        assert_eq!(said("/bin/cat", &[path]), CPUINFO, "{path}");
        assert_eq!(said("/bin/sed", &["", path]), CPUINFO, "{path}");
        assert_eq!(perl(&format!("open F, '{path}'; print <F>")), CPUINFO, "{path}");
    }
    let relative = perl(
        "symlink '/proc/cpuinfo', '/tmp/info'; chdir '/proc'; for $f ('cpuinfo', '/tmp/info') { open F, $f; print <F> }",
    );
    assert_eq!(relative, CPUINFO.repeat(2));
    // Other files of the kernel's are its own.
    assert!(said("/bin/cat", &["/proc/version"]).starts_with("Linux version"));
}

#[test]
fn a_program_has_its_own_path_and_name() {
    needs!(no_namespaces());
    assert_eq!(said("/usr/bin/readlink", &["/proc/self/exe"]), "/usr/bin/readlink\n");
    assert_eq!(perl("print readlink(\"/proc/$$/exe\")"), "/usr/bin/perl");
    assert_eq!(perl("print $^X, ' ', $0"), "/usr/bin/perl -e");
    assert_eq!(said("/bin/cat", &["/proc/self/comm"]), "a name\n");
    // Of other processes the kernel tells.
    assert_eq!(perl("print readlink('/proc/1/exe') ne '/usr/bin/perl' ? 1 : $$"), "1");
}

#[test]
fn modules_are_native() {
    needs!(no_namespaces());
    let script = "use POSIX; use Socket; use Fcntl; use List::Util 'sum'; print POSIX::floor(1.5), sum(2, 3), ' ', \
        inet_ntoa(INADDR_LOOPBACK)";
    assert_eq!(perl(script), "15 127.0.0.1");
}

#[test]
fn paths_that_are_compiled_in_lead_to_the_targets_files() {
    needs!(no_namespaces());
    let host = Arch::host().multiarch();
    // As libpam loads its modules, and reads its files.
    for module in ["pam_permit.so", "pam_unix.so"] {
        let load = format!(
            "use DynaLoader; print DynaLoader::dl_load_file('/lib/{host}/security/{module}') ? 'loaded' : DynaLoader::dl_error()"
        );
        assert_eq!(perl(&load), "loaded");
    }
    let open = format!(
        "open(my $file, '<', '/usr/lib/{host}/libc.so.6') or die $!; read($file, my $bytes, 20); print ord substr $bytes, 18"
    );
    assert_eq!(perl(&open), target().elf_machine().to_string());
    // A file that exists in neither directory is missing in the usual way.
    assert_eq!(
        perl(&format!(
            "print open(my $file, '<', '/usr/lib/{host}/none') ? 'there' : $!+0"
        )),
        "2"
    );
    assert_eq!(
        perl("use DynaLoader; print DynaLoader::dl_load_file('/none/x.so') // 'none'"),
        "none"
    );
}

#[test]
fn nobody_sees_how_it_is_told() {
    needs!(no_namespaces());
    assert_eq!(said("/usr/bin/env", &[]), "PATH=/usr/sbin:/usr/bin\nSHELL=/bin/sh\n");
    let (debian, _) = &*COMPLETE;
    let child = format!(
        "system('/.kiln/loader', '--library-path', '/.kiln/lib', '/.kiln/bin/{}'); print join ',', sort keys %ENV",
        debian.key("/usr/bin/env")
    );
    assert_eq!(perl(&child), "PATH=/usr/sbin:/usr/bin\nSHELL=/bin/sh\nPATH,SHELL");
}

#[test]
fn character_sets_are_native() {
    needs!(no_namespaces());
    let (_, world) = &*COMPLETE;
    let modules = world.mounted().join("lib/gconv");
    for name in ["gconv-modules", "gconv-modules.cache", "UTF-16.so"] {
        assert!(modules.join(name).exists(), "{name}");
    }
}
