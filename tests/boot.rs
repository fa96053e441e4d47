//! Tests `kiln check boot` with real kernels in QEMU, for two architectures: what comes up, what does not and why, and what
//! is left.

use std::{
    path::Path,
    process::{Child, Stdio},
};

use serde_json::Value;

use crate::support::{
    self, HOST, Kiln, Ran,
    bootable::{lacking, tiny},
    eventually,
    serve::Server,
};

fn check(kiln: &Kiln, image: &Path, options: &[&str]) -> Ran {
    let mut command = kiln.command(["check", "boot"]);
    command.arg(image).args(options).arg("--timeout=120");
    support::run(command)
}

/// The result of a check, which must have this exit code.
fn checked(kiln: &Kiln, arch: &str, code: i32, options: &[&str]) -> (Value, Ran) {
    let ran = check(kiln, &tiny(arch), &[&["--json"], options].concat());
    assert_eq!(ran.code, Some(code), "{}{}", ran.stdout, ran.stderr);
    (serde_json::from_str(&ran.stdout).unwrap(), ran)
}

fn assert_nothing_left(kiln: &Kiln) {
    let left: Vec<_> = fs_err::read_dir(kiln.data().join("sandboxes")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    kiln.assert_clean();
}

#[test]
fn an_image_comes_up_on_its_own_and_on_a_foreign_architecture() {
    for arch in [HOST, support::foreign()] {
        needs!(support::no_namespaces(), lacking(arch));
        let kiln = Kiln::bare();
        let ran = check(&kiln, &tiny(arch), &[]);
        let said = ran.ok().stdout.replace(kiln.data().to_str().unwrap(), "DATA");
        let lines: Vec<_> = said.lines().collect();
        assert_eq!(lines[0], format!("image      {arch} ({arch})"));
        assert!(lines[1].starts_with("machine    QEMU "), "{said}");
        assert!(
            lines[2].starts_with("up         in ") && lines[2].ends_with("s: tiny login:"),
            "{said}"
        );
        assert_eq!(lines[3..], [format!("console    DATA/boots/{arch}-{arch}.log")]);
        let console = fs_err::read_to_string(kiln.data().join(format!("boots/{arch}-{arch}.log"))).unwrap();
        assert!(
            console.contains("Linux version") && console.contains("\nTiny root\n"),
            "{console}"
        );
        assert_nothing_left(&kiln);
    }
}

#[test]
fn an_image_in_s3_is_compared_with_its_manifest_and_booted_until_a_sign() {
    needs!(support::no_namespaces(), lacking(HOST));
    let kiln = Kiln::bare();
    let mut command = kiln.command(["images", "create", "--server=local", "--name=stored", "--format=json"]);
    command.args(["--arch", HOST, "--from"]).arg(tiny(HOST));
    let record: Value = serde_json::from_str(&support::run(command).ok().stdout).unwrap();
    let options = ["--server=local", "--until=^Tiny r(oo|u)t$", "--json"];
    let ran = check(&kiln, Path::new("stored"), &options);
    let result: Value = serde_json::from_str(&ran.ok().stdout).unwrap();
    assert_eq!(result["outcome"], "up");
    assert_eq!(result["seen"], "Tiny root");
    assert_eq!(result["id"], record["id"]);
    let downloads = fs_err::read_dir(kiln.data().join("downloads")).unwrap();
    assert_eq!(downloads.count(), 0);
    assert_nothing_left(&kiln);
}

#[test]
fn why_an_image_does_not_come_up_is_said() {
    needs!(support::no_namespaces(), lacking(HOST));
    let kiln = Kiln::bare();
    let (result, ran) = checked(&kiln, HOST, 1, &["--append", "tiny.do=panic"]);
    assert_eq!(result["cause"], "kernel_panic");
    assert!(ran.stderr.contains("Attempted to kill init!"), "{}", ran.stderr);
    let (result, ran) = checked(&kiln, HOST, 1, &["--append", "tiny.do=shell"]);
    assert_eq!(result["cause"], "module_missing");
    assert_eq!(result["missing_modules"], serde_json::json!(["nfs"]));
    let console = fs_err::read_to_string(result["console"].as_str().unwrap()).unwrap();
    for text in [ran.stdout, ran.stderr, console] {
        assert!(!text.contains("evil") && !text.contains("\u{1b}[31mmodprobe"), "{text}");
    }
    let (result, _) = checked(&kiln, HOST, 1, &["--append", "tiny.do=off"]);
    assert_eq!(result["cause"], "ended");
    assert_nothing_left(&kiln);
}

#[test]
fn a_server_boots_the_images_of_sets_that_require_it() {
    needs!(support::no_namespaces(), lacking(HOST));
    let server = Server::start(&[]);
    let run = |words: &[&str]| {
        let mut command = server.kiln.command(words);
        command.args(["--server", &server.url]);
        support::run(command)
    };
    let bad = server.kiln.data().join("bad");
    fs_err::create_dir_all(&bad).unwrap();
    for name in ["rootfs", "kernel", "initrd"] {
        fs_err::copy(tiny(HOST).join(name), bad.join(name)).unwrap();
    }
    fs_err::write(bad.join("boot_parameters"), "tiny.do=panic").unwrap();
    for (name, from) in [("good", &tiny(HOST)), ("bad", &bad)] {
        let from = from.to_str().unwrap();
        run(&["images", "create", "--name", name, "--arch", HOST, "--from", from]).ok();
    }
    run(&["sets", "create", "compute@1", "--image", "good", "--requires", "boot"]).ok();
    let made = run(&["sets", "create", "compute@2", "--image", "bad", "--requires", "boot"]).ok();
    assert!(made.stdout.contains("booting"), "{}", made.stdout);

    let waited = run(&["sets", "wait", "compute@1", "--timeout", "300"]).ok();
    assert!(
        waited.stdout.contains("compute@1") && waited.stdout.contains("complete"),
        "{}",
        waited.stdout
    );
    let waited = run(&["sets", "wait", "compute@2", "--timeout", "300"]);
    assert_eq!(waited.code, Some(2), "{}", waited.stderr);
    assert!(
        waited.stdout.contains("it did not boot: the kernel panicked") && waited.stdout.contains("kill init"),
        "{}",
        waited.stdout
    );
    let resolved = run(&["catalogue", "resolve", "compute", "--arch", HOST, "--format", "json"]).ok();
    let resolved: Value = serde_json::from_str(&resolved.stdout).unwrap();
    assert_eq!(resolved["version"], "1", "{resolved}");
    // No machine runs any more, and no file is left.
    assert_eq!(
        fs_err::read_dir(server.kiln.data().join("downloads")).unwrap().count(),
        0
    );
    let sandboxes = fs_err::read_dir(server.kiln.data().join("sandboxes")).unwrap().count();
    assert_eq!(sandboxes, 0);
    server.stop();
}

#[test]
fn a_boot_that_waits_is_ended() {
    needs!(support::no_namespaces(), lacking(HOST));
    let kiln = Kiln::bare();
    let mut command = kiln.command(["check", "boot", "--timeout=1", "--append=tiny.do=wait"]);
    command.arg(tiny(HOST));
    let ran = support::run(command);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("is not up after 1 s"), "{}", ran.stderr);
    assert_nothing_left(&kiln);
}

