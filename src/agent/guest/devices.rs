//! Prepares a machine's devices: the kernel's file systems, modules, ports and disks. Mounts, loads modules, and opens
//! devices.

use std::{
    fs::File,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use kiln_records::{Code, Failure};
use nix::{
    kmod::{ModuleInitFlags, finit_module},
    mount::{MsFlags, mount},
};

/// The directory of modules in the initrd; their names begin with their position in the loading order.
const MODULES: &str = "/modules";

/// Devices exist as soon as their driver does; ports get their names a moment later.
const PATIENCE: Duration = Duration::from_secs(20);

/// Pause between checks for a device.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Mounts the file systems that every program expects.
pub(super) fn mount_system() -> Result<(), Failure> {
    for (kind, target) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        fs_err::create_dir_all(target)
            .and_then(|()| Ok(mount(Some(kind), target, Some(kind), MsFlags::empty(), None::<&str>)?))
            .map_err(|error| failed(&format!("cannot mount {target}"), &error))?;
    }
    Ok(())
}

/// Makes the kernel kill processes when memory runs out, instead of reading the same programs from disk again and
/// again: pages used in the last second are not evicted (`Documentation/admin-guide/mm/multigen_lru.rst`). A kernel
/// without that setting runs without it.
pub(super) fn prefer_killing() {
    for (name, value) in [("enabled", "y"), ("min_ttl_ms", "1000")] {
        let _ = fs_err::write(Path::new("/sys/kernel/mm/lru_gen").join(name), value);
    }
}

/// Loads every module in order, and deletes the files.
pub(super) fn load_modules() -> Result<(), Failure> {
    let load = |path: &Path| -> std::io::Result<()> {
        let file = fs_err::File::open(path)?;
        finit_module(file, c"", ModuleInitFlags::empty())?;
        Ok(())
    };
    let entries = fs_err::read_dir(MODULES).map_err(|error| failed("cannot find modules", &error))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort_unstable();
    for path in paths {
        load(&path).map_err(|error| failed(&format!("cannot load {}", path.display()), &error))?;
    }
    fs_err::remove_dir_all(MODULES).map_err(|error| failed("cannot remove modules", &error))
}

/// Opens the port of this name, for both directions.
pub(super) fn port(name: &str) -> Result<File, Failure> {
    let device = find("/sys/class/virtio-ports", "name", name)?;
    let opened = fs_err::OpenOptions::new()
        .read(true)
        .write(true)
        .open(Path::new("/dev").join(device));
    opened
        .map(File::from)
        .map_err(|error| failed(&format!("cannot open the port {name}"), &error))
}

/// The device of the disk with this serial number.
pub(super) fn disk(serial: &str) -> Result<PathBuf, Failure> {
    Ok(Path::new("/dev").join(find("/sys/block", "serial", serial)?))
}

/// Waits for the entry of `dir` whose file `attribute` contains `value`.
fn find(dir: &str, attribute: &str, value: &str) -> Result<PathBuf, Failure> {
    let until = Instant::now() + PATIENCE;
    loop {
        let is_it =
            |path: &PathBuf| fs_err::read_to_string(path.join(attribute)).is_ok_and(|text| text.trim() == value);
        let entries = fs_err::read_dir(dir).into_iter().flatten().flatten();
        if let Some(path) = entries.map(|entry| entry.path()).find(is_it) {
            return Ok(path.file_name().map(PathBuf::from).unwrap_or_default());
        }
        if Instant::now() > until {
            return Err(Failure::new(
                Code::VmDevice,
                format!("the machine has no {value} in {dir}"),
            ));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Detaches the console from the kernel, which would otherwise end the output with a message about powering off.
pub(super) fn silence_console() {
    let active = fs_err::read_to_string("/sys/class/tty/console/active").unwrap_or_default();
    for console in active.split_whitespace() {
        // A kernel that keeps the console prints one line more.
        let _ = fs_err::write(format!("/sys/class/tty/{console}/console"), "N");
    }
}

/// The failure for a device that the machine needs.
pub(super) fn failed(what: &str, error: &std::io::Error) -> Failure {
    Failure::new(Code::VmDevice, format!("{what}: {error}"))
}
