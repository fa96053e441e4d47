"""What the programs of a new root find around them, and what becomes of those that they leave behind: names of hosts while they
run, the release of its own kernel, an end for programs that stay, and the same surroundings for images.sh as for config.sh. For
kiwi.py; it changes the root, ends processes, and asks the agent to look at the root.
"""
import os
import re
import select
import signal
import socket
import time
from collections import deque

from kiwi.command import Command
from kiwi.command_process import CommandIterator, PollT
from kiwi.system.prepare import SystemPrepare
from kiwi.system.root_bind import RootBind
from kiwi.system.setup import SystemSetup

import kiln_arrivals
from kiln_arrivals import say
from kiln_functions import OBSOLETE_CALLS
from kiln_warnings import warn

# The sandbox's name servers.
RESOLVER = "/etc/resolv.conf"

# The agent listens here if programs of the root are to be told of its own kernel (release.rs).
RELEASE = "/run/kiln-release.sock"

# How long a program's output may stay open after its end, and how long what holds it may take to end, in seconds.
GRACE, PATIENCE = 5, 3

# How often they are told to, before they are left alone.
MOST_ASKED = 4

# Scripts that kiwi calls while it makes disks, live images and overlays, which Kiln does not make of a root.
OF_OTHER_IMAGES = (
    "pre_disk_sync.sh",
    "disk.sh",
    "config-overlay.sh",
    "config-host-overlay.sh",
    "edit_boot_config.sh",
    "edit_boot_install.sh",
)

# The most programs that are named at once.
MOST_NAMED = 20

# The most bytes that are kept of what was written into a file of the sandbox's: names of a hundred thousand nodes, and more.
MOST_LENT = 16 << 20

# The end of the name of kiwi's copy of a file of the sandbox's.
COPY = ".kiwi"

# The end of a file's name while another has its place.
ASIDE = ".kiln-aside"


def below(root, path):
    """The place of a path of the root, all of whose links are followed as the root's own programs would."""
    try:
        return os.path.join(root, kiln_arrivals.resolve(root, path))
    except OSError:
        return None


def has_servers(text):
    """Whether a file names a server. Those of the loopback are services of a system that runs, and there is none."""
    servers = re.findall(r"^\s*nameserver\s+(\S+)", text, re.MULTILINE)
    return any(not server.startswith("127.") and server != "::1" for server in servers)


class Names:
    """The root's file of name servers. Managers of networks make it a link to a file that they write when they run, which is why
    it leads nowhere in a root that is being made."""

    def __init__(self):
        self.given = None
        self.made = []

    def give(self, root):
        """Has programs of the root find names, whatever its file is by now."""
        self.take_back()
        text = read(RESOLVER)
        place = below(root, RESOLVER)
        if text is None or place is None or not os.path.isdir(os.path.join(root, "etc")):
            return
        own = read(place)
        if os.path.lexists(place) and (own is None or own == text or has_servers(own)):
            return
        try:
            self.put(place, text)
        except OSError as error:
            warn("names_missing", f"programs of the root find no names: {error}")

    def put(self, place, text):
        parent = os.path.dirname(place)
        while not os.path.lexists(parent):
            self.made.append(parent)
            parent = os.path.dirname(parent)
        for directory in reversed(self.made):
            os.mkdir(directory, 0o755)
        aside = None
        if os.path.lexists(place):
            aside = place + ASIDE
            os.rename(place, aside)
        try:
            with open(place, "x") as file:
                file.write(text)
            os.chmod(place, 0o644)
        except OSError:
            if aside:
                os.rename(aside, place)
            raise
        self.given = place, os.stat(place).st_ino, text, aside

    def take_back(self):
        """Leaves the file as it was, or as programs have written it since."""
        if self.given:
            place, number, text, aside = self.given
            is_ours = os.path.lexists(place) and os.lstat(place).st_ino == number and read(place) == text
            if is_ours:
                os.unlink(place)
            if aside and os.path.lexists(aside):
                if is_ours:
                    os.rename(aside, place)
                else:
                    os.unlink(aside)
        for directory in self.made:
            try:
                os.rmdir(directory)
            except OSError:
                # Others have put something there, or have removed it.
                pass
        self.given, self.made = None, []


def read(path):
    content = content_of(path, 1 << 16)
    return None if content is None else content.decode(errors="replace")


def content_of(path, most):
    try:
        # A file of the root may be a pipe, which has no end.
        if os.path.isfile(path) and not os.path.islink(path):
            with open(path, "rb") as file:
                return file.read(most)
    except OSError:
        pass
    return None


names = Names()


