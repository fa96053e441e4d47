#!/bin/bash
# packages.sh DIRECTORY ARCH… -- unpacks a few Debian packages of each architecture (Debian's names) to DIRECTORY/ARCH.
# The versions are those of the machine's own distribution; apt verifies them with its keys.
set -eu

directory=$1
shift
packages=(bash coreutils dash libacl1 libattr1 libc6 libgmp10 libpcre2-8-0 libselinux1 libtinfo6)

for arch in "$@"; do
    apt=$directory/apt-$arch
    mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$apt/packages"
    options=(-q -o "Dir::State=$apt/state" -o "Dir::Cache=$apt/cache" -o Dir::State::status=/dev/null
        -o "APT::Architecture=$arch" -o "APT::Architectures=$arch" -o Acquire::Languages=none)
    apt-get "${options[@]}" update
    (cd "$apt/packages" && apt-get "${options[@]}" -o APT::Sandbox::User=root download "${packages[@]}")
    mkdir -p "$directory/$arch.new"
    for package in "$apt/packages/"*.deb; do
        dpkg-deb -x "$package" "$directory/$arch.new"
    done
    # The symbolic links /bin, /lib and so on are made by a package that a whole system has.
    for name in bin sbin lib lib64; do
        if [ -d "$directory/$arch.new/$name" ] && [ ! -L "$directory/$arch.new/$name" ]; then
            mkdir -p "$directory/$arch.new/usr/$name"
            cp -a "$directory/$arch.new/$name/." "$directory/$arch.new/usr/$name/"
            rm -r "$directory/$arch.new/$name"
        fi
        ln -sfn "usr/$name" "$directory/$arch.new/$name"
    done
    ln -sf dash "$directory/$arch.new/usr/bin/sh"
    mkdir -p "$directory/$arch.new/tmp" "$directory/$arch.new/etc" "$directory/$arch.new/proc" "$directory/$arch.new/dev"
    rm -rf "$directory/$arch.new/usr/share/"{doc,locale,man,info}
    mv "$directory/$arch.new" "$directory/$arch"
done
