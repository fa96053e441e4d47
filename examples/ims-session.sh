#!/usr/bin/env bash
# A session with a server, as somebody who knows `cray ims` would have it: a key, a recipe, an image, a job. Start a
# server first (`kiln serve`); what the session makes, it removes.
#
#   KILN_SERVER   the server                                   default http://127.0.0.1:9000
#   RECIPE        the recipe to upload                         default recipes/debian-minimal
#   IMAGE_DIR     files of an image, as `kiln build --output`  default made-up ones
#                 makes them
#   KILN          the program                                  default target/release/kiln
set -euo pipefail
cd "$(dirname "$0")/.."

program=${KILN:-target/release/kiln}
recipe=${RECIPE:-recipes/debian-minimal}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
image=${IMAGE_DIR:-$tmp/web}

# Shows a command and runs it.
kiln() {
    printf '\n$ kiln'
    for word in "$@"; do
        case $word in *\ *) printf " '%s'" "$word" ;; *) printf ' %s' "$word" ;; esac
    done
    printf '\n'
    "$program" "$@" 2>&1
}

# A command that is meant to fail.
refused() { kiln "$@" && return 1 || printf '(exit code %s)\n' "$?"; }

printf 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMadeUpForThisSession me@here\n' >"$tmp/id_ed25519.pub"
if [ -z "${IMAGE_DIR:-}" ]; then
    mkdir "$image"
    for file in rootfs vmlinuz initrd kernel-parameters; do echo "made up: $file" >"$image/$file"; done
fi

# Lines of IMS's manual work as they are, with `kiln` for `cray`.
kiln ims public-keys create --name "session key" --public-key "$tmp/id_ed25519.pub"

# A recipe: packed, uploaded and registered in one go.
kiln recipes create --from "$recipe" --name session-recipe --linux-distribution debian \
    --template-dictionary-key SUITE,MIRROR --template-dictionary-value stable,http://mirror.example.org/debian
kiln recipes list --name session-recipe --format table
kiln recipes describe session-recipe --format json
kiln recipes update session-recipe --require-dkms False --format yaml

# An image: its artifacts are uploaded, then its manifest.
kiln images create --from "$image" --name session-image --arch = aarch64
kiln images update session-image --metadata-operation set --metadata-key project --metadata-value csm
kiln images update session-image --name session-image-2
kiln images list --arch aarch64 --name session-image-2 --format table

# Deleted is not lost, until it is deleted again.
kiln images delete session-image-2
refused images describe session-image-2
kiln deleted images list --name session-image-2 --format table
kiln deleted images update session-image-2 --operation undelete
kiln images describe session-image-2

# A job takes names, too.
kiln jobs create --job-type create --image-root-archive-name session-job --artifact-id session-recipe \
    --public-key-id "session key" --enable-debug False --build-env-size 15
kiln jobs list --name session-job --format table
kiln jobs delete session-job

kiln remote-build-nodes create --xname x3000c1s10b1n0
kiln remote-build-nodes list
kiln remote-build-nodes delete x3000c1s10b1n0

# What the server refuses, and what the command line knows better.
refused recipes update session-recipe --link-type s3 --link-path s3://ims/elsewhere.tgz
refused recipes describe session-recipy
refused jobs create --job-type customise

# Gone for good.
kiln images delete session-image-2
kiln deleted images delete session-image-2
kiln recipes delete session-recipe
kiln deleted recipes delete session-recipe
kiln public-keys delete "session key"
kiln deleted public-keys delete "session key"
