//! Recipes that look for a way out. Each finds only what is its own.

use std::process::Command;

use crate::{
    microvm::Microvms,
    namespace::Namespaces,
    needs,
    place::{Kind, Place},
    support,
};

/// Looks for `$1` in every place that root of a sandbox gets at: files, processes, disks, kernel. Says where it was, and
/// what could be done that must not be.
const CORPUS: &str = r#"
mark=$1
found() { echo "found: $1" >&2; }
# Files of the host and of other jobs, by every way that leads to a root.
for root in / /proc/1/root /proc/*/root /proc/*/cwd; do
    [ -e "$root/$mark" ] && found "$root/$mark"
done
find / -xdev -maxdepth 3 -name "*$mark*" 2>/dev/null | grep -q . && found file
find /proc/*/root /proc/*/cwd -maxdepth 4 -name "*$mark*" 2>/dev/null | grep -q . && found file-of-a-process
# Processes.
for process in /proc/[0-9]*; do
    tr '\0' ' ' < $process/cmdline 2>/dev/null | grep -q "sleep 98765432" && found process
    tr '\0' ' ' < $process/environ 2>/dev/null | grep -q "MARK=$mark" && found environment
done
# Disks, made out of thin air: those of the host hold the mark.
for major in 7 8 252 253 254 259; do
    for minor in 0 1 2; do
        mknod /dev/try-$major-$minor b $major $minor 2>/dev/null || continue
        timeout 20 grep -q -a -m 1 "secret-of-$mark" /dev/try-$major-$minor 2>/dev/null && found disk-$major-$minor
    done
done
# Memory of the kernel, and what changes it.
for device in mem kmem port kmsg; do
    [ -e /dev/$device ] && found /dev/$device
done
# Through the names of the kernel itself.
echo "|/bin/touch /$mark" > /proc/sys/kernel/core_pattern 2>/dev/null
echo /bin/$mark > /proc/sys/kernel/modprobe 2>/dev/null
hostname $mark 2>/dev/null
mkdir -p /mnt && mount -t binfmt_misc none /mnt 2>/dev/null
echo ":$mark:M::$mark::/bin/sh:" > /mnt/register 2>/dev/null
modprobe dummy 2>/dev/null
echo looked >&2
kill -9 -1 2>/dev/null
"#;

async fn nothing_is_found<K: Kind>() {
    needs!(K::lack(), support::not_root());
    let place = Place::<K>::new().await;
    let mark = format!("mark-{}", std::process::id());
    // What there is to be found: a file and a process of the host, and a file of another job.
    let dir = tempfile::tempdir().unwrap();
    fs_err::write(dir.path().join(&mark), format!("secret-of-{mark}")).unwrap();
    let on_root = format!("/{mark}");
    fs_err::write(&on_root, format!("secret-of-{mark}")).unwrap();
    let mut process = Command::new("sleep")
        .arg("98765432")
        .env("MARK", &mark)
        .spawn()
        .unwrap();
    let other = place
        .start(&format!("echo secret-of-{mark} > /scratch/{mark}; touch /{mark}"))
        .await;
    let kernel = || {
        ["core_pattern", "modprobe", "hostname"].map(|name| {
            let path = format!("/proc/sys/kernel/{name}");
            fs_err::read_to_string(path).unwrap()
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

    let is_alive = process.try_wait().unwrap().is_none();
    process.kill().unwrap();
    process.wait().unwrap();
    fs_err::remove_file(&on_root).unwrap();
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

#[tokio::test]
async fn nothing_leads_out_of_namespaces() {
    nothing_is_found::<Namespaces>().await;
}

#[tokio::test]
async fn nothing_leads_out_of_machines() {
    nothing_is_found::<Microvms>().await;
}
