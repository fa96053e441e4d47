//! Chooses the kernel's parameters for an image that boots from a disk with its root file system. Pure: no I/O.

/// The longest kernel parameters, in bytes. Kernels have limits of 256 bytes to 4 KiB, and cut off the rest.
const LONGEST: usize = 2048;

/// Parameters that belong to booting over a network, or from another root. Some end where their value begins.
const OF_THE_NETWORK: [&str; 18] = [
    "BOOT_IMAGE=",
    "bond=",
    "bootdev=",
    "BOOTIF=",
    "bridge=",
    "ds=",
    "ifname=",
    "ip=",
    "metal.",
    "nameserver=",
    "netroot=",
    "nfsroot=",
    "rd.live.",
    "rd.neednet",
    "root=",
    "rootfstype=",
    "team=",
    "vlan=",
];

/// The parameters with which dracut's `dmsquash-live` boots a squashfs on `device`, with an overlay in memory.
pub fn live_root(device: &str) -> String {
    format!("root=live:{device} rd.live.image rd.live.overlay.overlayfs=1 rd.live.dir=/ rd.live.squashimg=rootfs")
}

/// The image's own parameters without those for other ways to boot, and without placeholders (`${…}`), which boot
/// services replace.
pub fn own(text: &str) -> String {
    let kept = text.split_whitespace().filter(|word| {
        let is_other = OF_THE_NETWORK.iter().any(|name| word.starts_with(name));
        let is_plain = word.chars().all(|c| !c.is_control()) && !word.contains(['$', '"', '\'', '\\']);
        !is_other && is_plain
    });
    kept.collect::<Vec<_>>().join(" ")
}

/// The parameters with which an image is booted to see whether it comes up: its own, those for its root on `device`, and
/// more. `None` if they are longer than 2048 bytes, or have control characters.
pub fn for_check(of_image: &str, device: &str, more: &str) -> Option<String> {
    let root = if have_root(more) {
        String::new()
    } else {
        live_root(device)
    };
    let of_image = own(of_image);
    // A quiet image would say little of its own units.
    let all = [&of_image, &root, "systemd.show_status=1", more].map(str::trim);
    let all: Vec<_> = all.into_iter().filter(|part| !part.is_empty()).collect();
    let all = all.join(" ");
    (all.len() <= LONGEST && !all.chars().any(char::is_control)).then_some(all)
}

/// Whether the parameters say where the root file system is.
pub fn have_root(text: &str) -> bool {
    text.split_whitespace().any(|word| word.starts_with("root="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_for_networks_are_left_out() {
        let text = "console=ttyS0,115200 root=craycps-s3:s3://boot-images/x ip=dhcp rd.neednet=1 ds=nocloud-net;s=http://x/ \
                    nmd_data=url=${NMD} quiet spire_join_token=${SPIRE_JOIN_TOKEN} crashkernel=256M selinux=0\n";
        assert_eq!(own(text), "console=ttyS0,115200 quiet crashkernel=256M selinux=0");
    }

    #[test]
    fn text_that_could_end_a_quoted_line_is_left_out() {
        assert_eq!(own("a=1 b=\"2 c' d\\x e\u{7}f g"), "a=1 g");
    }

    #[test]
    fn a_root_is_found() {
        assert!(have_root("quiet root=/dev/vda"));
        assert!(!have_root("rd.root=x"));
    }
}
