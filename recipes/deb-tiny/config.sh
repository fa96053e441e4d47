#!/bin/sh
# Runs in the new root, as the target architecture.
set -eu
echo "config.sh: $(uname -m), dpkg says $(dpkg --print-architecture)"
echo "the kernel is $(cat /proc/sys/kernel/osrelease)"
