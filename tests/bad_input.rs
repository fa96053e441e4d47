//! Every bad input leads to exit code 1, the cause in one line, a hint, how to read the log once there is one, and leaves
//! nothing behind.

use crate::support::{
    self, Kiln, Ran, Recipe,
    archive::{Archive, bomb, no_archive},
    repository::Repository,
    run,
};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::Value;
use tar::EntryType;

/// Runs a build that must fail as everything fails; returns the error's text and the job's failure code, which is
/// empty when there was no job.
#[track_caller]
fn refused(args: &[&str]) -> (String, String) {
    let kiln = Kiln::new();
    let ran = kiln.run([&["build"], args].concat());
    let error = ran.failed();
    let code = if kiln.jobs().is_empty() {
        String::new()
    } else {
        assert_log_named(&kiln, &ran);
        kiln.failure_code()
    };
    kiln.assert_nothing_built();
    (error, code)
}

/// The command that prints the log is named, and the log ends with the error.
#[track_caller]
fn assert_log_named(kiln: &Kiln, ran: &Ran) {
    let log = kiln.log(&kiln.jobs()[0]);
    let command = ran
        .stderr
        .lines()
        .find_map(|line| line.strip_prefix("log        kiln "))
        .unwrap_or_else(|| panic!("no line names the log: {}", ran.stderr));
    let mut command = kiln.command(command.split_whitespace());
    command.env("KILN_SERVER", "local");
    let shown = run(command).ok();
    assert_eq!(shown.stdout.trim_end_matches('\n'), log);
    assert!(log.lines().last().unwrap().contains("error: "), "{log}");
}

#[track_caller]
fn assert_refused(args: &[&str], code: &str, words: &[&str]) {
    let (error, found) = refused(args);
    assert_eq!(found, code, "{error}");
    for word in words {
        assert!(error.contains(word), "`{word}` is missing: {error}");
    }
}

#[test]
fn archives_that_are_none_or_harmful() {
    needs!(support::no_namespaces());
    let outside = "../../../../etc/passwd";
    let archive = Archive::with_config;
    for (archive, words) in [
        (no_archive(b"this is text, and that for a while"), ["not an archive"]),
        (no_archive(b""), ["recipe"]),
        (archive().file("../evil", b"x").made(), ["`../evil`"]),
        (archive().file("a/../../evil", b"x").made(), ["`a/../../evil`"]),
        (archive().file("/tmp/evil", b"x").made(), ["`/tmp/evil`"]),
        (archive().link(EntryType::Block, "disk", "").made(), ["device node"]),
        (archive().link(EntryType::Char, "tty", "").made(), ["device node"]),
        (archive().link(EntryType::Symlink, "out", outside).made(), ["`out`"]),
        (archive().link(EntryType::Link, "out", "../secret").made(), ["`out`"]),
        (
            archive().link(EntryType::Link, "hosts", "/etc/hosts").made(),
            ["`hosts`"],
        ),
        (bomb(2 << 30), ["bytes"]),
        (Archive::empty().file("readme", b"x").made(), ["config.xml"]),
    ] {
        // Before there is a job.
        assert_refused(&[archive.path()], "", &words);
    }
}

#[test]
fn recipes_that_are_none() {
    needs!(support::no_namespaces());
    let gone = Recipe::copy_of("rpm-minimal").without("config.xml");
    assert_refused(&[gone.path()], "", &["config.xml"]);
    assert_refused(&["/nowhere/at/all"], "", &["/nowhere/at/all"]);

    let plain = || Recipe::copy_of("rpm-minimal").without(".ims_recipe_template.yaml");
    let broken = plain().with("config.xml", "<image schemaversion=\"8.0\"><preferences></image>");
    assert_refused(&[broken.path()], "recipe_config_invalid", &["config.xml"]);
    let text = plain().with("config.xml", "this is no XML");
    assert_refused(&[text.path()], "recipe_config_invalid", &["config.xml"]);
}

#[test]
fn unknown_types_and_architectures() {
    let recipe = Recipe::copy_of("rpm-minimal");
    assert_refused(&[recipe.path(), "--type=packer"], "", &["`packer`"]);
    assert_refused(
        &[recipe.path(), "--arch=x86_64,vax"],
        "",
        &["`vax`", "x86_64", "aarch64", "ppc64le", "s390x", "riscv64"],
    );
}