#[test]
fn a_killed_check_takes_its_machine_along() {
    needs!(support::no_namespaces(), lacking(HOST));
    let kiln = Kiln::bare();
    let mut command = kiln.command(["check", "boot", "--append=tiny.do=wait"]);
    let mut child = command.arg(tiny(HOST)).stderr(Stdio::null()).spawn().unwrap();
    eventually(|| machine_of(&child));
    let machine = machine_of(&child).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    eventually(|| !Path::new(&format!("/proc/{machine}")).exists());
    // The next one clears away what is left.
    let mut command = kiln.command(["check", "boot", "--timeout=1"]);
    command.arg(tiny(HOST)).arg("--append=tiny.do=wait");
    support::run(command);
    assert_nothing_left(&kiln);
}

/// The process of QEMU that descends from this one.
fn machine_of(child: &Child) -> Option<u32> {
    let mut next = vec![child.id()];
    while let Some(pid) = next.pop() {
        let name = fs_err::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if name.starts_with("qemu-system") {
            return Some(pid);
        }
        let children = fs_err::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        next.extend(children.split_whitespace().map(|pid| pid.parse::<u32>().unwrap()));
        for task in fs_err::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let children = fs_err::read_to_string(task.path().join("children")).unwrap_or_default();
            next.extend(children.split_whitespace().map(|pid| pid.parse::<u32>().unwrap()));
        }
    }
    None
}

#[test]
fn what_cannot_boot_is_refused() {
    let kiln = Kiln::bare();
    let dir = tempfile::tempdir().unwrap();
    fs_err::write(dir.path().join("rootfs"), "x").unwrap();
    let shown = |options: &[&str]| {
        let ran = check(&kiln, dir.path(), options);
        let name = dir.path().file_name().unwrap().to_str().unwrap();
        format!("exit code {}\n{}", ran.code.unwrap(), ran.stderr).replace(name, "DIR")
    };
    insta::assert_snapshot!(shown(&[]), @r"
    exit code 1
    error: nothing says for which architecture `DIR` is

    hint: name it with `--arch`
    ");
    insta::assert_snapshot!(shown(&["--arch", "s390x"]), @r"
    exit code 1
    error: the image `DIR` cannot boot: it has no kernel

    hint: its recipe needs a kernel package and an initrd in /boot; recipes/debian-compute has both
    ");
    insta::assert_snapshot!(shown(&["--until", "a("]), @r"
    exit code 2
    error: `--until a(` is no regular expression: regex parse error:
        a(
         ^
    error: unclosed group

    hint: `multi-user`, or a regular expression for a line of the console
    ");
    insta::assert_snapshot!(shown(&["--memory", "1MiB"]), @r"
    exit code 2
    error: `--memory 1.0 MiB` is too little to boot

    hint: 128 MiB is the least, 2 GiB the default
    ");
    fs_err::write(dir.path().join("vmlinuz"), "x").unwrap();
    fs_err::write(dir.path().join("initrd"), "x").unwrap();
    insta::assert_snapshot!(shown(&["--arch", "s390x", "--append", &"x".repeat(3000)]), @r"
    exit code 2
    error: the kernel parameters are longer than 2048 bytes, or have control characters

    hint: shorten those of `--append` or of the image
    ");
    let mut command = kiln.command(["check", "boot", "--arch=s390x"]);
    command.arg(dir.path()).env("PATH", "/nowhere");
    let ran = support::run(command);
    insta::assert_snapshot!(ran.failed(), @r"
    qemu-system-s390x is not installed
    ");
}
