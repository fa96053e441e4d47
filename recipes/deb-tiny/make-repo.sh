#!/bin/bash
# make-repo.sh OUTDIR: a Debian repository for x86_64 and aarch64 with three packages, for the recipe beside this file.
# Their programs are Debian's own, fetched with the host's apt: tiny-base is a shell, basic tools and dpkg with all their
# libraries; apt is apt; tiny-note, for any architecture, is one file and a script. As Debian's own packages do, tiny-base
# brings the directories /dev, /proc and /sys.
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: $0 OUTDIR" >&2; exit 64; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT

# fetch ARCH: Debian's packages, with those that they depend on
fetch() {
    mkdir -p "$top/$1"/{lists,cache/archives}/partial
    local apt=(apt-get -qq -o "Dir::State::lists=$top/$1/lists" -o "Dir::Cache=$top/$1/cache" -o Dir::State::status=/dev/null
        -o "APT::Architecture=$1" -o "APT::Architectures=$1" -o APT::Sandbox::User=root -o Acquire::Languages=none
        -o APT::Install-Recommends=false -o Debug::NoLocking=true)
    "${apt[@]}" update
    "${apt[@]}" -y --download-only install apt base-files base-passwd coreutils dash diffutils dpkg grep libc-bin sed tar >/dev/null
}

# package ARCH NAME DIR, with the rest of its description on standard input: DIR becomes a package
package() {
    local pool=$out/pool/$2_1.0_$1.deb lists=("$out/dists/tiny/main/binary-$1/Packages")
    [ "$1" != all ] || lists=("$out"/dists/tiny/main/binary-*/Packages)
    (cd "$3" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | xargs -0 md5sum > DEBIAN/md5sums)
    { printf 'Package: %s\nVersion: 1.0\nArchitecture: %s\nMaintainer: Kiln <kiln@example.org>\n' "$2" "$1"; cat; } > "$3/DEBIAN/control"
    dpkg-deb --root-owner-group -Znone --build "$3" "$pool" >/dev/null
    { cat "$3/DEBIAN/control"
      echo "Filename: pool/${pool##*/}"
      echo "Size: $(stat -c %s "$pool")"
      echo "SHA256: $(sha256sum "$pool" | cut -d' ' -f1)"
      echo; } | tee -a "${lists[@]}" >/dev/null
}

# make ARCH: its two packages
make() {
    local base=$top/$1/base apt=$top/$1/apt deb dir
    mkdir -p "$base/DEBIAN" "$apt/DEBIAN" "$out/dists/tiny/main/binary-$1" "$out/pool"
    : > "$out/dists/tiny/main/binary-$1/Packages"
    for deb in "$top/$1"/cache/archives/*.deb; do
        case ${deb##*/} in
        apt_* | libapt-pkg*) dpkg-deb -x "$deb" "$apt" ;;
        # Scripts of Debian's packages need these; none of those scripts is kept.
        perl* | libperl* | debconf_* | adduser_* | passwd_* | libpam* | libsemanage*) ;;
        *) dpkg-deb -x "$deb" "$base" ;;
        esac
    done
    rm -rf "$base"/usr/share/{doc,man,info,locale,lintian,bash-completion} "$base"/usr/lib/*/{gconv,engines-3,ossl-modules} \
        "$apt"/usr/share/{doc,man,locale,bash-completion,bug,lintian} "$apt"/etc/{cron.daily,kernel,logrotate.d} "$apt"/usr/lib/systemd
    # /usr is merged, whatever Debian's packages of this release do.
    for dir in bin sbin lib lib64; do
        if [ -d "$base/$dir" ] && [ ! -L "$base/$dir" ]; then
            mkdir -p "$base/usr/$dir"
            cp -a "$base/$dir/." "$base/usr/$dir/"
            rm -r "${base:?}/$dir"
        fi
        [ ! -d "$base/usr/$dir" ] || ln -sfn "usr/$dir" "$base/$dir"
    done
    [ ! -d "$apt/lib" ] || { cp -a "$apt/lib/." "$apt/usr/lib/"; rm -r "$apt/lib"; }
    mkdir -p "$base"/{dev,proc,sys,run,tmp,root,etc,var/lib/dpkg/{info,updates,alternatives},var/log,var/tmp}
    ln -sfn dash "$base/usr/bin/sh"
    cp "$base/usr/share/base-passwd/passwd.master" "$base/etc/passwd"
    cp "$base/usr/share/base-passwd/group.master" "$base/etc/group"
    echo '_apt:x:42:65534::/nonexistent:/usr/sbin/nologin' >> "$base/etc/passwd"
    printf '#!/bin/sh\nset -e\nldconfig\n' > "$base/DEBIAN/postinst"
    chmod 755 "$base/DEBIAN/postinst"
    package "$1" tiny-base "$base" <<'C'
Essential: yes
Description: a shell, basic tools and dpkg
C
    package "$1" apt "$apt" <<'C'
Depends: tiny-base
Description: apt
C
}

for arch in amd64 arm64; do
    fetch "$arch"
    make "$arch"
done
note=$top/note
mkdir -p "$note"/{DEBIAN,etc}
echo tiny > "$note/etc/tiny"
printf '#!/bin/sh\nset -e\nuname -m > /etc/tiny-installed-on\n' > "$note/DEBIAN/postinst"
chmod 755 "$note/DEBIAN/postinst"
package all tiny-note "$note" <<'C'
Depends: tiny-base
Description: a file and a script
C
cd "$out/dists/tiny"
{
    printf 'Suite: tiny\nCodename: tiny\nComponents: main\nArchitectures: amd64 arm64\nDate: %s\nSHA256:\n' "$(LC_ALL=C date -Ru)"
    for arch in amd64 arm64; do
        list=main/binary-$arch/Packages
        printf ' %s %s %s\n' "$(sha256sum "$list" | cut -d' ' -f1)" "$(stat -c %s "$list")" "$list"
    done
} > Release
