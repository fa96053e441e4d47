"""Adds to a description, which is resolved, what a job adds to it, as kiwi's own options do. Reads and writes nothing but its own
streams.

On standard input: one object of JSON with the description and the additions. Says the new description.
"""
import json
import sys
from io import BytesIO

from lxml import etree

# Members of a repository's line that are attributes of its element, by the names that kiwi's schema has.
ATTRIBUTES = {
    "alias": "alias",
    "kind": "type",
    "priority": "priority",
    "imageinclude": "imageinclude",
    "package_gpgcheck": "package_gpgcheck",
    "repo_gpgcheck": "repository_gpgcheck",
    "components": "components",
    "distribution": "distribution",
    "sourcetype": "sourcetype",
}


def change(element, line):
    for member, attribute in ATTRIBUTES.items():
        if line[member] is not None:
            element.set(attribute, line[member])
    if line["imageinclude"] == "true":
        # kiwi's schema has one of the two.
        element.attrib.pop("imageonly", None)
    source = element.find("source")
    if source is None:
        source = etree.SubElement(element, "source")
    if line["source"] is not None:
        source.set("path", line["source"])
    if line["signing_keys"]:
        for signing in source.findall("signing"):
            source.remove(signing)
        for key in line["signing_keys"]:
            etree.SubElement(source, "signing", key=key)


def add(root, job):
    if job["ignore_repos"]:
        for element in root.findall("repository"):
            root.remove(element)
    elif job["first"] is not None and job["set_repo"]:
        change(root.findall("repository")[job["first"]], job["set_repo"])
    for line in job["add_repos"]:
        change(etree.SubElement(root, "repository"), line)
    for kind in ("bootstrap", "image", "uninstall"):
        if job["packages"][kind]:
            packages = etree.SubElement(root, "packages", type=kind)
            for name in job["packages"][kind]:
                etree.SubElement(packages, "package", name=name)


job = json.load(sys.stdin)
parser = etree.XMLParser(resolve_entities=False, load_dtd=False, no_network=True, huge_tree=False)
tree = etree.parse(BytesIO(job["description"].encode()), parser)
add(tree.getroot(), job)
sys.stdout.write(etree.tostring(tree, encoding="utf-8", xml_declaration=True).decode())
