#!/bin/sh
# Last step of `kiln toolbox build`, run by mmdebstrap with the new root as $1: kiwi goes into a virtual environment of
# its own, and everything goes that a read-only root used by many jobs must not hold.
set -eu
root=$1
input=/tmp/kiln/input

mkdir -p "$root/run/kiln"
cp "$input/requirements.txt" "$input/requirements-build.txt" "$root/run/kiln/"
# The host's certificate authorities are for this download only; the toolbox keeps Debian's own.
cp "$input/ca.pem" "$root/run/kiln/ca.pem"

in_root() {
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
        PIP_CERT=/run/kiln/ca.pem SSL_CERT_FILE=/run/kiln/ca.pem ${PIP_INDEX_URL:+"PIP_INDEX_URL=$PIP_INDEX_URL"} \
        chroot "$root" "$@"
}
pip_install() {
    in_root /opt/kiwi/bin/pip install --no-cache-dir --disable-pip-version-check --no-input --progress-bar off \
        --require-hashes --no-deps "$@"
}
in_root python3 -m venv /opt/kiwi
pip_install -r /run/kiln/requirements-build.txt
pip_install --no-build-isolation -r /run/kiln/requirements.txt
in_root /opt/kiwi/bin/pip check

# What converts descriptions of schemas before 7.4 is in kiwi's source archive, and kiwi installs none of it. It is that of the same pin.
grep -A 1 '^kiwi==' "$input/requirements.txt" > "$root/run/kiln/kiwi.txt"
in_root /opt/kiwi/bin/pip download --no-cache-dir --disable-pip-version-check --no-input --progress-bar off \
    --require-hashes --no-deps --no-build-isolation --no-binary kiwi --dest /run/kiln/kiwi -r /run/kiln/kiwi.txt
mkdir -p "$root/opt/kiwi/share"
in_root sh -c 'tar --extract --gzip --file /run/kiln/kiwi/kiwi-*.tar.gz --directory /opt/kiwi/share --strip-components 2 \
    --no-same-owner --wildcards "kiwi-*/helper/xsl_to_v74/*.xsl"'
test -s "$root/opt/kiwi/share/xsl_to_v74/update.xsl"

in_root /opt/kiwi/bin/pip uninstall --quiet --yes poetry-core pip
in_root /opt/kiwi/bin/kiwi-ng --version

# What kiwi must do otherwise in a user namespace; each script says why.
in_root dpkg-divert --quiet --local --rename --divert /usr/bin/tar.distrib --add /usr/bin/tar
install -m 0755 "$input/bin/mount" "$input/bin/umount" "$root/usr/local/bin/"
install -m 0755 "$input/bin/tar" "$root/usr/bin/tar"

# buildah insists on a program for networks of its own, and runs none: instructions are in the network of the sandbox. What it brings
# for its tests is larger than itself.
mkdir -p "$root/usr/libexec/podman"
ln -s /bin/false "$root/usr/libexec/podman/netavark"
rm -rf "$root/usr/libexec/buildah"

in_root dpkg-query --show --showformat '${Package} ${Version}\n' > /tmp/kiln/packages.txt

# The kernel of virtual machines lies beside the root and is not installed in it: nothing would make an initrd for it,
# and no job needs to see it. Debian has one for these two.
arch=$(in_root dpkg --print-architecture)
case $arch in
amd64 | arm64)
    kernel=$(in_root apt-cache depends "linux-image-cloud-$arch" | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p' | head -n 1)
    in_root sh -c 'cd /run/kiln && apt-get -o APT::Sandbox::User=root download "$1"' sh "$kernel"
    in_root sh -c 'dpkg-deb --extract "/run/kiln/$1"_*.deb /run/kiln/kernel' sh "$kernel"
    mkdir -p /tmp/kiln/vm
    cp "$root"/run/kiln/kernel/boot/vmlinuz-* /tmp/kiln/vm/vmlinuz
    cp -R "$root"/run/kiln/kernel/usr/lib/modules/* /tmp/kiln/vm/modules
    in_root sh -c 'dpkg-deb --show "/run/kiln/$1"_*.deb' sh "$kernel" | tr '\t' ' ' >> /tmp/kiln/packages.txt
    ;;
esac

# For a repository whose recipe names no key, apt accepts Debian's alone, whatever other keys there are.
find "$root/etc/apt/trusted.gpg.d" -type f ! -name 'debian-archive-*' -delete

rm -rf "$root/run/kiln" "$root"/etc/ssh/ssh_host_* "$root/etc/apt/sources.list" "$root"/etc/apt/sources.list.d/* \
    "$root/etc/apt/apt.conf.d/99mmdebstrap" "$root/etc/dpkg/dpkg.cfg.d/99mmdebstrap" \
    "$root"/usr/share/man/* "$root"/usr/share/info/* "$root"/var/log/* "$root"/var/lib/apt/lists/* \
    "$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old "$root/root/.cache" "$root/etc/resolv.conf"
: > "$root/etc/resolv.conf"
: > "$root/etc/machine-id"
# Packages must not try to own what is mounted over the root they are installed to.
mkdir -p "$root/etc/rpm"
echo '%_netsharedpath /proc:/sys:/dev' > "$root/etc/rpm/macros.kiln"
