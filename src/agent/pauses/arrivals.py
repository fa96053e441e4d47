"""Puts what a recipe brings into the new root: its overlays, archives and files. Each is unpacked aside, in the root's own file
system, and then moved to its place one by one, so that kiwi's rsync and tar decide nothing about directories that are there.

* A directory whose place is a link to a directory lands where that link leads inside the root (/lib, /var/run), as a process in
  the root would have it. rsync and tar either put a directory in the link's place or follow an absolute link out of the root.
* A directory that is there keeps its mode and its owner.

What is not put where the recipe says, or is of no use there, is said.
"""
import errno
import os
import shutil
import stat
import subprocess
import tempfile
from collections import deque
from contextlib import contextmanager

from kiwi.archive.tar import ArchiveTar
from kiwi.command import Command
from kiwi.exceptions import KiwiRuntimeError
from kiwi.system.prepare import SystemPrepare
from kiwi.system.setup import SystemSetup

from kiln_warnings import warn

# The most links that one path may lead through, as in Linux.
MOST_LINKS = 40

# The most names in one line.
MOST_NAMES = 5

# Extended attributes that a recipe may bring: labels of SELinux are those of the machine where it was packed.
KEPT = ("user.", "security.capability")

# Where files that only their owner can read are meant so.
SECRET_PLACES = (".ssh/", "etc/ssh/", "etc/sudoers", "/private/", "/system-connections/", "/credstore")
SECRET_NAMES = ("shadow", "key", "keytab", "secret", "password", "passwd", "credentials", ".key", ".pem")

sync_overlay_files = SystemSetup._sync_overlay_files
sync_files = SystemSetup._sync_files
install_archives = SystemPrepare._install_archives
extract = ArchiveTar.extract


def say(text):
    # A name need not be text.
    print(text.encode(errors="backslashreplace").decode(), flush=True)


def shown(names):
    names = sorted(names)
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(f"/{name}" for name in names[:MOST_NAMES]) + more


def state_of(path):
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def resolve(root, path):
    """The path that a process in `root` reaches by `path`, relative to the root and without links. Names that are not there are
    taken as they are."""
    real, rest, links = [], deque(path.split("/")), 0
    while rest:
        name = rest.popleft()
        if name == "..":
            del real[-1:]
        elif name not in ("", "."):
            place = os.path.join(root, *real, name)
            if not os.path.islink(place):
                real.append(name)
                continue
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(place)
            if target.startswith("/"):
                real = []
            rest.extendleft(reversed(target.split("/")))
    return "/".join(real)


