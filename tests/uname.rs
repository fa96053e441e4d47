//! What programs of an image are told of the kernel while the image is made: its own, which is not the builder's.

use crate::support::{
    self, HOST, Kiln, Recipe, foreign,
    repository::Repository,
    squashfs::{list, read},
};

/// The release of this host's kernel.
fn of_host() -> String {
    fs_err::read_to_string("/proc/sys/kernel/osrelease")
        .unwrap()
        .trim()
        .to_owned()
}

/// The kernel in the roots of `recipes/rpm-minimal`.
const TINY: &str = "6.1.0-tiny";

/// A recipe whose scripts say what they are told: with one kernel, with a second and newer one, and with none.
fn recipe() -> Recipe {
    let newer = "for file in vmlinuz initrd; do cp /boot/$file-6.1.0-tiny /boot/$file-6.10.0-newer; done\n\
                 mkdir /usr/lib/modules/6.10.0-newer";
    Recipe::with_script(&format!("echo \"told one: $(uname -r) $(uname -m)\"\n{newer}"))
        .with(
            "post_bootstrap.sh",
            "#!/bin/sh\necho \"told first: $(uname -r) $(uname -n | cut -c1-5)\"\n",
        )
        .with(
            "images.sh",
            "#!/bin/sh\necho \"told two: $(uname -r)\"\nrm -r /usr/lib/modules/6* /boot/*\n\
             for second in 1 2 3 4 5 6 7 8 9 10; do [ \"$(uname -r)\" = \"$(cat /proc/sys/kernel/osrelease)\" ] && break; sleep 1; done\n\
             echo \"told last: $(uname -r)\"\n",
        )
}

/// Builds it for an architecture, and sees what its scripts say.
fn scripts_are_told(arch: &str, repository: &Repository) {
    let (kiln, recipe) = (Kiln::new(), recipe());
    kiln.run(["build", recipe.path(), "--arch", arch, &repository.set()])
        .ok();
    let log = kiln.log(kiln.jobs().last().unwrap());
    for said in [
        format!("told first: {TINY} kiln-"),
        format!("told one: {TINY} {arch}"),
        "told two: 6.10.0-newer".to_owned(),
        format!("told last: {}", of_host()),
        format!("`uname -r` in the root is {TINY}, its newest kernel"),
    ] {
        assert!(log.contains(&said), "{said}\n{log}");
    }
}

#[test]
fn scripts_are_told_of_the_newest_kernel_of_the_image() {
    needs!(support::no_namespaces());
    scripts_are_told(HOST, &Repository::native());
}

#[test]
fn emulated_scripts_are_told_of_it_too() {
    needs!(support::no_namespaces(), support::no_emulation());
    scripts_are_told(foreign(), &Repository::foreign());
}

#[test]
fn a_recipe_can_ask_for_the_builders_kernel_and_changes_see_the_images() {
    needs!(support::no_namespaces());
    let (kiln, repository) = (Kiln::new(), Repository::native());
    let recipe =
        Recipe::with_script("echo told: $(uname -r)").with("kiln-recipe.toml", "[scripts]\nuname = \"builder\"\n");
    let built = kiln.run(["build", recipe.path(), &repository.set()]).ok();
    let log = kiln.log(kiln.jobs().last().unwrap());
    assert!(log.contains(&format!("told: {}", of_host())), "{log}");
    assert!(!log.contains("`uname -r` in the root"), "{log}");

    let image = built.values("image").remove(0);
    let image = image.split_whitespace().next().unwrap();
    let changed = kiln.run(["customize", image, "--run", "uname -r > /etc/release"]);
    changed.ok();
    let log = kiln.log(kiln.jobs().last().unwrap());
    assert!(log.contains(&format!("`uname -r` in the root is {TINY}")), "{log}");
}

/// A module of Debian's that dkms builds for whichever kernel `uname -r` names.
const MODULE: &str = "v4l2loopback";

/// Debian's kernel, what is needed to build modules for it, and such a module, which is built when its package is installed, and
/// once more by the recipe.
fn with_dkms() -> Recipe {
    let debian = [("x86_64", "amd64"), ("aarch64", "arm64")];
    let kernels = debian.map(|(arch, debian)| {
        let package = |kind: &str| format!("<package name=\"linux-{kind}-{debian}\" arch=\"{arch}\"/>");
        package("image") + &package("headers")
    });
    let packages = format!("{}<package name=\"{MODULE}-dkms\"/>", kernels.concat());
    Recipe::copy_of("debian-minimal")
        .with_config("<package name=\"iputils-ping\"/>", &packages)
        .with(
            "config.sh",
            &format!(
                "#!/bin/bash
set -euo pipefail
dkms status
version=$(cd /usr/src && echo {MODULE}-*)
dkms remove -m {MODULE} -v ${{version#*-}} --all
dkms install -m {MODULE} -v ${{version#*-}}
built=$(find /lib/modules/$(uname -r)/updates -name '{MODULE}.ko*')
echo \"for $(uname -r): $(modinfo -F vermagic $built)\" > /etc/module
ls /lib/modules >> /etc/module
cat /etc/module
"
            ),
        )
}

/// Builds it, and looks at the module.
fn a_module_is_built(arch: &str, more: &[&str]) {
    let (kiln, recipe) = (Kiln::new(), with_dkms());
    let output = tempfile::tempdir().unwrap();
    let to = output.path().to_str().unwrap();
    let mut words = vec!["build", recipe.path(), "--arch", arch, "--output", to];
    words.extend(more);
    kiln.run(words).ok();
    let image = output.path().join(arch).join("rootfs");
    let said = read(&image, "etc/module");
    let mut lines = said.lines();
    let (built, installed) = (lines.next().unwrap(), lines.next().unwrap());
    assert_eq!(lines.next(), None, "{said}");
    assert!(
        built.starts_with(&format!("for {installed}: {installed} SMP ")),
        "{said}"
    );
    let module = format!("/usr/lib/modules/{installed}/updates/dkms/{MODULE}.ko");
    assert!(list(&image).keys().any(|path| path.starts_with(&module)), "{module}");
    let log = kiln.log(kiln.jobs().last().unwrap());
    assert!(!log.contains("(root_modules)"), "{log}");
}

#[test]
fn dkms_builds_a_module_for_the_kernel_of_the_image() {
    needs!(support::no_namespaces());
    a_module_is_built(HOST, &[]);
}

#[test]
fn dkms_builds_a_module_for_the_kernel_of_an_emulated_image() {
    let unasked = support::not_asked("it compiles a module under the emulator, for a quarter of an hour");
    needs!(support::no_namespaces(), support::no_emulation(), unasked);
    a_module_is_built(foreign(), &[]);
}
