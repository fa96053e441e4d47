//! The repositories of `recipes/rpm-minimal`, `recipes/rpm-shell` and `recipes/deb-tiny`, made once per test program and architecture,
//! and served over HTTP.

use std::{
    io::{BufRead, BufReader},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{LazyLock, Mutex},
};

use super::{HOST, foreign, source_dir, tool};

/// A web server for one directory.
#[derive(Debug)]
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(dir: &Path, address: IpAddr) -> Self {
        let mut child = Command::new("python3")
            .args([
                "-u",
                "-m",
                "http.server",
                "0",
                "--bind",
                &address.to_string(),
                "--directory",
            ])
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // `Serving HTTP on 127.0.0.1 port 40123 (http://127.0.0.1:40123/) ...`
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let port = line
            .split_whitespace()
            .skip_while(|word| *word != "port")
            .nth(1)
            .unwrap();
        Self {
            address: SocketAddr::new(address, port.parse().unwrap()),
            child,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A served repository of one architecture. The server lives until this is dropped.
#[derive(Debug)]
pub struct Repository {
    server: Server,
    dir: PathBuf,
    /// The path for recipes.
    path: String,
}

impl Repository {
    /// A repository for the host's architecture.
    pub fn native() -> Self {
        Self::native_at(Ipv4Addr::LOCALHOST.into())
    }

    /// The same at an address of this host that others reach, too.
    pub fn native_at(address: IpAddr) -> Self {
        static DIR: LazyLock<PathBuf> = LazyLock::new(|| made("rpm-minimal", HOST));
        Self::serve_at(address, &DIR)
    }

    /// A repository for the other architecture.
    pub fn foreign() -> Self {
        Self::foreign_at(Ipv4Addr::LOCALHOST.into())
    }

    /// The same at an address of this host that others reach, too.
    pub fn foreign_at(address: IpAddr) -> Self {
        static DIR: LazyLock<PathBuf> = LazyLock::new(|| made("rpm-minimal", foreign()));
        Self::serve_at(address, &DIR)
    }

    /// As [`Repository::native`], from a copy of its own in the empty directory `dir`.
    pub fn native_in(dir: &Path) -> Self {
        copy(&made("rpm-minimal", HOST), dir);
        Self::serve(dir)
    }

    /// The repository of `recipes/rpm-shell`: a directory for each architecture.
    pub fn shell() -> Self {
        Self::serve(shell_dir())
    }

    /// The Debian repository of `recipes/deb-tiny`, which has both architectures.
    pub fn debian() -> Self {
        static DIR: LazyLock<PathBuf> = LazyLock::new(|| made("deb-tiny", ""));
        Self::serve(&DIR)
    }

    /// The same, from a copy of its own in the empty directory `dir`.
    pub fn debian_in(dir: &Path) -> Self {
        copy(&made("deb-tiny", ""), dir);
        Self::serve(dir)
    }

    /// Adds a package for any architecture to a repository of [`Repository::debian_in`], with a file of its own, further `fields`,
    /// and a `script` that runs when it is configured.
    pub fn add_deb(&self, name: &str, version: &str, fields: &str, script: &str) {
        let program = r#"
            work=$(mktemp -d "$1/work.XXXXXX")
            mkdir -p "$work/DEBIAN" "$work/etc"
            echo "$3" > "$work/etc/$2"
            printf '#!/bin/sh
set -e
%s
' "$5" > "$work/DEBIAN/postinst"
            chmod 755 "$work/DEBIAN/postinst"
            { printf 'Package: %s
Version: %s
Architecture: all
Maintainer: Kiln <kiln@example.org>
' "$2" "$3"
              [ -z "$4" ] || printf '%s
' "$4"
              echo "Description: a file and a script"; } > "$work/DEBIAN/control"
            deb=pool/$2_$3_all.deb
            dpkg-deb --root-owner-group -Znone --build "$work" "$1/$deb" > /dev/null
            { cat "$work/DEBIAN/control"
              echo "Filename: $deb"
              echo "Size: $(stat -c %s "$1/$deb")"
              echo "SHA256: $(sha256sum "$1/$deb" | cut -d' ' -f1)"
              echo; } | tee -a "$1"/dists/tiny/main/binary-*/Packages > /dev/null
            rm -r "$work"
            cd "$1/dists/tiny"
            sed -i '/^SHA256:/q' Release
            for list in main/*/Packages; do
                printf ' %s %s %s
' "$(sha256sum "$list" | cut -d' ' -f1)" "$(stat -c %s "$list")" "$list"
            done >> Release"#;
        let dir = self.dir.to_str().unwrap();
        tool("bash", &["-euc", program, "bash", dir, name, version, fields, script]);
    }

    /// As [`Repository::shell`] without the packages for the host, which are only listed; in the empty directory `dir`.
    pub fn shell_without_hosts(dir: &Path) -> Self {
        fs_err::os::unix::fs::symlink(shell_dir().join(foreign()), dir.join(foreign())).unwrap();
        fs_err::create_dir(dir.join(HOST)).unwrap();
        let index = Path::new(HOST).join("repodata");
        fs_err::os::unix::fs::symlink(shell_dir().join(&index), dir.join(index)).unwrap();
        Self::serve(dir)
    }

    /// The same, signed by its own key except for the host's package of bash; in the empty directory `dir`. Returns
    /// the key too.
    pub fn signed_but_for_bash(dir: &Path) -> (Self, String) {
        let script = r#"
            cp -r "$1/." "$2"
            mkdir -m 700 "$2/gnupg"
            export GNUPGHOME="$2/gnupg"
            gpg --batch --quiet --passphrase '' --quick-gen-key Kiln rsa2048 sign never
            mv "$2/$3"/bash-*.rpm "$2"
            rpmsign --define '_gpg_name Kiln' --define "__gpg $(command -v gpg)" --addsign "$2"/*/*.rpm
            mv "$2"/bash-*.rpm "$2/$3"
            for arch in x86_64 aarch64; do
                createrepo_c --quiet "$2/$arch"
                gpg --batch --quiet --armor --detach-sign "$2/$arch/repodata/repomd.xml"
            done
            gpg --batch --armor --export > "$2/key.asc"
            gpgconf --kill all"#;
        let (from, to) = (shell_dir().to_str().unwrap(), dir.to_str().unwrap());
        tool("bash", &["-ec", script, "bash", from, to, HOST]);
        (Self::serve(dir), fs_err::read_to_string(dir.join("key.asc")).unwrap())
    }

    /// A repository in the empty directory `dir` that offers programs of its own as the host's `sed` and `grep` of
    /// [`Repository::shell`]. It lists that repository's `grep` for the target, too.
    pub fn hostile(dir: &Path) -> Self {
        let script = r#"
            echo 'int puts(const char *); int main(void) { puts("HOSTILE TWIN RAN"); }' | cc -x c -o "$2/program" -
            for name in sed grep; do
                cat > "$2/$name.spec" <<S
%global debug_package %{nil}
%global __os_install_post %{nil}
%global _build_id_links none
$(rpm -qp --nosignature --qf 'Name: %{NAME}\nVersion: %{VERSION}\nRelease: %{RELEASE}\n' "$1/$3/$name"-*.rpm)
Summary: hostile
License: GPL
AutoReqProv: no
%description
%{summary}
%install
install -D "$2/program" %{buildroot}/usr/bin/$name
%files
/usr/bin/$name
S
                rpmbuild --quiet --define "_topdir $2/build" --define "_rpmdir $2/rpms" --target "$3" -bb "$2/$name.spec"
            done
            mkdir "$2/$3" "$2/$4"
            mv "$2/rpms/$3"/*.rpm "$2/$3"
            cp "$1/$4"/grep-*.rpm "$2/$4"
            createrepo_c --quiet "$2/$3"
            createrepo_c --quiet "$2/$4""#;
        let (from, to) = (shell_dir().to_str().unwrap(), dir.to_str().unwrap());
        tool("bash", &["-ec", script, "bash", from, to, HOST, foreign()]);
        Self::serve(dir)
    }

    fn serve(dir: &Path) -> Self {
        Self::serve_at(Ipv4Addr::LOCALHOST.into(), dir)
    }

    fn serve_at(address: IpAddr, dir: &Path) -> Self {
        Self {
            server: Server::start(dir, address),
            dir: dir.to_owned(),
            path: String::new(),
        }
    }

    /// The directory of an architecture.
    pub fn of(self, arch: &str) -> Self {
        Self {
            path: format!("/{arch}"),
            ..self
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}{}", self.server.address, self.path)
    }

    /// A file of it.
    pub fn file(&self, path: &str) -> Vec<u8> {
        fs_err::read(self.dir.join(path)).unwrap()
    }

    pub fn port(&self) -> u16 {
        self.server.address.port()
    }

    /// The argument that gives a recipe this repository.
    pub fn set(&self) -> String {
        format!("--set=rpm_repo={}", self.url())
    }
}

fn copy(from: &Path, to: &Path) {
    tool("cp", &["-r", &format!("{}/.", from.display()), to.to_str().unwrap()]);
}

fn shell_dir() -> &'static Path {
    static DIR: LazyLock<PathBuf> = LazyLock::new(|| made("rpm-shell", ""));
    &DIR
}

/// The directory of a recipe's repository in cargo's directory for tests, made again when its script has changed; for
/// one architecture, or for all when the script does not ask for one.
fn made(recipe: &str, arch: &str) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap();
    let script = source_dir().join("recipes").join(recipe).join("make-repo.sh");
    let text = fs_err::read_to_string(&script).unwrap();
    let top = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let name = format!("{recipe}-{arch}");
    let (dir, mark) = (top.join(&name), top.join(format!("{name}.made-by")));
    if fs_err::read_to_string(&mark).is_ok_and(|made_by| made_by == text) {
        return dir;
    }
    let _ = fs_err::remove_dir_all(&dir);
    let arch = (!arch.is_empty()).then_some(arch);
    let output = Command::new("bash").arg(&script).arg(&dir).args(arch).output().unwrap();
    assert!(
        output.status.success(),
        "{}: {}",
        script.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    fs_err::write(mark, text).unwrap();
    dir
}
