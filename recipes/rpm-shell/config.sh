#!/bin/bash
# Runs in the new root, as the target architecture: the kind of work that such scripts do, with many small programs.
set -euo pipefail
{
    echo "machine $(uname -m), shell ${MACHTYPE}"
    for file in /usr/bin/*; do
        printf '%s %s\n' "$(basename "$file")" "$(stat -c %s "$file")"
    done | sort | awk '{ names = names " " $1; sum += NF } END { print NR " programs, " sum " words:" names }' | fold -w 100
    find /usr/lib -name 'libc.so*' -type f -exec basename {} \;
} > /etc/shell-report
grep -q "^machine $(uname -m)" /etc/shell-report
