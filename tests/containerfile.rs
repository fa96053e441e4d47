//! Containerfiles become images, natively and emulated, which other tools read.

use std::{collections::BTreeSet, path::Path};

use serde_json::Value;

use crate::{
    build::{Both, both},
    support::{
        self, HOST, Kiln, foreign,
        registry::{ACCOUNT, Registry, no_registry_tools},
        squashfs, tool,
    },
};

/// A file with what such files in the wild have: stages, one of them for the machine that builds, values, heredocs, mounts, owners.
/// Its programs are of the base, but for the one that it installs.
const FILE: &str = r#"# syntax=docker/dockerfile:1
ARG BASE
FROM --platform=$BUILDPLATFORM ${BASE} AS tool
ARG TARGETARCH
RUN mkdir /made && uname -m > /made/on && echo "${TARGETARCH}" > /made/for

FROM ${BASE} AS whole
RUN --mount=type=secret,id=token test "$(cat /run/secrets/token)" = a-token-of-the-site && cat /run/secrets/token
ARG GREETING=none
ENV ONE=1 TWO=${GREETING}-${UNSET:-default}
LABEL org.example.purpose="test"
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
HEALTHCHECK CMD true
COPY --from=tool /made /made
COPY --chown=1000:1000 --chmod=640 file.txt /srv/
ADD added.tar.gz /srv/unpacked/
RUN <<EOF
set -eu
[[ $TWO == hello-default ]]
echo "fact machine $(uname -m)"
echo "fact home $HOME"
echo "fact descriptors $(ls /proc/self/fd | wc -l)"
for number in $(seq 200); do echo "$number" | sed s/1/2/ ; done > /srv/numbers
(sleep 600 &)
EOF
RUN --mount=type=bind,source=file.txt,target=/mnt/there --mount=type=tmpfs,target=/scratch cat /mnt/there > /srv/bound && df /scratch
RUN apt-get update && apt-get install --yes --no-install-recommends bc && rm -r /var/lib/apt/lists/*
WORKDIR /new/place
USER 1000:1000
RUN printf 'a\nfact edited\n.\n,p\nw /tmp/out\nQ\n' | ed -s && id -u
EXPOSE 8080/tcp
ENTRYPOINT ["/bin/bash"]
CMD ["-c", "cat /srv/bound"]

FROM whole AS later
RUN false
"#;

/// A secret of the one who builds.
const TOKEN: &str = "a-token-of-the-site";

/// A base for both architectures in a registry: the images that other tests have built.
fn base(both: &Both, registry: &Registry) -> String {
    let name = format!("127.0.0.1:{}/site/base:12", registry.port);
    publish(
        both,
        registry,
        &[both.images[HOST].id(), both.images[foreign()].id()],
        &name,
    );
    name
}

fn publish(both: &Both, registry: &Registry, images: &[&str], name: &str) {
    let ca = registry.dir.path().join("ca.crt");
    let words = [&["publish"], images, &[name, "--ca", ca.to_str().unwrap()]].concat();
    support::run(local(both, registry, &words)).ok();
}

/// A command whose user has logged in to the registry, and trusts it.
fn local(both: &Both, registry: &Registry, words: &[&str]) -> std::process::Command {
    let dir = registry.dir.path();
    let mut command = both.kiln.command(words);
    command
        .env("KILN_SERVER", "local")
        .env("DOCKER_CONFIG", dir.join("docker"))
        .env("KILN__TRUST__CA", dir.join("ca.crt"))
        .env("SITE_TOKEN", TOKEN);
    command
}

/// Gives the user of [`local`] the account of the registry, where Docker keeps it.
fn log_in(registry: &Registry) {
    let dir = registry.dir.path().join("docker");
    fs_err::create_dir(&dir).unwrap();
    let account = base64(&format!("{}:{}", ACCOUNT.0, ACCOUNT.1));
    let logins = serde_json::json!({ "auths": { format!("127.0.0.1:{}", registry.port): { "auth": account } } });
    fs_err::write(dir.join("config.json"), logins.to_string()).unwrap();
}

fn base64(text: &str) -> String {
    use base64::{Engine, prelude::BASE64_STANDARD};
    BASE64_STANDARD.encode(text)
}

fn skopeo(registry: &Registry, words: &[&str]) -> Value {
    let certificates = registry.dir.path().to_str().unwrap();
    let login = format!("{}:{}", ACCOUNT.0, ACCOUNT.1);
    let text = tool(
        "skopeo",
        &[&["inspect", "--cert-dir", certificates, "--creds", &login], words].concat(),
    );
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_containerfile_becomes_one_image_for_two_architectures() {
    needs!(support::no_namespaces(), support::no_emulation(), no_registry_tools());
    let (both, registry) = (both(), Registry::with_account());
    log_in(&registry);
    let base = base(both, &registry);
    let dir = tempfile::tempdir().unwrap();
    let (context, output) = (dir.path().join("app"), dir.path().join("out"));
    fs_err::create_dir_all(context.join("packed")).unwrap();
    fs_err::create_dir_all(context.join("docker")).unwrap();
    fs_err::write(context.join("docker/Dockerfile.app"), FILE).unwrap();
    fs_err::write(context.join("file.txt"), "of the context\n").unwrap();
    fs_err::write(context.join("packed/inner"), "packed\n").unwrap();
    let at = context.to_str().unwrap();
    tool(
        "tar",
        &[
            "-C",
            &format!("{at}/packed"),
            "-czf",
            &format!("{at}/added.tar.gz"),
            "inner",
        ],
    );
    fs_err::write(context.join(".containerignore"), "packed\n").unwrap();
    let archs = format!("{HOST},{}", foreign());
    let (set, out) = (format!("BASE={base}"), output.to_str().unwrap());
    let words = [
        "build",
        "--verbose",
        at,
        "--arch",
        &archs,
        "--set",
        &set,
        "--set",
        "GREETING=hello",
        "--file",
        "docker/Dockerfile.app",
        "--target",
        "whole",
        "--secret",
        "id=token,env=SITE_TOKEN",
        "--output",
        out,
    ];
    let ran = support::run(local(both, &registry, &words)).ok();
    let all = format!("{}{}", ran.stdout, ran.stderr);
    assert!(!all.contains(TOKEN), "{all}");
    for said in [
        "fact edited",
        "fact home /root",
        "fact descriptors 4",
        "HEALTHCHECK is not kept",
    ] {
        assert!(all.contains(said), "{said}: {all}");
    }

    let roots = [HOST, foreign()].map(|arch| output.join(arch).join("rootfs"));
    let lists = roots.each_ref().map(|root| squashfs::list(root));
    for (arch, (root, list)) in [HOST, foreign()].into_iter().zip(roots.iter().zip(&lists)) {
        let read = |path: &str| squashfs::read(root, path);
        assert_eq!(read("made/on"), format!("{HOST}\n"));
        let oci = |arch: &str| if arch == "x86_64" { "amd64" } else { "arm64" };
        assert_eq!(read("made/for"), format!("{}\n", oci(arch)));
        assert_eq!(
            (read("srv/bound"), read("srv/unpacked/inner")),
            ("of the context\n".into(), "packed\n".into())
        );
        assert_eq!(read("tmp/out"), "fact edited\n");
        assert_eq!(list["/srv/file.txt"], squashfs::Entry::new("-rw-r-----", 1000, 1000));
        assert_eq!(list["/tmp/out"].uid, 1000);
        // Nothing of what a command was given is left.
        for gone in [
            "/.kiln",
            "/mnt/there",
            "/scratch",
            "/run/.containerenv",
            "/packed",
            "/dev/null",
            "/run/secrets",
        ] {
            assert!(!list.contains_key(gone), "{arch}: {gone}");
        }
    }
    // What differs has the architecture's name.
    let paths = lists.each_ref().map(|list| {
        let words = ["x86_64", "aarch64", "x86-64", "amd64", "arm64"];
        let plain = |path: &String| words.iter().fold(path.clone(), |path, word| path.replace(word, "ARCH"));
        let is_of_all = |path: &String| path.starts_with("/srv") || path.starts_with("/etc");
        list.keys().map(plain).filter(is_of_all).collect::<BTreeSet<_>>()
    });
    let different: Vec<_> = paths[0].symmetric_difference(&paths[1]).collect();
    assert!(different.is_empty(), "{different:?}");

    let jobs = both.kiln.jobs();
    let job = |arch: &str| {
        jobs.iter()
            .rev()
            .find(|job| job["arch"] == arch && job["name"] == "app")
            .unwrap()
    };
    let execs = &job(foreign())["execs"];
    let count = |kind: &str| execs[kind].as_u64().unwrap();
    assert!(count("twins") > 5 * count("emulated"), "{execs}");

    // Published as it was built.
    let name = format!("127.0.0.1:{}/site/app:1", registry.port);
    let images = [HOST, foreign()].map(|arch| job(arch)["image"].as_str().unwrap());
    publish(both, &registry, &images, &name);
    let reference = format!("docker://{name}");
    let tags = tool(
        "skopeo",
        &[
            "list-tags",
            "--tls-verify=false",
            "--creds",
            &format!("{}:{}", ACCOUNT.0, ACCOUNT.1),
            reference.rsplit_once(':').unwrap().0,
        ],
    );
    // Others are of referrers, in registries without a list of these.
    assert!(!tags.contains("latest"), "{tags}");
    let index = skopeo(&registry, &["--raw", &reference]);
    let platforms: Vec<_> = index["manifests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| &entry["platform"]["architecture"])
        .collect();
    assert_eq!(platforms.len(), 2, "{index:#}");
    for (arch, oci) in [("x86_64", "amd64"), ("aarch64", "arm64")] {
        let config = skopeo(&registry, &["--config", "--override-arch", oci, &reference]);
        assert_eq!(config["architecture"], oci);
        let run = &config["config"];
        assert_eq!(run["User"], "1000:1000");
        assert_eq!(run["Entrypoint"], serde_json::json!(["/bin/bash"]));
        assert_eq!(run["Labels"]["org.example.purpose"], "test");
        assert!(
            run["Env"].as_array().unwrap().contains(&"TWO=hello-default".into()),
            "{run}"
        );
        // The archive is what other tools take.
        for form in ["oci-archive", "docker-archive"] {
            let archive = format!("{form}:{}", output.join(arch).join("container.tar").display());
            let same = serde_json::from_str::<Value>(&tool("skopeo", &["inspect", "--config", &archive])).unwrap();
            assert_eq!(same, config);
        }
        // Its bases are named.
        let provenance = fs_err::read_to_string(output.join(arch).join("provenance.json")).unwrap();
        let provenance: Value = serde_json::from_str(&provenance).unwrap();
        let definition = &provenance["predicate"]["buildDefinition"];
        let made_from = definition["resolvedDependencies"].as_array().unwrap();
        let is_base = |entry: &Value| entry["name"] == "base" && entry["uri"] == format!("docker://{base}").as_str();
        assert!(made_from.iter().any(is_base), "{definition:#}");
        assert_eq!(
            definition["externalParameters"]["containerfile"]["secrets"],
            serde_json::json!(["token"])
        );
    }

    // As a directory, from which it is imported as an image of its own.
    let layout = format!("oci:{}", dir.path().join("layout").display());
    publish(both, &registry, &images, &layout);
    let imported = support::run(local(
        both,
        &registry,
        &["images", "import", &layout, "--arch", foreign()],
    ))
    .ok();
    assert!(
        imported.stdout.contains(&format!("({})", foreign())),
        "{}",
        imported.stdout
    );
    let job = both
        .kiln
        .jobs()
        .into_iter()
        .find(|job| job["name"].as_str().unwrap().starts_with("layout"))
        .unwrap();
    assert_eq!(job["arch"], foreign());
}

#[test]
fn a_containerfile_that_fails_says_where_and_why() {
    needs!(support::no_namespaces());
    let kiln = Kiln::new();
    let dir = tempfile::tempdir().unwrap();
    let build = |name: &str, text: &str| {
        let context = dir.path().join(name);
        fs_err::create_dir_all(&context).unwrap();
        fs_err::write(context.join("Containerfile"), text).unwrap();
        kiln.run(["build", context.to_str().unwrap()]).failed()
    };
    for (name, text, says) in [
        (
            "syntax",
            "FROM scratch\nRUUN true\n",
            "line 2, `RUUN`: Build error: Unknown instruction",
        ),
        (
            "stage",
            "FROM scratch\nCOPY --from=builder /x /y\n",
            "COPY --from=builder: no stage or image found",
        ),
        (
            "file",
            "FROM scratch\nCOPY missing.txt /\n",
            "line 2, `COPY missing.txt /`: checking on sources under the context",
        ),
        (
            "away",
            "FROM 127.0.0.1:9/none/such:1\n",
            "pinging container registry 127.0.0.1:9",
        ),
        ("run", "FROM scratch\nRUN true\n", "line 2, `RUN true` ended with"),
    ] {
        let failed = build(name, text);
        assert!(failed.contains(says), "{name}: {failed}");
    }
    let context = dir.path().join("run");
    let ran = kiln.run(["build", context.to_str().unwrap(), "--profile", "x"]);
    assert!(
        ran.stderr.contains("Recipes of type containerfile have no profiles"),
        "{}",
        ran.stderr
    );
    assert!(
        Path::new(&kiln.data().join("sandboxes"))
            .read_dir()
            .is_ok_and(|mut left| left.all(|entry| entry.unwrap().path().extension().is_some()))
    );
}
