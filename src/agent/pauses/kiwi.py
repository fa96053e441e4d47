"""Runs kiwi, and asks the agent twice: before packages are installed, and after them. The agent may bring the root
that an earlier job had at that point; kiwi then goes on as if it had installed the packages itself.

Arguments: the agent's socket, then those of kiwi-ng.
"""
import os
import shutil
import socket
import sys

from kiwi.kiwi import main
from kiwi.system.prepare import SystemPrepare
from kiwi.system.setup import SystemSetup

ADDRESS = sys.argv.pop(1)
sys.argv[0] = "kiwi-ng"
with open("/proc/self/comm", "w") as name:
    name.write("kiwi-ng")

# Files of the recipe that kiwi has put into the root already, and that only later steps use. While a layer is made they are
# away, so that neither a package nor the script that runs before can depend on them.
LATE = ("config.sh", "images.sh")

install_bootstrap = SystemPrepare.install_bootstrap
install_system = SystemPrepare.install_system
call_post_bootstrap_script = SystemSetup.call_post_bootstrap_script
answer = ""
hidden = []


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
        install_bootstrap(self, manager, *arguments, **options)


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


SystemSetup.call_post_bootstrap_script = script
SystemPrepare.install_bootstrap = bootstrap
SystemPrepare.install_system = system
sys.exit(main())
