//! Runs `examples/image-set-session.sh`, from a recipe for two architectures to a channel, against a server that builds for
//! real, Debian's registry, and Glance if it is there.

use std::{path::Path, process::Command};

use serde_json::Value;

use crate::{
    glance::{Glance, no_glance},
    support::{
        self, HOST, Kiln, Recipe,
        bootable::{lacking, tiny},
        foreign,
        registry::{Registry, no_registry_tools},
        repository::Repository,
        serve::Server,
        tool,
    },
};

/// A tiny Debian recipe whose images boot: each architecture's kernel and initrd are among its files, and its script puts
/// those of its own where they belong.
fn recipe(repository: &Repository) -> Recipe {
    let script = "#!/bin/sh\nset -eu\nmkdir -p /boot\nmv \"/srv/boot/$(uname -m)/kernel\" /boot/vmlinuz-1\n\
                  mv \"/srv/boot/$(uname -m)/initrd\" /boot/initrd.img-1\nrm -r /srv/boot\necho 'Tiny root' > /etc/issue\n";
    let recipe = Recipe::copy_of("deb-tiny")
        .with_config("{{ deb_repo }}", &repository.url())
        .with("config.sh", script);
    for arch in [HOST, foreign()] {
        let to = Path::new(recipe.path()).join("root/srv/boot").join(arch);
        fs_err::create_dir_all(&to).unwrap();
        for file in ["kernel", "initrd"] {
            fs_err::copy(tiny(arch).join(file), to.join(file)).unwrap();
        }
    }
    recipe
}

#[test]
fn one_image_for_every_architecture_from_the_recipe_to_the_nodes() {
    from_the_recipe_to_the_nodes(false);
}

#[test]
fn the_same_with_openstack() {
    needs!(no_glance());
    from_the_recipe_to_the_nodes(true);
}

fn from_the_recipe_to_the_nodes(with_openstack: bool) {
    needs!(
        support::no_namespaces(),
        support::no_emulation(),
        lacking(HOST),
        lacking(foreign()),
        no_registry_tools()
    );
    let (repository, registry) = (Repository::debian(), Registry::start());
    let glance = with_openstack.then(|| Glance::start_with(1 << 30));
    let keys = tempfile::tempdir().unwrap();
    let (secret, key) = (keys.path().join("signing.pem"), keys.path().join("signing.pub"));
    let secret = secret.to_str().unwrap();
    tool("openssl", &["genpkey", "-algorithm", "ed25519", "-out", secret]);
    tool(
        "openssl",
        &["pkey", "-in", secret, "-pubout", "-out", key.to_str().unwrap()],
    );
    let ports = format!("[{}]", repository.port());
    let rules = "[{ name = \"compute-*\", keep = 1, younger = \"1d\" }]";
    let channels = "[{ channel = \"stable\", requires = [\"boot\", \"signature\"] }]";
    let server = Server::start_in(
        Kiln::new(),
        &[
            ("KILN__ISOLATION__LOOPBACK_PORTS", &ports),
            ("KILN__ISOLATION__FOREIGN", "namespace"),
            ("KILN__SIGNING__KEY_FILE", secret),
            ("KILN__RETENTION__IMAGES", rules),
            // The script checks and signs all of it, so the channel takes it.
            ("KILN__CATALOGUE__CHANNELS", channels),
        ],
    );
    server.make_key();
    let recipe = recipe(&repository);
    let site = keys.path().join("site");
    let name = format!("127.0.0.1:{}/site/compute", registry.port);
    let mut script = Command::new("bash");
    script
        .arg(support::source_dir().join("examples/image-set-session.sh"))
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", keys.path())
        .env("TMPDIR", keys.path())
        .env("KILN", support::kiln_program())
        .env("KILN_DATA_DIR", server.kiln.data())
        .env("KILN_SERVER", &server.url)
        .env("KILN_ISOLATION", "namespace")
        .env("RECIPE", recipe.path())
        .env("ARCHS", format!("{HOST},{}", foreign()))
        .env("REQUIRE_DKMS", "false")
        .env("REGISTRY", &name)
        .env("REGISTRY_CA", registry.dir.path().join("ca.crt"))
        .env("SITE", &site)
        .env("KEY", &key);
    if let Some(glance) = &glance {
        script.env("OS_AUTH_TYPE", "none").env("OS_IMAGE_URL", glance.url());
    }
    let ran = support::run(script);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);

    // Each part by what it left, and not only by its exit code.
    let said = &ran.stdout;
    assert_eq!(said.matches(": tiny login:").count(), 2, "{said}");
    assert_eq!(said.matches("manifest.json         ok").count(), 2, "{said}");
    let index: Value = serde_json::from_slice(&fs_err::read(site.join("index.json")).unwrap()).unwrap();
    let tagged = |entry: &Value| entry["annotations"]["org.opencontainers.image.ref.name"] == "24.11";
    assert!(index["manifests"].as_array().unwrap().iter().any(tagged), "{index}");
    let raw = said
        .lines()
        .find(|line| line.starts_with("{\"") && line.contains("platform"));
    let raw: Value = serde_json::from_str(raw.unwrap_or_else(|| panic!("{said}"))).unwrap();
    let platforms: Vec<_> = raw["manifests"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|entry| entry["platform"]["architecture"].as_str())
        .filter(|architecture| *architecture != "unknown")
        .collect();
    assert_eq!(platforms.len(), 2, "{raw}");
    // The lists of packages and the signed provenance went along, and are no platforms.
    for kind in [
        "application/spdx+json",
        "application/vnd.cyclonedx+json",
        "application/vnd.in-toto+json",
        "application/vnd.dsse.envelope",
    ] {
        assert!(said.contains(kind), "{kind}: {said}");
    }
    assert_eq!(
        server.json(&["catalogue", "resolve", "compute:stable", "--arch", foreign()])["version"],
        "24.11"
    );
    if let Some(glance) = &glance {
        assert_eq!(glance.images(), [("compute-24.11".to_owned(), "active".to_owned())]);
    }
    server.stop();
}
