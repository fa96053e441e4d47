//! Tests what a recipe's own scripts, which run as root in the sandbox, can see and do.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
};

use crate::support::{
    self, KILN_AGENT, Kiln, Recipe, Started, eventually, repository::Repository, run, source_dir, tool,
};
use nix::sys::signal::Signal;

/// Writes `NAME=VALUE` lines. The script is in the new root; its parent, which is kiwi, has the sandbox's own.
const PROBES: &str = r#"
busybox=/usr/bin/busybox
say() { echo "$1=$2" >> /var/probing; }
tries() { name=$1; shift; if "$@" > /dev/null 2>&1; then say "$name" works; else say "$name" refused; fi; }
out=/proc/$PPID/root

say uid "$(id -u)"
say hostname "$(hostname)"
say processes "$(ls -d /proc/[0-9]* | wc -l)"
say commands "$(cat /proc/[0-9]*/comm | sort -u | tr '\n' ' ')"
say uid_map "$(tr -s ' ' < /proc/self/uid_map)"
say devices "$(cd $out/dev && find . -type b -o -type c | sort | tr '\n' ' ')"
say top "$(ls $out | tr '\n' ' ')"
for path in $HOST_PATHS; do
    if [ -e "$out$path" ]; then say "sees:$path" yes; else say "sees:$path" no; fi
done
say binfmt "$(ls $out/proc/sys/fs/binfmt_misc | tr '\n' ' ')"
say cgroups "$(cut -d: -f3 /proc/self/cgroup | sort -u | tr '\n' ' ')"
say environment "$(tr '\0' '\n' < /proc/$PPID/environ | cut -d= -f1 | sort | tr '\n' ' ')"

tries kernel_settings sh -c 'echo 1 > /proc/sys/kernel/sysrq'
tries core_pattern sh -c 'echo "|/bin/sh" > /proc/sys/kernel/core_pattern'
tries drop_caches sh -c 'echo 1 > /proc/sys/vm/drop_caches'
tries sysrq_trigger sh -c 'echo h > /proc/sysrq-trigger'
tries read_kmsg $busybox dmesg
tries make_block_device $busybox mknod /tmp/disk b 254 0
mkdir -p /mnt/disk
for disk in $HOST_DISKS; do tries "mount:$disk" $busybox mount -t ext4 "$disk" /mnt/disk; done
tries mount_sysfs $busybox mount -t sysfs none /mnt/disk
# busybox says that it failed, but not by its exit code
tries set_time sh -c '! date -s "@$(date +%s)" 2>&1 | grep -q "set date"'
tries load_module $busybox insmod /nowhere.ko
tries kill_outside kill -0 $HOST_PID
tries write_agent sh -c "echo x > $out/run/agent"
touch /var/made-by-root
mv /var/probing /var/probes
sleep 600
"#;

struct Probed {
    values: BTreeMap<String, String>,
    kiln: Kiln,
    /// The new root, as this process sees it.
    root: PathBuf,
    build: Started,
    _repository: Repository,
}

/// Runs the probes, and comes back while the script sleeps.
fn probe() -> Probed {
    let (kiln, repository) = (Kiln::new(), Repository::native());
    let home = std::env::var("HOME").unwrap();
    let host_paths = [
        source_dir().to_str().unwrap(),
        &format!("{home}/.cargo"),
        kiln.data().to_str().unwrap(),
        "/home",
        "/etc/machine-id.of-host",
    ]
    .join(" ");
    let disks: Vec<_> = fs_err::read_dir("/sys/block")
        .unwrap()
        .map(|entry| format!("/dev/{}", entry.unwrap().file_name().to_string_lossy()))
        .collect();
    let script = format!(
        "HOST_PATHS='{host_paths}'\nHOST_DISKS='{}'\nHOST_PID={}\n{PROBES}",
        disks.join(" "),
        std::process::id()
    );
    let recipe = Recipe::with_script(&script);
    let mut build = kiln.start(["build", "--verbose", recipe.path(), &repository.set()]);
    let file = kiln.wait_for_file(&mut build, "var/probes");
    let probes = fs_err::read_to_string(&file).unwrap();
    let value = |line: &str| {
        let (name, value) = line.split_once('=')?;
        Some((name.to_owned(), value.trim().to_owned()))
    };
    Probed {
        values: probes.lines().filter_map(value).collect(),
        kiln,
        root: file.ancestors().nth(2).unwrap().to_owned(),
        build,
        _repository: repository,
    }
}

