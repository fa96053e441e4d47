//! Manifests: layers that depend on each other, for architectures, and what each layer's template is given. Pure: the caller reads
//! the files.

use std::collections::BTreeMap;

use crate::{
    Base, Inputs, Wrong, digest,
    fields::{At, Manners},
    read_variables, template,
    yaml::parse,
};

/// A manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Each layer for each of its architectures, in an order in which they can be built: parents first, else as in the file.
    pub layers: Vec<Concrete>,
    /// What the manifest has and image-thrillhouse ignores.
    pub warnings: Vec<String>,
}

/// A layer for an architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Concrete {
    /// The layer's name in the manifest.
    pub layer: String,
    /// The architecture, if the manifest names any.
    pub arch: Option<String>,
    /// The layer file, relative to the manifest's directory unless absolute.
    pub config: String,
    /// Files of variables, of which later ones count more; relative as `config`.
    pub var_files: Vec<String>,
    /// The layers that it depends on: places in [`Manifest::layers`].
    pub parents: Vec<usize>,
}

/// What a layer of a manifest is built with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// Its tag, a digest of what it is made of.
    pub tag: String,
    /// All variables for its template.
    pub variables: BTreeMap<String, String>,
}

struct Logical {
    name: String,
    config: String,
    var_files: Vec<String>,
    depends_on: Vec<usize>,
    arches: Vec<usize>,
    path: String,
}

/// Reads a manifest, and checks its names and what depends on what.
///
/// # Errors
///
/// Why it is refused.
pub fn read_manifest(text: &str) -> Result<Manifest, Wrong> {
    let node = parse(text, true)?;
    let mut warnings = Vec::new();
    let mut top = At::top(&node, Manners::Strict).fields()?;
    let mut arches = Vec::<(String, Vec<String>)>::new();
    for at in top.items("architectures")? {
        let mut fields = at.fields()?;
        let name = fields.need("name")?;
        if arches.iter().any(|(known, _)| *known == name) {
            return Err(Wrong::Twice {
                key: fields.path("name"),
                line: at.node.line,
            });
        }
        arches.push((name, fields.texts("var_files")?));
        fields.rest(&mut warnings);
    }
    let items = top.items("layers")?;
    let mut names = Vec::new();
    for at in &items {
        let name = at.fields()?.need("name")?;
        if names.contains(&name) {
            return Err(Wrong::Twice {
                key: format!("{}.name", at.path),
                line: at.node.line,
            });
        }
        names.push(name);
    }
    if names.is_empty() {
        return Err(Wrong::missing("layers"));
    }
    let mut layers = Vec::new();
    for (at, name) in items.iter().zip(&names) {
        let mut fields = at.fields()?;
        fields.need("name")?;
        let (wanted, of) = (fields.texts("depends_on")?, fields.path("depends_on"));
        let chosen = fields.texts("arches")?;
        if !chosen.is_empty() && arches.is_empty() {
            return Err(Wrong::value(
                fields.path("arches"),
                "is there, and the manifest has no architectures",
            ));
        }
        let known: Vec<String> = arches.iter().map(|(name, _)| name.clone()).collect();
        let chosen = if chosen.is_empty() { known.clone() } else { chosen };
        layers.push(Logical {
            name: name.clone(),
            config: fields.need("config")?,
            var_files: fields.texts("var_files")?,
            depends_on: places(&of, &wanted, &names)?,
            arches: places(&fields.path("arches"), &chosen, &known)?,
            path: at.path.clone(),
        });
        fields.rest(&mut warnings);
    }
    top.rest(&mut warnings);
    Ok(Manifest {
        layers: concrete(&layers, &arches)?,
        warnings,
    })
}

/// The places of names, each once.
fn places(key: &str, wanted: &[String], all: &[String]) -> Result<Vec<usize>, Wrong> {
    let mut places = Vec::new();
    for name in wanted {
        let unknown = || Wrong::Unknown {
            key: key.to_owned(),
            name: name.escape_debug().to_string(),
        };
        let place = all.iter().position(|known| known == name).ok_or_else(unknown)?;
        if places.contains(&place) {
            return Err(Wrong::value(key, format!("names {} twice", name.escape_debug())));
        }
        places.push(place);
    }
    Ok(places)
}

