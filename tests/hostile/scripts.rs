//! Scripts that attack the host. They are root in the sandbox, and the new root does not hold them: they begin by
//! leaving it for the toolbox, in which kiwi runs.

use crate::{
    hostile::{case::Case, site::Site},
    support::own_address,
};

/// Finds the toolbox's root; says what became of an attempt.
const PRELUDE: &str = r#"
out=
for p in /proc/[0-9]*; do
    if [ -e "$p/root/opt/kiwi/bin/kiwi-ng" ]; then out=$p/root; fi
done
[ -n "$out" ] || { echo "no way out of the new root"; exit 9; }
try() {
    name=$1
    shift
    if "$@" > /tmp/said 2>&1; then echo "try $name ESCAPED"; else echo "try $name held: $(head -n 1 /tmp/said)"; fi
}
"#;

/// Attempts in Python, by the toolbox's own.
const PYTHON: &str = r#"
import ctypes, glob, os, socket, sys
def attempt(name, do):
    try:
        got = do()
    except OSError as error:
        print("try", name, "held:", error, flush=True)
    else:
        print("try", name, "ESCAPED", repr(got)[:80], flush=True)
"#;

const SECRETS: &str = r#"
def comm(p):
    try:
        return open(p + "/comm").read().strip()
    except OSError:
        return ""
agent = next(p for p in glob.glob("/proc/[0-9]*") if comm(p) == "agent")
for file in ["environ", "mem", "maps", "auxv"]:
    attempt("agent-" + file, lambda: open(agent + "/" + file, "rb").read(1))
attempt("agent-fd", lambda: os.listdir(agent + "/fd"))
attempt("agent-root", lambda: os.listdir(agent + "/root/"))
attempt("agent-program", lambda: open("/run/agent", "rb").read(1))
def trace():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, int(agent.rpartition("/")[2]), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")
attempt("agent-trace", trace)
# Beside a descriptor's number.
words = [word for word in open(agent + "/cmdline", "rb").read().split(b"\0") if not word.isdigit()]
print("its words:", words, flush=True)
job = next(l.split()[0] for l in open("/proc/self/mounts") if l.split()[1] == "/scratch")
def ask(path, more=""):
    door = socket.socket(socket.AF_UNIX)
    door.settimeout(10)
    door.connect("/run/kiln/agent.sock")
    door.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{more}\r\n".encode())
    return door.recv(100).split()[1].decode()
own = f"/agent/v1/jobs/{job}?protocol=1"
print("the server says:", ask(own), ask(own, "authorization: Bearer " + "0" * 64 + "\r\n"), ask("/v3/jobs"), flush=True)
"#;

const NETWORK: &str = r#"
def reach(address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as s:
        s.settimeout(2)
        s.connect((address, port))
        s.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return s.recv(10)
for name, port in [("api", API), ("s3", S3), ("other", OTHER)]:
    # The S3 service has a door, by the address where jobs are to use it.
    if name != "s3":
        attempt(name + "-loopback", lambda: reach("127.0.0.1", port))
    attempt(name + "-loopback-6", lambda: reach("::1", port))
    attempt(name + "-gateway", lambda: reach("10.0.2.2", port) or os.strerror(0))
    attempt(name + "-resolver", lambda: reach("10.0.2.3", port) or os.strerror(0))
    for own in OWN:
        attempt(name + "-own", lambda: reach(own, port) or os.strerror(0))
with socket.create_connection(("127.0.0.1", S3), 10) as s:
    s.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    print("s3 without a key says:", s.recv(100).split()[1].decode(), flush=True)
"#;

const FAMILIES: &str = r#"
for name in ["AF_VSOCK", "AF_ALG", "AF_PACKET", "AF_BLUETOOTH", "AF_TIPC"]:
    attempt(name, lambda: socket.socket(getattr(socket, name), socket.SOCK_STREAM))
    attempt(name + "-32", lambda: socket.socket(getattr(socket, name), socket.SOCK_DGRAM))
# 9 and 15, for audit and devices, only have to open: the kernel hands nothing over by them here.
for protocol in [4, 10, 12, 16]:
    attempt(f"netlink-{protocol}", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol))
for family in [socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK]:
    socket.socket(family, socket.SOCK_DGRAM).close()
print("others work", flush=True)
"#;

const CALLS: &str = r#"
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    # Numbers of x86_64; elsewhere they are other calls, of which not all are refused.
    got = libc.syscall(number, *arguments)
    if got < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return got
calls = {"keyctl": (250, 0, -3, 0), "add_key": (248, b"user", b"kiln", b"x", 1, -3), "bpf": (321, 0, 0, 0),
    "perf_event_open": (298, 0, 0, -1, -1, 0), "userfaultfd": (323, 1), "io_uring_setup": (425, 1, 0),
    "io_setup": (206, 1, 0), "open_by_handle_at": (304, -1, 0, 0), "finit_module": (313, -1, b"", 0),
    "kexec_load": (246, 0, 0, 0, 0), "fanotify_init": (300, 0, 0), "x32": (0x40000000 | 39,)}
