#!/bin/bash
# Runs in the new root, as the target architecture.
set -euo pipefail
echo "config.sh: $(uname -m), dpkg says $(dpkg --print-architecture)"
apt-get clean
rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log