/// The places of layers, parents first.
fn order(layers: &[Logical]) -> Result<Vec<usize>, Wrong> {
    let mut order = Vec::new();
    while order.len() < layers.len() {
        let ready = |i: &usize| !order.contains(i) && layers[*i].depends_on.iter().all(|parent| order.contains(parent));
        if let Some(next) = (0..layers.len()).find(ready) {
            order.push(next);
            continue;
        }
        // Each of the rest waits for another of it: whoever goes from one to what it waits for comes round.
        let mut path = Vec::new();
        let mut at = (0..layers.len()).find(|i| !order.contains(i));
        while let Some(i) = at.filter(|i| !path.contains(i)) {
            path.push(i);
            at = layers[i]
                .depends_on
                .iter()
                .copied()
                .find(|parent| !order.contains(parent));
        }
        let mut ring: Vec<usize> = path.into_iter().skip_while(|i| Some(*i) != at).collect();
        ring.sort_unstable();
        return Err(Wrong::Cycle {
            layers: ring.into_iter().map(|i| layers[i].name.clone()).collect(),
        });
    }
    Ok(order)
}

fn concrete(layers: &[Logical], arches: &[(String, Vec<String>)]) -> Result<Vec<Concrete>, Wrong> {
    let mut all = Vec::<Concrete>::new();
    for i in order(layers)? {
        let layer = &layers[i];
        let each: Vec<Option<usize>> = if arches.is_empty() {
            vec![None]
        } else {
            layer.arches.iter().map(|arch| Some(*arch)).collect()
        };
        for arch in each {
            let arch = arch.map(|arch| &arches[arch]);
            let name = arch.map(|(name, _)| name.clone());
            let mut parents = Vec::new();
            for parent in &layer.depends_on {
                let parent = &layers[*parent].name;
                let place = all.iter().position(|made| made.layer == *parent && made.arch == name);
                parents.push(place.ok_or_else(|| {
                    let arch = name.clone().unwrap_or_default();
                    Wrong::value(
                        format!("{}.depends_on", layer.path),
                        format!("names {parent}, which is not built for {arch}"),
                    )
                })?);
            }
            let mut var_files = arch.map(|(_, files)| files.clone()).unwrap_or_default();
            var_files.extend(layer.var_files.clone());
            all.push(Concrete {
                layer: layer.name.clone(),
                arch: name,
                config: layer.config.clone(),
                var_files,
                parents,
            });
        }
    }
    Ok(all)
}

impl Concrete {
    /// Its name among those for other architectures: `base-x86_64`, or `base` if the manifest has no architectures.
    pub fn name(&self) -> String {
        self.arch
            .as_ref()
            .map_or_else(|| self.layer.clone(), |arch| format!("{}-{arch}", self.layer))
    }
}

impl Manifest {
    /// The tags and the variables of all layers, in the order of [`Self::layers`]. `given` are those of options, which count more than
    /// files of variables, and less than what is computed: `tag`, `arch`, `PARENT_tag` and `parent_tag`.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or a layer file is refused.
    pub fn tags(&self, given: &BTreeMap<String, String>, inputs: &mut dyn Inputs) -> Result<Vec<Resolved>, Wrong> {
        let mut all = Vec::<Resolved>::new();
        for layer in &self.layers {
            let mut variables = BTreeMap::new();
            for path in &layer.var_files {
                variables.extend(read_variables(&text(inputs, path)?)?);
            }
            variables.extend(given.clone());
            variables.extend(layer.arch.clone().map(|arch| ("arch".to_owned(), arch)));
            let parents: Vec<String> = layer.parents.iter().map(|parent| all[*parent].tag.clone()).collect();
            for (parent, tag) in layer.parents.iter().zip(&parents) {
                variables.insert(
                    format!("{}_tag", self.layers[*parent].layer.replace('-', "_")),
                    tag.clone(),
                );
            }
            if let [tag] = parents.as_slice() {
                variables.insert("parent_tag".to_owned(), tag.clone());
            }
            variables.insert("tag".to_owned(), "__self_tag__".to_owned());
            let rendered = template::render(&text(inputs, &layer.config)?, &variables)?;
            let tag = digest::tag(&rendered, &parents, inputs)?;
            variables.insert("tag".to_owned(), tag.clone());
            all.push(Resolved { tag, variables });
        }
        Ok(all)
    }
}

fn text(inputs: &mut dyn Inputs, path: &str) -> Result<String, Wrong> {
    let wrong = |why| Wrong::Input {
        path: path.to_owned(),
        why,
    };
    let bytes = inputs.file(Base::Manifest, path).map_err(wrong)?;
    String::from_utf8(bytes).map_err(|_| wrong("it is not UTF-8".to_owned()))
}