for name, arguments in calls.items():
    try:
        print("call", name, call(*arguments), "ESCAPED", flush=True)
    except OSError as error:
        print("call", name, "held" if error.errno in (1, 38) else f"ESCAPED {error}", flush=True)
"#;

/// Uses up what the kernel counts by user, as many users, after raising the limits that it may raise.
const COUNTS: &str = r#"
libc = ctypes.CDLL(None, use_errno=True)
for file in glob.glob("/proc/sys/user/*"):
    try:
        open(file, "w").write("1000000")
    except OSError as error:
        print(file, error, flush=True)
def total(users, make):
    """How many of a thing all these users together can make, while each keeps its own."""
    counts, gate = os.pipe(), os.pipe()
    pids = []
    for user in range(users):
        pid = os.fork()
        if pid == 0:
            os.setresuid(1000 + user, 1000 + user, 1000 + user)
            made = make()
            os.write(counts[1], bytes([made]))
            os.close(gate[1])
            os.read(gate[0], 1)
            os._exit(0)
        pids.append(pid)
    made = sum(os.read(counts[0], 1)[0] for _ in pids)
    os.close(gate[1])
    for pid in pids:
        os.waitpid(pid, 0)
    return made
def several(make, most):
    def do():
        for made in range(most):
            if make() < 0:
                return made
        return most
    return do
for name, users, make, most in [
    ("inotify", 20, several(lambda: libc.inotify_init1(0), 20), 20),
    ("user namespaces", 280, several(lambda: libc.unshare(0x10000000), 1), 255),
    ("messages", 20, several(lambda: libc.mq_open(b"/%d-%d" % (os.getpid(), os.urandom(1)[0]), 0o102, 0o600, None), 2), 4),
]:
    made = total(users, make)
    print(f"{made} of {name}", "held" if 0 < made <= most else "ESCAPED", flush=True)
"#;

const MOUNTS: &str = r#"
mount -t tmpfs none /mnt
mount -o bind / /mnt
mount -t proc none /mnt/proc
try disk mknod /tmp/disk b 8 0
try memory mknod /tmp/mem c 1 1
# A view of its own group it may have, and no more.
mkdir /tmp/group
mount -t cgroup -o pids none /tmp/group || mount -t cgroup2 none /tmp/group
try group-limit sh -c 'echo max > /tmp/group/pids.max'
try group-new mkdir /tmp/group/evil
try group-agent test -e /tmp/group/release_agent
try group-others test -e /tmp/group/kiln
try sysfs mount -t sysfs none /tmp
try debugfs mount -t debugfs none /tmp
chroot "$out" mount -o remount,bind,rw /run/agent
chroot "$out" mount -o remount,bind,rw /run/kiln
try agent-write sh -c ": >> $out/run/agent"
try doors-write touch "$out/run/kiln/evil"
try doors-remove rm "$out/run/kiln/agent.sock"
echo mounted all
"#;

// Even where one of these succeeds, it changes nothing: each writes the current value.
const KERNEL: &str = r#"
hostname hostile
# This date complains, and succeeds all the same.
try clock sh -c 'said=$(date -s "@$(date +%s)" 2>&1); echo "$said"; case $said in *"t set date"*) false ;; esac'
try sysctl sh -c 'panic=$(cat /proc/sys/kernel/panic) && echo "$panic" > /proc/sys/kernel/panic'
try sysrq sh -c 'echo h > /proc/sysrq-trigger'
echo none > /tmp/evil.ko
try module insmod /tmp/evil.ko
echo tried all
"#;

const TOOLBOX: &str = r#"
echo evil > "$out/usr/bin/evil"
echo '# evil' >> "$out/opt/kiwi/bin/kiwi-ng"
rm "$out/usr/bin/mksquashfs" && echo removed mksquashfs
"#;

/// Writes 12 MiB to kiwi's own standard output. As a log it would be 29 MiB: more than a job here may say.
const FLOOD: &str = r"
for p in /proc/[0-9]*; do
    case $(tr '\0' ' ' < $p/cmdline) in *kiwi-ng*) kiwi=$p ;; esac
done
yes 'a line of a flood that nobody reads, and that is as long as lines are' | head -c 12582912 > $kiwi/fd/1
echo 'the last line of the flood' > $kiwi/fd/1
";

const ODD_OUTPUT: &str = r"
head -c 100000 /dev/zero | tr '\0' x
echo
printf 'escape \033[2J\033]0;evil\007 nul \000 bytes \377\376\n'
echo that was all
";

fn python(script: &str) -> String {
    format!("{PRELUDE}\nchroot \"$out\" /usr/bin/python3 - <<'END'\n{PYTHON}\n{script}\nEND")
}

