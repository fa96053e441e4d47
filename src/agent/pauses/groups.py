"""Has package managers find what a description calls a collection or a product.

zypper: packages say that they are one, `Provides: pattern() = NAME`. Only a libsolv that was built for SUSE makes a `pattern:NAME`
of it; every one finds what such a package provides.
"""
import os

# Where dnf looks for modules first.
DNF_MODULES = "/run/kiln-dnf-modules"


def capabilities(kind, names):
    return [f"{kind}() = {name}" for name in names]


def install(PackageManagerZypper):
    def request_collection(self, name):
        self.collection_requests += capabilities("pattern", [name])

    def request_product(self, name):
        self.product_requests += capabilities("product", [name])

    PackageManagerZypper.request_collection = request_collection
    PackageManagerZypper.request_product = request_product


def environment(command, given):
    """The environment of a command, for that which was given."""
    if command[0] not in ("dnf4", "dnf-3"):
        return given
    return [dict(given[0] if given and given[0] else os.environ, PYTHONPATH=DNF_MODULES), *given[1:]]
