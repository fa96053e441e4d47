#!/usr/bin/env bash
# What `make demo` shows: one recipe becomes an image for this CPU and one for another, both are read back from S3 by
# a client that is not Kiln's, and `file` says what is in them.
#
#   DEMO_RECIPE     the recipe              default recipes/debian-compute; recipes/debian-minimal takes 4 minutes
#   DEMO_ARCHS      architectures, a,b      default this machine's and a foreign one
#   DEMO_DATA_DIR   where Kiln keeps files  default target/demo, so that your own data directory is left alone
#   KILN            the program             default target/release/kiln; `make demo` sets it
set -euo pipefail
cd "$(dirname "$0")/.."

kiln=${KILN:-target/release/kiln}
recipe=${DEMO_RECIPE:-recipes/debian-compute}
host=$(uname -m)
if [ "$host" = aarch64 ]; then foreign=x86_64; else foreign=aarch64; fi
archs=${DEMO_ARCHS:-$host,$foreign}
bucket=boot-images

say() { printf '\n==> %s\n' "$*"; }
fail() {
    printf '\ndemo: %s\n' "$*" >&2
    exit 1
}

server=
tmp=
clean_up() {
    trap '' INT TERM
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    if [ -n "$tmp" ]; then rm -rf "$tmp"; fi
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

[ -x "$kiln" ] || fail "there is no $kiln; run \`make build\` first"
[ -e "$recipe" ] || fail "there is no recipe at $recipe"

say "Packages that this demonstration needs besides Kiln's own: file, and awscli as an S3 client of somebody else"
.ci/install-packages demo

mkdir -p "${DEMO_DATA_DIR:-target/demo}"
KILN_DATA_DIR=$(cd "${DEMO_DATA_DIR:-target/demo}" && pwd)
chmod 700 "$KILN_DATA_DIR"
tmp=$(mktemp -d "$KILN_DATA_DIR/demo.XXXXXX")
# An empty configuration: the images of a demonstration have no business in the S3 service that you may have set.
: > "$tmp/kiln.toml"
export KILN_DATA_DIR KILN_CONFIG=$tmp/kiln.toml
# Its images are small: it works where 10 GiB are not free.
export KILN__CAPACITY__FIRST_DISK=2GiB

say "The toolbox, the root that builds run in: made once from Debian packages, in one to five minutes; at once later"
"$kiln" toolbox build

case $recipe in
*debian-minimal*) takes="less than a minute" ;;
*debian-compute*) takes="about two minutes" ;;
*) takes="how long depends on the recipe" ;;
esac
say "Building $recipe for $archs, at the same time, each in a sandbox of its own: $takes"
code=0
"$kiln" build "$recipe" --arch "$archs" --output "$tmp/images" > "$tmp/built" || code=$?
cat "$tmp/built"
[ "$code" = 0 ] || exit "$code"

say "Starting the embedded S3 service on a loopback port, so that other programs can read the images"
"$kiln" --quiet artifacts serve --port 0 > "$tmp/serve" &
server=$!
endpoint=
for _ in {1..100}; do
    endpoint=$(sed -n 's/^export AWS_ENDPOINT_URL=//p' "$tmp/serve")
    [ -z "$endpoint" ] || break
    kill -0 "$server" 2>/dev/null || fail "the embedded S3 service did not start"
    sleep 0.1
done
[ -n "$endpoint" ] || fail "the embedded S3 service did not say where it is"

# The client gets the embedded service's key and nothing of your own AWS configuration.
key_of() { sed -n "s/.*\"$1\": \"\\([^\"]*\\)\".*/\\1/p" "$KILN_DATA_DIR/s3/credentials.json"; }
unset AWS_PROFILE AWS_SESSION_TOKEN AWS_SECURITY_TOKEN AWS_CA_BUNDLE
AWS_ACCESS_KEY_ID=$(key_of access_key)
AWS_SECRET_ACCESS_KEY=$(key_of secret_key)
export AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_DEFAULT_REGION=us-east-1 AWS_PAGER=
export AWS_CONFIG_FILE=/dev/null AWS_SHARED_CREDENTIALS_FILE=/dev/null
export NO_PROXY=127.0.0.1 no_proxy=127.0.0.1
s3() { aws --endpoint-url "$endpoint" s3 "$@"; }

# `image      <id> (<arch>)` is what `kiln build` printed for each of them.
images=$(sed -n 's/^image  *\([^ ]*\) (\(.*\))$/\2 \1/p' "$tmp/built")

say "What is in S3, listed by awscli"
while read -r arch image; do
    echo "$arch:"
    s3 ls --recursive --human-readable "s3://$bucket/$image/"
done <<< "$images"

while read -r arch image; do
    say "manifest.json of the $arch image, read by awscli"
    s3 cp "s3://$bucket/$image/manifest.json" -
    echo
done <<< "$images"

# What file(1) calls programs of an architecture.
words_for() {
    case $1 in
    x86_64) echo 'x86-64' ;;
    aarch64) echo 'ARM aarch64' ;;
    ppc64le) echo '64-bit PowerPC' ;;
    s390x) echo 'IBM S/390' ;;
    riscv64) echo 'RISC-V' ;;
    esac
}

say "What the programs and the kernels in the images are, says file(1)"
while read -r arch _; do
    files=$tmp/images/$arch
    echo "$arch:"
    # A few programs only, without owners and attributes: that needs no root. Paths that a root has not are passed by.
    unsquashfs -quiet -no-progress -no-xattrs -d "$tmp/root-$arch" "$files/rootfs" \
        usr/bin/true usr/bin/bash usr/local/bin/arch-report > "$tmp/unsquashfs" 2>&1 || cat "$tmp/unsquashfs" >&2
    programs=0
    for program in usr/bin/true usr/bin/bash usr/local/bin/arch-report; do
        [ -f "$tmp/root-$arch/$program" ] || continue
        said=$(file --brief "$tmp/root-$arch/$program")
        printf '  /%-26s %s\n' "$program" "${said%%, dynamically*}"
        grep -qF -- "$(words_for "$arch")" <<< "$said" || fail "$program of the $arch image is no $arch program"
        programs=$((programs + 1))
    done
    [ "$programs" -gt 0 ] || fail "no program was found in the $arch image"
    if [ -f "$files/kernel" ]; then
        said=$(file --brief "$files/kernel")
        printf '  %-27s %s\n' kernel "$said"
        case $arch in
        aarch64) grep -q 'Linux kernel ARM64' <<< "$said" || fail "the kernel is no arm64 kernel" ;;
        x86_64) grep -q 'Linux kernel x86' <<< "$said" || fail "the kernel is no x86 kernel" ;;
        esac
    else
        echo "  (no kernel: this recipe makes a root file system only)"
    fi
done <<< "$images"

say "Done. The images stay in $KILN_DATA_DIR; to look again: KILN_DATA_DIR=$KILN_DATA_DIR $kiln artifacts list"
