#!/bin/bash
# Runs in the new root, as the target architecture.
set -euo pipefail

arch=$(uname -m)
echo "config.sh: configuring for ${arch}"

# a program of the target's own: compiled here, run here, and it stays
cat > /tmp/arch-report.c <<'C'
#include <stdio.h>
#include <sys/utsname.h>

int main(void)
{
    struct utsname u;

    if (uname(&u) != 0)
        return 1;
    printf("%s\n", u.machine);
    return 0;
}
C
if command -v gcc > /dev/null; then cc=gcc; else cc=tcc; fi
"$cc" -o /usr/local/bin/arch-report /tmp/arch-report.c
rm /tmp/arch-report.c
reported=$(/usr/local/bin/arch-report)
[ "$reported" = "$arch" ] || { echo "arch-report says ${reported}, not ${arch}" >&2; exit 1; }
python3 -c 'import platform; print("config.sh: python3 runs on", platform.machine())'
apt-get -q -y --auto-remove purge tcc libc6-dev

# host keys and the machine id belong to a node, not to an image
rm -f /etc/ssh/ssh_host_*
: > /etc/machine-id
cat > /etc/systemd/system/ssh-hostkeys.service <<'U'
[Unit]
Description=Make this node's ssh host keys
Before=ssh.service
ConditionPathExists=!/etc/ssh/ssh_host_ed25519_key

[Service]
Type=oneshot
ExecStart=/usr/bin/ssh-keygen -A

[Install]
WantedBy=multi-user.target
U
systemctl enable ssh.service ssh-hostkeys.service systemd-networkd.service systemd-resolved.service node-report.service

# the initrd, once, for every kernel in the image (post_bootstrap.sh hid dracut from the packages' own hooks)
dpkg-divert --quiet --local --rename --remove /usr/bin/dracut
for modules in /lib/modules/*; do
    version=${modules##*/}
    dracut --force --no-hostonly --kver "$version" "/boot/initrd.img-${version}"
done

printf 'image=debian-compute arch=%s\n' "$arch" > /etc/kiln-release
apt-get clean
rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log
