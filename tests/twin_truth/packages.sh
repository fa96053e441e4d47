#!/bin/bash
# packages.sh DIRECTORY ARCH -- unpacks the programs that say what they were built for, and what they need, to
# DIRECTORY/ARCH (Debian's name). The versions are those of the machine's own distribution; apt verifies them.
set -eu

directory=$1
arch=$2
apt=$directory/apt-$arch
options=(-q -o "Dir::State=$apt/state" -o "Dir::Cache=$apt/cache" -o Dir::State::status=/dev/null
    -o "APT::Architecture=$arch" -o "APT::Architectures=$arch" -o Acquire::Languages=none -o APT::Sandbox::User=root
    -o APT::Install-Recommends=false)

mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$apt/packages"
apt-get "${options[@]}" update
names=$(apt-get "${options[@]}" --simulate install apt bash coreutils dpkg libc-bin make perl-base python3-minimal |
    sed -n 's/^Inst \([^ ]*\) .*/\1/p')
(cd "$apt/packages" && apt-get "${options[@]}" download $names)

root=$directory/$arch.new
mkdir -p "$root/usr"
for name in bin lib lib64 sbin; do
    mkdir "$root/usr/$name"
    ln -s "usr/$name" "$root/$name"
done
for package in "$apt/packages/"*.deb; do
    dpkg-deb --fsys-tarfile "$package" |
        tar -x -C "$root" --keep-directory-symlink --exclude='./usr/share/doc' --exclude='./usr/share/locale'
done
mkdir -p "$root/dev" "$root/etc" "$root/proc" "$root/.kiln/bin"
: >"$root/dev/null"
echo 'äöü ÄÖÜ' >"$root/etc/text"
mv "$root" "$directory/$arch"
