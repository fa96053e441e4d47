"""Runs kiwi, and asks the agent before packages are installed, and after them. The agent may bring the root that an
earlier job had at that point; kiwi then goes on as if it had installed the packages itself. Otherwise kiwi's apt says
what it will install, and asks the agent once more: packages that it brings need no download.

kiwi also reads in another way than its own what commands say.

Arguments: the agent's socket, then those of kiwi-ng.
"""
import os
import select
import shutil
import socket
import sys
from collections import deque

from kiwi import command_process
from kiwi.command import Command
from kiwi.command_process import CommandIterator, PollT
from kiwi.kiwi import main
from kiwi.package_manager import apt
from kiwi.system.prepare import SystemPrepare
from kiwi.system.setup import SystemSetup

ADDRESS = sys.argv.pop(1)
sys.argv[0] = "kiwi-ng"
with open("/proc/self/comm", "w") as name:
    name.write("kiwi-ng")

# Files of the recipe that kiwi has put into the root already, and that only later steps use. While a layer is made they are
# away, so that neither a package nor the script that runs before can depend on them.
LATE = ("config.sh", "images.sh")

# What apt will install, for the agent.
WANTED = "/run/kiln-wanted-packages"

install_bootstrap = SystemPrepare.install_bootstrap
install_system = SystemPrepare.install_system
call_post_bootstrap_script = SystemSetup.call_post_bootstrap_script
answer = ""
hidden = []
wanted = []


def ask(question):
    with socket.socket(socket.AF_UNIX) as agent:
        agent.connect(ADDRESS)
        agent.sendall(question.encode() + b"\n")
        return agent.makefile().readline().strip()


def hide(root):
    aside = root.rstrip("/") + ".late"
    os.makedirs(aside, exist_ok=True)
    for name in LATE:
        path, away = os.path.join(root, "image", name), os.path.join(aside, name)
        if answer == "go on" and os.path.lexists(path):
            # The root is a mount of its own.
            shutil.move(path, away)
            hidden.append((path, away))


def bring_back():
    while hidden:
        path, away = hidden.pop()
        shutil.move(away, path)


def bootstrap(self, manager, *arguments, **options):
    global answer
    answer = ask("before")
    if answer == "broken":
        raise RuntimeError("the root of an earlier job could not be brought")
    if answer != "restored":
        wanted[:] = ["?essential", "apt", *self.xml_state.get_bootstrap_packages(), *self.xml_state.get_system_packages()]
        install_bootstrap(self, manager, *arguments, **options)


class Lines(CommandIterator):
    """What a command says, by lines. kiwi's own iterator looks at both pipes before each single byte, waits a ten-thousandth of
    a second for the silent one, and so takes an eighth of a CPU and at most some ten thousand bytes a second."""

    def __init__(self, command):
        super().__init__(command)
        self.begun = {command.output: b"", command.error: b""}
        self.lines = deque()

    def __next__(self):
        while not self.lines:
            if not self.begun:
                self.command.process.wait()
                raise StopIteration()
            for pipe in select.select(list(self.begun), [], [])[0]:
                self.read(pipe)
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
            self.lines.append(PollT("", text) if pipe is self.command.error else PollT(text, ""))


class AptCommand(Command):
    """Runs commands for apt. The first update is that of the new root's lists."""

    @staticmethod
    def run(command, *arguments, **options):
        result = Command.run(command, *arguments, **options)
        if wanted and command[0] == "apt-get" and command[-1] == "update":
            list_wanted(command[:-1], *arguments)
        return result


def list_wanted(apt_get, *environment):
    # No digest but this one is used.
    listing = ["-o", "Acquire::ForceHash=SHA256", "--print-uris", "install", *wanted]
    wanted.clear()
    listed = Command.run(apt_get + listing, *environment, raise_on_error=False)
    # What cannot be installed is kiwi's to say.
    if listed and listed.returncode == 0:
        with open(WANTED, "w") as file:
            file.write(listed.output)
        ask("lists")


def script(self):
    if answer == "restored":
        return
    # Until all packages are installed: the script may have left a process behind.
    hide(self.root_dir)
    try:
        call_post_bootstrap_script(self)
    except BaseException:
        bring_back()
        raise


def system(self, manager):
    if answer == "restored":
        return
    hide(self.root_dir)
    try:
        install_system(self, manager)
        # Without that answer, nothing of the recipe's own may run.
        if ask("after") != "go on":
            raise RuntimeError("the agent does not want to go on")
    finally:
        bring_back()


command_process.CommandIterator = Lines
apt.Command = AptCommand
SystemSetup.call_post_bootstrap_script = script
SystemPrepare.install_bootstrap = bootstrap
SystemPrepare.install_system = system
sys.exit(main())
