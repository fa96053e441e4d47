//! Publishing to a real registry, with TLS and an account, and reading it with a tool that is not ours.

use std::{collections::BTreeSet, path::Path, time::Duration};

use kiln_records::Code;
use kiln_registry::{
    Access, Place, Reference, Remote, affinity, check, inspect, mirror, open,
    publish::{self, Image, Published},
};
use serde_json::Value;

use crate::rig::{self, Registry, host, image, notes, run};

/// Ends the test, as skipped, where the real registry and its tools are missing.
fn needs_the_real_thing() {
    if let Some(why) = rig::lacks() {
        kiln_harness::skip(why);
    }
}

async fn publish_to(registry: &Registry, images: &[Image], tag: &str, scratch: &Path) -> Published {
    let to: Reference = format!("{}/site/compute:{tag}", registry.host()).parse().unwrap();
    let remote = Remote::open(&to.registry, &to.repository, &registry.access())
        .await
        .unwrap();
    publish::publish(
        &kiln_registry::Place::Remote(remote.clone()),
        &to.which,
        images,
        scratch,
        &notes().0,
    )
    .await
    .unwrap()
}

async fn place(name: &str, access: &Access, to_write: bool) -> (Place, Option<kiln_registry::Which>) {
    let location: kiln_registry::Location = name.parse().unwrap();
    (
        open(&location, access, to_write).await.unwrap(),
        location.which().cloned(),
    )
}

/// Every entry of a tree: path, kind, mode, owner, device, link, hard links, content and attributes.
fn listing(root: &Path) -> String {
    let script = r#"cd "$1" && find . -printf '%p %y %m %U:%G %n %l %s\n' | sed -E 's/^(.*) d ([0-7]+) ([0-9:]+) .*/\1 d \2 \3/' | sort
        find dev -type c -o -type b | sort | xargs stat -c '%n %t:%T'
        find . -type f -exec sha256sum {} + | sort; getfattr -R -h -d -m - . 2>/dev/null; getcap -r . | sort"#;
    run("sh", &["-c", script, "sh", root.to_str().unwrap()])
}

#[test(threads = 2)]
async fn a_published_root_is_the_root_that_was_built() {
    needs_the_real_thing();
    let dir = tempfile::tempdir().unwrap();
    let (root, squashfs) = rig::root(dir.path());
    let registry = Registry::start();
    let published = publish_to(&registry, &[image(&squashfs, host())], "24.11", dir.path()).await;
    assert!(!published.unchanged && !published.images[0].reused);
    // Nothing is left of the copy of the root.
    assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 2);

    let name = format!("{}/site/compute:24.11", registry.host());
    let certificates = registry.dir.path().join("certs");
    fs_err::create_dir(&certificates).unwrap();
    fs_err::copy(registry.dir.path().join("cert.pem"), certificates.join("ca.crt")).unwrap();
    let copied = dir.path().join("copied");
    let to = format!("oci:{}:x", copied.display());
    let from = format!("docker://{name}");
    let cert_dir = certificates.to_str().unwrap();
    run(
        "skopeo",
        &[
            "copy",
            "--all",
            "--preserve-digests",
            "--src-cert-dir",
            cert_dir,
            "--src-creds",
            "me:pass word",
            &from,
            &to,
        ],
    );
    let read = |digest: &str| -> Value {
        let file = copied
            .join("blobs/sha256")
            .join(digest.strip_prefix("sha256:").unwrap());
        serde_json::from_slice(&fs_err::read(file).unwrap()).unwrap()
    };
    let manifest = read(published.images[0].digest.as_str());
    let config = read(manifest["config"]["digest"].as_str().unwrap());
    assert_eq!(config["os"], "linux");
    assert_eq!(config["architecture"], host().oci());
    assert_eq!(config["config"]["Cmd"], serde_json::json!(["/bin/bash"]));
    let layer = manifest["layers"][0]["digest"]
        .as_str()
        .unwrap()
        .strip_prefix("sha256:")
        .unwrap();
    let layer = copied.join("blobs/sha256").join(layer);
    let unpacked = dir.path().join("unpacked");
    fs_err::create_dir(&unpacked).unwrap();
    run(
        "tar",
        &[
            "--zstd",
            "--xattrs",
            "--xattrs-include=*",
            "--numeric-owner",
            "-xpf",
            layer.to_str().unwrap(),
            "-C",
            unpacked.to_str().unwrap(),
        ],
    );
    assert_eq!(listing(&unpacked), listing(&root));

    let access = registry.access();
    let (there, which) = place(&name, &access, false).await;
    let seen = inspect::inspect(&there, which.as_ref()).await.unwrap();
    assert_eq!(seen.digest, published.digest);
    let of_kind = |kind: &str| {
        let mut referrers = seen.entries[0].referrers.iter();
        referrers.find(|referrer| referrer.artifact_type.as_deref() == Some(kind))
    };
    let boot = of_kind(publish::BOOT).unwrap();
    assert_eq!(boot.files, ["kernel", "initrd", "rootfs"]);
    // What is said about an image is found from it, too, and is no platform.
    let document = of_kind(rig::SPDX).unwrap();
    assert_eq!(document.files, ["sbom.spdx.json"]);
    assert_eq!(published.images[0].documents, std::slice::from_ref(&document.digest));
    assert_eq!(affinity::architectures(&seen).unwrap(), [host().oci()]);
    let found = check::check(&there, which.as_ref(), &[host()]).await.unwrap();
    assert!(found.iter().all(|finding| finding.ok) && found.len() == 6, "{found:?}");
    let other = kiln_records::arch::Arch::Riscv64;
    let found = check::check(&there, which.as_ref(), &[other]).await.unwrap();
    assert!(!found[1].ok && found.len() == 2, "{found:?}");
}

