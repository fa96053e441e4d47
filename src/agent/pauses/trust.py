"""Has programs in the new root trust what the site trusts, for as long as the root is made, and has package managers accept the
site's keys, or those alone that a recipe names.

Certificate authorities: those that the root lacks are added to the file in which its own programs look for them, each time before
the root is entered, since the root's tools write that file anew. They are taken out again before the root is kept or packaged.
Other than a mount over the file, this leaves these tools free to replace it.

Arguments, where it is no module: on or off, and the root.
"""
import glob
import os
import re
import stat
import sys

from kiln_warnings import warn

# The site's authorities, and its keys. The agent writes them, if there are any.
AUTHORITIES = "/run/kiln-authorities.pem"
KEPT = "/run/kiln-kept-authorities.pem"
KEYS = "/run/kiln-keys/*"

# The files of Debian's, Fedora's and SUSE's families. In other places these have links to them.
BUNDLES = (
    "etc/ssl/certs/ca-certificates.crt",
    "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "var/lib/ca-certificates/ca-bundle.pem",
)
# The one that is made for apt in a root without any.
NEW = BUNDLES[0]

# Where distributions have the authorities of their site, the end of such a file's name, and the tool that adds them to a bundle.
# Debian's tool takes one certificate in a file.
PLACES = (
    ("usr/local/share/ca-certificates", "crt", "update-ca-certificates"),
    ("etc/pki/ca-trust/source/anchors", "crt", "update-ca-trust"),
    ("etc/pki/trust/anchors", "crt", "update-ca-certificates"),
)

# Lines around what is added, which readers of such files pass over. The second beginning follows a file without a last newline.
BEGINNINGS = (b"# Of the site that makes this image, until it is made:\n", b"\n# Of the site that makes this image:\n")
END = b"# That was of the site.\n"
ADDED = re.compile(b"(?:" + b"|".join(map(re.escape, BEGINNINGS)) + b").*?" + re.escape(END), re.DOTALL)

