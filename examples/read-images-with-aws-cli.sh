#!/usr/bin/env bash
# Reads images out of Kiln's embedded S3 service with the AWS command line, as any S3 client could.
#
#   examples/read-images-with-aws-cli.sh                  lists the objects of every image
#   examples/read-images-with-aws-cli.sh IMAGE-ID DIR     downloads one image and checks it against its manifest
#
# Needs `kiln` (in PATH, or named by $KILN), `aws` and `sha256sum`. With an S3 service of your own in kiln.toml there is
# nothing to serve: point `aws` at that service.
set -euo pipefail

kiln=${KILN:-kiln}
data_dir=${KILN_DATA_DIR:-${XDG_DATA_HOME:-$HOME/.local/share}/kiln}
said=$(mktemp)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -f "$said"' EXIT
trap 'exit 130' INT

"$kiln" --quiet artifacts serve --port 0 > "$said" &
server=$!
endpoint=
while [ -z "$endpoint" ]; do
    kill -0 "$server" || exit 1
    sleep 0.1
    endpoint=$(sed -n 's/^export AWS_ENDPOINT_URL=//p' "$said")
done

key_of() { sed -n "s/.*\"$1\": \"\\([^\"]*\\)\".*/\\1/p" "$data_dir/s3/credentials.json"; }
AWS_ACCESS_KEY_ID=$(key_of access_key)
AWS_SECRET_ACCESS_KEY=$(key_of secret_key)
export AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_DEFAULT_REGION=us-east-1
unset AWS_PROFILE AWS_SESSION_TOKEN
# An option rather than AWS_ENDPOINT_URL: the aws of Debian 12 does not know that variable yet.
s3() { aws --endpoint-url "$endpoint" s3 "$@"; }

if [ $# -eq 0 ]; then
    s3 ls --recursive --human-readable s3://boot-images/
    exit 0
fi
image=$1
to=${2:?usage: $0 [IMAGE-ID DIR]}
s3 cp --no-progress --recursive "s3://boot-images/$image/" "$to"
cd "$to"
awk -F '"' '/"sha256"/ { sum = $4 } /"path"/ { n = split($4, part, "/"); print sum "  " part[n] }' manifest.json |
    sha256sum --check
