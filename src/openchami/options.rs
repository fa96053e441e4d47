//! The options that image-thrillhouse's form has for each package manager. Pure: no I/O.

use crate::{
    Wrong,
    layer::{Manager, Options, address, is_remote, line, names},
};

/// Flags in the order in which they are given: the option, its value that gives it, the flag, and whether a root from scratch is the
/// same without it. In an empty root there is nothing to erase, and no vendor; kiwi-ng agrees to all licences.
const FLAGS: [(Manager, &str, bool, &str, bool); 10] = [
    (Manager::Dnf, "best", false, "--setopt=best=False", false),
    (Manager::Dnf, "skip-broken", true, "--skip-broken", false),
    (Manager::Dnf, "allowerasing", true, "--allowerasing", true),
    (Manager::Dnf, "nobest", true, "--nobest", false),
    (Manager::Zypper, "force-resolution", true, "--force-resolution", false),
    (
        Manager::Zypper,
        "auto-agree-with-licenses",
        true,
        "--auto-agree-with-licenses",
        true,
    ),
    (
        Manager::Zypper,
        "allow-vendor-change",
        true,
        "--allow-vendor-change",
        true,
    ),
    (Manager::Apt, "install-suggests", true, "--install-suggests", false),
    (Manager::Apt, "install-suggests", false, "--no-install-suggests", true),
    (
        Manager::Apt,
        "allow-unauthenticated",
        true,
        "--allow-unauthenticated",
        false,
    ),
];

/// Reads the options.
pub(crate) fn read(
    manager: Manager,
    pairs: Vec<(String, String)>,
    scratch: bool,
    warnings: &mut Vec<String>,
) -> Result<Options, Wrong> {
    let mut options = Options::default();
    let mut set = Vec::new();
    for (name, value) in pairs {
        let key = format!("layer.manager.options.{}", name.escape_debug());
        let value = line(&key, value)?;
        let flag = || match value.as_str() {
            "" => Ok(None),
            "true" => Ok(Some(true)),
            "false" => Ok(Some(false)),
            _ => Err(Wrong::value(&*key, "is neither true nor false")),
        };
        match (manager, name.as_str()) {
            (_, name) if FLAGS.iter().any(|flag| (flag.0, flag.1) == (manager, name)) => {
                set.extend(flag()?.map(|value| (name.to_owned(), value)));
            }
            (Manager::Dnf, "releasever") => options.release = Some(names(&key, vec![value])?.remove(0)),
            (Manager::Dnf, "install-weak-deps") | (Manager::Apt, "install-recommends") => options.recommended = flag()?,
            (Manager::Zypper, "no-recommends") => options.recommended = flag()?.map(|set| !set),
            (Manager::Zypper, "no-gpg-checks") => options.check = flag()?.map(|set| !set),
            (Manager::Mmdebstrap, "suite") => options.suite = value,
            (Manager::Mmdebstrap, "mirror") => options.mirror = value,
            (Manager::Mmdebstrap, "variant") if matches!(value.as_str(), "" | "minbase") => {}
            (Manager::Mmdebstrap, "variant") => {
                return Err(Wrong::unsupported(key, "kiwi-ng begins with minbase only"));
            }
            // How mmdebstrap becomes root changes nothing in what it makes.
            (Manager::Mmdebstrap, "mode") => {}
            (Manager::Dnf | Manager::Zypper, name) if name.starts_with("macro.") => {
                if scratch {
                    return Err(Wrong::unsupported(key, "kiwi-ng installs with rpm's own macros"));
                }
                warnings.push(format!("{key} is ignored, as image-thrillhouse does with a parent"));
            }
            _ => {
                return Err(Wrong::unsupported(
                    key,
                    format!("{} has no such option", manager.name()),
                ));
            }
        }
    }
    let has = |name: &str| set.iter().any(|(known, value)| known == name && *value);
    if has("best") && has("nobest") {
        return Err(Wrong::value(
            "layer.manager.options",
            "has best and nobest, and only one can be",
        ));
    }
    if manager == Manager::Mmdebstrap {
        mirror(&mut options)?;
    }
    let mut flags = Vec::new();
    for (_, name, value, flag, empty) in FLAGS.iter().filter(|flag| flag.0 == manager) {
        if !set.iter().any(|(known, set)| known == name && set == value) {
            continue;
        }
        flags.push((*flag).to_owned());
        if !empty {
            let why = "kiwi-ng, which makes a root from scratch, cannot be told of it";
            options.not_kiwi = Some(Wrong::unsupported(format!("layer.manager.options.{name}"), why));
        }
    }
    let without = |flag: &str| (options.recommended == Some(false)).then(|| flag.to_owned());
    match manager {
        Manager::Dnf => {
            let release = options.release.iter();
            let release = release.flat_map(|release| ["--releasever".to_owned(), release.clone()]);
            options.global = release
                .chain(without("--setopt=install_weak_deps=False"))
                .chain(flags)
                .collect();
        }
        Manager::Zypper => {
            let global = if options.check == Some(false) {
                "--no-gpg-checks"
            } else {
                "--gpg-auto-import-keys"
            };
            options.install = without("--no-recommends").into_iter().chain(flags).collect();
            options.global = vec![global.to_owned()];
        }
        Manager::Apt => {
            let without = (options.recommended != Some(true)).then(|| "--no-install-recommends".to_owned());
            options.install = without.into_iter().chain(flags).collect();
        }
        Manager::Mmdebstrap => {}
    }
    Ok(options)
}

fn mirror(options: &mut Options) -> Result<(), Wrong> {
    for (name, text) in [("suite", &options.suite), ("mirror", &options.mirror)] {
        if text.is_empty() {
            return Err(Wrong::missing(format!("layer.manager.options.{name}")));
        }
    }
    if !is_remote(&options.mirror) {
        return Err(Wrong::unsupported(
            "layer.manager.options.mirror",
            "it is no address of http or https",
        ));
    }
    address("layer.manager.options.suite", options.suite.clone())?;
    address("layer.manager.options.mirror", options.mirror.clone())?;
    Ok(())
}
