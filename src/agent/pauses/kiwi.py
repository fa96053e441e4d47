"""Runs kiwi, and asks the agent before packages are installed, and after them. The agent may bring the root that an
earlier job had at that point; kiwi then goes on as if it had installed the packages itself. Otherwise kiwi's package
manager says what it will install, and the agent is asked once more: packages that it brings need no download, or it brings
the root of a similar recipe, in which kiwi then installs what is missing.

kiwi also reads in another way than its own what commands say, and its apt finds the packages that it shall remove. Its obsolete
functions end no script.

Arguments: the agent's socket, or - to ask nothing, or ? to read the description and make nothing; then those of kiwi-ng.
"""
import os
import shutil
import socket
import subprocess
import sys

from kiwi import command_process
from kiwi.command import Command
from kiwi.kiwi import main
from kiwi.package_manager import apt, dnf4, dnf5, zypper
from kiwi.repository.dnf4 import RepositoryDnf4
from kiwi.repository.zypper import RepositoryZypper
from kiwi.system.prepare import SystemPrepare
from kiwi.system.setup import SystemSetup

# Beside this program. Some of them change kiwi when they are imported, so they come before what follows.
import kiln_arrivals
import kiln_ended
import kiln_functions
import kiln_groups
import kiln_reading
import kiln_refusals
import kiln_scripts
import kiln_trust

ADDRESS = sys.argv.pop(1)
sys.argv[0] = "kiwi-ng"
with open("/proc/self/comm", "w") as name:
    name.write("kiwi-ng")

# Files of the recipe that kiwi has put into the root already, and that only later steps use. While a layer is made they are
# away, so that neither a package nor the script that runs before can depend on them.
LATE = ("config.sh", "images.sh")

# What will be installed, for the agent: the digest, the size and the path below kiwi's cache of each package.
WANTED = "/run/kiln-wanted-packages"

# A directory without packages.
NO_ARCHIVES = "/run/kiln-no-archives/"

# Where dnf finds its plugin, which writes that list, and the program that makes it from zypper's answer.
DNF_PLUGINS = "/run/kiln-dnf"
ZYPPER_LIST = "/run/kiln-zypper-list.py"

install_bootstrap = SystemPrepare.install_bootstrap
install_system = SystemPrepare.install_system
call_post_bootstrap_script = SystemSetup.call_post_bootstrap_script
answer = ""
hidden = []

# Where dpkg notes the packages of a root. kiwi has apt look elsewhere, where it never finds any.
INSTALLED = "/var/lib/dpkg/status"

# What the package manager will be asked for later than in its first call, until that is said; and the packages that apt then
# says it will install.
wanted = None
listed = []


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
        if answer in ("go on", "brought") and os.path.lexists(path):
            # The root is a mount of its own.
            shutil.move(path, away)
            hidden.append((path, away))


def bring_back():
    while hidden:
        path, away = hidden.pop()
        shutil.move(away, path)


class Brought(BaseException):
    """The root is that of a similar recipe, so there is nothing to bootstrap. kiwi catches what is an Exception."""


def listen(question):
    global answer
    answer = ask(question)
    if answer in ("", "broken"):
        raise RuntimeError("the root of an earlier job could not be brought")


def bootstrap(self, manager, *arguments, **options):
    global wanted
    listen("before")
    if answer == "restored":
        return
    wanted = wanted_later(self.xml_state)
    try:
        install_bootstrap(self, manager, *arguments, **options)
    except Brought:
        manager.cleanup_requests()


def wanted_later(state):
    packages, collections = state.get_system_packages(), state.get_system_collections()
    match state.get_package_manager():
        case "apt":
            # What its first call installs is not among its arguments.
            return ["?essential", "apt", *state.get_bootstrap_packages(), *packages]
        case "dnf4":
            return [*packages, *(f"@{name}" for name in collections)]
        case "zypper":
            products = state.get_system_products()
            named = kiln_groups.capabilities
            return [*packages, *named("pattern", collections), *named("product", products)]


class AskingCommand(Command):
    """Runs the commands of a package manager. Before its first packages, it says what it will install, and installs none."""

    @staticmethod
    def run(command, *environment, **options):
        if answer == "brought" and command[-1] == "update":
            # The lists are there already.
            return None
        environment = kiln_groups.environment(command, environment)
        result = Command.run(command, *environment, **options)
        # The first update is that of the new root's lists.
        if wanted is not None and command[0] == "apt-get" and command[-1] == "update":
            # This file of kiwi's lies in the root.
            with open(command[command.index("-c") + 1]) as file:
                settings = file.read()
            try:
                say_wanted(list_by_apt, command[:-1], *environment)
            except Brought:
                with open(file.name, "w") as file:
                    file.write(settings)
                raise
        return result

    @staticmethod
    def call(command, *environment, **options):
        if command[2:3] == ["apt-get"] and "--auto-remove" in command:
            # After the file of settings, which has another place.
            place = command.index("--auto-remove")
            command = [*command[:place], "-o", f"Dir::State::status={INSTALLED}", *command[place:]]
        environment = kiln_groups.environment(command, environment)
        listing = {"dnf4": list_by_dnf, "dnf-3": list_by_dnf, "zypper": list_by_zypper}.get(command[0])
        if wanted is not None and listing:
            say_wanted(listing, command, *environment)
        return Command.call(command, *environment, **options)


