#!/bin/bash
# make-repo.sh OUTDIR: RPM repositories OUTDIR/x86_64 and OUTDIR/aarch64 for the recipe beside this file.
# The programs are Debian's, fetched and verified by the host's own apt and repacked as rpms: a C library, a shell and
# text tools that are linked dynamically, as those of every distribution are, in the same versions for both
# architectures. Needs rpmbuild, createrepo_c and a Debian host.
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: $0 OUTDIR" >&2; exit 64; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT

packages=(libc6 libgcc-s1 libtinfo6 libselinux1 libpcre2-8-0 libacl1 libattr1 libgmp10 libmpfr6 libreadline8 libsigsegv2
    bash coreutils sed grep gawk findutils tar gzip)

fetch() { # DEBIAN-ARCHITECTURE: the packages, unpacked to $top/ARCHITECTURE/PACKAGE
    local deb=$1 state="$top/$1.apt" package
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$state/debs"
    local apt=(apt-get -q -o "Dir::State::lists=$state/lists" -o "Dir::Cache=$state/cache" -o "Dir::State::status=/dev/null"
        -o "APT::Architecture=$deb" -o "APT::Architectures=$deb" -o APT::Sandbox::User=root -o Acquire::Languages=none)
    "${apt[@]}" update > "$state/log"
    (cd "$state/debs" && "${apt[@]}" download "${packages[@]/%/:$deb}" >> "$state/log")
    for package in "${packages[@]}"; do
        mkdir -p "$top/$deb/$package"
        dpkg-deb -x "$state/debs/${package}"_*.deb "$top/$deb/$package"
        rm -rf "$top/$deb/$package"/usr/share/{doc,man,info,locale,lintian}
    done
}

merge_usr() { # DIRECTORY: bin, sbin, lib and lib64 below usr
    local name
    for name in bin sbin lib lib64; do
        [ -d "$1/$name" ] || continue
        mkdir -p "$1/usr/$name"
        cp -a "$1/$name/." "$1/usr/$name/"
        rm -rf "${1:?}/$name"
    done
}

spec() { # DEBIAN-ARCHITECTURE: one package of rpm for each of Debian's, and two of our own
    local deb=$1 package version
    cat << 'S'
%global debug_package %{nil}
%global __os_install_post %{nil}
%global _build_id_links none
%global _binary_payload w1.gzdio
Name: shell
Version: 1.0
Release: 1
Summary: The packages of a root with a shell
License: GPL
AutoReqProv: no

%description
The packages of a root with a shell.

%package filesystem
Summary: The directories everything else lives in, and the accounts
BuildArch: noarch
%description filesystem
The directories of a merged-/usr root, and the accounts.

%package release
Summary: Says what this system is, and what it was installed on
Requires: shell-tools
AutoReqProv: no
Provides: system-release = %{version}
%description release
Says what this system is, and what it was installed on.

%package tools
Summary: A shell and text tools
AutoReqProv: no
Provides: /bin/sh
S
    for package in "${packages[@]}"; do echo "Requires: $package"; done
    printf '%s\n%s\n' '%description tools' 'A shell and text tools.'
    for package in "${packages[@]}"; do
        version=$(dpkg-deb -f "$top/$deb.apt/debs/${package}"_*.deb Version)
        version=${version#*:} version=${version//-/.}
        printf '\n%%package -n %s\nVersion: %s\nSummary: %s of Debian\nRequires: shell-filesystem\nAutoReqProv: no\n%%description -n %s\nAs Debian has it.\n' \
            "$package" "${version//+/.}" "$package" "$package"
        printf '%%files -n %s\n' "$package"
        (cd "$top/$deb/$package" && find . ! -type d -printf '/%P\n')
    done
    cat << S

%install
cd %{buildroot}
mkdir -p usr/bin usr/sbin usr/lib usr/lib64 etc root boot dev proc sys run tmp var/lib var/log var/tmp home opt mnt
for name in bin sbin lib lib64; do ln -s usr/\$name \$name; done
for package in ${packages[*]}; do cp -a $top/$deb/\$package/. .; done
ln -s bash usr/bin/sh
ln -s gawk usr/bin/awk
echo 'root:x:0:0:root:/root:/bin/bash' > etc/passwd
echo 'root:x:0:' > etc/group
printf 'NAME="Shell"\nID=shell\nVERSION_ID="1.0"\n' > etc/os-release

%post release
{ uname -m; echo "\$MACHTYPE"; sort -u /etc/passwd /etc/group | awk -F: '{ print \$1 }'; } > /etc/installed-on

%files filesystem
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

%files release
/etc/os-release
%ghost /etc/installed-on

%files tools
/usr/bin/awk
/usr/bin/sh
S
}

for pair in amd64:x86_64 arm64:aarch64; do
    deb=${pair%:*} arch=${pair#*:}
    fetch "$deb"
    for package in "${packages[@]}"; do merge_usr "$top/$deb/$package"; done
    mkdir -p "$top"/{SPECS,BUILD} "$top/RPMS/$arch"
    spec "$deb" > "$top/SPECS/$arch.spec"
    rpmbuild --quiet --define "_topdir $top" --define "_rpmdir $top/RPMS/$arch" --define "_tmppath $top" \
        --target "$arch" -bb "$top/SPECS/$arch.spec"
    mkdir -p "$out/$arch"
    find "$top/RPMS/$arch" -name '*.rpm' -exec cp -t "$out/$arch" {} +
    # As SLES 16 and Leap 16 have it.
    createrepo_c --quiet --checksum sha512 "$out/$arch"
done
