//! Builds that start from what an earlier one kept after its packages.

use std::{
    collections::BTreeSet,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use kiln_agent::verify::{UNLIKE, tree};
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde_json::Value;

use crate::equality::{lines, unpacked};
use crate::support::{self, HOST, Kiln, Recipe, foreign, repository::Repository};

/// A script that leaves its own words, and what the root had before it. The sandbox's own files are of its own job.
fn script(words: &str) -> String {
    format!(
        "#!/bin/sh\nset -eu\necho '{words}' > /etc/words\nls /image > /etc/recipe-files\n\
         grep -q \"$(cat /proc/sys/kernel/hostname)\" /etc/hosts\n"
    )
}

/// Builds with these arguments. The root file system, and what the log says of layers.
fn build(kiln: &Kiln, recipe: &Recipe, arch: &str, arguments: &[&str]) -> (tempfile::TempDir, PathBuf, String) {
    let output = tempfile::tempdir().unwrap();
    let mut all = vec!["build", recipe.path(), "--arch", arch, "--output"];
    all.push(output.path().to_str().unwrap());
    all.extend(arguments);
    kiln.run(all).ok();
    let rootfs = output.path().join(arch).join("rootfs");
    let log = kiln.log(kiln.jobs().last().unwrap());
    (output, rootfs, log)
}

/// A script that runs before packages are installed.
const EARLY_SCRIPT: &str = "echo early > /etc/early\n";

const REUSED: &str = "its root after them is reused";
const NONE_YET: &str = "there is no layer with them yet";

/// Each line of a log has its time.
const LOGS: &str = "/var/log";

/// The root from a layer is what it would be without, `except` for one path.
#[track_caller]
fn is_as_made(reused: &Path, made: &Path, of: &str, except: &str) {
    let mut differ = tree::differences(&unpacked(reused), &unpacked(made), UNLIKE);
    differ.retain(|difference| ![LOGS, except].iter().any(|path| difference.path.starts_with(path)));
    assert!(differ.is_empty(), "{of}\n{}", lines(&differ).join("\n"));
}

/// A state of a recipe: what its edits have left.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Edited {
    /// Files that may decide what is installed, and are part of the key.
    early: (bool, bool),
    /// The words of `config.sh`, and the content and the mode of a file of the overlay.
    late: (u8, u8, bool),
}

impl Edited {
    const KINDS: std::ops::Range<u8> = 0..5;

    fn edit(&mut self, kind: u8) {
        match kind {
            0 => self.early.0 = !self.early.0,
            1 => self.early.1 = !self.early.1,
            2 => self.late.0 += 1,
            3 => self.late.1 += 1,
            _ => self.late.2 = !self.late.2,
        }
    }

    fn of(&self, recipe: Recipe) -> Recipe {
        let (is_newer, has_more) = self.early;
        let (words, overlay, is_program) = self.late;
        let mut recipe = recipe
            .with_config("<version>1.0.0<", &format!("<version>1.0.{}<", u8::from(is_newer)))
            .with("config.sh", &script(&words.to_string()))
            .with("root/etc/overlay", &overlay.to_string());
        if has_more {
            recipe = recipe
                .with("more/extra.txt", "part of the key")
                .with("post_bootstrap.sh", EARLY_SCRIPT);
        }
        if is_program {
            let overlay = Path::new(recipe.path()).join("root/etc/overlay");
            fs_err::set_permissions(overlay, PermissionsExt::from_mode(0o755)).unwrap();
        }
        recipe
    }
}