def say_wanted(listing, command, *environment):
    global wanted
    listing(command, *environment)
    wanted = None
    # What cannot be installed is kiwi's to say.
    if os.path.exists(WANTED):
        listen("lists")
    if answer == "brought":
        raise Brought()


def list_by_apt(command, *environment):
    # No digest but this one is used. A package is listed even if it is there: a root may be made once more.
    os.makedirs(os.path.join(NO_ARCHIVES, "partial"), exist_ok=True)
    options = ["-o", "Acquire::ForceHash=SHA256", "-o", f"Dir::Cache::archives={NO_ARCHIVES}", "--print-uris", "install"]
    said = Command.run([*command, *options, *wanted], *environment, raise_on_error=False)
    if not said or said.returncode != 0:
        return
    with open(WANTED, "w") as file:
        for line in said.output.splitlines():
            # 'ADDRESS' NAME SIZE SHA256:DIGEST
            match line.rsplit(" ", 3):
                case [address, name, size, digest] if address.startswith("'"):
                    known = digest[7:].lower() if digest.startswith("SHA256:") else "-"
                    file.write(f"{known} {size} apt-get/archives/{name}\n")
                    listed.append(name.partition("_")[0])


def list_by_dnf(command, *environment):
    # The plugin ends dnf.
    Command.run([*command, *wanted, f"--setopt=pluginpath={DNF_PLUGINS}"], *environment, raise_on_error=False)


def list_by_zypper(command, *environment):
    items = command.index("--")
    options = ["--dry-run", *command[items:], *wanted]
    listed = Command.run([command[0], "--xmlout", *command[1:items], *options], *environment, raise_on_error=False)
    if listed and listed.returncode == 0:
        with open(WANTED, "w") as file:
            # Of the toolbox, for kiwi's own interpreter has no library that reads repositories.
            subprocess.run(["/usr/bin/python3", ZYPPER_LIST], input=listed.output, stdout=file, text=True)


def script(self):
    # In a root that was brought it has run.
    if answer in ("restored", "brought"):
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
        if answer == "brought":
            install_missing(self, manager)
        else:
            install_system(self, manager)
        # What is kept of the root is the recipe's alone.
        kiln_trust.take_out(self.root_dir)
        kiln_scripts.names.take_back()
        # Without that answer, nothing of the recipe's own may run.
        if ask("after") != "go on":
            raise RuntimeError("the agent does not want to go on")
    finally:
        bring_back()


def install_missing(self, manager):
    own = manager.custom_args
    try:
        # Each package by its name, so that apt has nothing to choose. The root's own packages may have left it without DNS.
        fetch = ["apt-get", *manager.apt_get_args, *own, "-o", f"Dir::State::status={self.root_dir}{INSTALLED}"]
        Command.run([*fetch, "--download-only", "install", *listed], manager.command_env)
        manager.bootstrap_packages = listed
        manager.custom_args = [*own, "-o", f"Dir::State::status={INSTALLED}"]
        install_system(self, manager)
    except Exception:
        # Then all packages are installed.
        ask("failed")
        raise
    manager.custom_args = own


def dnf_of_root(self, root=None):
    """The dnf of the toolbox, or that of a root: its dnf 5, if it has no other. They have the options that kiwi gives them in common."""
    name = name_of_dnf(self, root)
    has = lambda program: root and os.access(os.path.join(root, "usr/bin", program), os.X_OK)
    return "dnf5" if has("dnf5") and not has(name) else name


def delete_by_dnf(self, force=False):
    # The one thing for which they have other words.
    is_newer = self._get_dnf4_binary_name(self.root_dir) == "dnf5"
    return (dnf5.PackageManagerDnf5.process_delete_requests if is_newer else delete_by_dnf4)(self, force)


name_of_dnf = dnf4.PackageManagerDnf4._get_dnf4_binary_name
delete_by_dnf4 = dnf4.PackageManagerDnf4.process_delete_requests
dnf4.PackageManagerDnf4._get_dnf4_binary_name = dnf_of_root
dnf4.PackageManagerDnf4.process_delete_requests = delete_by_dnf
kiln_functions.let_go_on()
kiln_groups.install(zypper.PackageManagerZypper)
kiln_refusals.install()
command_process.CommandIterator = kiln_scripts.Lines
apt.Command = dnf4.Command = dnf5.Command = zypper.Command = AskingCommand
kiln_arrivals.prepare()
if ADDRESS == "?":
    kiln_reading.install()
elif ADDRESS != "-":
    SystemSetup.call_post_bootstrap_script = script
    SystemPrepare.install_bootstrap = bootstrap
    SystemPrepare.install_system = system
kiln_ended.install()
kiln_trust.install(Command, RepositoryDnf4, RepositoryZypper, SystemPrepare, SystemSetup)
sys.exit(main())