pub fn cases(site: &Site) -> Vec<Case> {
    let network = NETWORK
        .replace("API", &site.port.to_string())
        .replace("S3,", &format!("{},", site.s3_port))
        .replace("S3)", &format!("{})", site.s3_port))
        .replace("OTHER", &site.other_port.to_string())
        .replace(
            "OWN",
            &format!("{:?}", own_address().map(|own| own.to_string()).as_slice()),
        );
    vec![
        Case::script("silence", "holds its place for ever", "sleep 600").fails("silent"),
        Case::script(
            "forks",
            "leaves the host without process numbers",
            "i=0; while [ $i -lt 3000 ]; do sleep 600 >/dev/null 2>&1 & i=$((i+1)); done; echo ESCAPED",
        )
        .says(&["can't fork"])
        .fails("script_failed"),
        Case::script(
            "memory",
            "makes the kernel kill something else on the host",
            "dd if=/dev/zero of=/dev/null bs=2000M count=1 && echo ESCAPED",
        )
        .limited("job_mem_size", 1)
        .fails("out_of_memory"),
        Case::script(
            "disk",
            "fills the host's disk",
            "dd if=/dev/zero of=/var/full bs=1M count=3000 && echo ESCAPED",
        )
        .limited("build_env_size", 1)
        .fails("disk_full"),
        Case::script(
            "inodes",
            "uses up the host's inodes, with gigabytes free",
            "mkdir /var/many; i=0; while [ $i -lt 40000 ]; do : > /var/many/$i || exit 1; i=$((i+1)); done; echo ESCAPED",
        )
        .limited("build_env_size", 1)
        .fails("disk_full"),
        Case::script(
            "kill all",
            "ends the agent, the server or other jobs",
            // Only where process 1 is the sandbox's own.
            "[ \"$(cat /proc/1/comm)\" = kiln-init ] || exit 9; kill -9 1; kill -9 -1; sleep 60",
        )
        .fails("sandbox_lost")
        .says(&["137"]),
        Case::script(
            "mounts",
            "sees the host's files, or replaces the agent",
            &format!("{PRELUDE}{MOUNTS}"),
        )
        .says(&["try disk held", "try group-limit held", "try group-others held", "try agent-write held", "try doors-remove held", "mounted all"]),
        Case::script(
            "secrets",
            "speaks to the server as the agent, or as that of another job",
            &python(SECRETS),
        )
        .says(&[
            "try agent-environ held",
            "try agent-mem held",
            "try agent-fd held",
            "try agent-trace held",
            "its words: [b'/run/agent', b'release', b'']",
            "the server says: 401 401 404",
        ]),
        Case::script(
            "network",
            "uses services that trust whoever is on the host",
            &python(&network),
        )
        .says(&[
            "try api-loopback held",
            "try api-gateway held",
            "try s3-gateway held",
            "try other-loopback held",
            "try other-gateway held",
            "try other-resolver held",
            "s3 without a key says: 403",
        ]),
        Case::script("families", "reaches the hypervisor, or what else no network namespace confines", &python(FAMILIES))
            .says(&["try AF_VSOCK held", "others work"]),
        Case::script("calls", "reads keys of whoever started Kiln, or attacks rare parts of the kernel", &python(CALLS))
            .says(&["call keyctl held", "call x32 held"]),
        Case::script("counts", "uses up what the kernel allows the user who runs Kiln", &python(COUNTS))
            .says(&["of inotify held", "of user namespaces held", "of messages held"]),
        // A root on top of a reused layer is packed without mksquashfs, as long as little of it is new.
        Case::script("toolbox", "changes the tools of every later job", &format!("{PRELUDE}{TOOLBOX}"))
            .whole()
            .says(&["removed mksquashfs"])
            .fails("tool_missing"),
        Case::script("flood", "fills the records with lines that say nothing new", "yes 'one line of many'").fails("silent"),
        Case::script(
            "flood past the reader",
            "fills the database, and the memory of every server that packs the log",
            &format!("{PRELUDE}{FLOOD}"),
        )
        .says(&["of output were dropped here", "the last line of the flood"]),
        Case::script(
            "odd output",
            "overflows what holds a line, or takes over the terminal of whoever reads the log",
            ODD_OUTPUT,
        )
        .says(&["that was all"]),
        Case::script(
            "daemons",
            "goes on after its job",
            "setsid sleep 3600 </dev/null >/dev/null 2>&1 &\n(while :; do sleep 1; done) </dev/null >/dev/null 2>&1 &\necho left two",
        )
        .says(&["left two"]),
        Case::script("kernel", "changes what all processes of the host share", &format!("{PRELUDE}{KERNEL}"))
            .says(&["try clock held", "try sysctl held", "try module held", "tried all"]),
    ]
}

/// An honest job, which looks for what those before it left.
pub fn next_job() -> Case {
    let look = format!(
        "{PRELUDE}\n! [ -e \"$out/usr/bin/evil\" ] && ! grep -q '# evil' \"$out/opt/kiwi/bin/kiwi-ng\" || echo ESCAPED\n\
         echo \"all is as it was on $(hostname)\""
    );
    Case::script("the next job", "finds what others left", &look).says(&["all is as it was on kiln-"])
}
