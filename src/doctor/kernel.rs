//! Tests the kernel features that namespace sandboxes need. Reads kernel settings, and runs commands in namespaces.

use crate::{
    config::Config,
    doctor::{Finding, State, ask},
    sandbox::namespace::{HOST_COMMAND_DIR, IdMap, NamespaceDriver, make_private_dir},
    site,
};

const AREA: &str = "kernel";

/// The first release in which a user namespace has its own `binfmt_misc`.
const OWN_BINFMT: (u32, u32) = (6, 7);

pub(super) async fn examine(config: &Config) -> Vec<Finding> {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut findings = vec![Finding::ok(AREA, "release", &release)];
    findings.push(sub_ids());
    // Without a driver, the finding about ids has the reason.
    if let Ok(driver) = site::namespace_driver(config) {
        let namespaces = user_namespaces(config, &driver).await;
        let work = namespaces.state == State::Ok;
        findings.push(namespaces);
        if work {
            findings.push(overlay(config, &driver).await);
            findings.push(binfmt_misc(config, &driver, &release).await);
        }
    }
    findings.push(match ask("slirp4netns", &["--version"]).await {
        Ok(said) => Finding::ok(AREA, "network", said.lines().next().unwrap_or_default()),
        Err(why) => Finding::missing(AREA, "network", why, "apt install slirp4netns").required(),
    });
    findings
}

fn read(path: &str) -> Option<String> {
    Some(fs_err::read_to_string(path).ok()?.trim().to_owned())
}

fn sub_ids() -> Finding {
    match IdMap::of_this_user() {
        Ok(ids) => {
            let (first, last) = (ids.uid_base, ids.uid_base + 65_535);
            let inside = ids.user_ids().map_or(0, |count| count - 1);
            let detail = format!("user {first} to {last} and more: a sandbox has ids up to {inside}");
            Finding::ok(AREA, "ids of sandboxes", detail)
        }
        Err(failure) => {
            let next = failure.hint.clone().unwrap_or_default();
            Finding::missing(AREA, "ids of sandboxes", failure, next).required()
        }
    }
}

/// Runs a shell command as root of a user namespace, in its own directory.
async fn in_namespace(config: &Config, driver: &NamespaceDriver, script: &str) -> Result<(), String> {
    let dir = config.data_dir.join("doctor");
    make_private_dir(&dir)
        .and_then(|()| {
            use std::os::unix::fs::PermissionsExt;
            let open = std::fs::Permissions::from_mode(0o777);
            fs_err::set_permissions(&dir, open).map_err(|error| kiln_records::Failure::io("cannot test it", &error))
        })
        .map_err(|failure| failure.to_string())?;
    let mut last = String::new();
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let argv = ["sh", "-c", script];
    let ran = driver
        .run_host_command(&dir, &argv, &[("PATH", path)], None, |line| line.clone_into(&mut last))
        .await;
    // Its files belong to ids of the sandbox.
    let removed = driver.remove_dir(&dir).await;
    match ran {
        Ok(report) if report.exit_code == 0 => removed.map_err(|failure| failure.to_string()),
        Ok(_) => Err(last),
        Err(failure) => Err(failure.to_string()),
    }
}

async fn user_namespaces(config: &Config, driver: &NamespaceDriver) -> Finding {
    const WHAT: &str = "user namespaces";
    match in_namespace(config, driver, "true").await {
        Ok(()) => Finding::ok(AREA, WHAT, "a program ran as root of one"),
        Err(why) => {
            let is_root = nix::unistd::Uid::effective().is_root();
            let next = what_forbids(read, is_root).unwrap_or("see the kernel log: `dmesg | tail`");
            Finding::broken(AREA, WHAT, why, next).required()
        }
    }
}

/// The command against the kernel setting that keeps this user from making user namespaces, if there is such a
/// setting.
fn what_forbids(read: impl Fn(&str) -> Option<String>, is_root: bool) -> Option<&'static str> {
    let is = |path: &str, value: &str| read(path).is_some_and(|text| text == value);
    if is("/proc/sys/user/max_user_namespaces", "0") {
        return Some("sysctl -w user.max_user_namespaces=15000");
    }
    if !is_root && is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        return Some("sudo sysctl -w kernel.unprivileged_userns_clone=1");
    }
    if !is_root && is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        return Some("sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for kiln");
    }
    let status = read("/proc/self/status").unwrap_or_default();
    let filtered = status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"]));
    filtered
        .then_some("run the container that Kiln is in with `--security-opt seccomp=unconfined`, or Kiln on the host")
}

async fn overlay(config: &Config, driver: &NamespaceDriver) -> Finding {
    const WHAT: &str = "overlay in user namespaces";
    let script = format!(
        "cd {HOST_COMMAND_DIR} && mkdir lower upper work merged && \
         mount -t overlay overlay -o userxattr,lowerdir=lower,upperdir=upper,workdir=work merged && touch merged/file"
    );
    match in_namespace(config, driver, &script).await {
        Ok(()) => Finding::ok(AREA, WHAT, "mounted and written to"),
        Err(why) => Finding::broken(
            AREA,
            WHAT,
            why,
            "run Linux 5.11 or newer, and keep data_dir on a file system such as ext4 or xfs",
        )
        .required(),
    }
}

async fn binfmt_misc(config: &Config, driver: &NamespaceDriver, release: &str) -> Finding {
    const WHAT: &str = "binfmt_misc in user namespaces";
    let script = format!("mkdir {HOST_COMMAND_DIR}/b && mount -t binfmt_misc none {HOST_COMMAND_DIR}/b");
    match in_namespace(config, driver, &script).await {
        Ok(()) => Finding::ok(AREA, WHAT, "mounted: emulated builds need no change of the host"),
        Err(why) if is_older(release, OWN_BINFMT) => Finding::missing(
            AREA,
            WHAT,
            why,
            "run Linux 6.7 or newer; until then other architectures are built in virtual machines only",
        ),
        Err(why) => Finding::broken(AREA, WHAT, why, "modprobe binfmt_misc"),
    }
}

fn is_older(release: &str, than: (u32, u32)) -> bool {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|text| text.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < than
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_forbids_namespaces_is_named_with_the_command_against_it() {
        let with = |path: &'static str, value: &'static str, is_root| {
            what_forbids(move |asked| (asked == path).then(|| value.to_owned()), is_root)
        };
        let none = "/proc/sys/user/max_user_namespaces";
        assert!(with(none, "0", true).unwrap().contains("user.max_user_namespaces"));
        assert_eq!(with(none, "1000", true), None);
        let debian = "/proc/sys/kernel/unprivileged_userns_clone";
        assert!(
            with(debian, "0", false)
                .unwrap()
                .contains("unprivileged_userns_clone=1")
        );
        assert_eq!(with(debian, "0", true), None);
        let ubuntu = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
        assert!(with(ubuntu, "1", false).unwrap().contains("AppArmor"));
        assert!(
            with("/proc/self/status", "Name:\tkiln\nSeccomp:\t2\n", true)
                .unwrap()
                .contains("seccomp")
        );
    }

    #[test]
    fn releases_are_compared_as_numbers() {
        assert!(is_older("6.1.0-41-amd64", OWN_BINFMT));
        assert!(!is_older("6.12.3", OWN_BINFMT));
        assert!(!is_older("10.0-rc1", OWN_BINFMT));
    }
}
