"""Lets a script that calls a function which kiwi has made fatal go on, with a warning. Writes one file of the sandbox: the functions
that kiwi puts into a root for its scripts.
"""
from kiwi.defaults import Defaults

FUNCTIONS = "/run/kiln-functions.sh"

# The file in the root where the obsolete functions that were called are noted, beside the scripts. kiwi removes both.
OBSOLETE_CALLS = "/image/.kiln-obsolete-calls"

# The obsolete functions of kiwi are those that call `deprecated`, with the reason on its standard input, and it ends the script. What a
# script still can have of them, it gets.
OBSOLETE = rf"""
function deprecated {{
    local line why=""
    while read -r line; do
        why+=" ${{line}}"
    done
    echo "warning: $1() of kiwi is obsolete and does nothing:${{why}}" >&2
    {{ echo "$1" >>{OBSOLETE_CALLS}; }} 2>/dev/null || true
}}

function baseGetPackagesForDeletion {{
    echo "${{kiwi_delete:-}}"
}}

function baseGetProfilesUsed {{
    echo "${{kiwi_profiles:-}}"
}}

function Rpm {{
    rpm "$@"
}}
"""


def let_go_on():
    with open(Defaults.get_common_functions_file()) as file:
        own = file.read()
    with open(FUNCTIONS, "w") as file:
        file.write(own + OBSOLETE)
    Defaults.get_common_functions_file = staticmethod(lambda: FUNCTIONS)