class Lines(CommandIterator):
    """What a command says, by lines. kiwi's own iterator looks at both pipes before each single byte, waits a ten-thousandth of
    a second for the silent one, and so takes an eighth of a CPU and at most some ten thousand bytes a second. It also waits for
    whatever holds the pipes after the command itself has ended."""

    def __init__(self, command):
        super().__init__(command)
        self.begun = {command.output: b"", command.error: b""}
        self.lines = deque()
        # What it said last to its standard output.
        self.last = ""
        self.end = None
        self.asked = 0

    def __next__(self):
        while not self.lines:
            if not self.begun:
                self.command.process.wait()
                raise StopIteration()
            for pipe in select.select(list(self.begun), [], [], 0.2)[0]:
                self.read(pipe)
            if self.end is None and self.command.process.poll() is not None:
                self.end = time.monotonic() + GRACE
            if self.end is not None and self.begun and time.monotonic() > self.end:
                self.end = time.monotonic() + PATIENCE
                self.end_holders()
        return self.lines.popleft()

    def read(self, pipe):
        data = os.read(pipe.fileno(), 1 << 16)
        if pipe is self.command.error:
            self.command_error_output += data
        *lines, rest = (self.begun[pipe] + data).split(b"\n")
        if data:
            self.begun[pipe] = rest
        else:
            del self.begun[pipe]
            lines.append(rest)
        for line in lines:
            text = line.decode(errors="replace")
            if pipe is self.command.output:
                self.last = text if text.strip() else self.last
            self.lines.append(PollT("", text) if pipe is self.command.error else PollT(text, ""))

    def holders(self):
        pipes = {f"pipe:[{os.fstat(pipe.fileno()).st_ino}]" for pipe in self.begun}
        return [process for process in processes() if pipes & held_by(process)]

    def end_holders(self):
        left = self.holders()
        if not left:
            # The rest of the output is still on its way.
            return
        self.asked += 1
        if self.asked == 1:
            words = [word for word in self.command.process.args if word not in ("chroot", "bash")]
            what = os.path.basename(next((word for word in words if not os.path.isdir(word)), "a command"))
            warn("programs_left", f"{what} has ended, but programs that it left hold its output open; they are ended: {named(left)}")
            send(left, signal.SIGTERM)
        elif self.asked < MOST_ASKED:
            send(left, signal.SIGKILL)
        else:
            for pipe in self.begun:
                pipe.close()
            self.begun.clear()


def end_left(root):
    """Ends the programs of the root that scripts and packages have left, so that none changes it while it is packed."""
    said, until = False, time.monotonic() + PATIENCE
    while left := left_in(root):
        if not said:
            warn("programs_left", f"programs that scripts or packages have left running are ended: {named(left)}")
            said = True
            send(left, signal.SIGTERM)
        if time.monotonic() > until:
            send(left, signal.SIGKILL)
        if time.monotonic() > until + PATIENCE:
            return
        time.sleep(0.02)


def left_in(root):
    return [process for process in processes() if is_in(root, process)]


def is_in(root, process):
    try:
        with open(f"/proc/{process}/stat") as file:
            # The name before it can contain anything.
            state = file.read().rpartition(")")[2].split()[0]
        return state not in "ZX" and f"{os.readlink(f'/proc/{process}/root')}/".startswith(f"{root.rstrip('/')}/")
    except OSError:
        # It has ended, or is none of the root's.
        return False


def processes():
    """All processes of the sandbox but this one."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def held_by(process):
    """What the files of a process are."""
    held = set()
    try:
        for number in os.listdir(f"/proc/{process}/fd"):
            held.add(os.readlink(f"/proc/{process}/fd/{number}"))
    except OSError:
        # It has ended, or has closed the file.
        pass
    return held


def named(left):
    texts = []
    for process in left[:MOST_NAMED]:
        try:
            with open(f"/proc/{process}/cmdline", errors="replace") as file:
                command = file.read().replace("\0", " ").strip()
        except OSError:
            command = ""
        texts.append(f"`{command[:200]}` (process {process})")
    return ", ".join(texts) + (" and more" if len(left) > MOST_NAMED else "")


def send(left, number):
    for process in left:
        try:
            os.kill(process, number)
        except OSError:
            # It has ended.
            pass


def look_for_kernel():
    """Has the agent look for the root's newest kernel, of which its programs are told by `uname -r`."""
    if not os.path.exists(RELEASE):
        return
    try:
        with socket.socket(socket.AF_UNIX) as agent:
            agent.connect(RELEASE)
            agent.makefile().readline()
    except OSError as error:
        say(f"programs of the root may see another kernel than its newest one: {error}")


run, call, cleanup, link_copy = Command.run, Command.call, RootBind.cleanup, RootBind._link_intermediate_config
clean_leftovers = SystemPrepare.clean_package_manager_leftovers


