#!/bin/sh
# Runs in the new root, as the target architecture.
set -eu
echo "config.sh: $(uname -m), kernel $(ls /boot)"
echo "configured on $(uname -m)" > /etc/configured
