#!/bin/bash
# make-recipe.sh PROGRAMS OUTDIR: the recipe beside this file with kiln and its companions in its root, from the directory
# where `make build` puts them. They are of one architecture, and so is the recipe.
set -euo pipefail

[ $# -eq 2 ] || { echo "usage: $0 PROGRAMS OUTDIR" >&2; exit 64; }
here=$(dirname "$0")
for program in kiln kiln-agent; do
    [ -x "$1/$program" ] || { echo "$0: there is no $1/$program; run \`make build\`" >&2; exit 1; }
done
mkdir -p "$2/root/usr/bin"
cp "$here"/config.* "$here"/.ims_recipe_template.yaml "$2/"
for program in kiln kiln-agent kiln-exec answers.so; do
    if [ -e "$1/$program" ]; then install -m 0755 "$1/$program" "$2/root/usr/bin/"; fi
done
