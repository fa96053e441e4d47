//! `/remote-build-nodes`: hosts by name, and looking at them over SSH. A real sshd on loopback is the host.

use std::{os::unix::fs::PermissionsExt, path::Path};

use serde_json::{Value, json};
use uuid::Uuid;

use crate::api::{
    server::{Server, unique},
    sshd::Sshd,
};

const PATH: &str = "/v3/remote-build-nodes";

#[test]
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

#[test]
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

/// An sshd with a host that looks able.
fn start() -> Sshd {
    needs!(Sshd::lack());
    let sshd = Sshd::start();
    // Only whether it is there is asked.
    fs_err::write(sshd.at("bin/podman"), "#!/bin/sh\n").unwrap();
    fs_err::set_permissions(sshd.at("bin/podman"), std::fs::Permissions::from_mode(0o755)).unwrap();
    sshd
}

/// A Kiln that knows the host's key as `known`, and the nodes `here` (this sshd) and `nowhere` (a closed port).
fn kiln(sshd: &Sshd, known: &str) -> Server {
    sshd.configure_client(known);
    Server::with(&[
        ("KILN__REMOTE_BUILD_NODES__USER", &Sshd::user()),
        ("KILN__REMOTE_BUILD_NODES__IDENTITY_FILE", &sshd.at("identity")),
        ("KILN__REMOTE_BUILD_NODES__KNOWN_HOSTS", &sshd.at("known_hosts")),
        ("KILN__REMOTE_BUILD_NODES__SSH_CONFIG", &sshd.at("ssh_config")),
        ("KILN__REMOTE_BUILD_NODES__CONNECT_TIMEOUT", "10s"),
    ])
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

#[test]
async fn looking_at_nodes() {
    let sshd = start();
    let api = kiln(&sshd, "host");
    assert_eq!(api.read(&format!("{PATH}/status")).await, json!([]));
    api.get(&format!("{PATH}/status/here")).await.problem(404);
    for name in ["nowhere", "here"] {
        api.make(PATH, json!({ "xname": name })).await;
    }
    // The mark of a running IMS job on a node.
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

    // Without Podman it has to have Docker to be of any use; the rest is still told.
    fs_err::remove_file(sshd.at("bin/podman")).unwrap();
    if !Path::new("/usr/bin/podman").exists() {
        let status = api.read(&format!("{PATH}/status/here")).await;
        let has_docker = ["/usr/bin/docker", "/usr/sbin/dockerd"].map(|path| Path::new(path).exists());
        assert_eq!(status["ableToRunJobs"], has_docker.contains(&true));
        assert_eq!(status["nodeArch"], std::env::consts::ARCH);
        assert_ne!(status["podmanStatus"], here["podmanStatus"]);
    }
}

#[test]
async fn a_host_whose_key_is_not_the_known_one_is_not_talked_to() {
    for known in ["other", ""] {
        let sshd = start();
        let api = kiln(&sshd, known);
        api.make(PATH, json!({"xname": "here"})).await;
        let status = api.read(&format!("{PATH}/status/here")).await;
        is_unable(&status, "here");
        let reason = status["sshStatus"].as_str().unwrap().to_lowercase();
        assert!(reason.contains("host key") || reason.contains("known"), "{reason}");
        assert!(!sshd.read("log").contains("Accepted publickey"), "{}", sshd.read("log"));
    }
}

#[test]
async fn a_host_that_knows_another_key_of_ours_is_unable() {
    let sshd = start();
    let api = kiln(&sshd, "host");
    fs_err::copy(sshd.at("other.pub"), sshd.at("authorized_keys")).unwrap();
    api.make(PATH, json!({"xname": "here"})).await;
    is_unable(&api.read(&format!("{PATH}/status/here")).await, "here");
}

#[test]
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