CERTIFICATE = re.compile(b"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)

# How a file was when it was looked at, so that it is read once.
seen = {}


def enter(root, path, make):
    """The directory of a path in the root. A link on the way is an error: a recipe may have made it."""
    at = os.open(root, os.O_PATH | os.O_DIRECTORY)
    for name in path.split("/")[:-1]:
        try:
            if make:
                try:
                    os.mkdir(name, 0o755, dir_fd=at)
                except FileExistsError:
                    pass
            below = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
        finally:
            os.close(at)
        at = below
    return at


def open_in(root, path, flags, make=False):
    at = enter(root, path, make)
    try:
        fd = os.open(path.rpartition("/")[2], flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644, dir_fd=at)
    finally:
        os.close(at)
    file = os.fdopen(fd, "r+b")
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        file.close()
        raise OSError(f"{path} is no file")
    return file


def same(certificate):
    return b"".join(certificate.split())


def lacking(data):
    with open(AUTHORITIES, "rb") as file:
        ours = file.read()
    there = {same(found) for found in CERTIFICATE.findall(data)}
    return [found.group() for found in CERTIFICATE.finditer(ours) if same(found.group(1)) not in there]


def keep_times(file, before):
    file.flush()
    os.utime(file.fileno(), ns=(before.st_atime_ns, before.st_mtime_ns))


def key_of(file):
    now = os.fstat(file.fileno())
    return (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns)


def add_to(file, path):
    if seen.get(path) == key_of(file):
        return
    before = os.fstat(file.fileno())
    data = file.read()
    if not ADDED.search(data) and (missing := lacking(data)):
        beginning = BEGINNINGS[1 if data and not data.endswith(b"\n") else 0]
        file.write(beginning + b"".join(certificate + b"\n" for certificate in missing) + END)
        keep_times(file, before)
    seen[path] = key_of(file)


def trust(root):
    """Adds what the root lacks. Returns the path of the file in the root, if it has one."""
    if not os.path.exists(AUTHORITIES):
        return None
    for path in BUNDLES:
        try:
            with open_in(root, path, os.O_RDWR) as file:
                if os.fstat(file.fileno()).st_size == 0:
                    continue
                add_to(file, path)
                return "/" + path
        except OSError:
            continue
    try:
        os.close(enter(root, "etc/apt/x", False))
        with open_in(root, NEW, os.O_RDWR | os.O_CREAT | os.O_EXCL, True) as file:
            add_to(file, NEW)
            return "/" + NEW
    except OSError:
        return None


def take_out(root):
    """Takes out what was added."""
    for path in BUNDLES:
        try:
            with open_in(root, path, os.O_RDWR) as file:
                before = os.fstat(file.fileno())
                data = file.read()
                rest = ADDED.sub(b"", data)
                if rest != data:
                    file.seek(0)
                    file.write(rest)
                    file.truncate()
                    keep_times(file, before)
            if data and not rest:
                forget(root, path)
        except OSError:
            continue
    seen.clear()


def forget(root, path):
    """Removes a file that was made, and its directories if nothing else is in them."""
    at = enter(root, path, False)
    try:
        os.unlink(path.rpartition("/")[2], dir_fd=at)
    finally:
        os.close(at)
    for directory in ("etc/ssl/certs", "etc/ssl"):
        at = enter(root, directory, False)
        try:
            os.rmdir(directory.rpartition("/")[2], dir_fd=at)
        except OSError:
            return
        finally:
            os.close(at)


def keep(root, run):
    """Puts those that the image is to keep where its distribution has them, and has its tool take them up."""
    if not os.path.exists(KEPT):
        return
    with open(KEPT, "rb") as file:
        kept = [found.group() + b"\n" for found in CERTIFICATE.finditer(file.read())]
    for place, end, tool in PLACES:
        try:
            os.close(enter(root, place + "/x", False))
        except OSError:
            continue
        for number, certificate in enumerate(kept, 1):
            with open_in(root, f"{place}/kiln-site-{number}.{end}", os.O_RDWR | os.O_CREAT | os.O_TRUNC) as file:
                file.write(certificate)
        done = run(["chroot", root, tool], raise_on_error=False)
        if not done or done.returncode:
            warn("authorities_not_kept", f"the image has the site's authorities in /{place}, but {tool} failed in it")
        return
    warn("authorities_not_kept", "the image has no place for the site's authorities, such as the package ca-certificates makes")


def install(Command, RepositoryDnf4, RepositoryZypper, SystemPrepare, SystemSetup):
    from kiwi.exceptions import KiwiFileNotFound

    run, call = Command.run, Command.call
    call_config_script = SystemSetup.call_config_script
    setup = SystemPrepare.setup_repositories
    zypper_import, dnf_add = RepositoryZypper.import_trusted_keys, RepositoryDnf4.add_repo
    # The keys that the recipe names, and those with the site's, and the release that it names.
    named, accepted, release = [], [], []

    def entering(command, environment):
        if command[0] == "chroot" and (file := trust(command[1])):
            return dict(environment or os.environ, SSL_CERT_FILE=file)
        return environment

    def trusting_run(command, custom_env=None, *arguments, **options):
        return run(command, entering(command, custom_env), *arguments, **options)

    def trusting_call(command, custom_env=None, *arguments, **options):
        return call(command, entering(command, custom_env), *arguments, **options)

    def setup_repositories(self, clear_cache=False, signing_keys=None, target_arch=None):
        named[:] = signing_keys or []
        release[:] = [self.xml_state.get_release_version()]
        for key in missing(named, self.xml_state):
            raise KiwiFileNotFound(f"the signing key {key} is not there")
        accepted[:] = [*named, *sorted(glob.glob(KEYS))]
        manager = self.xml_state.get_package_manager()
        if manager == "apt":
            warn_of_pins(self.xml_state)
            if not named:
                # kiwi hands apt the keys that it is given, and no others.
                accepted[:0] = sorted(glob.glob("/etc/apt/trusted.gpg.d/*"))
        return setup(self, clear_cache, list(accepted), target_arch)

    def import_to_zypper(self, signing_keys):
        zypper_import(self, signing_keys)
        # A key that is named is the only one, and not the first of those that a server hands out.
        if named and "--gpg-auto-import-keys" in self.zypper_args:
            self.zypper_args.remove("--gpg-auto-import-keys")

    def add_to_dnf(self, name, *arguments, **options):
        dnf_add(self, name, *arguments, **options)
        directory = self.shared_dnf_dir["reposd-dir"]
        # What is written into the image is kiwi's.
        if directory.startswith(os.path.join(self.root_dir, "etc")):
            return
        with open(os.path.join(directory, f"{name}.repo"), "r+") as file:
            text = file.read()
            # Native twins come from the same addresses, and another program reads these there.
            for version in filter(None, release):
                text = text.replace("${releasever}", version).replace("$releasever", version)
            # dnf verifies an index by the keys of its repository alone.
            if accepted:
                text += "gpgkey = " + " ".join(map(address, accepted)) + "\n"
            file.seek(0)
            file.truncate()
            file.write(text)

    def keep_and_configure(self):
        # The recipe's script finds them, and so do tools that it calls.
        keep(self.root_dir, Command.run)
        call_config_script(self)

    Command.run, Command.call = staticmethod(trusting_run), staticmethod(trusting_call)
    SystemSetup.call_config_script = keep_and_configure
    SystemPrepare.setup_repositories = setup_repositories
    RepositoryZypper.import_trusted_keys = import_to_zypper
    RepositoryDnf4.add_repo = add_to_dnf


def missing(keys, state):
    """Those of the keys that are files, and not there, as a recipe names them."""
    paths = (key.removeprefix("file://") for key in keys)
    own = os.path.join(state.xml_data.description_dir, "")
    lost = (path for path in paths if path.startswith("/") and not os.path.exists(path))
    return ["this://" + path.removeprefix(own) if path.startswith(own) else path for path in lost]


def address(key):
    return key if "://" in key else f"file://{key}"


def warn_of_pins(state):
    """apt gets kiwi's priorities for a host's name, so one host has one priority."""
    priorities = {}
    for repository in state.get_repository_sections_used_for_build():
        source = repository.get_source().get_path()
        host = re.match(r"[a-z+]+://(?:[^/@]*@)?([^/:]+)", source)
        if host:
            priorities.setdefault(host.group(1), set()).add(repository.get_priority())
    for host, found in sorted(priorities.items()):
        if len(found) > 1:
            told = ", ".join(sorted("none" if priority is None else str(priority) for priority in found))
            warn(
                "repo_priorities",
                f"the repositories of {host} have different priorities ({told}), which apt cannot tell apart by the host: "
                "packages may come from any of them",
            )


if __name__ == "__main__":
    {"on": trust, "off": take_out}[sys.argv[1]](sys.argv[2])