#[test]
fn template_values_that_are_missing() {
    needs!(support::no_namespaces());
    // The only value that rpm-minimal cannot do without.
    let recipe = Recipe::copy_of("rpm-minimal");
    let config = fs_err::read_to_string(format!("{}/config.xml", recipe.path())).unwrap();
    let line = 1 + config.lines().position(|line| line.contains("rpm_repo")).unwrap();
    let kiln = Kiln::new();
    let ran = kiln.run(["build", recipe.path()]);
    let error = ran.failed();
    assert!(
        error.contains(&format!("config.xml:{line}")) && error.contains("`rpm_repo`"),
        "{error}"
    );
    assert!(ran.stderr.contains("--set rpm_repo="), "{}", ran.last());
    assert_eq!(kiln.failure_code(), "template_undefined");
    kiln.assert_nothing_built();
}

#[test]
fn repositories_that_do_not_answer() {
    needs!(support::no_namespaces());
    let recipe = Recipe::copy_of("rpm-minimal");
    // Bound and closed again, so that the port is free.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let repository = format!("rpm_repo=http://127.0.0.1:{port}/none");
    let args = [recipe.path(), "--repos-timeout=3", "--set", &repository];
    assert_refused(&args, "repo_unreachable", &[&format!("127.0.0.1:{port}")]);
}

#[test]
fn packages_that_do_not_exist() {
    needs!(support::no_namespaces());
    let repository = Repository::native();
    let recipe = Recipe::copy_of("rpm-minimal").with_config("\"tiny-kernel\"", "\"no-such-package\"");
    for manager in ["zypper", "dnf4"] {
        let manager = format!("package_manager={manager}");
        let args = [recipe.path(), &repository.set(), "--set", &manager];
        assert_refused(&args, "package_not_found", &["no-such-package"]);
    }
}

#[test]
fn scripts_that_fail() {
    needs!(support::no_namespaces());
    let repository = Repository::native();
    let recipe = Recipe::with_script("echo about to fail; exit 42");
    assert_refused(&[recipe.path(), &repository.set()], "script_failed", &["config.sh"]);
}

#[test]
fn descriptions_that_kiwi_refuses() {
    needs!(support::no_namespaces());
    let repository = Repository::native();
    let recipe = Recipe::copy_of("rpm-minimal").with_config("<locale>C</locale>", "<colour>blue</colour>");
    assert_refused(&[recipe.path(), &repository.set()], "recipe_config_invalid", &[]);
}

#[test]
fn a_disk_that_is_full() {
    needs!(support::no_namespaces(), support::not_root());
    let repository = Repository::native();
    let dir = tempfile::Builder::new().prefix("kiln-test-").tempdir().unwrap();
    let mounted = Mounted::tmpfs(dir.path(), "size=128m");
    let kiln = Kiln::at(dir.path());
    kiln.link_toolboxes();
    // Otherwise this disk would be too small for any job.
    let build = |recipe: &Recipe, needs: &str| {
        let mut command = kiln.command(["build", recipe.path(), &repository.set()]);
        command
            .env("KILN__CAPACITY__DISK_FLOOR", "1MiB")
            .env("KILN__CAPACITY__FIRST_DISK", needs)
            .env("KILN__CAPACITY__LONGEST_WAIT", "1s");
        run(command)
    };
    let ran = build(&Recipe::with_script("cat /dev/zero > /var/full"), "16MiB");
    let error = ran.failed();
    assert!(error.contains("full") || error.contains("No space left"), "{error}");
    assert!(ran.stderr.contains("hint: free space"), "{}", ran.last());
    assert_eq!(kiln.failure_code(), "disk_full");
    kiln.assert_nothing_built();
    // With the space it took given back, the next build works.
    build(&Recipe::copy_of("rpm-minimal"), "16MiB").ok();
    // Space that another program holds is waited for, but not for ever.
    let of_another = dir.path().join("of-another");
    fs_err::write(&of_another, vec![1; 80 << 20]).unwrap();
    let ran = build(&Recipe::copy_of("rpm-minimal"), "64MiB");
    let error = ran.failed();
    assert!(error.contains("needs 64.0 MiB of disk"), "{error}");
    assert!(error.contains("for other programs to free it"), "{error}");
    let refused = |job: &Value| job["state"]["error"]["code"] == "no_capacity";
    assert!(kiln.jobs().iter().any(refused), "{:#?}", kiln.jobs());
    drop(mounted);
}

/// A file system of its own for a data directory.
struct Mounted<'a>(&'a std::path::Path);

impl<'a> Mounted<'a> {
    fn tmpfs(dir: &'a std::path::Path, options: &str) -> Self {
        mount(Some("kiln-test"), dir, Some("tmpfs"), MsFlags::empty(), Some(options)).unwrap();
        Self(dir)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = umount2(self.0, MntFlags::MNT_DETACH);
    }
}
