"""A plugin of dnf that says which packages dnf would install, and ends it. Writes the list for the agent (kiwi.py).

libdnf's own paths begin with the root that packages are installed to.
"""
import dnf

WANTED = "/run/kiln-wanted-packages"
CACHE = "/var/cache/kiwi/"


class Wanted(dnf.Plugin):
    """Runs when dnf has solved what it was asked for."""

    name = "kiln-wanted"

    def resolved(self):
        """Writes the list of what is not there yet."""
        with open(WANTED, "w") as file:
            for package in self.base.transaction.install_set:
                kind, digest = package.returnIdSum()
                _, cache, path = package.localPkg().partition(CACHE)
                if kind in ("sha256", "sha384", "sha512") and cache:
                    file.write(f"{digest} {package.downloadsize} {path}\n")
        raise dnf.exceptions.Error("this was only to know the packages")
