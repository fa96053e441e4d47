//! A program that dies under the emulator, or as a native twin, fails the job, whatever the recipe's scripts make of it.

use crate::support::{self, Kiln, Recipe, foreign, repository::Repository};

/// A script that looks well although a program in it dies by `signal`.
fn hiding(signal: &str) -> Recipe {
    Recipe::with_script(&format!("sh -c 'kill -{signal} $$' 2>/dev/null || true; exit 0"))
}

#[test]
fn a_crash_that_a_script_hides_is_found_under_the_emulator() {
    needs!(support::no_namespaces(), support::no_emulation());
    let repository = Repository::foreign();
    for signal in ["SEGV", "ABRT", "SYS"] {
        let kiln = Kiln::new();
        let ran = kiln.run(["build", hiding(signal).path(), "--arch", foreign(), &repository.set()]);
        let words = ran.failed();
        assert_eq!(kiln.failure_code(), "emulator_fault", "{words}");
        let told = format!("was ended by SIG{signal} under the emulator");
        assert!(words.contains(&told) && words.contains("`sh -c kill"), "{words}");
        let log = kiln.log(&kiln.jobs()[0]);
        assert_eq!(log.matches("emulator fault: ").count(), 1, "{log}");
        kiln.assert_clean();
    }
}

#[test]
fn a_crash_of_a_native_twin_is_the_crash_of_the_emulated_program() {
    needs!(support::no_namespaces(), support::no_emulation());
    let repository = Repository::shell().of(foreign());
    let script = "#!/bin/bash\nbash -c 'kill -SEGV $$' 2>/dev/null || true\n";
    let recipe = Recipe::copy_of("rpm-shell").with("config.sh", script);
    let build = |arguments: &[&str]| {
        let kiln = Kiln::new();
        let set = repository.set();
        let all = [&["build", recipe.path(), "--arch", foreign(), &set], arguments].concat();
        let words = kiln.run(all).failed();
        assert_eq!(kiln.failure_code(), "emulator_fault", "{words}");
        let log = kiln.log(&kiln.jobs()[0]);
        kiln.assert_clean();
        log
    };
    let died = |log: &str, how: &str| {
        let (begin, end) = ("emulator fault: `bash -c kill -SEGV $$` (/usr/bin/bash, process ", how);
        let is_told = |line: &str| line.contains(begin) && line.ends_with(end);
        assert_eq!(log.lines().filter(|line| is_told(line)).count(), 1, "{how}: {log}");
    };
    died(&build(&["--twins", "off"]), "was ended by SIGSEGV under the emulator");
    died(&build(&[]), "was ended by SIGSEGV as a native twin");
}

#[test]
fn a_program_that_somebody_ends_has_not_crashed() {
    needs!(support::no_namespaces(), support::no_emulation());
    let repository = Repository::foreign();
    let script = "for signal in TERM KILL PIPE HUP INT USR1; do sh -c \"kill -$signal \\$\\$\" || true; done\n\
                  sh -c 'kill -STOP $$' & sleep 1; kill -CONT $!; wait $! && echo went on";
    let kiln = Kiln::new();
    let recipe = Recipe::with_script(script);
    kiln.run(["build", recipe.path(), "--arch", foreign(), &repository.set()])
        .ok();
    let log = kiln.log(&kiln.jobs()[0]);
    assert!(log.contains("went on"), "a stopped program was not continued: {log}");
}

#[test]
fn a_native_program_that_crashes_is_the_scripts_own_affair() {
    needs!(support::no_namespaces());
    let repository = Repository::native();
    let kiln = Kiln::new();
    kiln.run(["build", hiding("SEGV").path(), &repository.set()]).ok();
}
