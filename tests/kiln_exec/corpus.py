"""Runs programs of another architecture in every odd way that the kernel knows, and prints what came of it as JSON.

    corpus.py ROOT REGISTRATION

ROOT is a root file system of that architecture; its `.kiln`, if there is one, holds native twins. REGISTRATION is the
line for binfmt_misc. Everything happens in a user namespace with its own binfmt_misc. For each case the answer has the
status, the output, and how many programs ran as twins and under the emulator.
"""

import ctypes
import glob
import json
import os
import random
import shutil
import signal
import struct
import sys
import traceback

ROOT, REGISTRATION = sys.argv[1:]
NOBODY = 65534
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
# The root's own dynamic loader.
LOADER = next(path for pattern in ("lib/ld-linux-*", "lib64/ld64.so.*", "lib64/ld-linux-*") for path in glob.glob(f"{ROOT}/{pattern}"))[len(ROOT) :]
LIBC = glob.glob(f"{ROOT}/lib/*/libc.so.6")[0][len(ROOT) :]
# Programs for x86_64 may name the CPU that they need, and the loader looks at it.
IS_X86_64 = "x86-64" in LOADER
# How many damaged files the loader is asked about, and the seed of the damage.
DAMAGED = int(os.environ.get("KILN_TEST_DAMAGED", "60"))
SEED = os.environ.get("KILN_TEST_SEED", "1")

libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x10000000, 0x20000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000


def check(result):
    if result != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))


def mount(source, target, kind, flags=0):
    check(libc.mount(source.encode(), target.encode(), kind.encode() if kind else None, flags, None))


def in_namespace(work):
    """Does the work as root, and process 1, of new namespaces in which all ids are as outside."""
    ready_out, ready_in = os.pipe()
    go_out, go_in = os.pipe()
    child = os.fork()
    if child == 0:
        check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID))
        os.write(ready_in, b"x")
        os.read(go_out, 1)
        first = os.fork()
        if first == 0:
            for fd in (ready_out, ready_in, go_out, go_in):
                os.close(fd)
            work()
            sys.stdout.flush()
            os._exit(0)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) & 0xFF)
    os.read(ready_out, 1)
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{child}/{name}", "w") as ids:
            ids.write("0 0 65536")
    os.write(go_in, b"x")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def furnish():
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc")
    mount("binfmt_misc", "/proc/sys/fs/binfmt_misc", "binfmt_misc")
    with open("/proc/sys/fs/binfmt_misc/register", "w") as register:
        register.write(REGISTRATION)
    os.makedirs(f"{ROOT}/proc", exist_ok=True)
    mount("proc", f"{ROOT}/proc", "proc")


def counts():
    try:
        with open(f"{ROOT}/.kiln/counts", "rb") as file:
            return struct.unpack("=QQ", file.read())
    except FileNotFoundError:
        return (0, 0)


def copy(source, target, mode=0o755):
    """A copy of a program with the same time, so that it is the same program for the twins, too."""
    os.makedirs(os.path.dirname(ROOT + target), exist_ok=True)
    shutil.copy2(ROOT + source, ROOT + target)
    os.chmod(ROOT + target, mode)


def script(path, text, mode=0o755):
    with open(ROOT + path, "w") as file:
        file.write(text)
    os.chmod(ROOT + path, mode)


def child(body, stdin=b"", root=None, uid=0):
    """Runs a body in the root. Returns its status and what it said."""
    in_out, in_in = os.pipe()
    out_out, out_in = os.pipe()
    os.write(in_in, stdin)
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(in_out, 0)
            os.dup2(out_in, 1)
            os.dup2(out_in, 2)
            os.closerange(3, 64)
            os.chroot(root or ROOT)
            os.chdir("/")
            if uid:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            body()
        except OSError as error:
            print(f"errno {error.errno}", flush=True)
        except BaseException:
            traceback.print_exc()
        os._exit(99)
    for fd in (in_out, in_in, out_in):
        os.close(fd)
    with os.fdopen(out_out, "rb") as output:
        said = output.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return [status, said.decode(errors="replace")]


def program(*words, path=None, env=None, **how):
    environment = {"PATH": PATH, "LC_ALL": "C", **(env or {})}
    return child(lambda: os.execve(path or words[0], words, environment), **how)


def shell(text, *words, **how):
    return program("/bin/bash", "-c", text, *words, **how)