/// Each kind of edit, in an order by chance: a layer is reused if and only if its early files were there before, and then the root
/// is what it would be without. `KILN_TEST_SEED` chooses another order.
fn edits_at_random(kiln: &Kiln, repository: &Repository, recipe: impl Fn() -> Recipe) {
    let seed = std::env::var("KILN_TEST_SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut random = StdRng::seed_from_u64(seed);
    let set = repository.set();
    let (mut state, mut known, mut reused_roots) = (Edited::default(), BTreeSet::new(), 0);
    let mut kinds: Vec<u8> = Edited::KINDS.collect();
    kinds.shuffle(&mut random);
    for edit in std::iter::once(None).chain(kinds.into_iter().map(Some)) {
        if let Some(kind) = edit {
            state.edit(kind);
        }
        let of = format!("seed {seed}, {state:?}");
        let edited = state.of(recipe());
        let (_from, rootfs, log) = build(kiln, &edited, HOST, &["--cache", "packages", &set]);
        let is_known = !known.insert(state.early);
        assert_eq!(log.contains(REUSED), is_known, "{of}\n{log}");
        assert_eq!(log.contains(NONE_YET), !is_known, "{of}\n{log}");
        if is_known {
            let (_plain, made, log) = build(kiln, &edited, HOST, &["--no-cache", &set]);
            assert!(!log.contains(REUSED), "{of}\n{log}");
            is_as_made(&rootfs, &made, &of, LOGS);
            reused_roots += 1;
        }
    }
    let has_both = reused_roots > 0 && known.len() > 1;
    assert!(
        has_both,
        "seed {seed} reuses {reused_roots} roots, and changes early files to {known:?}"
    );
}

#[test]
fn a_root_of_debs_is_the_same_from_a_layer() {
    needs!(support::no_namespaces());
    let (kiln, repository) = (Kiln::new(), Repository::debian());
    let recipe = || Recipe::copy_of("deb-tiny").with_config("{{ deb_repo }}", &repository.url());
    edits_at_random(&kiln, &repository, recipe);

    // What it did is kept only where that was asked for.
    let scripted = recipe().with("post_bootstrap.sh", EARLY_SCRIPT);
    let (_scripted, _, log) = build(&kiln, &scripted, HOST, &[]);
    assert!(log.contains("no layer: post_bootstrap.sh may fetch something"), "{log}");

    // A damaged layer is noticed by its digest, and made anew.
    let mut damaged = 0;
    for body in support::files_below(&kiln.data().join("s3/bodies")) {
        let mut bytes = fs_err::read(&body).unwrap();
        if bytes.starts_with(b"hsqs") {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs_err::write(&body, bytes).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 0, "there is no layer");
    let changed = recipe().with("config.sh", &script("third"));
    let (_third, rootfs, log) = build(&kiln, &changed, HOST, &["--cache", "packages"]);
    assert!(
        !log.contains(REUSED) && log.contains("packages are installed: "),
        "{log}"
    );
    assert!(unpacked(&rootfs).keys().any(|path| path.ends_with("words")));
}

const WHOLE: &str = "it is taken as a whole";

#[test]
fn an_image_is_taken_as_a_whole_while_everything_is_as_it_was() {
    needs!(support::no_namespaces());
    let dir = tempfile::tempdir().unwrap();
    let (kiln, repository) = (Kiln::new(), Repository::debian_in(dir.path()));
    let recipe = || Recipe::copy_of("deb-tiny").with_config("{{ deb_repo }}", &repository.url());
    let image = |recipe: &Recipe| build(&kiln, recipe, HOST, &["--cache", "image"]);
    // The default depth keeps what a deeper one can take.
    let (_first, made, log) = build(&kiln, &recipe(), HOST, &[]);
    assert!(log.contains(NONE_YET) && !log.contains(WHOLE), "{log}");
    let (_second, taken, log) = image(&recipe());
    assert!(log.contains(WHOLE), "{log}");
    assert_eq!(fs_err::read(&made).unwrap(), fs_err::read(&taken).unwrap());
    let jobs = kiln.jobs();
    let [first, second] = [0, 1].map(|at| jobs[at]["image"].as_str().unwrap().to_owned());
    assert_ne!(first, second);
    let id = jobs[1]["id"].as_str().unwrap();
    let explained = kiln.run(["jobs", "explain", id]).ok().stdout;
    assert!(
        explained.contains(&format!("a copy of an earlier image, {first}")),
        "{explained}"
    );
    kiln.run(["verify", &second]).ok();
    // The deeper depth is not the default, and nothing less than everything will do.
    let (_third, _, log) = build(&kiln, &recipe(), HOST, &[]);
    assert!(log.contains(REUSED) && !log.contains(WHOLE), "{log}");
    let (_fourth, _, log) = image(&recipe().with("config.sh", &script("other")));
    assert!(
        log.contains("no earlier image is taken: there is none with this recipe") && log.contains(REUSED),
        "{log}"
    );
    let release = support::files_below(dir.path())
        .into_iter()
        .filter(|file| file.ends_with("Release"));
    for release in release {
        let text = fs_err::read_to_string(&release).unwrap();
        fs_err::write(&release, format!("{text}Label: changed\n")).unwrap();
    }
    // Whoever names an image starts from its packages all the same, and the record has the repositories that they are from.
    let changed = recipe().with("config.sh", &script("third"));
    let (_from, _, log) = build(&kiln, &changed, HOST, &["--cache-from", &first]);
    assert!(log.contains(REUSED), "{log}");
    let locked = |image: &str| {
        let recipe = recipe();
        kiln.run(["lock", recipe.path(), "--image", image]).ok();
        fs_err::read_to_string(Path::new(recipe.path()).join("kiln.lock")).unwrap()
    };
    let newest = kiln.jobs().last().unwrap()["image"].as_str().unwrap().to_owned();
    assert_eq!(locked(&newest), locked(&first));
    let early = recipe().with("more.txt", "part of the key");
    let (_early, _, log) = build(&kiln, &early, HOST, &["--cache-from", &first]);
    assert!(
        log.contains("are not reused: it has no layer of this recipe") && log.contains(NONE_YET),
        "{log}"
    );
    let unknown = kiln.run([
        "build",
        early.path(),
        "--cache-from",
        "00000000-0000-4000-8000-000000000000",
    ]);
    assert!(unknown.failed().contains("image"), "{unknown:?}");
    let (_fifth, _, log) = image(&recipe());
    assert!(log.contains("has changed") && log.contains(NONE_YET), "{log}");
    // That one is the newest image now; a deleted one is not taken.
    let newest = kiln.jobs().last().unwrap()["image"].as_str().unwrap().to_owned();
    kiln.run(["images", "delete", &newest]).ok();
    let (_sixth, _, log) = image(&recipe());
    assert!(log.contains("was deleted") && log.contains(REUSED), "{log}");
}

const BROUGHT: &str = "the root of a similar recipe is used: ";

/// Packages are added to the root of a similar recipe, and upgraded in it, and it is then what it would be from the beginning.
#[test]
fn a_root_of_debs_is_the_same_from_that_of_a_similar_recipe() {
    needs!(support::no_namespaces(), support::no_emulation());
    let dir = tempfile::tempdir().unwrap();
    let (kiln, repository) = (Kiln::new(), Repository::debian_in(dir.path()));
    let recipe = |packages: &str| {
        Recipe::copy_of("deb-tiny")
            .with_config("{{ deb_repo }}", &repository.url())
            .with_config("<package name=\"tiny-note\"/>", packages)
            .with("config.sh", &script("similar"))
    };
    let named = |names: &[&str]| {
        let elements: Vec<_> = names.iter().map(|name| format!("<package name=\"{name}\"/>")).collect();
        recipe(&elements.concat())
    };
    let explained = || {
        let id = kiln.jobs().last().unwrap()["id"].as_str().unwrap().to_owned();
        kiln.run(["jobs", "explain", &id]).ok().stdout
    };
    let similar = |recipe: &Recipe, arch: &str| build(&kiln, recipe, arch, &["--cache", "similar"]);
    // Builds from a similar recipe's root, if it may be, and from the beginning.
    let both = |recipe: &Recipe, arch: &str, lacks: &str| {
        let (_similar, brought, log) = similar(recipe, arch);
        assert!(log.contains(&format!("{BROUGHT}{lacks}")), "{log}");
        assert!(
            explained().contains(&format!("similar recipe: {lacks}")),
            "{}",
            explained()
        );
        let (_plain, made, log) = build(&kiln, recipe, arch, &["--no-cache"]);
        assert!(!log.contains(BROUGHT), "{log}");
        // dpkg's backup is of an earlier state of its list.
        is_as_made(&brought, &made, lacks, "/var/lib/dpkg/status-old");
    };
    repository.add_deb(
        "more",
        "1.0",
        "Depends: deep",
        "cat /etc/tiny-installed-on > /etc/more-found",
    );
    repository.add_deb("deep", "1.0", "", "uname -m > /etc/deep-installed-on");
    for arch in [HOST, foreign()] {
        let (_first, _, log) = similar(&named(&["tiny-note"]), arch);
        assert!(log.contains(NONE_YET), "{log}");
        let lacks = "of 5 packages, it lacks 2, and has 0 in other versions";
        both(&named(&["tiny-note", "more"]), arch, lacks);
    }

    // Only where that is asked for.
    let (_default, _, log) = build(&kiln, &named(&["more", "tiny-note"]), HOST, &[]);
    assert!(log.contains(NONE_YET), "{log}");
    // A package that is there only since another needed it.
    repository.add_deb("deep", "1.1", "", "uname -m > /etc/deep-installed-on");
    let lacks = "of 5 packages, it lacks 0, and has 1 in other versions";
    both(&named(&["more", "tiny-note"]), HOST, lacks);

    // Not all packages are wanted; then this is the latest layer.
    let (_less, _, log) = similar(&named(&["tiny-note"]), HOST);
    let why = "it has packages that are not wanted: deep, more";
    let other = "it has packages that are not wanted: more, deep";
    assert!(log.contains(why) || log.contains(other), "{log}");

    // kiwi takes packages out of a root with apt, and those that came with them. What apt must know for that is in no layer.
    let uninstalls = "<package name=\"tiny-note\"/><package name=\"more\"/></packages>\
                      <packages type=\"uninstall\"><package name=\"more\"/>";
    // Where no layer is made, scripts find all files of the recipe.
    let early = "[ ! -e /image/config.sh ] || touch /etc/early\n";
    let (_less, rootfs, log) = similar(&recipe(uninstalls).with("post_bootstrap.sh", early), HOST);
    assert!(log.contains("no layer: it uninstalls packages"), "{log}");
    let root = unpacked(&rootfs);
    let has = |path: &str| root.keys().any(|found| found.ends_with(path));
    assert_eq!(
        ["etc/tiny", "etc/early", "etc/more", "etc/deep"].map(has),
        [true, true, false, false],
        "{log}"
    );

    // A package that cannot be configured in a root with others, and one that changes dpkg's list behind its back.
    let liar = "(while [ -e /proc/$PPID ]; do :; done; sed -i 's/^Version: 1.0$/Version: 0.9/' /var/lib/dpkg/status) > /dev/null 2>&1 &";
    repository.add_deb(
        "tiny-note",
        "1.1",
        "Depends: tiny-base, shy",
        "uname -m > /etc/tiny-installed-on",
    );
    for (name, script, why) in [
        (
            "shy",
            "[ ! -e /etc/tiny-installed-on ]",
            "what it lacks cannot be installed",
        ),
        ("liar", liar, "has no known digest"),
    ] {
        repository.add_deb(name, "1.0", "", script);
        let (_again, _, log) = similar(&named(&["tiny-note", name]), HOST);
        let lines = [
            BROUGHT,
            "the root is made without a layer, for this one cannot be used: ",
            why,
        ];
        assert!(lines.iter().all(|line| log.contains(line)), "{name}\n{log}");
        // What was made instead is a layer of its own.
        assert!(explained().contains("kept: "), "{name}");
    }
}

#[test]
fn a_foreign_root_of_rpms_is_the_same_from_a_layer() {
    needs!(support::no_namespaces(), support::no_emulation());
    let (kiln, repository) = (Kiln::new(), Repository::shell().of(foreign()));
    let set = repository.set();
    let edited = |words: &str| Recipe::copy_of("rpm-shell").with("config.sh", &script(words));
    let cached = |recipe: &Recipe| build(&kiln, recipe, foreign(), &["--cache", "packages", &set]);
    // How each program would be run. Scripts of packages ran in the first job only.
    let explained = || {
        let id = kiln.jobs().last().unwrap()["id"].as_str().unwrap().to_owned();
        let text = kiln.run(["jobs", "explain", &id, "--format", "json"]).ok().stdout;
        let said: Value = serde_json::from_str(&text).unwrap();
        said["programs"].clone()
    };
    let (_one, _, log) = build(&kiln, &edited("first"), foreign(), &["--cache", "similar", &set]);
    assert!(log.contains(NONE_YET) && log.contains("that takes apt"), "{log}");
    let first = explained();
    let second = edited("second").with("root/etc/overlay", "new");
    let (_other, reused, log) = cached(&second);
    assert!(log.contains(REUSED) && log.contains("are unchanged"), "{log}");
    // All twins came with the layer.
    let begun = |count| format!("native twins begin with {count} packages that came with the root");
    let made = |count| format!("of {count} packages, {count} of them from other jobs");
    assert!(log.contains(&begun(19)) && log.contains(&made(19)), "{log}");
    assert_eq!(explained(), first);
    let (_plain, made, log) = build(&kiln, &second, foreign(), &["--no-cache", &set]);
    assert!(!log.contains(REUSED), "{log}");
    is_as_made(&reused, &made, "rpm-shell", LOGS);
}
