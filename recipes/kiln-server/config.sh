#!/bin/bash
# Runs in the new root, as the target architecture.
set -euo pipefail
# A server asks for the ids of its sandboxes when it starts, even where every job is elsewhere.
echo kiln:100000:65536 | tee /etc/subuid > /etc/subgid
install -d -o kiln -g kiln -m 0700 /var/lib/kiln
# Programs of another architecture, or for another C library, end the build here and not the pod later.
/usr/bin/kiln --version
apt-get clean
rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log
