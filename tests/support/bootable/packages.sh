#!/bin/bash
# packages.sh DIRECTORY ARCH -- unpacks Debian's kernel for clouds and a static busybox of an architecture (Debian's name) to
# DIRECTORY/root. The versions are those of the machine's own distribution; apt verifies them with its keys.
set -eu

directory=$1 arch=$2
rm -rf "$directory"
mkdir -p "$directory/state/lists/partial" "$directory/cache/archives/partial" "$directory/packages" "$directory/root"
options=(-q -o "Dir::State=$directory/state" -o "Dir::Cache=$directory/cache" -o Dir::State::status=/dev/null
    -o "APT::Architecture=$arch" -o "APT::Architectures=$arch" -o Acquire::Languages=none -o APT::Sandbox::User=root)
apt-get "${options[@]}" update
kernel=$(apt-cache "${options[@]}" depends "linux-image-cloud-$arch" | awk '$1 == "Depends:" { print $2; exit }')
(cd "$directory/packages" && apt-get "${options[@]}" download "$kernel" busybox-static)
for package in "$directory/packages/"*.deb; do
    dpkg-deb -x "$package" "$directory/root"
done
rm -rf "$directory/state" "$directory/cache" "$directory/packages" "$directory/root/usr/share"
touch "$directory/complete"
