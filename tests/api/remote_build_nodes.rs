//! `/remote-build-nodes`: hosts by name, and looking at them over SSH. A real sshd on loopback is the host.

use std::{
    io::Write,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use uuid::Uuid;

use crate::server::{Server, unique};

const PATH: &str = "/v3/remote-build-nodes";

#[tokio::test]
async fn a_node_is_its_name() {
    let api = Server::own();
    assert_eq!(api.read(PATH).await, json!([]));
    let names = ["x3000c0s17b0n0", "x1000c0s0b0n0", "node-1.example_site.org"];
    for name in names {
        let made = api.make(PATH, json!({ "xname": name })).await;
        assert_eq!(made, json!({ "xname": name }));
        assert_eq!(api.read(&format!("{PATH}/{name}")).await, made);
    }
    // Once more is the same node at the same place.
    api.make(PATH, json!({"xname": names[0]})).await;
    let expected: Vec<_> = names.iter().map(|name| json!({ "xname": name })).collect();
    assert_eq!(api.read(PATH).await, json!(expected), "in the order of registration");

    api.delete(&format!("{PATH}/{}", names[1])).await.done();
    api.delete(&format!("{PATH}/{}", names[1])).await.problem(404);
    api.get(&format!("{PATH}/{}", names[1])).await.problem(404);
    assert_eq!(api.read(PATH).await, json!([{"xname": names[0]}, {"xname": names[2]}]));
    api.delete(PATH).await.done();
    api.delete(PATH).await.done();
    assert_eq!(api.read(PATH).await, json!([]));
}

#[tokio::test]
async fn a_name_has_to_be_one() {
    let api = Server::shared();
    let errors = api.post(PATH, json!({"odd": 1})).await.errors();
    assert_eq!(errors["xname"], json!(["Missing data for required field."]));
    for name in [
        "",
        " ",
        "-oProxyCommand=touch /tmp/x",
        "a b",
        "root@host",
        "host;id",
        "$(id)",
        "a\nb",
        "a/b",
        "ünode",
        "%h",
        "[::1]",
        &"x".repeat(254),
    ] {
        let errors = api.post(PATH, json!({ "xname": name })).await.errors();
        assert!(errors["xname"].is_array(), "{name:?}");
    }
    for name in ["nobody", "-oProxyCommand=id", "%2e%2e", "a%2fb", "%00", "%ff"] {
        api.get(&format!("{PATH}/{name}")).await.problem(404);
        api.delete(&format!("{PATH}/{name}")).await.problem(404);
        api.get(&format!("{PATH}/status/{name}")).await.problem(404);
    }
}

/// An sshd that listens on loopback and lets one key in.
struct Sshd {
    dir: TempDir,
    port: u16,
    child: Child,
}

impl Sshd {
    /// None, loudly, where there is no sshd.
    fn start() -> Option<Self> {
        let program = Path::new("/usr/sbin/sshd");
        if !program.exists() {
            let test = std::thread::current().name().unwrap_or("a test").to_owned();
            let _ = writeln!(
                std::io::stderr(),
                "\nSKIPPED: {test}: there is no sshd; `.ci/install-packages test` installs it"
            );
            return None;
        }
        let dir = tempfile::Builder::new().prefix("kiln-sshd-").tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        for key in ["host", "other", "identity"] {
            run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &at(key)]));
        }
        fs_err::copy(at("identity.pub"), at("authorized_keys")).unwrap();
        // Only whether it is there is asked.
        fs_err::create_dir_all(at("bin")).unwrap();
        fs_err::write(at("bin/podman"), "#!/bin/sh\n").unwrap();
        fs_err::set_permissions(at("bin/podman"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = format!(
            "ListenAddress 127.0.0.1\nPort {port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\n\
             StrictModes no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\nSetEnv PATH={}:/usr/bin:/bin\n",
            at("host"),
            at("authorized_keys"),
            at("bin"),
        );
        fs_err::write(at("sshd_config"), config).unwrap();
        if nix::unistd::Uid::effective().is_root() {
            // Debian makes it when the service starts, which it has not.
            fs_err::create_dir_all("/run/sshd").unwrap();
        }
        let log = fs_err::File::create(at("log")).unwrap();
        let child = Command::new(program)
            .args(["-D", "-e", "-f", &at("sshd_config")])
            .stdin(Stdio::null())
            .stderr(Stdio::from(log.into_file()))
            .spawn()
            .unwrap();
        let sshd = Self { dir, port, child };
        let begun = std::time::Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            let waited = begun.elapsed().as_secs();
            assert!(waited < 20, "sshd does not listen: {}", sshd.read("log"));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Some(sshd)
    }

    fn at(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn read(&self, name: &str) -> String {
        fs_err::read_to_string(self.at(name)).unwrap()
    }

    /// A Kiln that knows the host's key as `known`, and the nodes `here` (this sshd) and `nowhere` (nobody listens).
    fn kiln(&self, known: &str) -> Server {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = format!(
            "Host here\n  HostName 127.0.0.1\n  Port {}\nHost nowhere\n  HostName 127.0.0.1\n  Port {silent}\n\
             Host *\n  BatchMode yes\n  IdentitiesOnly yes\n",
            self.port
        );
        fs_err::write(self.at("ssh_config"), config).unwrap();
        let line = match known {
            "" => String::new(),
            key => format!("[127.0.0.1]:{} {}", self.port, self.read(&format!("{key}.pub"))),
        };
        fs_err::write(self.at("known_hosts"), line).unwrap();
        let user = nix::unistd::User::from_uid(nix::unistd::Uid::effective())
            .unwrap()
            .unwrap()
            .name;
        Server::with(&[
            ("KILN__REMOTE_BUILD_NODES__USER", &user),
            ("KILN__REMOTE_BUILD_NODES__IDENTITY_FILE", &self.at("identity")),
            ("KILN__REMOTE_BUILD_NODES__KNOWN_HOSTS", &self.at("known_hosts")),
            ("KILN__REMOTE_BUILD_NODES__SSH_CONFIG", &self.at("ssh_config")),
            ("KILN__REMOTE_BUILD_NODES__CONNECT_TIMEOUT", "10s"),
        ])
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A status that says why it is not able, and nothing else.
#[track_caller]
fn is_unable(status: &Value, name: &str) {
    let reason = status["sshStatus"].as_str().unwrap();
    let expected = json!({"xname": name, "sshStatus": reason, "podmanStatus": "Unknown", "nodeArch": "Unknown",
                          "numCurrentJobs": -1, "ableToRunJobs": false});
    assert_eq!(*status, expected);
    assert!(reason.starts_with("Cannot log in: ") && reason.len() > 20, "{reason}");
    assert!(!reason.contains('\n'), "{reason:?}");
}

#[tokio::test]
async fn looking_at_nodes() {
    let Some(sshd) = Sshd::start() else { return };
    let api = sshd.kiln("host");
    assert_eq!(api.read(&format!("{PATH}/status")).await, json!([]));
    api.get(&format!("{PATH}/status/here")).await.problem(404);
    for name in ["nowhere", "here"] {
        api.make(PATH, json!({ "xname": name })).await;
    }
    // What marks a running job of IMS on a node.
    let marker = tempfile::Builder::new().prefix("ims_").tempdir_in("/tmp").unwrap();
    let here = api.read(&format!("{PATH}/status/here")).await;
    let jobs = here["numCurrentJobs"].as_i64().unwrap();
    assert!(jobs >= 1, "{here}");
    let expected = json!({
        "xname": "here", "sshStatus": "SSH connection established.", "nodeArch": std::env::consts::ARCH,
        "podmanStatus": format!("Podman present at {}", sshd.at("bin/podman")), "numCurrentJobs": jobs,
        "ableToRunJobs": true,
    });
    assert_eq!(here, expected);
    drop(marker);
    is_unable(&api.read(&format!("{PATH}/status/nowhere")).await, "nowhere");

    // One that cannot be reached is no obstacle for the others, and the order is that of the list.
    let all = api.read(&format!("{PATH}/status")).await;
    is_unable(&all[0], "nowhere");
    assert_eq!(
        (&all[1]["xname"], &all[1]["ableToRunJobs"]),
        (&json!("here"), &json!(true))
    );

    // Without Podman it is of no use; the rest is still told.
    fs_err::remove_file(sshd.at("bin/podman")).unwrap();
    if !Path::new("/usr/bin/podman").exists() {
        let status = api.read(&format!("{PATH}/status/here")).await;
        assert_eq!(status["ableToRunJobs"], false);
        assert_eq!(status["nodeArch"], std::env::consts::ARCH);
        assert_ne!(status["podmanStatus"], here["podmanStatus"]);
    }
}

#[tokio::test]
async fn a_host_whose_key_is_not_the_known_one_is_not_talked_to() {
    for known in ["other", ""] {
        let Some(sshd) = Sshd::start() else { return };
        let api = sshd.kiln(known);
        api.make(PATH, json!({"xname": "here"})).await;
        let status = api.read(&format!("{PATH}/status/here")).await;
        is_unable(&status, "here");
        let reason = status["sshStatus"].as_str().unwrap().to_lowercase();
        assert!(reason.contains("host key") || reason.contains("known"), "{reason}");
        assert!(!sshd.read("log").contains("Accepted publickey"), "{}", sshd.read("log"));
    }
}

#[tokio::test]
async fn a_host_that_knows_another_key_of_ours_is_unable() {
    let Some(sshd) = Sshd::start() else { return };
    let api = sshd.kiln("host");
    fs_err::copy(sshd.at("other.pub"), sshd.at("authorized_keys")).unwrap();
    api.make(PATH, json!({"xname": "here"})).await;
    is_unable(&api.read(&format!("{PATH}/status/here")).await, "here");
}

#[tokio::test]
async fn version_2_has_no_nodes() {
    let api = Server::shared();
    let name = format!("x{}", Uuid::new_v4().simple());
    for version in ["/v2", ""] {
        for method in ["GET", "POST", "DELETE"] {
            let body = json!({ "xname": name });
            let path = format!("{version}/remote-build-nodes");
            api.send(method, &path, Some(&body)).await.problem(404);
        }
    }
    api.get(&format!("{PATH}/{}", unique("x"))).await.problem(404);
}
