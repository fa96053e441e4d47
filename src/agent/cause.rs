//! Finds the first cause of a tool's failure in its output. The last line of a log usually says only that something
//! failed; the reason is some way before it. Pure: no I/O.

use kiln_records::{Code, Failure};

/// A pattern for lines that name a cause.
struct Known {
    /// The texts that the line must contain, all of them, in lower case.
    has: &'static [&'static str],
    code: Code,
    hint: &'static str,
}

const fn known(has: &'static [&'static str], code: Code, hint: &'static str) -> Known {
    Known { has, code, hint }
}

const DISK: &str = "free space where Kiln keeps its data, or allow the job more of it";
const MEMORY: &str = "allow the job more memory: `--memory SIZE`, or `job_mem_size`";
const EMULATOR: &str = "a program died because of the emulator; see the lines before it";
const FOREIGN: &str = "a script runs a program of a foreign architecture: find the package that it is from";
const RESOLVE: &str = "check the repository's address and this host's name resolution";
const REACH: &str = "check the repository's address, and that it can be reached from here";
const GONE: &str = "the repository lacks the file: check its address, or build again if it is being published";
const TLS: &str =
    "the repository's certificate has expired, or its authority is not among those of this host and of `ca` in [trust]";
const MIXED: &str = "the repository is being changed, or a cache is stale: build again";
const KEY: &str = "name the key that signs the repository, such as a file of the recipe: <signing key=\"this://keys/…\"/>; or put it into \
                   `signing_keys` in [trust]";
const PACKAGE: &str = "check the package's name, and that the recipe's repositories have it for this architecture";
const MODULE: &str = "the package belongs to a module of which another stream, or none, is enabled: name the stream as a <collectionModule>";
const NEEDS: &str =
    "a package depends on another that no repository of the recipe has: add the repository, or remove the package";
const CONFLICT: &str = "two packages exclude each other: remove one of them from the recipe";
const SCRIPTLET: &str = "the package's own script failed; its output precedes this line";
const DRACUT: &str = "dracut could not make the initrd: check its configuration and modules in the recipe";
const IDS: &str = "the sandbox does not have this id";
const DEVICE: &str = "a sandbox on the host's kernel can make no device nodes: leave them to the system that boots the image \
                      (systemd-tmpfiles, udev), or build in a virtual machine: `--isolation vm`";
const FAMILY: &str = "a sandbox on the host's kernel has sockets of the families unix, inet, inet6 and netlink for routes, audit and events \
                      of devices: leave this to the system that boots the image, or build in a virtual machine: `--isolation vm`";
const NO_KEY: &str =
    "check the address of the key: this://PATH is a file of the recipe, file:///PATH one of the toolbox";
const TOOL: &str = "the toolbox does not have this program; of package managers it has apt, dnf 4 and zypper";
const SCHEMA: &str = "check config.xml against kiwi's schema; the log shows the difference";

const EXPIRED: &str = "the mirror is frozen, or no longer updated: use another one, or accept its index for that repository \
                       (docs/recipes.md, \"Frozen mirrors\")";
const CLOCK: &str = "the clock of this host is wrong, or the mirror's; or accept its index for that repository (docs/recipes.md, \
                     \"Frozen mirrors\")";
const LOCALE: &str = "the root has no locale of this name: add the package that has it (glibc-locale, glibc-langpack-…, locales-all), or \
                      remove <locale>";
const KEYMAP: &str =
    "the root has no keymap of this name: add the package that has it, or remove <keytable>; config.sh can set it";