class Arrival:
    """One thing of the recipe that is put into a root."""

    def __init__(self, root, what):
        self.root = root
        self.what = what
        # Directories of the recipe whose places are links, and where these lead.
        self.moved = {}
        # What lies in each place, by its name in the recipe.
        self.placed = {}
        self.twice = []
        self.private = []
        self.writable = []
        self.outside = []
        # Directories that were made, with their times, which change while files are put into them.
        self.times = []

    def put(self, aside, place=""):
        """Moves everything in the directory `aside` to `place` in the root."""
        real = resolve(self.root, place)
        pending = [(aside, real, "" if place == "." else place.strip("/"))]
        while pending:
            source, real, name = pending.pop()
            with os.scandir(source) as entries:
                entries = sorted(entries, key=lambda entry: entry.name)
            for entry in entries:
                place, named = os.path.join(real, entry.name), os.path.join(name, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    pending.append((entry.path, self.directory(entry, place, named), named))
                else:
                    self.other(entry, place, named)
        for path, state in reversed(self.times):
            os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
        self.tell()

    def directory(self, entry, place, named):
        """Makes a directory, if it is not there. Returns its place."""
        there = state_of(os.path.join(self.root, place))
        if there and stat.S_ISLNK(there.st_mode):
            leads = self.leads(place)
            if leads is not None:
                self.moved[named] = leads
                place = leads
                there = state_of(os.path.join(self.root, place))
        path = os.path.join(self.root, place)
        if there and not stat.S_ISDIR(there.st_mode):
            os.unlink(path)
            there = None
        if not there:
            state = entry.stat(follow_symlinks=False)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.mkdir(path)
            os.chown(path, state.st_uid, state.st_gid)
            os.chmod(path, stat.S_IMODE(state.st_mode))
            for attribute in os.listxattr(entry.path):
                if attribute.startswith(KEPT):
                    os.setxattr(path, attribute, os.getxattr(entry.path, attribute))
            self.times.append((path, state))
            self.note_mode(state, named)
        return place

    def leads(self, place):
        """Where the link at `place` leads, if something may be put there."""
        try:
            leads = resolve(self.root, place)
        except OSError:
            return None
        there = state_of(os.path.join(self.root, leads))
        return leads if not there or stat.S_ISDIR(there.st_mode) else None

    def other(self, entry, place, named):
        path = os.path.join(self.root, place)
        if place in self.placed:
            self.twice.append(f"/{self.placed[place]} and /{named} are both /{place}, which has the latter")
        self.placed[place] = named
        there = state_of(path)
        if there and stat.S_ISDIR(there.st_mode):
            try:
                os.rmdir(path)
            except OSError as error:
                why = f"{self.what}: /{named} is no directory, and the root has a directory there that is not empty"
                raise KiwiRuntimeError(why) from error
        state = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(state.st_mode):
            self.note_mode(state, named)
        try:
            os.rename(entry.path, path)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            # Something is mounted there while the root is made.
            self.outside.append(named)
            subprocess.run(["cp", "-a", "--remove-destination", entry.path, path], stderr=subprocess.DEVNULL)

    def note_mode(self, state, named):
        is_secret = any(part in f"/{named}" for part in SECRET_PLACES) or named.endswith(SECRET_NAMES)
        if not state.st_mode & 0o077 and state.st_uid == 0 and not is_secret:
            self.private.append(named)
        if state.st_mode & stat.S_IWOTH and not state.st_mode & stat.S_ISVTX:
            self.writable.append(named)

    def tell(self):
        for named, leads in sorted(self.moved.items()):
            say(f"{self.what}: /{named} is put into /{leads}, for there the link in the new root leads")
        lost = [named for named, leads in self.moved.items() if leads.split("/")[0] in ("run", "proc", "sys", "dev")]
        if lost:
            warn("recipe_paths", f"{self.what}: nodes do not see what is put into {shown(lost)}, for they mount an empty /run when they "
                "boot; tmpfiles.d(5) makes files there")
        if self.outside:
            warn("recipe_paths", f"{self.what}: the image does not have {shown(self.outside)}: another file system is mounted there while "
                "the root is made")
        for text in self.twice[:MOST_NAMES]:
            warn("recipe_paths", f"{self.what}: {text}")
        if self.private:
            warn("recipe_paths", f"{self.what}: only root can read {shown(self.private)}, as in a checkout made with the umask 077; "
                "chmod -R go+rX before, or in config.sh, lets others read them")
        if self.writable:
            warn("recipe_paths", f"{self.what}: any user can change {shown(self.writable)}, as in a checkout on a file system without "
                "modes; chmod -R go-w before, or in config.sh, prevents it")


@contextmanager
def aside(root):
    """A directory in the root's file system, for a moment."""
    directory = tempfile.mkdtemp(prefix=".kiln-arriving-", dir=root)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def put_overlay(self, directory, follow_links=False, preserve_owner_group=False, profile=None):
    root = self.root_dir
    with aside(root) as place:
        self.root_dir = place
        try:
            sync_overlay_files(self, directory, follow_links, preserve_owner_group, profile)
        finally:
            self.root_dir = root
        Arrival(root, f"overlay {profile or 'root'}").put(place)


def put_files(self, files):
    resolved = {}
    for name, file in files.items():
        # Without a target, it is put into the root itself.
        target = file.target and resolve_target(self.root_dir, file.target)
        if target and target != os.path.normpath(file.target):
            say(f"file {name}: it is put into {target}, for there the links of {file.target} in the new root lead")
        resolved[name] = file._replace(target=target)
    sync_files(self, resolved)


def resolve_target(root, target):
    leads = resolve(root, target)
    if os.path.isdir(os.path.join(root, leads)):
        return f"/{leads}"
    # A link in the file's own place is replaced.
    return os.path.join("/", resolve(root, os.path.dirname(target)), os.path.basename(os.path.normpath(target)))


def put_archives(self, archives, directories):
    root = self.root_bind.root_dir
    with extracting(root):
        install_archives(self, archives, directories)


@contextmanager
def extracting(root):
    """In here, archives that are unpacked into `root` are put into it."""

    def put(self, directory):
        name = os.path.basename(self.filename)
        with aside(root) as place:
            kept = [f"--xattrs-include={name}*" for name in KEPT]
            Command.run(["tar", "-C", place, "-x", "--xattrs", *kept, "--acls", "-f", self.filename])
            Arrival(root, f"archive {name}").put(place, os.path.relpath(directory, root))

    ArchiveTar.extract = put
    try:
        yield
    finally:
        ArchiveTar.extract = extract


def import_overlay_files(self, *arguments, **options):
    with extracting(self.root_dir):
        original_import(self, *arguments, **options)


original_import = SystemSetup.import_overlay_files


def prepare():
    """Lets kiwi do it in this way."""
    SystemSetup._sync_overlay_files = put_overlay
    SystemSetup._sync_files = put_files
    SystemSetup.import_overlay_files = import_overlay_files
    SystemPrepare._install_archives = put_archives
