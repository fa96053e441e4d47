"""Makes a kiwi description what kiwi itself makes of it before it reads it: the files that it includes are in their places,
a description of an old schema is converted, and what has another name by now has that name. Reads files of the recipe only.

Arguments: the description, and the recipe's directory, where included files are. Says what it did, with the result, as one
object of JSON.
"""
import copy
import json
import os
import resource
import sys
from io import BytesIO
from urllib.parse import unquote, urlsplit
from xml.parsers import expat

from kiwi.defaults import Defaults
from lxml import etree

# What converts a description of an older schema to the oldest one that kiwi still converts itself, and that schema.
OLD_STYLE = "/opt/kiwi/share/xsl_to_v74/update.xsl"
OLDEST = (7, 4)

# The most bytes of one file, the most elements of all together, and the most attributes of one: libxml compares each with all others.
MOST_BYTES = 4 << 20
MOST_ELEMENTS = 100_000
MOST_ATTRIBUTES = 200

# The most CPU, in seconds. What style sheets take grows faster than the description; a thousand packages take a tenth of a second.
MOST_CPU = 300

# What recipes call package managers that have another name in kiwi by now, or that the toolbox has in another version: dnf 4 begins a
# root whose own dnf 5 does the rest (kiwi.py).
MANAGERS = {"apt-get": "apt", "yum": "dnf4", "dnf": "dnf4", "dnf5": "dnf4"}


class Refused(Exception):
    pass


def check(data, name):
    """Counts without building anything, and refuses a document type before its entities are looked at."""
    def element(_, attributes):
        nonlocal elements
        elements += 1
        if elements > MOST_ELEMENTS:
            raise Refused(f"{name} has more than {MOST_ELEMENTS} elements")
        if len(attributes) > MOST_ATTRIBUTES:
            raise Refused(f"an element has more than {MOST_ATTRIBUTES} attributes")

    def document_type(*_):
        raise Refused(f"{name} has a document type")

    elements = 0
    parser = expat.ParserCreate()
    parser.StartElementHandler = element
    parser.StartDoctypeDeclHandler = document_type
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, LookupError, ValueError):
        # The other parser says why, unless it is an encoding that only that one has.
        pass


def parse(path, name):
    with open(path, "rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise Refused(f"{name} has more than 4 MiB")
    check(data, name)
    parser = etree.XMLParser(resolve_entities=False, load_dtd=False, no_network=True, huge_tree=False)
    try:
        tree = etree.parse(BytesIO(data), parser)
    except etree.XMLSyntaxError as error:
        raise Refused(f"{name} is no XML that can be read: {error.msg}") from None
    if tree.docinfo.internalDTD is not None:
        raise Refused(f"{name} has a document type")
    return tree


def included(address, recipe):
    """The file that an address leads to, inside the recipe."""
    parts = urlsplit(address)
    if parts.scheme not in ("", "this", "file", "dir"):
        raise Refused(f"it includes {address}: only files of the recipe can be included")
    place = os.path.join(recipe, address.removeprefix("this://") if parts.scheme in ("", "this") else parts.path)
    for place in (place, unquote(place)):
        path = os.path.realpath(place)
        if not path.startswith(os.path.realpath(recipe) + os.sep):
            raise Refused(f"it includes {address}, which is outside the recipe")
        if os.path.isfile(path):
            return path
    raise Refused(f"it includes {address}, which the recipe does not have")


def include(tree, recipe, warnings):
    """Puts what is included in its place. Returns the files."""
    root, names = tree.getroot(), []
    for element in root.findall("include"):
        address = element.get("from")
        if not address:
            raise Refused("an element `include` does not say what it includes")
        path = included(address.strip(), recipe)
        name = os.path.relpath(path, os.path.realpath(recipe))
        part = parse(path, name).getroot()
        if part.tag != "image":
            warnings.append(f"{name} is included, but is no `image`: nothing of it is used")
        elif part.find("include") is not None:
            raise Refused(f"{name} includes another file, and kiwi includes none in an included file")
        else:
            for child in part.iterchildren("*"):
                element.addprevious(copy.deepcopy(child))
        # Its tail is the space between elements.
        root.remove(element)
        names.append(name.encode(errors="replace").decode())
        if sum(1 for _ in root.iter()) > MOST_ELEMENTS:
            raise Refused(f"it has more than {MOST_ELEMENTS} elements")
    return names


def version(tree):
    text = tree.getroot().get("schemaversion", "")
    try:
        major, _, minor = text.partition(".")
        return int(major), int(minor or 0)
    except ValueError:
        raise Refused(f"its schemaversion is {text!r}, and must be a version" if text else "it has no schemaversion") from None


def managers(tree):
    return [(manager.text or "").strip() for manager in tree.getroot().iter("packagemanager")]


def transform(tree, style, said):
    # Style sheets may write nothing, and fetch nothing.
    access = etree.XSLTAccessControl(write_file=False, create_dir=False, read_network=False, write_network=False)
    sheet = etree.XSLT(etree.parse(style), access_control=access)
    try:
        result = sheet(tree)
    except etree.XSLTError as error:
        raise Refused(f"it cannot be converted: {' '.join(str(error).split())}") from None
    said.extend(" ".join(entry.message.split()) for entry in sheet.error_log)
    return result


def resolve(description, recipe):
    warnings, notes = [], []
    tree = parse(description, "it")
    if tree.getroot().tag != "image":
        raise Refused(f"its root element is `{tree.getroot().tag}`, not `image`")
    names = include(tree, recipe, warnings)
    if names:
        notes.append(f"included: {', '.join(names)}")
    before, written = version(tree), managers(tree)
    if before < OLDEST:
        tree = transform(tree, OLD_STYLE, warnings)
    tree = transform(tree, Defaults.get_xsl_stylesheet_file(), warnings)
    if before < OLDEST:
        old, new = (".".join(map(str, it)) for it in (before, version(tree)))
        notes.append(f"the description has kiwi's old schema {old}: it is converted to {new}")
    for manager in tree.getroot().iter("packagemanager"):
        name = (manager.text or "").strip()
        manager.text = MANAGERS.get(name, name)
    # Style sheets rename some, too.
    renamed = {was: name for was, name in zip(written, managers(tree)) if was != name}
    notes.extend(f"the package manager {was} is {name}" for was, name in renamed.items())
    text = etree.tostring(tree, encoding="utf-8", xml_declaration=True)
    schema = [".".join(map(str, it)) for it in (before, version(tree))]
    what = {"included": names, "schema": schema, "managers": renamed}
    return {"text": text.decode(), "notes": notes, "warnings": warnings, **what}


resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU, MOST_CPU))
try:
    answer = resolve(*sys.argv[1:])
except Refused as refused:
    answer = {"refused": str(refused)}
json.dump(answer, sys.stdout)