#[test]
fn root_inside_is_nobody_outside() {
    needs!(support::no_namespaces());
    let probed = probe();
    let (values, kiln, build) = (&probed.values, &probed.kiln, probed.build);
    let value = |name: &str| {
        values
            .get(name)
            .unwrap_or_else(|| panic!("no probe {name}: {values:#?}"))
            .as_str()
    };

    assert_eq!(value("uid"), "0");
    // Outside, its files and processes belong to ids that no account has.
    let metadata = fs_err::metadata(probed.root.join("var/made-by-root")).unwrap();
    assert!(metadata.uid() >= 100_000 && metadata.gid() >= 100_000, "{metadata:?}");
    // Inside, the ids are those of the namespace around it, of which nobody there knows more.
    assert_eq!(value("uid_map"), "0 0 65536");
    // Kiln itself, its supervisor and the process that enters the namespaces are the host's.
    let outside = |name: &str| name.starts_with("kiln") && name != "kiln-init";
    let inside: Vec<_> = kiln
        .processes()
        .into_iter()
        .filter(|(_, name)| !outside(name))
        .collect();
    assert!(inside.len() >= 4, "{inside:?}");
    for (pid, name) in inside {
        let owner = fs_err::metadata(format!("/proc/{pid}")).unwrap().uid();
        assert_eq!(owner, metadata.uid(), "{pid} {name}");
    }
    // Other users of the host do not reach the job's files.
    let mode = fs_err::metadata(kiln.data().join("sandboxes"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);

    // It sees nothing of the host.
    assert!(value("hostname").starts_with("kiln-"), "{}", value("hostname"));
    assert!(value("processes").parse::<u32>().unwrap() < 20, "{}", value("commands"));
    for (name, seen) in values.iter().filter(|(name, _)| name.starts_with("sees:")) {
        // Every root has an empty /home.
        assert!(seen == "no" || name == "sees:/home", "{name}");
    }
    let devices: BTreeSet<_> = value("devices").split_whitespace().collect();
    let allowed = [
        "./full",
        "./null",
        "./pts/ptmx",
        "./random",
        "./tty",
        "./urandom",
        "./zero",
    ];
    let unexpected: Vec<_> = devices.iter().filter(|device| !allowed.contains(device)).collect();
    assert!(unexpected.is_empty() && devices.contains("./null"), "{devices:?}");
    let top = value("top");
    assert!(top.contains("scratch"), "the probes looked elsewhere: {top}");
    let variables = value("environment");
    assert!(variables.contains("PATH"), "{variables}");
    for ours in ["KILN_DATA_DIR", "CARGO", "AWS", "SSH_"] {
        assert!(!variables.contains(ours), "{variables}");
    }
    assert!(
        value("cgroups").split_whitespace().all(|path| path == "/"),
        "{}",
        value("cgroups")
    );
    assert_eq!(value("binfmt"), "", "a native build registers nothing");

    // It can do nothing to the host.
    for name in [
        "kernel_settings",
        "core_pattern",
        "drop_caches",
        "sysrq_trigger",
        "make_block_device",
        "mount_sysfs",
        "set_time",
        "load_module",
        "kill_outside",
        "write_agent",
    ] {
        assert_eq!(value(name), "refused", "{name}");
    }
    for (name, done) in values.iter().filter(|(name, _)| name.starts_with("mount:")) {
        assert_eq!(done, "refused", "{name}");
    }

    build.signal(Signal::SIGINT);
    kiln.assert_interrupted(&build.end());
}

/// Why memory cannot be limited here, if it cannot.
fn no_memory_limits() -> Option<String> {
    let mount = Path::new("/sys/fs/cgroup");
    let v2 = mount.join("cgroup.controllers").exists();
    let parent = if v2 { mount.to_owned() } else { mount.join("memory") };
    let trial = parent.join(format!("kiln-test-{}", std::process::id()));
    let made = fs_err::create_dir(&trial);
    let limited = trial
        .join(if v2 { "memory.max" } else { "memory.limit_in_bytes" })
        .exists();
    let _ = fs_err::remove_dir(&trial);
    match made {
        Ok(()) if limited => None,
        Ok(()) => Some("control groups have no memory controller here".to_owned()),
        Err(error) => Some(format!("control groups cannot be made: {error}")),
    }
}

#[test]
fn a_build_that_needs_more_memory_than_it_may_have() {
    needs!(support::no_namespaces(), no_memory_limits());
    let (kiln, repository) = (Kiln::new(), Repository::native());
    let recipe = Recipe::with_script(support::TAKES_ALL_MEMORY);
    let ran = kiln.run(["build", recipe.path(), &repository.set(), "--memory=200MiB"]);
    let error = ran.failed();
    assert_eq!(kiln.failure_code(), "out_of_memory", "{error}");
    assert!(error.contains("memory"), "{error}");
    assert!(ran.stderr.contains("--memory"), "{}", ran.last());
    kiln.assert_nothing_built();
}

/// The control group of a sandbox that another installation is about to start: made, and still empty.
struct GroupOfAnother(PathBuf);

impl GroupOfAnother {
    fn new(job: &str) -> Self {
        let mount = Path::new("/sys/fs/cgroup");
        let dir = if mount.join("cgroup.controllers").exists() {
            mount.join(format!("kiln-{job}"))
        } else {
            mount.join("pids/kiln").join(job)
        };
        fs_err::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for GroupOfAnother {
    fn drop(&mut self) {
        let _ = fs_err::remove_dir(&self.0);
    }
}

#[test]
fn two_installations_leave_each_others_sandboxes_alone() {
    needs!(support::no_namespaces(), no_memory_limits());
    let (kiln, repository) = (Kiln::new(), Repository::native());
    let group = GroupOfAnother::new("00000000-0000-4000-8000-00000000ab1e");
    let recipe = Recipe::with_script("exit 3");
    // Every build begins by removing what dead sandboxes left.
    kiln.run(["build", recipe.path(), &repository.set()]).failed();
    assert!(group.0.exists(), "a sandbox of another installation lost its limits");
}

/// An account that exists while a test runs, with ids for sandboxes.
struct Account {
    name: String,
    home: PathBuf,
}

impl Account {
    fn new() -> Self {
        let name = format!("kiln-test-{}", std::process::id());
        let home = PathBuf::from(format!("/tmp/{name}"));
        tool(
            "useradd",
            &[
                "--create-home",
                "--home-dir",
                home.to_str().unwrap(),
                "--shell",
                "/bin/bash",
                &name,
            ],
        );
        let account = Self { name, home };
        if !fs_err::read_to_string("/etc/subuid").unwrap().contains(&account.name) {
            let range = "1000000000-1000065535";
            tool(
                "usermod",
                &["--add-subuids", range, "--add-subgids", range, &account.name],
            );
        }
        account
    }

    fn uid(&self) -> u32 {
        tool("id", &["-u", &self.name]).trim().parse().unwrap()
    }

    /// Where the account's own ids for sandboxes begin.
    fn first_id(&self) -> u32 {
        let text = fs_err::read_to_string("/etc/subuid").unwrap();
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{}:", self.name)))
            .unwrap();
        line.split(':').nth(1).unwrap().parse().unwrap()
    }

    fn command(&self, program: &Path, args: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args([
                "--reuid",
                &self.name,
                "--regid",
                &self.name,
                "--init-groups",
                "--reset-env",
                "--",
                "env",
                "KILN__CAPACITY__FIRST_DISK=1GiB",
                "KILN__CAPACITY__LONGEST_WAIT=5m",
            ])
            .arg(program)
            .args(args)
            .current_dir(&self.home);
        command
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // If a test failed, the remains of its sandboxes belong to ids that only root can remove.
        let _ = Command::new("userdel").arg("--force").arg(&self.name).output();
        let _ = fs_err::remove_dir_all(&self.home);
    }
}

#[test]
fn an_ordinary_user_builds_without_any_right() {
    needs!(support::no_namespaces(), support::not_root(), no_account());
    let account = Account::new();
    // Another user cannot walk to the programs in the source tree.
    let bin = account.home.join("bin");
    fs_err::create_dir(&bin).unwrap();
    for program in [
        support::kiln_program(),
        support::kiln_program().with_file_name(KILN_AGENT),
    ] {
        let to = bin.join(program.file_name().unwrap());
        fs_err::copy(program, &to).unwrap();
        fs_err::set_permissions(&to, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs_err::set_permissions(&bin, std::fs::Permissions::from_mode(0o755)).unwrap();
    let recipe_dir = account.home.join("recipe");
    tool(
        "cp",
        &[
            "-r",
            Recipe::copy_of("rpm-minimal").path(),
            recipe_dir.to_str().unwrap(),
        ],
    );
    tool("chown", &["-R", &account.name, recipe_dir.to_str().unwrap()]);
    fs_err::write(
        recipe_dir.join("config.sh"),
        "#!/bin/sh\ntouch /var/made-by-root\nsleep 5\n",
    )
    .unwrap();

    let kiln = bin.join("kiln");
    let ran = run(account.command(&kiln, &["toolbox", "build"]));
    assert_eq!(ran.code, Some(0), "{}", ran.last());
    let repository = Repository::native();
    let output = account.home.join("images");
    let mut build = Started::new(account.command(
        &kiln,
        &[
            "build",
            "--verbose",
            "recipe",
            &repository.set(),
            "--output",
            output.to_str().unwrap(),
        ],
    ));
    let data = account.home.join(".local/share/kiln");
    let made = support::wait_for_file(&data, &mut build, "var/made-by-root");
    assert_eq!(fs_err::metadata(made).unwrap().uid(), account.first_id());
    let ran = build.end().ok();
    assert_eq!(ran.values("image").len(), 1, "{}", ran.stdout);
    let list = support::squashfs::list(&output.join(support::HOST).join("rootfs"));
    assert!(list.len() > 20, "{list:?}");
    assert!(list.values().all(|entry| (entry.uid, entry.gid) == (0, 0)), "{list:?}");
    assert_eq!(fs_err::metadata(&output).unwrap().uid(), account.uid());
    // Nothing of it is left running, or on disk.
    let uid = account.uid();
    let ids = account.first_id()..account.first_id() + 65_536;
    let theirs = || {
        let owner = |entry: &fs_err::DirEntry| entry.metadata().map(|metadata| metadata.uid());
        let entries = fs_err::read_dir("/proc").unwrap().flatten();
        let is_theirs = |entry: &fs_err::DirEntry| owner(entry).is_ok_and(|owner| owner == uid || ids.contains(&owner));
        entries.filter(is_theirs).count()
    };
    eventually(|| theirs() == 0);
    assert_eq!(fs_err::read_dir(data.join("sandboxes")).unwrap().count(), 0);
}

/// Why no account can be made, if none can.
fn no_account() -> Option<String> {
    let missing = ["useradd", "usermod", "setpriv", "newuidmap"]
        .into_iter()
        .find(|program| {
            Command::new("which")
                .arg(program)
                .output()
                .is_ok_and(|output| !output.status.success())
        });
    missing.map(|program| format!("there is no {program}"))
}