def from_descriptor(path, words, unlinked=False, cloexec=False, memfd=False):
    def body():
        if memfd:
            with open(path, "rb") as source:
                content = source.read()
            fd = os.memfd_create("odd", 0)
            os.write(fd, content)
        else:
            fd = os.open(path, os.O_RDONLY)
        if unlinked:
            os.unlink(path)
        # Not the lowest number, which the kernel takes for the interpreter.
        os.dup2(fd, 40, inheritable=not cloexec)
        os.close(fd)
        os.execve(40, words, {"PATH": PATH})

    return child(body)


def raw(path, *words):
    """With arguments that Python refuses."""

    def body():
        arguments = (ctypes.c_char_p * (len(words) + 1))(*(word.encode() for word in words), None)
        libc.execve(path.encode(), arguments, (ctypes.c_char_p * 1)(None))

    return child(body)


def storm(number):
    def body():
        pids = []
        for _ in range(number):
            pid = os.fork()
            if pid == 0:
                os.execve("/bin/true", ["true"], {})
            pids.append(pid)
        failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)
        print(f"{failed} failed", flush=True)
        os._exit(0)

    return child(body)


def blocked_signal():
    def body():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        os.execve("/bin/bash", ["bash", "-c", "kill -USR1 $$; kill -USR2 $$; echo survived"], {"PATH": PATH})

    return child(body)


def damage(seed):
    """Copies of programs and libraries with a few other bytes where the loader looks, all different."""
    chance = random.Random(seed)
    os.makedirs(f"{ROOT}/tmp/damaged", exist_ok=True)
    for number in range(DAMAGED):
        with open(ROOT + chance.choice(["/bin/true", "/bin/bash", LIBC, LOADER]), "rb") as file:
            content = bytearray(file.read())
        headers = [struct.unpack_from("<IIQQQQQQ", content, 64 + 56 * entry) for entry in range(struct.unpack_from("<H", content, 56)[0])]
        places = [range(64), range(64, 64 + 56 * len(headers))]
        places += [range(offset, offset + size) for kind, _, offset, _, _, size, _, _ in headers if kind in (2, 3, 4)]
        for _ in range(chance.choice([0, 1, 1, 1, 2, 4])):
            place = chance.choice(chance.choice(places))
            content[place] = chance.choice([0, 1, 255, content[place] ^ 1 << chance.randrange(8), chance.randrange(256)])
        if chance.randrange(10) == 0:
            del content[chance.randrange(len(content)) :]
        with open(f"{ROOT}/tmp/damaged/{number}", "wb") as file:
            file.write(content)


def with_root_file(path, work):
    script(path, "", 0o644)
    try:
        return work()
    finally:
        os.unlink(ROOT + path)


def without(path, work):
    os.rename(ROOT + path, f"{ROOT}{path}.away")
    try:
        return work()
    finally:
        os.rename(f"{ROOT}{path}.away", ROOT + path)


def prepare():
    copy("/bin/cat", "/tmp/a b/ca t")
    copy("/bin/cat", "/tmp/deleted")
    copy("/bin/cat", "/tmp/unreadable", 0o711)
    copy("/usr/bin/id", "/tmp/setuid", 0o4755)
    copy("/bin/cat", "/tmp/edited")
    os.utime(ROOT + "/tmp/edited", (0, 0))
    damage(SEED)
    os.symlink("/proc/self/exe", f"{ROOT}/tmp/self")
    copy(LOADER, "/tmp/loader")
    copy("/bin/cat", "/tmp/$ORIGIN")
    script("/tmp/plain.sh", '#!/bin/sh\necho "$0" "$#" "$@"\n')
    script("/tmp/arguments.sh", '#!/bin/bash -e -u\necho never\n')
    script("/tmp/one.sh", '#!/bin/bash -eu\necho "$0" "$-" "$@"; false; echo never\n')
    script("/tmp/env.sh", '#!/usr/bin/env -S bash -eu\necho "$0" "$@"; echo "$none"\n')
    script("/tmp/chain.sh", '#!/tmp/plain.sh of the chain\n')
    script("/tmp/with space.sh", '#!/bin/sh\necho "$0"\n')
    script("/tmp/cat.script", "#!/tmp/edited -n\nnumbered\n")
    os.makedirs(f"{ROOT}/tmp/nested/bin", exist_ok=True)
    copy("/bin/cat", "/tmp/nested/bin/cat")
    for directory in ("lib", "lib64"):
        if os.path.isdir(f"{ROOT}/{directory}"):
            shutil.copytree(f"{ROOT}/{directory}", f"{ROOT}/tmp/nested/{directory}", symlinks=True)
    os.makedirs(f"{ROOT}/dev", exist_ok=True)
    if not os.path.lexists(f"{ROOT}/dev/fd"):
        os.symlink("/proc/self/fd", f"{ROOT}/dev/fd")


