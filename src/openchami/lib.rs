//! Layer files of OpenCHAMI, translated into recipes that Kiln builds. Pure: no I/O.
//!
//! There are two forms: that of image-builder (`options:` and lists beside it), and that of image-thrillhouse (`meta:` and
//! `layer:`, a template of Go's, with manifests of several layers). A layer that begins from `scratch` becomes a description for
//! kiwi-ng, and any other one a Containerfile. What cannot be done rightly is refused by its key before anything is built; what the tools
//! themselves ignore is a warning.
//!
//! Where the tools differ from what they say, the crate does what they say.

mod builder;
mod containerfile;
mod digest;
mod fields;
mod ini;
mod kiwi;
mod layer;
mod manifest;
mod options;
mod patterns;
mod quote;
mod recipe;
mod scap;
mod template;
mod thrillhouse;
mod variables;
mod words;
mod wrong;
mod yaml;

pub use digest::{Base, Entry, EntryKind, Inputs, tag};
pub use manifest::{Concrete, Manifest, Resolved, read_manifest};
pub use patterns::left_out;
pub use recipe::{Copy, Files, Given, Layout, Parent, Publish, Recipe, Translated, Written};
pub use variables::read_variables;
pub use wrong::Wrong;

/// The form of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A layer of image-builder.
    Builder,
    /// A layer of image-thrillhouse.
    Layer,
    /// A manifest of image-thrillhouse: several layers, and architectures.
    Manifest,
}

/// Which form a text looks like, by keys at the beginning of lines. A text that is no YAML may look like one, and a file in YAML's
/// flow style does not.
pub fn form_of(text: &str) -> Option<Form> {
    let key = |line: &str| {
        let (key, _) = line.split_once(':')?;
        Some(key.trim_end().trim_matches(['"', '\'']).to_owned())
    };
    let tops: Vec<String> = text
        .lines()
        .filter(|line| !line.starts_with([' ', '-', '#', '\t']))
        .filter_map(key)
        .collect();
    let top = |wanted: &str| tops.iter().any(|key| key == wanted);
    let below = |wanted: &[&str]| {
        let inner = |line: &str| line.trim_start_matches([' ', '-']).to_owned();
        text.lines()
            .filter_map(|line| key(&inner(line)))
            .any(|key| wanted.contains(&key.as_str()))
    };
    if top("options") && below(&["layer_type", "pkg_manager"]) {
        return Some(Form::Builder);
    }
    if top("meta") && top("layer") {
        return Some(Form::Layer);
    }
    (top("layers") && below(&["config"])).then_some(Form::Manifest)
}

/// Translates a layer file of the form.
///
/// # Errors
///
/// Why the file is refused; [`Wrong::Unsupported`] for a manifest, which is not one layer.
pub fn read(text: &str, form: Form, given: &Given) -> Result<Translated, Wrong> {
    let mut warnings = Vec::new();
    let layer = match form {
        Form::Builder => builder::read(text, given, &mut warnings)?,
        Form::Layer => thrillhouse::read(&template::render(text, &given.variables)?, given, &mut warnings)?,
        Form::Manifest => {
            return Err(Wrong::unsupported(
                "layers",
                "a manifest has several layers: see read_manifest",
            ));
        }
    };
    let recipe = match &layer.parent {
        Parent::Scratch => Recipe::Kiwi(kiwi::write(&layer, given, &mut warnings)?),
        Parent::Image(parent) => Recipe::Containerfile(containerfile::write(&layer, parent)?),
    };
    Ok(Translated {
        name: layer.name,
        tags: layer.tags,
        parent: layer.parent,
        recipe,
        labels: layer.labels,
        publish: layer.publish,
        promote: layer.promote,
        warnings,
    })
}

#[cfg(test)]
mod tests;
