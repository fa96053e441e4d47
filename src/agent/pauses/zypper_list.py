"""Reads what zypper would install (`--xmlout … install --dry-run`), and finds these packages in the metadata that it has
fetched. Writes the list for the agent (kiwi.py).

A package that several repositories have is listed for each of them.
"""
import os
import sys
import warnings
import xml.etree.ElementTree as xml

import hawkey

# hawkey says that dnf's own classes are to be used. They need a configuration and directories.
warnings.showwarning = lambda *_, **__: None

RAW = "/var/cache/kiwi/zypper/raw"
KINDS = (hawkey.CHKSUM_SHA256, hawkey.CHKSUM_SHA384, hawkey.CHKSUM_SHA512)
SPACE = "{http://linux.duke.edu/metadata/repo}"


def primary(repository):
    """The paths of a repository's index of indexes, and of its list of packages."""
    index = os.path.join(repository, "repodata", "repomd.xml")
    for data in xml.parse(index).iterfind(f"{SPACE}data[@type='primary']"):
        yield index, os.path.join(repository, data.find(f"{SPACE}location").get("href"))


def packages(name, index, listed):
    """All packages of a repository."""
    repository = hawkey.Repo(name)
    repository.repomd_fn, repository.primary_fn = index, listed
    sack = hawkey.Sack(all_arch=True, make_cache_dir=False)
    sack.load_repo(repository, build_cache=False)
    return hawkey.Query(sack)


answer = xml.fromstring(sys.stdin.read())
wanted = {
    (package.get("name"), package.get("edition"), package.get("arch"))
    for package in answer.iterfind(".//to-install/solvable[@type='package']")
}
for name in os.listdir(RAW):
    for index, listed in primary(os.path.join(RAW, name)):
        for package in packages(name, index, listed):
            kind, digest = package.chksum
            if (package.name, package.evr, package.arch) in wanted and kind in KINDS:
                print(digest.hex(), package.downloadsize, os.path.join("packages", name, package.location))
