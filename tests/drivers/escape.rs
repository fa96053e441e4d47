//! Tests recipes that look for a way out. Each finds only its own things.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command},
};

use crate::drivers::{
    microvm::Microvms,
    namespace::Namespaces,
    place::{Kind, Place},
};
use crate::support;

/// Looks for `$1` in every place that a sandbox's root can reach: files, processes, disks, kernel. Reports where it was
/// found, and which forbidden actions succeeded.
const CORPUS: &str = r#"
mark=$1
# The shell says what it may not do, which is nobody's concern.
exec 3>&2 2>/dev/null
found() { echo "found: $1" >&3; }
# Files of the host and of other jobs, by every way that leads to a root.
for root in / /proc/1/root /proc/*/root /proc/*/cwd; do
    [ -e "$root/$mark" ] && found "$root/$mark"
done
find / -xdev -maxdepth 3 -name "*$mark*" | grep -q . && found file
find /proc/*/root /proc/*/cwd -maxdepth 4 -name "*$mark*" | grep -q . && found file-of-a-process
# Processes; the bracket keeps the script from finding itself.
for process in /proc/[0-9]*; do
    tr '\0' ' ' < $process/cmdline | grep -q "sleep 9876543[2]" && found process
    tr '\0' ' ' < $process/environ | grep -q "MARK=$mark" && found environment
done
# Disks, made out of thin air: those of the host hold the mark.
for major in 7 8 252 253 254 259; do
    for minor in 0 1 2; do
        mknod /dev/try-$major-$minor b $major $minor || continue
        timeout 20 grep -q -a -m 1 "secret-of-$mark" /dev/try-$major-$minor && found disk-$major-$minor
    done
done
# Memory of the kernel, and what changes it.
for device in mem kmem port kmsg; do
    [ -e /dev/$device ] && found /dev/$device
done
# Through the names of the kernel itself.
echo "|/bin/touch /$mark" > /proc/sys/kernel/core_pattern
echo /bin/$mark > /proc/sys/kernel/modprobe
hostname $mark
mkdir -p /mnt && mount -t binfmt_misc none /mnt
echo ":$mark:M::$mark::/bin/sh:" > /mnt/register
modprobe dummy
echo looked >&3
kill -9 -1
"#;

/// The bait on the host: a file at its root, and a process.
struct Bait {
    file: PathBuf,
    process: Child,
}

impl Bait {
    fn put_out(mark: &str) -> Self {
        let file = Path::new("/").join(mark);
        fs_err::write(&file, format!("secret-of-{mark}")).unwrap();
        let process = Command::new("sleep").arg("98765432").env("MARK", mark).spawn().unwrap();
        Self { file, process }
    }
}

impl Drop for Bait {
    fn drop(&mut self) {
        let _ = fs_err::remove_file(&self.file);
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn nothing_is_found<K: Kind>() {
    needs!(K::lack(), support::not_root());
    let place = Place::<K>::new().await;
    let mark = format!("mark-{}-{}", K::NAME, std::process::id());
    let mut bait = Bait::put_out(&mark);
    let other = place
        .start(&format!("echo secret-of-{mark} > /scratch/{mark}; touch /{mark}"))
        .await;
    let kernel = || {
        ["core_pattern", "modprobe", "hostname"].map(|name| {
            let path = format!("/proc/sys/kernel/{name}");
            fs_err::read_to_string(path).unwrap_or_default()
        })
    };
    let modules = || {
        let text = fs_err::read_to_string("/proc/modules").unwrap_or_default();
        text.lines().any(|line| line.starts_with("dummy "))
    };
    let (before, had_module) = (kernel(), modules());

    // At the end it kills whatever it can, itself included.
    let spec = place.spec(&format!("set -- {mark}\n{CORPUS}"));
    let evidence = place.run(&spec).await;

    let is_alive = bait.process.try_wait().unwrap().is_none();
    assert_eq!(evidence.last_words, ["looked"], "{evidence:?}");
    assert!(is_alive, "a process of the host was killed");
    assert_eq!((kernel(), modules()), (before, had_module));
    assert!(!support::host_binfmt().contains_key(&mark));
    place
        .driver()
        .destroy(other, kiln::sandbox::Scratch::Remove)
        .await
        .unwrap();
    place.destroy(spec.job).await;
}

#[test]
async fn nothing_leads_out_of_namespaces() {
    nothing_is_found::<Namespaces>().await;
}

#[test]
async fn nothing_leads_out_of_machines() {
    nothing_is_found::<Microvms>().await;
}