#[test(threads = 2)]
async fn mirrors_have_the_same_digests_there_and_back() {
    needs_the_real_thing();
    let dir = tempfile::tempdir().unwrap();
    let (_, squashfs) = rig::root(dir.path());
    let registry = Registry::start();
    let published = publish_to(&registry, &[image(&squashfs, host())], "1", dir.path()).await;
    let again = publish_to(&registry, &[image(&squashfs, host())], "1", dir.path()).await;
    assert!(again.unchanged && again.digest == published.digest);
    // The same image made anew has the same bytes.
    let anew = publish_to(&registry, &[image(&squashfs, host())], "2", dir.path()).await;
    assert_eq!((anew.digest, anew.images[0].reused), (published.digest.clone(), false));

    let access = registry.access();
    let layout = format!("oci:{}", dir.path().join("layout").display());
    let mut from = format!("{}/site/compute:1", registry.host());
    for to in [
        layout.clone(),
        format!("oci:{}:other", dir.path().join("second").display()),
        format!("{}/back/compute:1", registry.host()),
        format!("{}/mounted/compute:1", registry.host()),
    ] {
        let (source, which) = place(&from, &access, false).await;
        let (target, to_which) = place(&to, &access, true).await;
        let mirrored = mirror::mirror(&source, which.as_ref(), &target, to_which.as_ref(), &notes().0)
            .await
            .unwrap();
        assert_eq!(mirrored.digest, published.digest, "{to}");
        assert_eq!((mirrored.manifests, mirrored.blobs), (4, 7), "{to}");
        // A registry takes blobs from its own repositories.
        assert_eq!(mirrored.copied, if to.contains("mounted") { 0 } else { 7 }, "{to}");
        let seen = inspect::inspect(&target, to_which.as_ref()).await.unwrap();
        // In whichever order a place lists them.
        let referrers = seen.entries[0].referrers.iter().map(|referrer| &referrer.digest);
        let published = &published.images[0];
        let all = published.documents.iter().chain([&published.boot]);
        assert_eq!(referrers.collect::<BTreeSet<_>>(), all.collect(), "{to}");
        from = to;
    }
    run("skopeo", &["inspect", &format!("{layout}:1")]);
}

