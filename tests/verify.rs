//! An image that native twins helped to make is verified: its root is made once more without them.

use crate::support::{self, Kiln, Ran, Recipe, foreign, repository::Repository, squashfs};

/// Builds an RPM root with this script at its end, and verifies it.
fn verified(kiln: &Kiln, script: &str, arguments: &[&str]) -> Ran {
    let (recipe, repository) = (Recipe::copy_of("rpm-shell"), Repository::shell().of(foreign()));
    let config = fs_err::read_to_string(support::source_dir().join("recipes/rpm-shell/config.sh")).unwrap();
    let recipe = recipe.with("config.sh", &format!("{config}\n{script}\n"));
    let set = repository.set();
    let build = ["build", recipe.path(), "--arch", foreign(), &set, "--verify-twins"];
    kiln.run([&build[..], arguments].concat())
}

#[test]
fn equal_roots_are_verified() {
    needs!(support::no_namespaces(), support::no_emulation());
    let kiln = Kiln::new();
    let built = verified(&kiln, "", &[]).ok();
    assert!(built.values("fallback").is_empty(), "{}", built.stdout);
    let job = kiln.jobs().pop().unwrap();
    let (status, log) = (kiln.status(&job), kiln.log(&job));
    assert_eq!((&status["attempt"], &status["verify_twins"]), (&1.into(), &true.into()));
    // The counts are those of the image that is delivered.
    assert!(status["execs"]["twins"].as_u64().unwrap() > 200, "{status:#}");
    let mut steps = status["steps"].as_array().unwrap().iter();
    assert!(steps.any(|step| step["step"] == "verify"), "{status:#}");
    assert!(log.contains("verified: the roots are equal, "), "{log}");
    kiln.assert_clean();
}

#[test]
fn a_root_that_shows_its_twins_is_replaced_by_an_emulated_one() {
    needs!(support::no_namespaces(), support::no_emulation());
    let kiln = Kiln::new();
    // A twin is started by its loader, and the kernel says so. A random number is nothing that twins cause.
    let script = "tr '\\0' '\\n' < /proc/$$/cmdline | head -n 1 > /etc/command
        mkdir /etc/chance; echo $RANDOM$RANDOM > /etc/chance/number; : > /etc/chance/$RANDOM$RANDOM";
    let output = tempfile::tempdir().unwrap();
    let built = verified(&kiln, script, &["--output", output.path().to_str().unwrap()]).ok();
    let told = built.values("fallback").concat();
    assert!(told.starts_with("try 1, with native twins, failed: "), "{told}");
    assert!(
        told.contains("/etc/command has ") && !told.contains("/etc/chance"),
        "{told}"
    );
    // The shell opens the file, and the program writes it.
    assert!(
        told.contains(", written by /usr/bin/bash, then /usr/bin/head"),
        "{told}"
    );
    let job = kiln.jobs().pop().unwrap();
    let (status, log) = (kiln.status(&job), kiln.log(&job));
    let error = &status["twins_fallback"]["error"];
    assert_eq!(
        (&error["code"], &error["step"]),
        (&"twins_differ".into(), &"verify".into())
    );
    assert_eq!(
        (&status["attempt"], &status["twins_in_force"]),
        (&2.into(), &"off".into())
    );
    for line in [
        "differs without native twins: /etc/command has ",
        "differs between any two builds: /etc/chance/number has ",
        "nothing to verify: the image's programs are all emulated",
    ] {
        assert!(log.contains(line), "{line}: {log}");
    }
    assert!(!log.contains("differs without native twins: /etc/chance"), "{log}");
    let command = squashfs::read(&output.path().join(foreign()).join("rootfs"), "etc/command");
    assert!(!command.contains(".kiln"), "{command}");
    kiln.assert_clean();
}

#[test]
fn a_native_root_has_nothing_to_verify() {
    needs!(support::no_namespaces());
    let (recipe, repository) = (Recipe::copy_of("rpm-minimal"), Repository::native());
    let kiln = Kiln::new();
    kiln.run(["build", recipe.path(), &repository.set(), "--verify-twins"])
        .ok();
    let log = kiln.log(&kiln.jobs().pop().unwrap());
    assert!(
        log.contains("nothing to verify: the image's programs run natively"),
        "{log}"
    );
}
