#!/bin/bash
# make-repo.sh OUTDIR ARCH: a tiny RPM repository (x86_64 or aarch64) for the recipe beside this file.
# Needs rpmbuild, createrepo_c, and a static busybox of ARCH: $BUSYBOX, or /bin/busybox when it is of ARCH,
# or Debian's busybox-static of ARCH fetched with the host's own apt.
set -euo pipefail

[ $# -eq 2 ] || { echo "usage: $0 OUTDIR ARCH" >&2; exit 64; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
arch=$2
case $arch in
x86_64) deb=amd64 machine=3e00 ;;
aarch64) deb=arm64 machine=b700 ;;
*) echo "$0: no such architecture: ${arch}" >&2; exit 64 ;;
esac
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT

is_static() { # an ELF of the wanted machine without an interpreter
    [ -x "$1" ] && [ "$(od -An -tx1 -j18 -N2 "$1" | tr -d ' ')" = "$machine" ] && ! readelf -lW "$1" | grep -q INTERP
}

busybox=${BUSYBOX:-/bin/busybox}
if ! is_static "$busybox"; then
    [ -z "${BUSYBOX:-}" ] || { echo "$0: ${BUSYBOX} is not a static ${arch} program" >&2; exit 1; }
    mkdir -p "$top/apt/lists/partial" "$top/apt/cache/archives/partial" "$top/deb"
    apt=(apt-get -q -o "Dir::State::lists=$top/apt/lists" -o "Dir::Cache=$top/apt/cache" -o "Dir::State::status=/dev/null"
        -o "APT::Architecture=$deb" -o "APT::Architectures=$deb" -o APT::Sandbox::User=root -o Acquire::Languages=none)
    "${apt[@]}" update
    (cd "$top/deb" && "${apt[@]}" download "busybox-static:$deb")
    dpkg-deb -x "$top"/deb/busybox-static_*.deb "$top/bb"
    for busybox in "$top/bb/bin/busybox" "$top/bb/usr/bin/busybox"; do
        ! is_static "$busybox" || break
    done
    is_static "$busybox" || { echo "$0: no static busybox for ${arch}" >&2; exit 1; }
fi

mkdir -p "$top"/{SPECS,SOURCES,BUILD,RPMS}
install -m 755 "$busybox" "$top/SOURCES/busybox"

# a kernel by name and place only. arm64: as much of an Image header as tools look at (magic at 56)
python3 - "$top/SOURCES/vmlinuz" "$arch" <<'P'
import sys
data = bytearray(b"not a kernel".ljust(4096, b"\0"))
if sys.argv[2] == "aarch64":
    data[56:60] = b"ARM\x64"
else:
    data[0x202:0x206] = b"HdrS"
    data[0x1FE:0x200] = b"\x55\xaa"
open(sys.argv[1], "wb").write(data)
P

cat > "$top/SPECS/tiny.spec" <<'S'
%global kver 6.1.0-tiny
%global debug_package %{nil}
%global __os_install_post %{nil}
%global _build_id_links none
Name: tiny
Version: 1.0
Release: 1
Summary: The packages of a tiny root
License: MIT
AutoReqProv: no

%description
The packages of a tiny root.

%package -n tiny-filesystem
Summary: The directories everything else lives in
BuildArch: noarch
%description -n tiny-filesystem
The directories of a merged-/usr root, and the accounts.

%package -n tiny-shell
Summary: A static shell and tools
Requires: tiny-filesystem
Provides: /bin/sh
AutoReqProv: no
%description -n tiny-shell
A static busybox with links for its applets.

%package -n tiny-release
Summary: Says what this system is
BuildArch: noarch
Requires: tiny-filesystem
Provides: system-release = %{version}
Provides: product() = Tiny
%description -n tiny-release
Says what this system is.

%package -n tiny-kernel
Summary: A file that is named like a kernel
Requires(post): tiny-shell
Provides: kernel = 6.1.0
AutoReqProv: no
%description -n tiny-kernel
A file that is named like a kernel, and an initrd made by a scriptlet.

%package -n tiny-failing
Summary: Scripts that fail
BuildArch: noarch
Requires(post): tiny-shell
%description -n tiny-failing
A shell script and one in rpm's own Lua, which fail after the installation. No recipe has it.