def root_of(command):
    """The root in which a command runs programs, if it is one that does."""
    for word, path in zip(command, command[1:]):
        if word in ("chroot", "--root", "--installroot") and os.path.isdir(path):
            return path
    return None


def run_with_names(command, *arguments, **options):
    if root := root_of(command):
        names.give(root)
        look_for_kernel()
    try:
        return run(command, *arguments, **options)
    finally:
        if root:
            names.take_back()


def call_with_names(command, *arguments, **options):
    # Until the next command: this one only begins here.
    if root := root_of(command):
        names.give(root)
        look_for_kernel()
    return call(command, *arguments, **options)


# Files of the sandbox's that kiwi lends to the root, by their paths there, as they were then.
lent = {}


def lend(self, config):
    lent[config] = content_of(self.root_dir + config + COPY, MOST_LENT)
    link_copy(self, config)


def keep_written(root, config):
    """Has the root keep what scripts and packages have written into a file that is the sandbox's: kiwi would remove all of it. Lines
    of the sandbox's own stay out, but for those of the loopback."""
    path, given = root + config, lent.get(config)
    copy = path + COPY
    text = content_of(copy, MOST_LENT + 1)
    is_kiwis = os.path.islink(path) and os.readlink(path) == os.path.basename(copy)
    if not is_kiwis or given is None or text is None or text == given:
        return
    if len(text) > MOST_LENT:
        warn("recipe_paths", f"what was written into {config} is not in the image: it has more than {MOST_LENT} bytes")
        return
    of_sandbox = {line for line in given.splitlines() if b"localhost" not in line}
    lines = [line for line in text.splitlines() if line not in of_sandbox]
    if not set(lines) - set(given.splitlines()):
        return
    os.unlink(path)
    with open(path, "xb") as file:
        file.write(b"".join(line + b"\n" for line in lines))
    os.chmod(path, 0o644)
    say(f"{config} has what scripts and packages have written into it; lines of the sandbox's are left out")


def warn_of_unseen(root):
    """Warns of name servers that a script has written where a manager of networks keeps its own."""
    place = below(root, RESOLVER)
    inside = os.path.relpath(place, root) if place else ""
    if inside.startswith("run/") and read(place) is not None:
        warn("recipe_paths", f"nodes do not see what was written into {RESOLVER}, for it leads to /{inside}, and they mount an empty /run "
            "when they boot; a file in the place of the link stays")


def remove_dead_links(root, configs):
    """Removes links to kiwi's copies, which packages have kept aside as what was there before them."""
    copies = {os.path.basename(config) + COPY for config in configs}
    for directory in {os.path.dirname(root + config) for config in configs}:
        for name in os.listdir(directory) if os.path.isdir(directory) else []:
            path = os.path.join(directory, name)
            if os.path.islink(path) and os.readlink(path) in copies:
                os.unlink(path)


def close_root(self):
    end_left(self.root_dir)
    names.take_back()
    for config in self.config_files:
        keep_written(self.root_dir, config)
    warn_of_unseen(self.root_dir)
    # kiwi removes its own links of these names, and whatever else is a link by now.
    paths = [self.root_dir + file for file in self.config_files]
    others = [path for path in paths if os.path.islink(path) and os.readlink(path) != os.path.basename(path) + COPY]
    for path in others:
        os.rename(path, path + ASIDE)
    try:
        cleanup(self)
    finally:
        for path in others:
            if not os.path.lexists(path):
                os.rename(path + ASIDE, path)
        remove_dead_links(self.root_dir, self.config_files)


def call_image_script(self):
    """kiwi calls images.sh when it makes an image, where the root has neither /proc, /sys and /dev nor names any more. Here it
    is called while the root still has them, so that what config.sh can do, images.sh can do as well."""
    clean_leftovers(self)
    for name in OF_OTHER_IMAGES:
        if os.path.exists(os.path.join(self.root_dir, "image", name)):
            warn("script_not_run", f"{name} is not run: kiwi runs it for disks, live images and overlays, and not for a root file system")
    SystemSetup(self.xml_state, self.root_dir).call_image_script()
    warn_of_obsolete(self.root_dir)


def warn_of_obsolete(root):
    """Warns once of the obsolete functions that scripts have called."""
    place = below(root, OBSOLETE_CALLS)
    text = read(place) if place else None
    if text is None:
        return
    os.unlink(place)
    called = sorted({line for line in text.splitlines() if re.fullmatch("[A-Za-z]{1,60}", line)})[:MOST_NAMED]
    if called:
        warn("obsolete_function", f"scripts call functions of kiwi that are obsolete and do nothing: {', '.join(called)}")


Command.run, Command.call = staticmethod(run_with_names), staticmethod(call_with_names)
RootBind.cleanup, RootBind._link_intermediate_config = close_root, lend
SystemPrepare.clean_package_manager_leftovers = call_image_script
