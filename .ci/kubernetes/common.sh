# shellcheck shell=bash
# What the parts of the rig share: where the programs are, processes known by files, waiting. Sourced, with `run` as the
# directory of the cluster.
run=${run:?}

# A cluster that runs says so itself.
if [ -f "$run/env" ]; then KILN_TEST_KUBERNETES=$(sed -n 's/^export KILN_RIG_BIN=//p' "$run/env"); fi
rig_home=${KILN_TEST_KUBERNETES:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/kiln/kubernetes-rig}
# Either the directory that `build` was given, or the one with the programs themselves.
bin=$rig_home/bin
if [ ! -x "$bin/kube-apiserver" ] && [ -x "$rig_home/kube-apiserver" ]; then bin=$rig_home; fi
bin=$(realpath "$bin" 2> /dev/null || echo "$bin")
# A wrapper of a version manager may be first in a user's PATH, or none of the system's directories.
PATH=$bin:$PATH:/usr/sbin:/usr/bin:/sbin:/bin

say() { echo "kubernetes-rig: $*" >&2; }
fail() {
    say "$@"
    exit 1
}

need_programs() {
    [ -x "$bin/kube-apiserver" ] || fail "no programs in $bin: run make kubernetes-rig"
}

# What servers offer, kubectl would keep in the user's home.
as_admin() { "$bin/kubectl" --kubeconfig "$run/admin.kubeconfig" --cache-dir "$run/cache" "$@"; }

# When a process started, in ticks after the boot: with its number this names it for good, since numbers are used again.
started() {
    local stat fields
    stat=$(cat "/proc/$1/stat" 2> /dev/null) || return 1
    # Its name comes first, and may have spaces and parentheses.
    read -ra fields <<< "${stat##*) }"
    echo "${fields[19]}"
}

# start NAME COMMAND...: in a session of its own, its output in log/NAME and its number in pids/NAME.
start() {
    local name=$1
    shift
    # Descriptors of whoever runs this script would be held open for as long as the cluster lives.
    setsid "$@" < /dev/null >> "$run/log/$name" 2>&1 9>&- &
    echo "$! $(started $!)" > "$run/pids/$name"
}

# Whether the process of pids/NAME is there, and no other that has its number now.
lives() {
    local pid ticks
    [ -f "$run/pids/$1" ] || return 1
    read -r pid ticks < "$run/pids/$1" || return 1
    [ "$(started "$pid")" = "$ticks" ]
}

# end NAME: the process of pids/NAME, with 10 s to end by itself.
end() {
    local pid
    if lives "$1"; then
        read -r pid _ < "$run/pids/$1"
        kill -TERM "$pid" 2> /dev/null || true
        for _ in {1..100}; do
            lives "$1" || break
            sleep 0.1
        done
        if lives "$1"; then kill -KILL "$pid" 2> /dev/null || true; fi
        for _ in {1..50}; do
            lives "$1" || break
            sleep 0.1
        done
        ! lives "$1" || fail "$1 (process $pid) does not end"
    fi
    rm -f "$run/pids/$1"
}

# wait_for SECONDS WHAT NAME COMMAND...: until the command succeeds, as long as the process NAME lives.
wait_for() {
    local end=$((SECONDS + $1)) what=$2 name=$3
    shift 3
    until "$@" > /dev/null 2>&1; do
        lives "$name" || fail "$name ended: $(tail -n 3 "$run/log/$name")"
        ((SECONDS < end)) || fail "$what: not there in time; the last lines of $name: $(tail -n 3 "$run/log/$name")"
        sleep 0.3
    done
}

# All trees of the node's control group, the deepest directories first.
groups_of_node() {
    [ -f "$run/control-group" ] || return 0
    local group
    group=$(cat "$run/control-group")
    [ -n "$group" ] || return 0
    find /sys/fs/cgroup -mindepth 1 -depth -type d \( -path "/sys/fs/cgroup/$group" -o -path "/sys/fs/cgroup/$group/*" \
        -o -path "/sys/fs/cgroup/*/$group" -o -path "/sys/fs/cgroup/*/$group/*" \)
}
processes_of_node() {
    local directory
    groups_of_node | while read -r directory; do cat "$directory/cgroup.procs" 2> /dev/null || true; done | sort -u
}

# Containers' processes, shims and containerd. With containerd's last mount namespace its mounts are gone, too.
end_processes_of_node() {
    local processes
    for _ in {1..50}; do
        processes=$(processes_of_node)
        [ -n "$processes" ] || return 0
        # shellcheck disable=SC2086
        kill -KILL $processes 2> /dev/null || true
        sleep 0.2
    done
    fail "processes of the node do not end: $(processes_of_node | tr '\n' ' ')"
}