MANY = [f"argument {number}" for number in range(14_000)]

# Name, how many twins and emulated programs there must be where twins are (if that is certain), what to do.
CASES = [
    ("exit code", (1, 0), lambda: shell("exit 77")),
    ("own name", (1, 0), lambda: program("strange name", "--help", path="/bin/cat")),
    ("dashes as own name", (1, 0), lambda: program("--list", "--help", path="/bin/cat")),
    ("empty own name", (1, 0), lambda: raw("/bin/bash", "", "-c", 'echo "<$0>"')),
    ("no arguments", (1, 0), lambda: raw("/bin/pwd")),
    ("exec -a", (2, 0), lambda: shell("exec -a renamed /bin/cat --help")),
    ("relative path", (2, 0), lambda: shell("cd /usr && exec bin/cat /proc/self/comm")),
    ("name of the process", (3, 0), lambda: shell("cat /proc/$$/comm; /bin/cat /proc/self/comm")),
    ("name of a script's process", (2, 0), lambda: shell('exec /bin/sh -c "read name < /proc/self/comm; echo $name"')),
    ("script", (1, 0), lambda: program("/tmp/plain.sh", "a b", "", "c")),
    ("script with a space", (1, 0), lambda: program("/tmp/with space.sh")),
    ("script with options", (1, 0), lambda: program("/tmp/one.sh", "x y")),
    ("script with too many options", (1, 0), lambda: program("/tmp/arguments.sh")),
    ("script by env", (2, 0), lambda: program("/tmp/env.sh", "x")),
    ("script of a script", (1, 0), lambda: program("/tmp/chain.sh", "last")),
    ("script of an edited program", (0, 1), lambda: program("/tmp/cat.script")),
    ("name with spaces", (1, 0), lambda: program("/tmp/a b/ca t", "--help")),
    ("edited program", (0, 1), lambda: program("/tmp/edited", "--help")),
    ("by descriptor", (1, 0), lambda: from_descriptor("/bin/cat", ["x", "--help"])),
    ("by closing descriptor", (0, 0), lambda: from_descriptor("/bin/cat", ["x", "--help"], cloexec=True)),
    ("deleted", (1, 0), lambda: from_descriptor("/tmp/deleted", ["x", "--help"], unlinked=True)),
    ("in memory", (0, 1), lambda: from_descriptor("/bin/cat", ["x", "--help"], memfd=True)),
    ("script by descriptor", (1, 0), lambda: from_descriptor("/tmp/plain.sh", ["x", "y"])),
    ("script by closing descriptor", (0, 0), lambda: from_descriptor("/tmp/plain.sh", ["x"], cloexec=True)),
    ("execute only", (1, 0), lambda: program("/tmp/unreadable", "--version", uid=NOBODY)),
    ("setuid", (0, 1), lambda: program("/tmp/setuid", "-u", uid=NOBODY)),
    ("not setuid", (1, 0), lambda: program("/usr/bin/id", "-u", uid=NOBODY)),
    ("nested root", (0, 0), lambda: program("/bin/cat", "--help", root=f"{ROOT}/tmp/nested")),
    ("many arguments", (1, 0), lambda: shell('echo $# "${@: -1}"', "x", *MANY)),
    ("long argument", (1, 0), lambda: shell("echo ${#1}", "x", "y" * 130_000)),
    ("too many arguments", (0, 0), lambda: shell("echo never", *["y" * 100_000] * 100)),
    ("fork storm", (500, 0), lambda: storm(500)),
    ("killed", (1, 0), lambda: shell("kill -TERM $$")),
    ("aborted", (1, 0), lambda: shell("ulimit -c 0; exec 2>/dev/null; kill -ABRT $$")),
    ("status of a child", (2, 0), lambda: shell('exec 2>/dev/null; bash -c "kill -KILL \\$\\$"; echo $?')),
    ("blocked and ignored signals", (1, 0), blocked_signal),
    ("preloaded library", (0, 1), lambda: program("/bin/cat", "--version", env={"LD_PRELOAD": ""})),
    ("library path", (0, 2), lambda: shell("exec /bin/true", env={"LD_LIBRARY_PATH": "/nowhere"})),
    ("emulator's variable", (0, 1), lambda: program("/bin/true", env={"QEMU_LD_PREFIX": "/"})),
    ("emulator's processor", (1, 0), lambda: program("/bin/true", env={"QEMU_CPU": "max"})),
    ("switched off", (0, 3), lambda: shell("/bin/true; exec /bin/false", env={"KILN_TWINS": "off"})),
    ("switched off for one", (1, 1), lambda: shell("KILN_TWINS=off /bin/true; exit 3")),
    ("other switch", (1, 0), lambda: program("/bin/true", env={"KILN_TWINS": "offer"})),
    ("preloaded for all", (0, 1), lambda: with_root_file("/etc/ld.so.preload", lambda: program("/bin/true"))),
    ("no loader", (0, 1), lambda: without(LOADER, lambda: program("/bin/true"))),
    ("standard input", (2, 0), lambda: shell("cat; read line || echo end", stdin=b"one\ntwo")),
    ("descriptors", (1, 0), lambda: program("/bin/ls", "/proc/self/fd")),
    ("environment", (1, 0), lambda: program("/usr/bin/env", env={"A": "b c", "KILN_EXE": "mine"})),
    ("directory", (0, 0), lambda: program("/tmp")),
    ("missing", (0, 0), lambda: program("/bin/none")),
    ("loader's version", (1, 0), lambda: program(LOADER, "--version")),
    ("version of a copied loader", (1, 0), lambda: program("/tmp/loader", "--version")),
    ("loader's version and more", (0, 1), lambda: program(LOADER, "--version", "x")),
    ("loader without arguments", (0, 1), lambda: program(LOADER)),
    ("loader with a variable", (0, 1), lambda: program(LOADER, "--version", env={"LD_VERBOSE": ""})),
    ("loader with a tunable", (0, 1), lambda: program(LOADER, "--version", env={"GLIBC_TUNABLES": "a=b"})),
    ("loader's version to nobody", (1, 1), lambda: shell(f"{LOADER} --version >&-; echo $?")),
    ("loadable program", None if IS_X86_64 else (1, 0), lambda: program(LOADER, "--verify", "/bin/bash")),
    ("loadable library", None if IS_X86_64 else (1, 0), lambda: program(LOADER, "--verify", LIBC)),
    ("loadable by another path", None, lambda: shell(f"cd /usr/bin && {LOADER} --verify ../bin/cat")),
    ("loadable by name only", (1, 1), lambda: shell(f"cd /usr/bin && {LOADER} --verify cat")),
    ("loadable with a dollar sign", (0, 1), lambda: program(LOADER, "--verify", "/tmp/$ORIGIN")),
    ("unreadable program", (0, 1), lambda: program(LOADER, "--verify", "/tmp/unreadable", uid=NOBODY)),
    ("script for the loader", (0, 1), lambda: program(LOADER, "--verify", "/tmp/plain.sh")),
    ("nothing for the loader", (0, 1), lambda: program(LOADER, "--verify", "/tmp/none")),
    ("directory for the loader", (0, 1), lambda: program(LOADER, "--verify", "/tmp")),
    ("device for the loader", (0, 1), lambda: program(LOADER, "--verify", "/dev/fd/0", stdin=b"x")),
    ("loader for itself", (0, 1), lambda: program(LOADER, "--verify", LOADER)),
    ("loader for its copy", None, lambda: program(LOADER, "--verify", "/tmp/loader")),
    ("emulator for the loader", (0, 1), lambda: program(LOADER, "--verify", "/tmp/self")),
    ("pipes", None, lambda: shell("for i in 1 2 3 4 5; do seq 1 1000 | sort -rn | head -n $i | md5sum; done")),
]


def damaged(number):
    return f"damaged {number}", None, lambda: program(LOADER, "--verify", f"/tmp/damaged/{number}")


def run_all():
    furnish()
    answers = {}
    prepare()
    for name, wanted, case in CASES + [damaged(number) for number in range(DAMAGED)]:
        before = counts()
        status, said = case()
        after = counts()
        ran = [after[0] - before[0], after[1] - before[1]]
        answers[name] = {"status": status, "said": said, "wanted": wanted, "ran": ran}
    print(json.dumps(answers))


sys.exit(in_namespace(run_all))
