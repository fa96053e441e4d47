//! A real engine for one test program, Docker or Podman: in its own namespaces, so that its bridges, packet filters and mounts
//! are separate from all others and disappear with it.

#![allow(dead_code, reason = "every test program uses another part")]

use std::{
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::LazyLock,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{authority::Authority, eventually, tool};

/// Runs the engine until its standard input ends, which happens when the test program ends for any reason. Everything
/// that it made goes with it: processes and mounts with their namespaces, control groups and files by name.
const KEEPER: &str = r#"
unshare --mount --net --pid --fork --kill-child=KILL --mount-proc sh -c "$2" engine "$1" &
inside=$!
while [ "$(readlink /proc/$inside/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
slirp4netns --configure --mtu=65520 --disable-host-loopback --api-socket="$1/slirp.sock" "$inside" tap0 >"$1/slirp.log" 2>&1 &
slirp=$!
cat >/dev/null
kill -KILL "$inside" 2>/dev/null
wait "$inside" 2>/dev/null
kill "$slirp" 2>/dev/null
wait
for groups in /sys/fs/cgroup/*/"${1##*/}" /sys/fs/cgroup/"${1##*/}" /sys/fs/cgroup/*/libpod_parent /sys/fs/cgroup/libpod_parent; do
    if [ -d "$groups" ]; then
        for _ in 1 2 3 4 5 6 7 8 9 10; do
            find "$groups" -depth -type d -exec rmdir {} + 2>/dev/null && break
            sleep 0.1
        done
    fi
done
rm -rf "$1"
"#;

/// Restarts the engine whenever it ends, since a test may kill it.
const INSIDE: &str = r#"
ip link set lo up
until ip address show tap0 2>&1 | grep -q 10.0.2.100; do sleep 0.01; done
mount --bind "$1/resolv.conf" /etc/resolv.conf
python3 "$1/names.py" >/dev/null 2>&1 &
while true; do
    rm -f "$1/engine.pid" "$1/engine.sock"
    while [ -e "$1/down" ]; do sleep 0.02; done
    dockerd --data-root "$1/data" --exec-root "$1/exec" --pidfile "$1/engine.pid" --host "unix://$1/engine.sock" \
        --host tcp://10.0.2.100:2376 --tlsverify --tlscacert "$1/ca.pem" --tlscert "$1/tls.pem" --tlskey "$1/tls.key" \
        --cgroup-parent "/${1##*/}" --exec-opt native.cgroupdriver=cgroupfs --config-file "$1/daemon.json" >>"$1/log" 2>&1
done
"#;

/// The same with Podman, whose files are all below the directory or in a `/run` of its own. Its programs may be those of another
/// root.
const INSIDE_PODMAN: &str = r#"
ip link set lo up
until ip address show tap0 2>&1 | grep -q 10.0.2.100; do sleep 0.01; done
mount --bind "$1/resolv.conf" /etc/resolv.conf
mount -t tmpfs kiln-podman /run
mkdir /run/sshd
# crun refuses hosts with both versions of control groups.
umount /sys/fs/cgroup/unified 2>/dev/null
in_root() { "$@"; }
if [ -d "$1/root" ]; then
    # The programs of another root, with the host's files beside them: paths mean the same in both. The kernel makes no user
    # namespace for a process that has only changed its root.
    dir=$1
    in_root() {
        unshare --mount sh -c '
            mount --bind "$0" "$0"
            for part in dev proc sys run tmp etc/resolv.conf; do mount --rbind "/$part" "$0/$part"; done
            cd "$0" && pivot_root . mnt && umount --lazy /mnt && cd "$1" && shift && exec "$@"
        ' "$(readlink -f "$dir/root")" "$dir" "$@"
    }
fi
# Podman leaves files where it was started.
cd "$1"
python3 "$1/names.py" >/dev/null 2>&1 &
mkdir "$1/passing"
export TMPDIR="$1/passing"
while true; do
    rm -f "$1/engine.sock"
    while [ -e "$1/down" ]; do sleep 0.02; done
    in_root podman --runtime crun --root "$1/data" --runroot "$1/exec" --tmpdir "$1/tmp" --network-config-dir "$1/networks" --network-backend netavark \
        --cgroup-manager cgroupfs system service --time 0 "unix://$1/engine.sock" >>"$1/log" 2>&1
done
"#;

/// A name that the name server of the engine's host knows, and its address. The server is at 10.0.2.100 of the engine's
/// own network, where no container of the engine is.
pub const KNOWN_NAME: (&str, &str) = ("known.kiln.test", "192.0.2.53");

/// That name server: it knows one name, and says of all others that there are none.
const NAMES: &str = r#"
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("10.0.2.100", 53))
known = b"".join(bytes([len(label)]) + label for label in b"known.kiln.test".split(b".")) + b"\0"
while True:
    query, peer = server.recvfrom(512)
    asked = query[12:query.index(b"\0", 12) + 5]
    is_known, is_a = asked[:-4].lower() == known, asked[-4:-2] == b"\0\1"
    answer = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + socket.inet_aton("192.0.2.53") if is_known and is_a else b""
    flags = b"\x81\x80" if is_known else b"\x81\x83"
    counts = b"\0\1" + (b"\0\1" if answer else b"\0\0") + b"\0\0\0\0"
    server.sendto(query[:2] + flags + counts + asked + answer, peer)
"#;

/// A runtime with the name of one that makes virtual machines, without making any. It stands in for one that this
/// machine lacks.
const PRETENDS: &str = r#"#!/bin/sh
bundle=; next=
for word in "$@"; do
    [ "$next" = bundle ] && bundle=$word
    case $word in --bundle|-b) next=bundle ;; --bundle=*) bundle=${word#*=} ;; *) next= ;; esac
done
[ -z "$bundle" ] || sed -i 's/"CAP_SYS_RESOURCE",\{0,1\}//g' "$bundle/config.json"
exec runc "$@"
"#;

/// The engine's configuration: that runtime, one that takes its time for each step, and a Kata installed as on a real site.
fn runtimes(dir: &std::path::Path) -> String {
    let pretends = dir.join("pretends");
    fs_err::write(&pretends, PRETENDS).unwrap();
    fs_err::set_permissions(&pretends, std::fs::Permissions::from_mode(0o755)).unwrap();
    let slow = dir.join("slow");
    fs_err::write(&slow, "#!/bin/sh\nsleep 2\nexec runc \"$@\"\n").unwrap();
    fs_err::set_permissions(&slow, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut runtimes = serde_json::json!({ "pretends": { "path": pretends }, "slow": { "path": slow } });
    if let (Ok(name), Ok(config)) = (
        std::env::var("KILN_TEST_KATA_RUNTIME"),
        std::env::var("KILN_TEST_KATA_CONFIG"),
    ) {
        let options = serde_json::json!({ "TypeUrl": "runtimeoptions.v1.Options", "ConfigPath": config });
        runtimes[name] = serde_json::json!({ "runtimeType": "io.containerd.kata.v2", "options": options });
    }
    serde_json::json!({ "runtimes": runtimes }).to_string()
}

/// The variable with the directory of an engine that another process of the same tests started.
const DIR: &str = "KILN_TEST_ENGINE_DIR";

/// The same for a Podman.
const PODMAN_DIR: &str = "KILN_TEST_PODMAN_DIR";

/// The variable with a Debian root whose Podman is taken, with its runtime and network tools, in place of the host's: another version.
const PODMAN_ROOT: &str = "KILN_TEST_PODMAN_ROOT";

/// A running engine.
pub struct Engine {
    dir: PathBuf,
    keeper: Option<(Child, ChildStdin)>,
    /// The variable by which another process of the same tests finds it.
    variable: &'static str,
}

impl Engine {
    /// The engine that all tests of this program share.
    pub fn shared() -> &'static Self {
        static ENGINE: LazyLock<Engine> = LazyLock::new(|| Engine::found_or_started(DIR, INSIDE));
        &ENGINE
    }

    /// Why there cannot be an engine here, if so.
    pub fn lack() -> Option<String> {
        let missing = ["dockerd", "slirp4netns", "unshare", "ip"].into_iter().find(|program| {
            let found = Command::new("which").arg(program).stdout(Stdio::null()).status();
            !found.is_ok_and(|status| status.success())
        });
        missing
            .map(|program| format!("{program} is not installed: run `.ci/install-packages test`"))
            .or_else(super::not_root)
    }

    /// A Podman that all tests of this program share.
    pub fn podman() -> &'static Self {
        static ENGINE: LazyLock<Engine> = LazyLock::new(|| Engine::found_or_started(PODMAN_DIR, INSIDE_PODMAN));
        &ENGINE
    }

    /// Why there cannot be a Podman here, if so.
    pub fn lack_of_podman() -> Option<String> {
        // Debian has netavark outside of the path.
        let files = ["/usr/bin/podman", "/usr/lib/podman/netavark"].map(std::path::Path::new);
        let is_there = files.iter().all(|file| file.exists());
        (!is_there)
            .then(|| "podman or netavark is not installed: run `.ci/install-packages test`".to_owned())
            .or_else(Self::lack)
    }

    /// What is in the directory where this Podman puts large files for a while.
    pub fn passing_files(&self) -> Vec<String> {
        let entries = fs_err::read_dir(self.dir.join("passing")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).collect()
    }

    /// The process of this Podman.
    pub fn podman_pid(&self) -> u32 {
        let ours = self.address();
        let line = |pid: &u32| fs_err::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let entries = fs_err::read_dir("/proc").unwrap().flatten();
        let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.find(|pid| line(pid).starts_with("podman\0") && line(pid).contains(&ours))
            .unwrap()
    }

    /// Starts a new engine.
    pub fn start() -> Self {
        Self::start_by(DIR, INSIDE)
    }

    fn found_or_started(variable: &'static str, inside: &str) -> Self {
        match std::env::var_os(variable) {
            Some(dir) => Self {
                dir: dir.into(),
                keeper: None,
                variable,
            },
            None => Self::start_by(variable, inside),
        }
    }

    fn start_by(variable: &'static str, inside: &str) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("kiln-engine-")
            .tempdir()
            .unwrap()
            .keep();
        fs_err::write(dir.join("daemon.json"), runtimes(&dir)).unwrap();
        if let Some(root) = std::env::var_os(PODMAN_ROOT) {
            fs_err::os::unix::fs::symlink(root, dir.join("root")).unwrap();
        }
        fs_err::write(dir.join("names.py"), NAMES).unwrap();
        fs_err::write(dir.join("resolv.conf"), "nameserver 10.0.2.100\n").unwrap();
        let authority = Authority::new();
        fs_err::write(dir.join("ca.pem"), &authority.pem).unwrap();
        authority.write(&dir.join("tls.pem"), &dir.join("tls.key"));
        authority.write(&dir.join("cert.pem"), &dir.join("key.pem"));
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "engine-keeper"])
            .arg(&dir)
            .arg(inside)
            // An interrupt from the terminal does not reach it: it must end after the tests.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let input = keeper.stdin.take().unwrap();
        let engine = Self {
            dir,
            keeper: Some((keeper, input)),
            variable,
        };
        engine.wait_until_it_answers();
        engine
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("engine.sock")
    }

    /// Its address at that socket.
    pub fn address(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// It has no container of this job. Other tests use it at the same time.
    #[track_caller]
    pub fn assert_nothing_of(&self, job: &str) {
        let left = self.docker(&["ps", "--all", "--format", "{{.Names}}"]);
        assert!(!left.contains(job), "{left}");
    }

    /// Its address on a port with TLS, and the directory with what a client needs for it.
    pub fn over_tls(&self) -> (String, PathBuf) {
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let arguments = serde_json::json!({
            "proto": "tcp", "host_addr": "127.0.0.1", "host_port": port, "guest_port": 2376,
        });
        let request = serde_json::json!({ "execute": "add_hostfwd", "arguments": arguments });
        let mut slirp = std::os::unix::net::UnixStream::connect(self.dir.join("slirp.sock")).unwrap();
        slirp.write_all(request.to_string().as_bytes()).unwrap();
        slirp.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        slirp.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("return"), "{answer}");
        (format!("tcp://127.0.0.1:{port}"), self.dir.clone())
    }

    /// The variable by which another process of these tests uses the same engine.
    pub fn environment(&self) -> (&'static str, String) {
        (self.variable, self.dir.display().to_string())
    }

    /// Runs Docker's own command line client on it.
    #[track_caller]
    pub fn docker(&self, args: &[&str]) -> String {
        let host = self.address();
        let mut all = vec!["--host", &host];
        all.extend(args);
        tool("docker", &all)
    }

    /// Kills it, like a crash, and keeps it down.
    pub fn take_down(&self) {
        fs_err::write(self.dir.join("down"), "").unwrap();
        // Its own pid file has the number inside its namespace.
        let ours = format!("--data-root\0{}/data\0", self.dir.display());
        let entries = fs_err::read_dir("/proc").unwrap().flatten();
        for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
            let line = fs_err::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if line.starts_with("dockerd\0") && line.contains(&ours) {
                kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
            }
        }
        eventually(|| !self.socket().exists());
    }

    /// Lets it start again.
    pub fn bring_up(&self) {
        fs_err::remove_file(self.dir.join("down")).unwrap();
        self.wait_until_it_answers();
    }

    fn wait_until_it_answers(&self) {
        let host = self.address();
        eventually(|| {
            let asked = Command::new("docker")
                .args(["--host", &host, "version"])
                .output()
                .unwrap();
            let log = || fs_err::read_to_string(self.dir.join("log")).unwrap_or_default();
            let is_silent = || format!("the engine does not answer: {}", log());
            asked.status.success().then_some(()).ok_or_else(is_silent)
        });
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some((mut keeper, input)) = self.keeper.take() {
            drop(input);
            let _ = keeper.wait();
        }
    }
}
