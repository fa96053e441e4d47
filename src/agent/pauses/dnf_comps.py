"""libcomps as dnf uses it, with Python's own lists. With Python 3.13, a loop over one of libcomps' ends early, or the process dies
of SIGSEGV (libcomps 0.1.21, issue 132 there); its elements can be had by their numbers.

dnf finds this module in place of libcomps by PYTHONPATH.
"""
import importlib
import os
import sys

here = os.path.dirname(__file__)
sys.path = [path for path in sys.path if path != here]
# Scripts of packages have dnf's environment.
os.environ.pop("PYTHONPATH", None)
ours = sys.modules.pop(__name__)
own = importlib.import_module("libcomps")
sys.modules[__name__] = ours


class Plain:
    """An object of libcomps."""

    def __init__(self, of):
        self.of = of

    def __getattr__(self, name):
        return plain(getattr(self.of, name))

    def __iadd__(self, other):
        self.of += other.of
        return self


def plain(value):
    kind = type(value)
    if not kind.__module__.startswith("libcomps") or "Dict" in kind.__name__:
        return value
    if hasattr(kind, "__getitem__") and hasattr(kind, "__len__"):
        return [plain(value[at]) for at in range(len(value))]
    return Plain(value)


def Comps(*arguments, **options):
    return Plain(own.Comps(*arguments, **options))


def __getattr__(name):
    return getattr(own, name)