%package -n tiny-extra
Summary: What a collection brings
BuildArch: noarch
Requires: tiny-filesystem
%description -n tiny-extra
A file that is in a collection. No recipe has it.

%package -n patterns-tiny-node
Summary: A pattern, as SUSE has them
BuildArch: noarch
Requires: tiny-extra
Provides: pattern() = node
Provides: pattern-visible()
%description -n patterns-tiny-node
A package that says that it is a collection.

%install
cd %{buildroot}
mkdir -p usr/bin usr/sbin usr/lib usr/lib64 etc root boot dev proc sys run tmp var/lib var/log var/tmp home opt mnt usr/lib/modules/%{kver}
ln -s usr/bin bin
ln -s usr/sbin sbin
ln -s usr/lib lib
ln -s usr/lib64 lib64
echo 'root:x:0:0:root:/root:/bin/sh' > etc/passwd
echo 'root:x:0:' > etc/group
echo 'root:*:19000:0:99999:7:::' > etc/shadow
install -m 755 %{_topdir}/SOURCES/busybox usr/bin/busybox
for applet in sh ash ls cat cp mv rm ln mkdir rmdir chmod chown touch echo printf true false test uname id env sed grep awk find sort head tail wc cut tr tar gzip cpio mount umount basename dirname readlink sleep date hostname depmod sync; do
    ln -s busybox usr/bin/$applet
done
ln -s sh usr/bin/bash
cat > etc/os-release <<'R'
NAME="Tiny"
ID=tiny
VERSION_ID="1.0"
PRETTY_NAME="Tiny 1.0"
R
install -m 644 %{_topdir}/SOURCES/vmlinuz boot/vmlinuz-%{kver}
: > usr/lib/modules/%{kver}/modules.dep

echo extra > etc/extra

%post -n tiny-kernel
cd /etc && echo os-release | cpio -o -H newc 2> /dev/null | gzip -9 > /boot/initrd-%{kver}
uname -m > /boot/installed-on

%post -n tiny-failing
exit 3

%posttrans -n tiny-failing -p <lua>
error("no such thing")

%files -n tiny-failing

%files -n tiny-extra
/etc/extra

%files -n patterns-tiny-node

%files -n tiny-filesystem
%dir /boot
%dir /etc
%dir /home
%dir /mnt
%dir /opt
%dir /usr
%dir /usr/bin
%dir /usr/sbin
%dir /usr/lib
%dir /usr/lib64
%dir /usr/lib/modules
%dir /var
%dir /var/lib
%dir /var/log
%dir /dev
%dir /proc
%dir /sys
%dir /run
%dir %attr(0700,root,root) /root
%dir %attr(1777,root,root) /tmp
%dir %attr(1777,root,root) /var/tmp
/bin
/sbin
/lib
/lib64
/etc/passwd
/etc/group
%attr(0600,root,root) /etc/shadow

%files -n tiny-shell
/usr/bin/*

%files -n tiny-release
/etc/os-release

%files -n tiny-kernel
/boot/vmlinuz-%{kver}
%dir /usr/lib/modules/%{kver}
/usr/lib/modules/%{kver}/modules.dep
%ghost /boot/initrd-%{kver}
%ghost /boot/installed-on
S
rpmbuild --quiet --define "_topdir $top" --define "_rpmdir $top/RPMS" --define "_tmppath $top" \
    --target "$arch" -bb "$top/SPECS/tiny.spec"
find "$top/RPMS" -name '*.rpm' -exec cp -t "$out" {} +
cat > "$top/comps.xml" <<'C'
<?xml version="1.0" encoding="UTF-8"?>
<comps>
  <group>
    <id>node</id>
    <name>A node</name>
    <name xml:lang="de">Ein Knoten</name>
    <description>A group, as Red Hat has them</description>
    <default>false</default>
    <uservisible>true</uservisible>
    <packagelist>
      <packagereq type="mandatory">tiny-extra</packagereq>
      <packagereq type="optional">tiny-failing</packagereq>
    </packagelist>
  </group>
  <environment>
    <id>tiny-environment</id>
    <name>Tiny</name>
    <description>An environment</description>
    <display_order>1</display_order>
    <grouplist><groupid>node</groupid></grouplist>
  </environment>
</comps>
C
createrepo_c --quiet --groupfile "$top/comps.xml" "$out"