/// The known causes of failed builds: first those that make everything else fail too, then repositories, packages and
/// scripts.
const TABLE: [Known; 71] = [
    known(&["no space left on device"], Code::DiskFull, DISK),
    known(&["disk quota exceeded"], Code::DiskFull, DISK),
    known(&["enough free space in /var/cache/apt"], Code::DiskFull, DISK),
    known(&["uncaught target signal"], Code::EmulatorFault, EMULATOR),
    known(&["cannot allocate memory"], Code::OutOfMemory, MEMORY),
    known(&["memoryerror"], Code::OutOfMemory, MEMORY),
    known(&["exec format error"], Code::ExecFormat, FOREIGN),
    known(&["owner", "invalid argument"], Code::IdOutside, IDS),
    known(&["chown", "invalid argument"], Code::IdOutside, IDS),
    known(&["to uid ", "invalid argument"], Code::IdOutside, IDS),
    known(&["uid and gid", "invalid argument"], Code::IdOutside, IDS),
    known(&["set user id", "invalid argument"], Code::IdOutside, IDS),
    known(&["set group id", "invalid argument"], Code::IdOutside, IDS),
    known(&["setresuid", "invalid argument"], Code::IdOutside, IDS),
    known(&["setuid", "invalid argument"], Code::IdOutside, IDS),
    known(&["temporary failure resolving"], Code::RepoUnreachable, RESOLVE),
    known(
        &["temporary failure in name resolution"],
        Code::RepoUnreachable,
        RESOLVE,
    ),
    known(&["could not resolve host"], Code::RepoUnreachable, RESOLVE),
    known(&["could not resolve '"], Code::RepoUnreachable, RESOLVE),
    known(&["certificate verification failed"], Code::RepoUnreachable, TLS),
    known(&["ssl certificate problem"], Code::RepoUnreachable, TLS),
    known(&["certificate verify failed"], Code::RepoUnreachable, TLS),
    known(&["hash sum mismatch"], Code::RepoInconsistent, MIXED),
    known(
        &["file has unexpected size", "mirror sync"],
        Code::RepoInconsistent,
        MIXED,
    ),
    known(&["digest verification failed"], Code::RepoInconsistent, MIXED),
    known(&["does not match the expected checksum"], Code::RepoInconsistent, MIXED),
    known(
        &["downloading successful, but checksum doesn't match"],
        Code::RepoInconsistent,
        MIXED,
    ),
    known(&["release file", "is expired"], Code::RepoExpired, EXPIRED),
    known(&["release file", "is not valid yet"], Code::RepoNotYetValid, CLOCK),
    known(&["no_pubkey"], Code::RepoSignature, KEY),
    known(&["expkeysig"], Code::RepoSignature, KEY),
    known(&["is not signed"], Code::RepoSignature, KEY),
    known(&["signature verification failed"], Code::RepoSignature, KEY),
    known(&["gpg check failed"], Code::RepoSignature, KEY),
    known(&["gpg signature verification error"], Code::RepoSignature, KEY),
    known(&["public key for", "is not installed"], Code::RepoSignature, KEY),
    known(&["404", "not found", "http"], Code::RepoUnreachable, GONE),
    known(&["status code: 404"], Code::RepoUnreachable, GONE),
    known(&["file './", "' not found on medium"], Code::RepoUnreachable, GONE),
    known(
        &["valid metadata not found at specified url"],
        Code::RepoUnreachable,
        GONE,
    ),
    known(&["could not connect to"], Code::RepoUnreachable, REACH),
    known(&["cannot download repomd.xml"], Code::RepoUnreachable, REACH),
    known(&["failed to download metadata for repo"], Code::RepoUnreachable, REACH),
    known(&["unable to locate package"], Code::PackageNotFound, PACKAGE),
    known(&["has no installation candidate"], Code::PackageNotFound, PACKAGE),
    known(&["no provider of"], Code::PackageNotFound, PACKAGE),
    known(&["no match for argument"], Code::PackageNotFound, PACKAGE),
    known(
        &["module or group '", "' is not available"],
        Code::PackageNotFound,
        PACKAGE,
    ),
    known(&["missing groups or modules:"], Code::PackageNotFound, PACKAGE),
    known(&["filtered out by modular filtering"], Code::PackageNotFound, MODULE),
    known(&["package '", "' not found"], Code::PackageNotFound, PACKAGE),
    known(&["nothing provides"], Code::UnmetDependency, NEEDS),
    known(&["depends:", "but it is not"], Code::UnmetDependency, NEEDS),
    known(&["depends:", "is to be installed"], Code::UnmetDependency, NEEDS),
    known(&["conflicts:", "is to be installed"], Code::UnmetDependency, CONFLICT),
    known(&["dpkg: error processing package"], Code::ScriptletFailed, SCRIPTLET),
    // rpm goes on after scripts that it only warns of.
    known(&["error:", "scriptlet failed"], Code::ScriptletFailed, SCRIPTLET),
    known(&["scriptlet failed"], Code::ScriptletFailed, SCRIPTLET),
    known(&["dracut-install: error"], Code::InitrdFailed, DRACUT),
    known(&["dracut[e]:"], Code::InitrdFailed, DRACUT),
    known(
        &["dracut", "module", "cannot be found or installed"],
        Code::InitrdFailed,
        DRACUT,
    ),
    known(&["keymap", "is not installed"], Code::BuildFailed, KEYMAP),
    known(&["locale", "is not installed"], Code::BuildFailed, LOCALE),
    known(&["kiwidescriptioninvalid"], Code::RecipeConfigInvalid, SCHEMA),
    known(&["kiwischemaimporterror"], Code::RecipeConfigInvalid, SCHEMA),
    known(&["kiwicommandnotfound"], Code::BuildFailed, TOOL),
    known(&["signing key", "is not there"], Code::RecipeConfigInvalid, NO_KEY),
    // The last ones, since dracut tries it as well, and goes on without.
    known(
        &["address family not supported by protocol"],
        Code::ScriptFailed,
        FAMILY,
    ),
    known(&["mknod", "operation not permitted"], Code::DeviceRefused, DEVICE),
    known(
        &["error creating device", "operation not permitted"],
        Code::DeviceRefused,
        DEVICE,
    ),
    known(
        &["special file", "operation not permitted"],
        Code::DeviceRefused,
        DEVICE,
    ),
];

