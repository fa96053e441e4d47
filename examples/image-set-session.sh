#!/usr/bin/env bash
# One image for every architecture of a site, from the recipe to the nodes: built, booted, published, carried to a site
# without a network, put into OpenStack, promoted, and what it replaces removed. A test of Kiln runs this script.
#
#   RECIPE      the recipe's directory       default recipes/debian-compute
#   ARCHS       the architectures, a,b       default x86_64,aarch64
#   REGISTRY    a registry, and the name     such as registry.example.org/site/compute
#   REGISTRY_CA the authority of that registry's certificate, if it is the site's own
#   SITE        a directory for what goes to a site without a network
#   KEY         the public key of the builder (`[signing]`)
#   KILN        the program                  default kiln
#
# `kiln login` or KILN_SERVER names the server, `kiln registry login` the account at the registry. With OS_IMAGE_URL or
# OS_AUTH_URL, an image also goes to Glance.
set -euo pipefail

kiln=${KILN:-kiln}
recipe=${RECIPE:-recipes/debian-compute}
archs=${ARCHS:-x86_64,aarch64}
trusted=${REGISTRY_CA:+--ca $REGISTRY_CA}

step() {
    printf '\n==> %s\n' "$*"
    "$@"
}

# A recipe for two architectures becomes a set: one record and one job for each.
step "$kiln" recipes create --from "$recipe" --name compute --linux-distribution debian --arch "$archs" \
    --require-dkms "${REQUIRE_DKMS:-true}"
step "$kiln" sets create compute@24.11 --recipe compute
step "$kiln" sets wait compute@24.11
mapfile -t images < <("$kiln" sets describe compute@24.11 --format json | jq -r '.arches[].image_id')

# Does it boot, and is it what this site's builder made?
for image in "${images[@]}"; do
    step "$kiln" check boot "$image"
    step "$kiln" verify "$image" --key "$KEY"
done

# One name in a registry for all architectures.
step "$kiln" publish compute@24.11 "$REGISTRY:24.11" $trusted
step "$kiln" inspect "$REGISTRY:24.11" $trusted
step skopeo inspect --raw ${REGISTRY_CA:+--cert-dir "$(dirname "$REGISTRY_CA")"} "docker://$REGISTRY:24.11"
echo
step "$kiln" check multiarch "$REGISTRY:24.11" --arch "$archs" $trusted

# For a site without a network: a directory with all of it.
step "$kiln" mirror "$REGISTRY:24.11" "oci:$SITE:24.11" $trusted
step "$kiln" check multiarch "oci:$SITE:24.11" --arch "$archs"

# OpenStack boots disks.
if [ -n "${OS_IMAGE_URL:-}${OS_AUTH_URL:-}" ]; then
    step "$kiln" publish "${images[0]}" glance:compute-24.11
fi

# Nodes follow the channel; its addresses stay the same.
step "$kiln" catalogue promote compute@24.11 stable
step "$kiln" catalogue resolve compute:stable --arch "${archs##*,}"

# The next version takes its place, and what the rules of `[retention]` give up goes.
step "$kiln" sets create compute@24.12 --image "$(IFS=,; echo "${images[*]}")"
step "$kiln" sets wait compute@24.12
step "$kiln" catalogue promote compute@24.12 stable
step "$kiln" catalogue rollback compute stable
step "$kiln" prune --dry-run
step "$kiln" prune
