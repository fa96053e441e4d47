//! Layer files of OpenCHAMI become images.

use crate::{
    build::both,
    support::{
        self, HOST, Kiln,
        registry::{Registry, no_registry_tools},
        squashfs,
    },
};

/// A layer in image-thrillhouse's form, on a parent of Debian.
const LAYER: &str = r"
meta:
  name: compute
  tags: [v1]
  from: '{{ .registry }}/site/base:12'
layer:
  manager: {name: apt}
  files:
    - {path: /etc/motd, content: 'of the layer', mode: '0640'}
    - {path: /srv/beside, src: beside.txt, mode: '0644'}
  actions:
    commands:
      - run: touch '/srv/with a blank'
      - script: |
          set -e
          printf '%s' '$HOME stays' > /srv/text
          exit 0
publish:
  - {type: registry, url: '{{ .registry }}/site'}
";

#[test]
fn a_layer_on_a_container_image_is_built_and_published() {
    needs!(support::no_namespaces(), support::no_emulation(), no_registry_tools());
    let (both, registry) = (both(), Registry::start());
    let (at, ca) = (
        format!("127.0.0.1:{}", registry.port),
        registry.dir.path().join("ca.crt"),
    );
    let local = |words: &[&str]| {
        let mut command = both.kiln.command(words);
        command.env("KILN_SERVER", "local").env("SSL_CERT_FILE", &ca);
        support::run(command)
    };
    let base = format!("{at}/site/base:12");
    local(&["publish", both.images[HOST].id(), &base, "--ca", ca.to_str().unwrap()]).ok();
    let dir = tempfile::tempdir().unwrap();
    let (layer, out) = (dir.path().join("compute.yaml"), dir.path().join("out"));
    fs_err::write(&layer, LAYER).unwrap();
    fs_err::write(dir.path().join("beside.txt"), "beside\n").unwrap();
    let value = format!("registry={at}");
    let words = [
        "build",
        layer.to_str().unwrap(),
        "--set",
        &value,
        "--output",
        out.to_str().unwrap(),
    ];
    let ran = local(&words).ok();
    assert!(
        ran.stdout.contains(&format!("published  {at}/site/compute:v1")),
        "{}",
        ran.stdout
    );
    let root = out.join(HOST).join("rootfs");
    let read = |path: &str| squashfs::read(&root, path);
    assert_eq!(
        (read("etc/motd"), read("srv/beside")),
        ("of the layer".into(), "beside\n".into())
    );
    assert_eq!(read("srv/text"), "$HOME stays");
    let list = squashfs::list(&root);
    assert_eq!(list["/etc/motd"], squashfs::Entry::new("-rw-r-----", 0, 0));
    assert!(list.contains_key("/srv/with a blank"));
}

#[test]
fn what_a_layer_cannot_have_is_refused_by_name() {
    let kiln = Kiln::new();
    let dir = tempfile::tempdir().unwrap();
    let build = |text: &str| {
        let layer = dir.path().join("layer.yaml");
        fs_err::write(&layer, text).unwrap();
        kiln.run(["build", layer.to_str().unwrap()]).failed()
    };
    for (text, says) in [
        (
            "options:\n  layer_type: ansible\n  pkg_manager: dnf\n",
            "options.layer_type: ansible is not supported",
        ),
        (
            "options:\n  layer_type: base\n  pkg_manager: pacman\n",
            "options.pkg_manager is not supported",
        ),
        (LAYER, "the variable registry has no value"),
        (
            "layers:\n  - name: a\n    config: a.yaml\n  - name: b\n    config: b.yaml\n    depends_on: [a]\n",
            "manifests are not built as a whole yet",
        ),
        ("meta: {name: x\nlayer: {}\n", "not YAML"),
    ] {
        let failed = build(text);
        assert!(failed.contains(says), "{says}: {failed}");
    }
}