/// How many of a script's last lines may name why it failed. What earlier ones say did not end it.
const LAST_WORDS: usize = 8;

/// The known cause that these lines name, if any. If there are several, the first one in the table counts, with the
/// first line that names it.
pub fn known_cause(lines: &[String]) -> Option<Failure> {
    cause_among(lines, |_| true)
}

/// The known cause of a script's failure that its lines name, if any. A script may go on after most failures, so only what
/// makes everything else fail, too, counts wherever it was said.
pub fn cause_of_script(lines: &[String]) -> Option<Failure> {
    cause_of_program(lines, &lines[lines.len().saturating_sub(LAST_WORDS)..])
}

/// The known cause of a program's failure that its `own` lines name, if any, or all lines, if it makes everything else fail, too:
/// earlier programs failed without consequences.
pub fn cause_of_program(lines: &[String], own: &[String]) -> Option<Failure> {
    let is_general = |code| matches!(code, Code::DiskFull | Code::EmulatorFault | Code::OutOfMemory);
    cause_among(lines, is_general).or_else(|| cause_among(own, |_| true))
}

fn cause_among(lines: &[String], is_wanted: impl Fn(Code) -> bool) -> Option<Failure> {
    let pieces: Vec<(&str, String)> = lines
        .iter()
        .flat_map(|line| pieces(line))
        .map(|piece| (piece, piece.to_ascii_lowercase()))
        // A warning that the tool ignores is not a cause.
        .filter(|(_, lower)| !lower.ends_with("continuing.") && !lower.ends_with("continuing"))
        .collect();
    let of = |row: &Known| {
        let named = pieces
            .iter()
            .find(|(_, lower)| row.has.iter().all(|part| lower.contains(part)))?;
        Some(Failure::new(row.code, named.0).hint(row.hint))
    };
    let killed = || {
        let line = pieces.iter().find(|(_, lower)| is_killed(lower))?;
        Some(Failure::new(Code::OutOfMemory, line.0).hint(MEMORY))
    };
    TABLE
        .iter()
        .filter(|row| is_wanted(row.code))
        .find_map(of)
        .or_else(killed)
}

/// The first line of a text, with those that it announces by a colon.
pub fn first_sentence(text: &str) -> String {
    let mut sentence = String::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if !sentence.is_empty() {
            sentence.push(' ');
        }
        sentence.push_str(line);
        if !sentence.ends_with(':') {
            break;
        }
    }
    sentence
}

/// The last line of a tool's output, for failures without a known cause.
pub fn last_words(lines: &[String]) -> Option<&str> {
    lines
        .iter()
        .rev()
        .map(|line| text_of(line))
        .find(|text| !text.is_empty())
}

