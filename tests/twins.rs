//! A root of another architecture is built by native twins of its programs, and nothing of them is in the image.

use serde_json::Value;

use crate::{
    build::both,
    support::{self, HOST, Kiln, Recipe, foreign, repository::Repository, squashfs},
};

#[test]
fn a_foreign_root_is_built_by_twins_and_holds_nothing_of_them() {
    needs!(support::no_namespaces(), support::no_emulation());
    let image = &both().images[foreign()];
    let (job, log) = (&image.job, both().kiln.log(&image.job));
    let count = |kind: &str| job["execs"][kind].as_u64().unwrap();
    assert!(count("twins") > 10 * count("emulated"), "{}", job["execs"]);
    let machine = format!("fact machine {}\n", foreign());
    // 0/0 is negative on x86_64 only.
    let sign = if foreign() == "x86_64" { "ff" } else { "7f" };
    let number = format!("fact early: 000000000000f8{sign}\n");
    for fact in ["fact edited\n", &machine, "fact emulated 2\n", &number] {
        assert!(log.contains(fact), "{fact}: {log}");
    }
    // On other hosts perl is no twin: it computes with `long double`.
    assert!(
        HOST != "x86_64" || log.contains("as a native twin, which has other results"),
        "{log}"
    );
    assert!(
        !log.contains("fact writable"),
        "the root's programs can change the twins"
    );
    // One program: `ed` is a script's own installation.
    assert!(log.contains("fact grown 1\n"), "{log}");
    assert!(!log.contains("no native twins"), "{log}");

    let list = squashfs::list(&image.file("rootfs"));
    let left: Vec<_> = list.keys().filter(|path| path.starts_with("/.kiln")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_job_explains_how_each_program_was_run() {
    needs!(support::no_namespaces(), support::no_emulation());
    let explain = |arch: &str, more: &[&str]| {
        let id = both().images[arch].job["id"].as_str().unwrap();
        let mut command = both().kiln.command([&["jobs", "explain", id], more].concat());
        command.env("KILN_SERVER", "local");
        support::run(command).ok().stdout
    };
    let all: Value = serde_json::from_str(&explain(foreign(), &["--format", "json"])).unwrap();
    assert_eq!(
        (&all["recorded"], &all["attempt"]),
        (&true.into(), &1.into()),
        "{all:#}"
    );
    let programs = all["programs"].as_array().unwrap();
    let path_of = |name: &str| {
        let is_it = |path: &&str| path.rsplit('/').next() == Some(name);
        let mut paths = programs.iter().filter_map(|program| program["path"].as_str());
        let found = paths.find(is_it);
        found.unwrap_or_else(|| panic!("nothing is said of {name}: {all:#}"))
    };
    for (name, twin, ground, why) in [
        ("bash", true, "entry", "Shells: "),
        ("seq", false, "never", "`long double` has 64 bits"),
    ] {
        let program = programs
            .iter()
            .find(|program| program["path"] == path_of(name))
            .unwrap();
        let said = (&program["twin"], &program["ground"]);
        assert_eq!(said, (&twin.into(), &ground.into()), "{program}");
        assert!(program["why"].as_str().unwrap().contains(why), "{program}");
    }
    let count = |name: &str| all["counts"][name].as_u64().unwrap();
    let sum: u64 = ["by_rule", "by_entry", "emulated"].map(count).iter().sum();
    assert_eq!(sum, programs.len() as u64);
    assert!(count("by_rule") > 0 && count("by_entry") > 20, "{}", all["counts"]);
    let log = both().kiln.log(&both().images[foreign()].job);
    assert!(log.contains(&format!("{} twins by rule, ", count("by_rule"))), "{log}");

    let text = explain(foreign(), &[]);
    let lists = |name: &str| text.lines().any(|line| line.trim_start() == path_of(name));
    assert!(lists("seq") && !lists("bash"), "{text}");
    assert!(explain(foreign(), &["--all"]).contains(path_of("bash")));
    let native = explain(HOST, &[]);
    let says_so = native.lines().any(|line| line.starts_with("the build is native"));
    assert!(says_so && native.starts_with("layer "), "{native}");
}

#[test]
fn a_job_takes_packages_that_another_has_fetched() {
    needs!(support::no_namespaces(), support::no_emulation());
    let kiln = Kiln::new();
    let twins = |recipe: &Recipe, set: &[&str]| {
        let args = ["build", recipe.path(), "--arch", foreign()];
        kiln.run([&args[..], set].concat()).ok();
        let job = kiln.jobs().pop().unwrap();
        (job["execs"]["twins"].as_u64().unwrap(), kiln.log(&job))
    };
    let recipe = Recipe::copy_of("rpm-shell");
    let repository = Repository::shell();
    let set = format!("{}/{}", repository.set(), foreign());
    let (first, log) = twins(&recipe, &[&set]);
    assert!(log.contains(", 0 of them from other jobs"), "{log}");
    // The repository does not have them any more: they can only come from the first job. Another package manager takes the
    // repository's address from a list.
    let dir = tempfile::tempdir().unwrap();
    let repository = Repository::shell_without_hosts(dir.path());
    let list = format!("# Mirrors\n{}/$basearch/\n", repository.url());
    fs_err::write(dir.path().join("mirrors-3"), list).unwrap();
    let listed = recipe
        .with_config(
            "<rpm-excludedocs>",
            "<release-version>3</release-version><rpm-excludedocs>",
        )
        .with_config("<repository ", "<repository sourcetype=\"mirrorlist\" ")
        .with_config("{{ rpm_repo }}", "{{ rpm_repo }}/mirrors-$releasever");
    let (second, log) = twins(&listed, &[&repository.set(), "--set=package_manager=dnf4"]);
    assert!(log.contains("of 19 packages, 19 of them from other jobs"), "{log}");
    assert!(
        first > 200 && second > 200,
        "{first} and {second} programs ran as twins"
    );
}

#[test]
fn a_repository_has_no_twins_of_another_ones_packages() {
    needs!(support::no_namespaces(), support::no_emulation());
    let dir = tempfile::tempdir().unwrap();
    let (honest, hostile) = (Repository::shell(), Repository::hostile(dir.path()));
    let read = |file: &str| fs_err::read_to_string(support::source_dir().join("recipes/rpm-shell").join(file)).unwrap();
    // The order in which repositories are read is that of a directory.
    let aliases = ["0", "a", "another", "shell-updates", "z", "zz"].map(|alias| {
        format!(
            r#"<repository type="rpm-md" alias="{alias}" repository_gpgcheck="false" package_gpgcheck="false">
                 <source path="{}/{}"/>
               </repository>"#,
            hostile.url(),
            foreign()
        )
    });
    let config = read("config.xml").replacen("<repository ", &format!("{}<repository ", aliases.concat()), 1);
    let script = read("config.sh") + "\necho 'fact emulated' | sed s/emulated/edited/\n";
    let recipe = Recipe::copy_of("rpm-shell")
        .with("config.xml", &config)
        .with("config.sh", &script);
    let kiln = Kiln::new();
    let set = format!("{}/{}", honest.set(), foreign());
    let ports = format!("--set=hostile={}", hostile.url());
    kiln.run(["build", recipe.path(), "--arch", foreign(), &set, &ports])
        .ok();

    let job = kiln.jobs().pop().unwrap();
    let (twins, log) = (job["execs"]["twins"].as_u64().unwrap(), kiln.log(&job));
    assert!(!log.contains("HOSTILE TWIN RAN"), "{log}");
    assert!(log.contains("fact edited"), "{log}");
    // Only what may have come from both has none.
    assert!(
        log.contains("repositories that have them differ in those for "),
        "{log}"
    );
    assert!(log.contains(&format!(" for {HOST}: grep 0:")), "{log}");
    assert!(!log.contains("no equal package: "), "{log}");
    assert!(twins > 100, "only {twins} programs ran as twins");
}

#[test]
fn a_package_without_the_signature_that_the_recipe_asks_for_has_no_twins() {
    needs!(support::no_namespaces(), support::no_emulation());
    let dir = tempfile::tempdir().unwrap();
    let (repository, key) = Repository::signed_but_for_bash(dir.path());
    let config = fs_err::read_to_string(support::source_dir().join("recipes/rpm-shell/config.xml")).unwrap();
    let config = config.replace("_gpgcheck=\"false\"", "_gpgcheck=\"true\"").replace(
        "rpm_repo }}\"/>",
        "rpm_repo }}\"><signing key=\"file:///scratch/recipe/key.asc\"/></source>",
    );
    let recipe = Recipe::copy_of("rpm-shell")
        .with("config.xml", &config)
        .with("key.asc", &key);
    let kiln = Kiln::new();
    let set = format!("{}/{}", repository.set(), foreign());
    let build = || {
        kiln.run(["build", recipe.path(), "--arch", foreign(), &set]).ok();
        let job = kiln.jobs().pop().unwrap();
        (job["execs"]["twins"].as_u64().unwrap(), kiln.log(&job))
    };
    let (twins, log) = build();
    assert!(log.contains("no equal package: bash 0:5"), "{log}");
    assert!(twins > 200, "only {twins} programs ran as twins");

    // An index with a wrong signature.
    let index = dir.path().join(HOST).join("repodata/repomd.xml");
    let text = fs_err::read_to_string(&index).unwrap();
    fs_err::write(index, format!("{text}<!-- changed -->")).unwrap();
    let (twins, log) = build();
    assert!(log.contains("no native twins"), "{log}");
    assert_eq!(twins, 0);
}

#[test]
fn a_native_root_has_no_twins() {
    needs!(support::no_namespaces(), support::no_emulation());
    let job = &both().images[HOST].job;
    assert!(job["execs"].is_null(), "{job}");
    assert!(!both().kiln.log(job).contains("twins"));
}
