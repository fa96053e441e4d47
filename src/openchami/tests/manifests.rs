//! Manifests and tags.

use super::*;
use crate::{Base, Entry, EntryKind, Inputs, Manifest, read_manifest, tag};

/// Files and directories of a test.
#[derive(Default)]
struct Fixed {
    files: BTreeMap<&'static str, &'static str>,
    trees: BTreeMap<&'static str, Vec<Entry>>,
}

impl Inputs for Fixed {
    fn file(&mut self, _: Base, path: &str) -> Result<Vec<u8>, String> {
        self.files
            .get(path)
            .map(|text| text.as_bytes().to_vec())
            .ok_or_else(|| "not there".to_owned())
    }

    fn tree(&mut self, _: Base, path: &str) -> Result<Option<Vec<Entry>>, String> {
        Ok(self.trees.get(path).cloned())
    }
}

fn manifest(text: &str) -> Manifest {
    read_manifest(text).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"))
}

#[test]
fn order_and_architectures() {
    let order = |text: &str| {
        manifest(text)
            .layers
            .iter()
            .map(crate::Concrete::name)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        order(
            "layers:\n- {name: c, config: c, depends_on: [b, a]}\n- {name: b, config: b, depends_on: [a]}\n- {name: a, config: a}\n"
        ),
        ["a", "b", "c"]
    );
    let text = "architectures: [{name: x, var_files: [x.yaml]}, {name: y}]\nlayers:\n- {name: c, config: c, var_files: [v], depends_on: [a], arches: [x]}\n- {name: a, config: a}\n";
    assert_eq!(order(text), ["a-x", "a-y", "c-x"]);
    let last = &manifest(text).layers[2];
    assert_eq!(
        (last.parents.as_slice(), last.var_files.as_slice()),
        (&[0][..], &["x.yaml".to_owned(), "v".to_owned()][..])
    );
    assert_eq!(
        manifest("layers: [{name: a, config: a, odd: 1}]\nmore: 1")
            .warnings
            .len(),
        2
    );
}

#[test]
fn refusals() {
    for (text, wanted) in [
        ("layers: []", "layers is missing"),
        ("layers: {}", "layers (line 1) must be a list"),
        ("layers: [{config: a}]", "layers[0].name is missing"),
        ("layers: [{name: a}]", "layers[0].config is missing"),
        (
            "layers: [{name: a, config: a}, {name: a, config: b}]",
            "layers[1].name is there twice",
        ),
        (
            "architectures: [{name: x}, {name: x}]",
            "architectures[1].name is there twice",
        ),
        (
            "layers: [{name: a, config: a, depends_on: [b]}]",
            "layers[0].depends_on names b, which",
        ),
        (
            "layers: [{name: a, config: a, arches: [x]}]",
            "layers[0].arches is there",
        ),
        (
            "architectures: [{name: x}]\nlayers: [{name: a, config: a, arches: [y]}]",
            "layers[0].arches names y",
        ),
        (
            "architectures: [{name: x}, {name: y}]\nlayers: [{name: a, config: a, arches: [x]}, {name: b, config: b, depends_on: [a]}]",
            "layers[1].depends_on names a, which is not built for y",
        ),
        ("layers: [{name: a, config: a, depends_on: [a]}]", "on each other: a"),
        (
            "layers: [{name: z, config: z, depends_on: [a]}, {name: a, config: a, depends_on: [b]}, {name: b, config: b, depends_on: [c]}, {name: c, config: c, depends_on: [a]}]",
            "on each other: a, b, c",
        ),
    ] {
        let wrong = read_manifest(text).unwrap_err().to_string();
        assert!(wrong.contains(wanted), "{text}: {wrong}");
    }
}

#[test]
fn variables_of_layers_count_in_order() {
    let text = "architectures: [{name: x, var_files: [one]}]\nlayers:\n- {name: my-base, config: base}\n- {name: top, config: top, var_files: [two], depends_on: [my-base]}\n";
    let mut inputs = Fixed::default();
    inputs.files.extend([
        ("one", "a: 1\nb: 1\nc: 1\narch: no"),
        ("two", "b: 2\nc: 2"),
        ("base", "meta: {{ .a }}"),
        ("top", "meta: {{ .a }}{{ .b }}{{ .c }}{{ .arch }}"),
    ]);
    let given = variables(&[("c", "3"), ("tag", "no")]);
    let resolved = manifest(text).tags(&given, &mut inputs).unwrap();
    let (base, top) = (&resolved[0], &resolved[1].variables);
    for (name, wanted) in [
        ("a", "1"),
        ("b", "2"),
        ("c", "3"),
        ("arch", "x"),
        ("tag", &resolved[1].tag),
        ("parent_tag", &base.tag),
        ("my_base_tag", &base.tag),
    ] {
        assert_eq!(top[name], wanted, "{name}");
    }
    assert!(!base.variables.contains_key("parent_tag"));
    inputs.files.insert("two", "b: 4");
    let changed = manifest(text).tags(&given, &mut inputs).unwrap();
    assert_eq!((&changed[0].tag, changed[1].tag == resolved[1].tag), (&base.tag, false));
    inputs.files.remove("one");
    assert_eq!(
        manifest(text).tags(&given, &mut inputs).unwrap_err().to_string(),
        "cannot read one: not there"
    );
}

#[test]
fn tags_are_digests_of_inputs() {
    let entry = |path: &str, kind, mode| Entry {
        path: path.to_owned(),
        kind,
        mode,
        uid: 1,
        gid: 2,
    };
    let mut inputs = Fixed::default();
    inputs.files.extend([("f", "hello"), ("p", "play"), ("i", "inventory")]);
    let tree = vec![
        entry("z", EntryKind::Link("f".to_owned()), 0o777),
        entry("a/b", EntryKind::File(b"x".to_vec()), 0o100_644),
        entry("a", EntryKind::Directory, 0o755),
        entry(".git/x", EntryKind::File(Vec::new()), 0o644),
    ];
    inputs.trees.insert("d", tree);
    let parent = ["0123456789abcdef0123456789abcdef".to_owned()];
    // Made once with Python's hashlib, by the rule.
    for (text, parents, wanted) in VECTORS {
        assert_eq!(tag(text, &parent[..parents], &mut inputs).unwrap(), wanted, "{text}");
    }
    let wrong = tag("layer: {directories: [{path: /x, src: none}]}", &[], &mut inputs).unwrap_err();
    assert_eq!(wrong.to_string(), "cannot read none: there is no such directory");
}

const VECTORS: [(&str, usize, &str); 5] = [
    ("meta: {}\n", 0, "07256bbe2b4a32c6245a8b954713e7d0"),
    ("meta: {}\n", 1, "c61ba7f9872a7edee8873c8f0ffd173c"),
    (
        "layer: {files: [{path: /f, src: f}, {path: /u, url: 'http://h/u'}]}\n",
        0,
        "c5846c76ce1bcd34458b585f677d34a9",
    ),
    (
        "layer: {directories: [{path: /d, src: d}, {path: /e, src: d, mode: '0644', preserve_ownership: true, excludes: [a]}]}\n",
        0,
        "d98edfc157db1d76f0dc8d50aa2a60c4",
    ),
    (
        "layer: {actions: {commands: [{ansible: {playbook: p, roles: d, inventory: i}}, {ansible: {playbook: ./p, inventory: i}}]}}\n",
        1,
        "f5a8a346778ec9510c8fdef8f6c59b7e",
    ),
];