#[test(threads = 2)]
async fn a_registry_that_dies_half_way_gets_the_rest_or_nothing() {
    needs_the_real_thing();
    let dir = tempfile::tempdir().unwrap();
    let (_, squashfs) = rig::root(dir.path());
    // Chunks of 16 MiB: the layer has several.
    let more = "head -c 90000000 /dev/urandom > \"$1/more\"; mksquashfs \"$1\" \"$2\" -noappend -quiet -no-progress -comp zstd";
    let root = dir.path().join("root");
    run(
        "sh",
        &["-c", more, "sh", root.to_str().unwrap(), squashfs.to_str().unwrap()],
    );
    let mut registry = Registry::start();
    let access = registry.access();
    let to: Reference = format!("{}/site/compute:1", registry.host()).parse().unwrap();
    let uploads = registry
        .dir
        .path()
        .join("store/docker/registry/v2/repositories/site/compute/_uploads");
    let begun = || {
        let script = "find \"$1\" -name data -size +15000k 2>/dev/null | grep -q .";
        std::process::Command::new("sh")
            .args(["-c", script, "sh", uploads.to_str().unwrap()])
            .status()
            .unwrap()
            .success()
    };
    let images = [image(&squashfs, host())];
    let scratch = dir.path().to_owned();
    let publishing = {
        let (to, images, access) = (to.clone(), images.clone(), access.clone());
        tokio::spawn(async move {
            let remote = Remote::open(&to.registry, &to.repository, &access).await.unwrap();
            publish::publish(
                &kiln_registry::Place::Remote(remote.clone()),
                &to.which,
                &images,
                &scratch,
                &notes().0,
            )
            .await
        })
    };
    for _ in 0..2000 {
        if begun() || publishing.is_finished() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!publishing.is_finished(), "it was too quick to be interrupted");
    registry.kill();
    // The length of an outage, shorter than the patience of its user.
    tokio::time::sleep(Duration::from_millis(300)).await;
    registry.restart();
    let published = publishing.await.unwrap().unwrap();
    let (there, which) = place(&to.to_string(), &access, false).await;
    let found = check::check(&there, which.as_ref(), &[host()]).await.unwrap();
    assert!(found.iter().all(|finding| finding.ok), "{found:?}");

    // One that stays away: a failure, and no tag.
    registry.kill();
    let remote = Remote::open(&to.registry, &to.repository, &access).await.unwrap();
    let tag = kiln_registry::Which::Tag("never".to_owned());
    let failure = publish::publish(
        &kiln_registry::Place::Remote(remote.clone()),
        &tag,
        &images,
        dir.path(),
        &notes().0,
    )
    .await
    .unwrap_err();
    assert_eq!(failure.code, Code::RegistryUnreachable, "{failure}");
    registry.restart();
    assert_eq!(
        inspect::inspect(&there, Some(&tag)).await.unwrap_err().code,
        Code::RegistryMissing
    );
    assert_eq!(
        inspect::inspect(&there, which.as_ref()).await.unwrap().digest,
        published.digest
    );
}

#[test(threads = 2)]
async fn accounts_and_certificates_are_checked() {
    needs_the_real_thing();
    let registry = Registry::start();
    let good = registry.access();
    Remote::check(&registry.host(), &good).await.unwrap();
    let nobody = Access {
        login: None,
        ..good.clone()
    };
    let stranger = Access {
        authorities: None,
        ..good.clone()
    };
    let plain = Access {
        authorities: None,
        insecure: true,
        ..good
    };
    for (access, code) in [
        (nobody, Code::RegistryUnauthorized),
        (stranger, Code::RegistryUnreachable),
        (plain, Code::RegistryRefused),
    ] {
        let failure = Remote::check(&registry.host(), &access).await.unwrap_err();
        assert_eq!(failure.code, code, "{failure}");
        assert!(failure.hint.is_some());
    }
}

#[test(threads = 2)]
async fn an_image_with_the_wrong_label_is_not_published() {
    needs_the_real_thing();
    let dir = tempfile::tempdir().unwrap();
    let (_, squashfs) = rig::root(dir.path());
    let registry = Registry::start();
    let remote = Remote::open(&registry.host(), "x", &registry.access()).await.unwrap();
    let tag = kiln_registry::Which::Tag("1".to_owned());
    let other = if host() == kiln_records::arch::Arch::Aarch64 {
        "x86_64"
    } else {
        "aarch64"
    };
    let wrong = image(&squashfs, other.parse().unwrap());
    let broken = dir.path().join("broken");
    fs_err::write(&broken, "no squashfs").unwrap();
    for image in [wrong, image(&broken, host())] {
        let failure = publish::publish(
            &kiln_registry::Place::Remote(remote.clone()),
            &tag,
            &[image],
            dir.path(),
            &notes().0,
        )
        .await
        .unwrap_err();
        assert_eq!(failure.code, Code::LayerUnmade, "{failure}");
    }
    let twice = [image(&squashfs, host()), image(&squashfs, host())];
    let failure = publish::publish(
        &kiln_registry::Place::Remote(remote.clone()),
        &tag,
        &twice,
        dir.path(),
        &notes().0,
    )
    .await
    .unwrap_err();
    assert_eq!(failure.code, Code::Usage);
    assert_eq!(
        inspect::inspect(&Place::Remote(remote), Some(&tag))
            .await
            .unwrap_err()
            .code,
        Code::RegistryMissing
    );
}