/// A shell's message about a process that got SIGKILL, which in a sandbox only the kernel sends.
fn is_killed(lower: &str) -> bool {
    lower == "killed" || (lower.contains(": line ") && lower.contains(" killed "))
}

/// kiwi's line without its level and time: `[ DEBUG   ]: 07:40:19 | system: text` becomes `text`.
pub fn text_of(line: &str) -> &str {
    match line.split_once(" | ") {
        Some((head, text)) if head.starts_with('[') => text.strip_prefix("system: ").unwrap_or(text).trim(),
        _ => line.trim(),
    }
}

/// kiwi quotes several lines of a tool as one, with `\n` spelled out.
fn pieces(line: &str) -> impl Iterator<Item = &str> {
    text_of(line)
        .split("\\n")
        .map(str::trim)
        .filter(|piece| !piece.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    /// Real output of tools, the code, and the line with the cause.
    const SAID: [(&str, Code, &str); 33] = [
        (
            "Reading package lists...\nE: Release file for http://deb.example.org/debian/dists/tiny/InRelease is expired (invalid \
             since 7d 0h 1min 2s). Updates for this repository will not be applied.",
            Code::RepoExpired,
            "E: Release file for http://deb.example.org/debian/dists/tiny/InRelease is expired (invalid since 7d 0h 1min 2s). \
             Updates for this repository will not be applied.",
        ),
        (
            "E: Release file for http://deb.example.org/debian/dists/tiny/InRelease is not valid yet (invalid for another 15d 1h).",
            Code::RepoNotYetValid,
            "E: Release file for http://deb.example.org/debian/dists/tiny/InRelease is not valid yet (invalid for another 15d 1h).",
        ),
        (
            "chown: changing ownership of '/srv/f65536': Invalid argument",
            Code::IdOutside,
            "chown: changing ownership of '/srv/f65536': Invalid argument",
        ),
        (
            "tar: opt/site: Cannot change ownership to uid 400400, gid 400400: Invalid argument\n\
             tar: Exiting with failure status due to previous errors",
            Code::IdOutside,
            "tar: opt/site: Cannot change ownership to uid 400400, gid 400400: Invalid argument",
        ),
        (
            "set_attributes: failed to change uid and gids on /scratch/root/home/svc, because Invalid argument\n\
             created 5745 files",
            Code::IdOutside,
            "set_attributes: failed to change uid and gids on /scratch/root/home/svc, because Invalid argument",
        ),
        (
            "mknod: /srv/jail/dev/null: Operation not permitted\n\
             [ ERROR   ]: 07:40:20 | KiwiScriptFailed: config.sh failed with: mknod: /srv/jail/dev/null: Operation not permitted",
            Code::DeviceRefused,
            "mknod: /srv/jail/dev/null: Operation not permitted",
        ),
        (
            "[ DEBUG   ]: 05:14:38 | system:  environment-modules : Conflicts: lmod but 8.6.19-1 is to be installed\n\
             [ ERROR   ]: 05:16:29 | KiwiInstallPhaseFailed:",
            Code::UnmetDependency,
            "environment-modules : Conflicts: lmod but 8.6.19-1 is to be installed",
        ),
        (
            "[ DEBUG   ]: 07:40:19 | system: E: Unable to locate package no-such-thing\n\
             [ ERROR   ]: 07:40:20 | KiwiInstallPhaseFailed: System package installation failed",
            Code::PackageNotFound,
            "E: Unable to locate package no-such-thing",
        ),
        (
            "[ DEBUG   ]: 10:01:02 | system: dpkg: error processing archive /var/cache/apt/archives/gcc.deb (--unpack):\n\
             [ DEBUG   ]: 10:01:02 | system:  cannot copy extracted data for './usr/lib/gcc' to \
             '/usr/lib/gcc.dpkg-new': failed to write (No space left on device)\n\
             [ DEBUG   ]: 10:01:03 | system: dpkg: error processing package gcc (--configure):",
            Code::DiskFull,
            "cannot copy extracted data for './usr/lib/gcc' to '/usr/lib/gcc.dpkg-new': failed to write (No space left \
             on device)",
        ),
        (
            "[ DEBUG   ]: 10:01:02 | system: Err:1 http://deb.example.org/debian bookworm InRelease\n\
             [ DEBUG   ]: 10:01:02 | system:   Temporary failure resolving 'deb.example.org'\n\
             [ DEBUG   ]: 10:01:02 | system: E: Unable to locate package bash",
            Code::RepoUnreachable,
            "Temporary failure resolving 'deb.example.org'",
        ),
        (
            "E: Failed to fetch http://deb.example.org/debian/pool/main/b/bash/bash_5.2_arm64.deb  Hash Sum mismatch\n\
             E: Unable to fetch some archives, maybe run apt-get update or try with --fix-missing?",
            Code::RepoInconsistent,
            "E: Failed to fetch http://deb.example.org/debian/pool/main/b/bash/bash_5.2_arm64.deb  Hash Sum mismatch",
        ),
        (
            "W: GPG error: http://deb.example.org bookworm InRelease: The following signatures couldn't be verified \
             because the public key is not available: NO_PUBKEY 0E98404D386FA1D9\n\
             E: The repository 'http://deb.example.org bookworm InRelease' is not signed.",
            Code::RepoSignature,
            "W: GPG error: http://deb.example.org bookworm InRelease: The following signatures couldn't be verified \
             because the public key is not available: NO_PUBKEY 0E98404D386FA1D9",
        ),
        (
            "Error: GPG check FAILED",
            Code::RepoSignature,
            "Error: GPG check FAILED",
        ),
        (
            "Err:5 http://deb.example.org/debian bookworm/main arm64 bash arm64 5.2-1\n  404  Not Found [IP: 192.0.2.1 80]\n\
             E: Failed to fetch http://deb.example.org/debian/pool/main/b/bash/bash_5.2-1_arm64.deb  404  Not Found \
             [IP: 192.0.2.1 80]",
            Code::RepoUnreachable,
            "E: Failed to fetch http://deb.example.org/debian/pool/main/b/bash/bash_5.2-1_arm64.deb  404  Not Found \
             [IP: 192.0.2.1 80]",
        ),
        (
            "Error: Failed to download metadata for repo 'base': Cannot download repomd.xml: Cannot download \
             repodata/repomd.xml: All mirrors were tried",
            Code::RepoUnreachable,
            "Error: Failed to download metadata for repo 'base': Cannot download repomd.xml: Cannot download \
             repodata/repomd.xml: All mirrors were tried",
        ),
        (
            "File './x86_64/sed-4.9-1.x86_64.rpm' not found on medium 'http://rpm.example.org/'",
            Code::RepoUnreachable,
            "File './x86_64/sed-4.9-1.x86_64.rpm' not found on medium 'http://rpm.example.org/'",
        ),
        (
            "Problem: nothing provides 'libfoo.so.2()(64bit)' needed by the to be installed bar-1.0-1.aarch64\n \
             Solution 1: do not install bar-1.0-1.aarch64",
            Code::UnmetDependency,
            "Problem: nothing provides 'libfoo.so.2()(64bit)' needed by the to be installed bar-1.0-1.aarch64",
        ),
        (
            "The following packages have unmet dependencies:\n linux-image-arm64 : Depends: linux-image-6.1 but it is \
             not installable\nE: Unable to correct problems, you have held broken packages.",
            Code::UnmetDependency,
            "linux-image-arm64 : Depends: linux-image-6.1 but it is not installable",
        ),
        (
            "No provider of 'no-such-thing' found.",
            Code::PackageNotFound,
            "No provider of 'no-such-thing' found.",
        ),
        (
            "Package 'vim-huge' not found.",
            Code::PackageNotFound,
            "Package 'vim-huge' not found.",
        ),
        (
            "No match for argument: no-such-thing\nError: Unable to find a match: no-such-thing",
            Code::PackageNotFound,
            "No match for argument: no-such-thing",
        ),
        (
            "No matches found for the following enable plugin patterns: priorities\n\
             Module or Group 'no-such' is not available.\nError: Nothing to do.",
            Code::PackageNotFound,
            "Module or Group 'no-such' is not available.",
        ),
        (
            "Error: Problems in request:\nmissing groups or modules: nodejs:99",
            Code::PackageNotFound,
            "missing groups or modules: nodejs:99",
        ),
        (
            "All matches were filtered out by modular filtering for argument: nodejs\nError: Unable to find a match: nodejs",
            Code::PackageNotFound,
            "All matches were filtered out by modular filtering for argument: nodejs",
        ),
        (
            "/bin/sh: 1: /usr/bin/helper: Exec format error\ndpkg: error processing package helper (--configure):",
            Code::ExecFormat,
            "/bin/sh: 1: /usr/bin/helper: Exec format error",
        ),
        (
            "qemu: uncaught target signal 11 (Segmentation fault) - core dumped\nSegmentation fault\n\
             dpkg: error processing package python3 (--configure):",
            Code::EmulatorFault,
            "qemu: uncaught target signal 11 (Segmentation fault) - core dumped",
        ),
        (
            "fork: Cannot allocate memory",
            Code::OutOfMemory,
            "fork: Cannot allocate memory",
        ),
        (
            "/image/config.sh: line 12:   431 Killed                  dracut --force",
            Code::OutOfMemory,
            "/image/config.sh: line 12:   431 Killed                  dracut --force",
        ),
        (
            "dracut-install: ERROR: installing 'multipathd'\ndracut: FAILED: dracut-install -D /var/tmp/dracut",
            Code::InitrdFailed,
            "dracut-install: ERROR: installing 'multipathd'",
        ),
        (
            "warning: %post(kernel-6.4-1.aarch64) scriptlet failed, exit status 1",
            Code::ScriptletFailed,
            "warning: %post(kernel-6.4-1.aarch64) scriptlet failed, exit status 1",
        ),
        (
            "warning: %post(debianutils-5.7-1.x86_64) scriptlet failed, exit status 127\n\
             error: %prein(badpre-1-1.noarch) scriptlet failed, exit status 4",
            Code::ScriptletFailed,
            "error: %prein(badpre-1-1.noarch) scriptlet failed, exit status 4",
        ),
        (
            "[ ERROR   ]: 07:40:20 | KiwiDescriptionInvalid: Failed to validate schema and/or schematron rules",
            Code::RecipeConfigInvalid,
            "KiwiDescriptionInvalid: Failed to validate schema and/or schematron rules",
        ),
        // kiwi quotes a tool's output in one line.
        (
            "[ ERROR   ]: 07:40:20 | KiwiBootStrapPhaseFailed: Bootstrap package installation failed: \
             Reading package lists...\\nE: Unable to locate package no-such-thing\\n",
            Code::PackageNotFound,
            "E: Unable to locate package no-such-thing",
        ),
    ];

    #[test]
    fn the_cause_is_the_line_that_names_it() {
        for (said, code, detail) in SAID {
            let failure = known_cause(&lines(said)).unwrap_or_else(|| panic!("no cause in {said}"));
            assert_eq!((failure.code, failure.detail.as_str()), (code, detail), "{said}");
            assert!(failure.hint.is_some());
        }
    }

    #[test]
    fn a_script_fails_for_what_it_says_last() {
        let rest = "going on\n".repeat(LAST_WORDS);
        for (said, code) in [
            ("E: Unable to locate package x".to_owned(), Some(Code::PackageNotFound)),
            (format!("E: Unable to locate package x\n{rest}"), None),
            (format!("write: No space left on device\n{rest}"), Some(Code::DiskFull)),
        ] {
            let failure = cause_of_script(&lines(&said));
            assert_eq!(failure.map(|failure| failure.code), code, "{said}");
        }
    }

    #[test]
    fn words_alone_are_no_cause() {
        for said in [
            "Setting up killall-tools (1.0)",
            "Get:404 http://deb.example.org/debian bookworm/main arm64 notfound-dev",
            "checking whether malloc can allocate memory... yes",
            "Warning: File 'repomd.xml' from repository 'tiny' is not signed, continuing.",
            "everything is fine",
            "",
        ] {
            assert_eq!(known_cause(&lines(said)), None, "{said}");
        }
    }

    #[test]
    fn every_row_can_be_met() {
        for row in &TABLE {
            assert!(
                row.has.iter().all(|part| *part == part.to_ascii_lowercase()),
                "{:?}",
                row.has
            );
            let said = [row.has.join(" ")];
            assert_eq!(
                known_cause(&said).map(|failure| failure.code),
                Some(row.code),
                "{said:?}"
            );
        }
    }
}
