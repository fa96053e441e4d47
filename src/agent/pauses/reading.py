"""Ends kiwi once it has read and checked a description, and before it makes anything, and notes what it has understood. For kiwi.py;
it writes one file.
"""
import json
import os
import re
import shutil
import sys

from kiwi.defaults import Defaults
from kiwi.exceptions import KiwiCommandNotFound
from kiwi.system.prepare import SystemPrepare

import kiln_scripts
import kiln_trust

READING = "/run/kiln-reading.json"

# Package managers that kiwi knows, and calls by these names. The toolbox need not have them.
CALLED_BY_NAME = ("apk", "dnf5", "microdnf", "pacman")

# The most bytes of a script that are looked at.
MOST_BYTES = 4 << 20


def obsolete_functions():
    """The functions of kiwi that do nothing any more: each begins with a call that says so, unless it is defined again."""
    with open(Defaults.get_common_functions_file()) as file:
        text = file.read()
    is_obsolete = dict(re.findall(r"^function (\w+) *\{\n\s*(deprecated )?", text, re.MULTILINE))
    return {name for name, obsolete in is_obsolete.items() if obsolete}


def called(path, functions):
    with open(path, errors="replace") as file:
        lines = file.read(MOST_BYTES).splitlines()
    words = {word for line in lines if not line.lstrip().startswith("#") for word in re.findall(r"\w+", line)}
    return sorted(words & functions)


def check_manager(name):
    """Refuses what the first command of kiwi would."""
    if name in CALLED_BY_NAME and shutil.which(name) is None:
        raise KiwiCommandNotFound(f'Command "{name}" not found in the environment')


def note(state):
    directory, functions = state.xml_data.description_dir, obsolete_functions()
    scripts = [name for name in sorted(os.listdir(directory)) if name.endswith(".sh")]
    paths = {name: os.path.join(directory, name) for name in scripts}
    read = {
        "bootstrap": len(state.get_bootstrap_packages()),
        "image": len(state.get_system_packages()),
        "collections": sum(
            len(some)
            for some in (
                state.get_bootstrap_collections(),
                state.get_system_collections(),
                state.get_bootstrap_products(),
                state.get_system_products(),
            )
        ),
        "missing_keys": kiln_trust.missing(state.get_repositories_signing_keys(), state),
        "not_run": [name for name in kiln_scripts.OF_OTHER_IMAGES if os.path.isfile(os.path.join(directory, name))],
        "obsolete": {name: called(path, functions) for name, path in paths.items() if os.path.isfile(path)},
    }
    with open(READING, "w") as file:
        json.dump(read, file)


def read_and_end(self, state, *_):
    check_manager(state.get_package_manager())
    note(state)
    sys.exit(0)


def install():
    SystemPrepare.__init__ = read_and_end
