#!/bin/sh
# Signs standard input with a P-256 key in a PKCS#11 token, for `command` in [signing]. Usage:
#   sign-with-pkcs11.sh MODULE ID PIN-FILE
# MODULE is the library of the token's maker, ID the key's in hexadecimal. The PIN is read from a file that only Kiln's user
# can read, and is no argument of any program. Needs pkcs11-tool (package opensc) and openssl.
set -eu
PIN=$(cat "$3")
export PIN
# Many tokens sign digests only.
digest=$(mktemp)
trap 'rm -f "$digest"' EXIT
openssl dgst -sha256 -binary > "$digest"
pkcs11-tool --module "$1" --login --pin env:PIN --sign --mechanism ECDSA --signature-format openssl --id "$2" --input-file "$digest"
