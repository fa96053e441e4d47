#!/bin/bash
# Runs in the new root before the packages of the image phase are installed.
# Debian's kernel and dracut packages each make an initrd while they are configured, before the overlay's
# dracut configuration is there. Hide dracut from them; the last script brings it back and makes the initrd once.
set -euo pipefail
dpkg-divert --quiet --local --rename --divert /usr/bin/dracut.distrib --add /usr/bin/dracut
