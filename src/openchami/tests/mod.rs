//! Tests of both forms, from text to recipe.

mod builder;
mod examples;
mod manifests;
mod thrillhouse;

use std::collections::BTreeMap;

use crate::{Files, Form, Given, Recipe, Translated, Wrong, read};

fn given() -> Given {
    Given {
        arch: "x86_64".to_owned(),
        ..Given::default()
    }
}

fn translated(form: Form, text: &str) -> Translated {
    read(text, form, &given()).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"))
}

fn refused(form: Form, text: &str) -> String {
    read(text, form, &given()).map(|_| ()).expect_err(text).to_string()
}

fn files(translated: &Translated) -> &Files {
    match &translated.recipe {
        Recipe::Kiwi(files) | Recipe::Containerfile(files) => files,
    }
}

fn file(translated: &Translated, path: &str) -> String {
    let files = files(translated);
    let written = files.written.iter().find(|written| written.path == path);
    String::from_utf8(written.unwrap_or_else(|| panic!("no {path}: {files:?}")).bytes.clone()).unwrap()
}

/// The instructions of a Containerfile, each of which has to be one line.
fn lines(translated: &Translated) -> Vec<String> {
    let text = file(translated, "Containerfile");
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for line in &lines {
        let known = ["# ", "FROM ", "RUN [", "RUN --mount", "COPY ", "ADD ", "LABEL \""];
        assert!(known.iter().any(|head| line.starts_with(head)), "{line}");
        assert!(!line.ends_with('\\') && !line.contains("<<"), "{line}");
    }
    lines
}

fn variables(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|&(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

#[test]
fn forms_by_top_level_keys() {
    for (text, wanted) in [
        ("options:\n  layer_type: base\n", Some(Form::Builder)),
        ("# c\n---\noptions:\n  pkg_manager: dnf", Some(Form::Builder)),
        ("options:\n  level: 3\n", None),
        ("meta:\n  name: {{ .x }}\nlayer:\n  y: 1\n", Some(Form::Layer)),
        ("meta:\n  layer: 1\n", None),
        ("'layers':\n- name: a\n  config: b\n", Some(Form::Manifest)),
        ("layers:\n  - a\n", None),
        ("hosts: all\n", None),
        ("", None),
    ] {
        assert_eq!(crate::form_of(text), wanted, "{text}");
    }
    assert!(matches!(
        read("layers: []", Form::Manifest, &given()),
        Err(Wrong::Unsupported { .. })
    ));
}
