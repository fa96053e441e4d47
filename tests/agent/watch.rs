//! What the watcher says of native twins, by the registers that they leave. The program under it begins as twins do.

use std::{
    io::Read,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use kiln_agent::{
    twins::{call, layout},
    watch::{Cause, Death, Report},
};

use crate::support::{self, KILN_AGENT, no_namespaces};

/// A program that computes something whose bits differ between CPUs, or nothing, in the way that its last argument says.
/// It masks the signal of an x86_64, as no twin can.
const PROGRAM: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile double zero, number, large = 1e300;
static volatile int whole;

static void *compute(void *nothing) { number = zero / zero; return nothing; }

int main(int count, char **words) {
    const char *how = words[count - 1];
    pthread_t thread;
    if (!strcmp(how, "nothing")) number = large / 3 + 1 / zero;
    if (!strcmp(how, "no-number")) compute(0);
    if (!strcmp(how, "no-integer")) whole = large;
    if (!strcmp(how, "in-a-thread")) { pthread_create(&thread, 0, compute, 0); pthread_join(thread, 0); }
    if (!strcmp(how, "killed")) { compute(0); raise(SIGKILL); }
    if (!strcmp(how, "crashed")) { compute(0); raise(SIGSEGV); }
    if (!strcmp(how, "left-behind") && !fork()) { compute(0); for (;;) pause(); }
    if (!strcmp(how, "left-behind")) usleep(50000);
    if (!strcmp(how, "renamed")) { compute(0); memset(words[0], 'x', 20); }
    return 0;
}
"#;

/// A root whose loader of twins is the program.
fn root() -> tempfile::TempDir {
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let loader = inside(&root, layout::LOADER);
    fs_err::create_dir_all(loader.parent().unwrap()).unwrap();
    let source = root.path().join("program.c");
    fs_err::write(&source, PROGRAM).unwrap();
    let compiled = Command::new("cc")
        .args(["-static", "-O1", "-pthread", "-o"])
        .args([&loader, &source])
        .status();
    assert!(compiled.unwrap().success());
    root
}

fn inside(root: &tempfile::TempDir, path: &str) -> PathBuf {
    root.path().join(path.trim_start_matches('/'))
}

/// What the watcher reports of the program, called as the twin of `/usr/bin/prog`.
fn watched(root: &Path, how: &str) -> Vec<Death> {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let words = call::words("prog", "/.kiln/bin/ab-1-2");
    let mut command = Command::new(support::kiln_program().with_file_name(KILN_AGENT));
    command.args(["watch", "/emulator", "unshare", "--map-root-user", "chroot"]);
    command.arg(root).args(words).args(["-x", "script", how]);
    command
        .env_clear()
        .envs([("KILN_EXE", "/usr/bin/prog"), ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")]);
    let status = command.stdin(Stdio::from(OwnedFd::from(theirs))).status().unwrap();
    drop(command);
    assert!(
        status.success() || ["killed", "crashed"].contains(&how),
        "{how}: {status}"
    );
    let mut lines = String::new();
    ours.read_to_string(&mut lines).unwrap();
    let reports = lines.lines().map(|line| serde_json::from_str(line).unwrap());
    let deaths = reports.filter_map(|report| match report {
        Report::Death(death) => Some(death),
        Report::Programs(_) | Report::Failures(_) => None,
        Report::Blind(why) => panic!("{why}"),
    });
    deaths.collect()
}

#[test]
fn a_twin_with_a_result_that_differs_is_seen_however_it_ends() {
    needs!(no_namespaces());
    let root = root();
    let hash = call::hash_of((b"/usr/bin/prog\0", b"-x\0script\0"));
    for how in [
        "no-number",
        "no-integer",
        "in-a-thread",
        "killed",
        "crashed",
        "left-behind",
    ] {
        let deaths = watched(root.path(), how);
        let [death] = &deaths[..] else {
            panic!("{how}: {deaths:?}")
        };
        assert_eq!(death.cause, Cause::TwinUnequal(Some(hash)), "{how}");
        assert_eq!(
            (&*death.program, &*death.command),
            ("/usr/bin/prog", &*format!("prog -x script {how}"))
        );
    }
    assert_eq!(watched(root.path(), "nothing"), []);
    // Nothing tells which command it was.
    let deaths = watched(root.path(), "renamed");
    assert_eq!(
        deaths.first().map(|death| &death.cause),
        Some(&Cause::TwinUnequal(None)),
        "{deaths:?}"
    );
}
